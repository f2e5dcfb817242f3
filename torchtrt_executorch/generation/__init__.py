"""Generate with a language model's program, and describe one to its hosts."""

from torchtrt_executorch.generation.generator import Draft, Generator, Tokens
from torchtrt_executorch.generation.in_method import SampledInMethod
from torchtrt_executorch.generation.metadata import Metadata, constant_methods
from torchtrt_executorch.generation.sampling import LogitsProcessor, Sampler

__all__ = [
    "Draft",
    "Generator",
    "LogitsProcessor",
    "Metadata",
    "SampledInMethod",
    "Sampler",
    "Tokens",
    "constant_methods",
]
