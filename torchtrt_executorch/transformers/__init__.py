"""What transformers' own ``ExecutorchExporter`` gets: TensorRT as a backend, and programs that run."""
