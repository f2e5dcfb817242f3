"""What delegates carry in a ``.pte``: engine blobs, AOTInductor libraries, and what these ask of a host."""
