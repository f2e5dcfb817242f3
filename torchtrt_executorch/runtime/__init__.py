"""Run a ``.pte`` in a PyTorch process: :func:`load` it, call it, and see what it copied."""

from torchtrt_executorch.runtime.delegates import (
    Backend,
    Delegate,
    DelegateContext,
    register_backend,
)
from torchtrt_executorch.runtime.errors import (
    DeviceError,
    InputError,
    InstructionError,
    ModeError,
    ProgramError,
)
from torchtrt_executorch.runtime.inputs import on_device
from torchtrt_executorch.runtime.method import Method
from torchtrt_executorch.runtime.operators.kernels import register_kernel
from torchtrt_executorch.runtime.plans.plan import BackendInfo, ValueInfo
from torchtrt_executorch.runtime.profile.history import Timing
from torchtrt_executorch.runtime.profile.profiling import Profile
from torchtrt_executorch.runtime.profile.stats import Staging, Stats, Transfers
from torchtrt_executorch.runtime.program import Program, load, save_stand_ins
from torchtrt_executorch.runtime.tensors.values import Value

__all__ = [
    "BackendInfo",
    "Backend",
    "Delegate",
    "DelegateContext",
    "DeviceError",
    "InputError",
    "InstructionError",
    "Method",
    "ModeError",
    "Profile",
    "Program",
    "ProgramError",
    "Staging",
    "Stats",
    "Timing",
    "Transfers",
    "Value",
    "ValueInfo",
    "load",
    "on_device",
    "register_backend",
    "register_kernel",
    "save_stand_ins",
]
