"""The facts of a ``.pte``, as every view of it reads them."""
