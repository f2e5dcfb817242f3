"""Stand-ins of shared libraries that are missing: stub libraries, link stubs and an empty plugin registry."""
