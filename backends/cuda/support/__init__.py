"""Which operators ``CudaBackend`` can compile, found by a dry run of its ``preprocess``."""
