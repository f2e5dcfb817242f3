"""Generate with a language model's program, and describe one to its hosts."""

from torchtrt_executorch.generation.generator import Generator, Tokens
from torchtrt_executorch.generation.metadata import Metadata, constant_methods

__all__ = ["Generator", "Metadata", "Tokens", "constant_methods"]
