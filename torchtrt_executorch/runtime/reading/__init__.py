"""From the bytes of a ``.pte`` to a checked program: nothing here runs, or trusts, what it reads."""
