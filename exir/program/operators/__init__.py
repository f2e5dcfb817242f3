"""Which operators a program may call, and errors that name them."""
