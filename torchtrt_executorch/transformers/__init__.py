"""Extend transformers' ``ExecutorchExporter``: TensorRT as a backend, and programs that run in this runtime."""
