"""Programmatic dependent launch: a kernel is launched while the one before it runs, and waits for its end.

Small kernels take about as long as what lies between two of them: the last blocks of one end, its memory is flushed, the
next one's blocks are launched and compute their indices. From compute capability 9.0 on a launch may overlap with that if the
kernel waits by an instruction of its own. Each kernel waits before its first access to memory but for constants, then allows the next
one's launch. Because all of them wait, the end of one is the end of all before it, also for another stream or the host. Kernels with
much shared memory are launched in order.

Inductor's ``triton.enable_pdl`` writes waits into some of its kernels, not into templates or kernels of others, and
its host code launches none of them so (pytorch/pytorch#194079 changes the latter).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

#: The first compute capability that has the instruction, times ten.
CAPABILITY = 90

#: Bytes of shared memory from which on a kernel is launched in order, and allows no launch before its end. Of such a kernel a multiprocessor
#: holds few blocks, and those that are launched early gather where the kernel before it ended first: on an H200 an MLP of two matmuls takes
#: 54 us so, 46 in order.
LARGE = 48 << 10

WAIT = "griddepcontrol.wait;"
#: Allowing the launch before the wait, or at the kernel's end, is slower: 153 and 166 us on an H200 for six layers of Qwen3 0.6B
#: that take 145 so, and 173 without.
ALLOW = "griddepcontrol.launch_dependents;"

_TARGET = re.compile(r"^\.target sm_(\d+)\w*", re.MULTILINE)
#: Lines that a wait may come after: directives, comments, and arithmetic on indices and parameters.
_BEFORE_WAIT = re.compile(
    r"\s*(?://|\.|\{?\s*$|(?:ld\.param|mov|cvta?|add|sub|mul|mad|shl|shr|and|or|xor|not|setp|selp|div|rem|min|max)\b)"
)

#: A kernel that waits where its first barrier is, behind its loads of constants. Barriers between threads that exchange values come later,
#: and are none. The six layers take 121 us so, with programs that leave a multiprocessor room for the next kernel's (``blocks`` of
#: ``gemv_kernel.py``), 155 with those and each wait first, and 137 with programs of one warp, wherever they wait.
_LOADS_CONSTANTS = "_gemv_kernel"
_BARRIER = re.compile(r"^[ \t]*bar\.sync[ \t]+0;\n", re.MULTILINE)
_EXCHANGE = re.compile(r"^[ \t]*(?:@\S+[ \t]+)?(?:st|shfl|atom|red)\.", re.MULTILINE)

#: The kernel that the driver has loaded may be an image for an older GPU, translated for this one, which doesn't wait:
#: the version of its PTX says so.
_LAUNCH = """
template <class... More>
static inline void launchKernel(
    CUfunction kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t warps,
    uint32_t shared, void* arguments[], cudaStream_t stream, More... more) {
  int ptx = 0;
  CUDA_DRIVER_CHECK(cuFuncGetAttribute(&ptx, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel));
  if (ptx < MINIMUM || shared >= LARGE) {
    launchInOrder(kernel, x, y, z, warps, shared, arguments, stream, more...);
    return;
  }
  CUlaunchAttribute dependent{};
  dependent.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  dependent.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig launch{};
  launch.gridDimX = x;
  launch.gridDimY = y;
  launch.gridDimZ = z;
  launch.blockDimX = 32 * warps;
  launch.blockDimY = launch.blockDimZ = 1;
  launch.sharedMemBytes = shared;
  launch.hStream = stream;
  launch.attrs = &dependent;
  launch.numAttrs = 1;
  CUDA_DRIVER_CHECK(cuLaunchKernelEx(&launch, kernel, arguments, nullptr));
}
""".replace("MINIMUM", str(CAPABILITY)).replace("LARGE", str(LARGE))


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the overrides that make Triton emit waits, and Inductor host code that launches such kernels early.

    All kernels of a library have to be compiled within the scope.
    """
    from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides
    from triton.backends.nvidia.compiler import CUDABackend

    parse: Any = getattr(CUDABackend, "parse_options", None)
    make: Any = getattr(CUDABackend, "make_ptx", None)
    write: Any = getattr(CUDADeviceOpOverrides, "kernel_driver", None)
    if None in (parse, make, write):  # all of them or none
        return {}

    def parse_options(self: Any, options: dict[str, Any]) -> Any:
        # By its options Triton tells kernels on disk apart.
        waits = {"launch_pdl": True} if self.target.arch >= CAPABILITY else {}
        return parse(self, {**options, **waits})

    def make_ptx(
        self: Any, source: Any, metadata: Any, options: Any, capability: int
    ) -> str:
        ptx = make(self, source, metadata, options, capability)
        return waiting(ptx, capability, metadata["shared"])

    def kernel_driver(self: Any) -> str:
        return launching_early(write(self))

    backend = "triton.backends.nvidia.compiler:CUDABackend"
    overrides = "torch._inductor.codegen.cuda.device_op_overrides:CUDADeviceOpOverrides"
    return {
        f"{backend}.parse_options": parse_options,
        f"{backend}.make_ptx": make_ptx,
        f"{overrides}.kernel_driver": kernel_driver,
    }


def waiting(ptx: str, capability: int, shared: int) -> str:
    """Return a kernel's PTX with a wait: before its first access to memory and its first branch, or behind constants that a GEMV loads.

    Args:
        ptx: Of one kernel.
        capability: Compute capability that it is assembled for, 90 for 9.0; below :data:`CAPABILITY` the PTX is returned as it is. PTX for
            an older GPU than that becomes PTX for it.
        shared: The kernel's shared memory, in bytes.
    """
    if capability < CAPABILITY or WAIT in ptx:
        return ptx
    target = _TARGET.search(ptx)
    if target is not None and int(target[1]) < CAPABILITY:
        ptx = _TARGET.sub(f".target sm_{CAPABILITY}", ptx, count=1)
    entry = ptx.index(".entry")
    body = ptx.index("\n{\n", entry) + len("\n{\n")
    wait = f"\t{WAIT}\n" + (f"\t{ALLOW}\n" if shared < LARGE else "")
    if _LOADS_CONSTANTS in ptx[entry:body]:
        barrier = _BARRIER.search(ptx, body)
        if barrier and not _EXCHANGE.search(ptx, body, barrier.start()):
            return ptx[: barrier.start()] + wait + ptx[barrier.end() :]
    lines = ptx[body:].splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if not _BEFORE_WAIT.match(line))
    return ptx[:body] + "".join([*lines[:first], wait, *lines[first:]])


def launching_early(driver: str) -> str:
    """Return AOTInductor's helpers of C++ with a ``launchKernel`` for kernels that wait; unchanged if they have none."""
    own = "static inline void launchKernel("
    if driver.count(own) != 1:
        return driver
    return driver.replace(own, "static inline void launchInOrder(") + _LAUNCH


__all__ = [
    "ALLOW",
    "CAPABILITY",
    "LARGE",
    "WAIT",
    "overrides",
    "launching_early",
    "waiting",
]
