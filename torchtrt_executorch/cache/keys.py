"""Cache keys: a digest of program, weights, settings, and the releases that build.

What isn't known to be in the digest, whole, makes it None: a Triton kernel of the user's, a converter
that was registered, a tensor of another class. Then it is built each time.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from importlib.metadata import distributions
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from torchtrt_executorch import __version__, overlay
from torchtrt_executorch.cache.switches import switches
from torchtrt_executorch.digests import digest_of
from torchtrt_executorch.nogpu.target.gpu_description import chosen
from torchtrt_executorch.overlay.served import PATCHES

#: Distributions whose version can change what is built.
_BUILDERS = (
    "torch",
    "tensorrt",
    "executorch",
    "triton",
    "nvidia",
    "ziglang",
    "numpy",
    "sympy",
)
#: Variables of the environment likewise, and which of them don't: this package's own, and folders.
_VARIABLES = (
    *("TORCH", "PYTORCH", "TRITON", "CUDA", "AOT", "INDUCTOR", "ATEN_CPU", "PTXAS"),
    *("CC", "CXX", "CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "NVCC"),
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH"),
)
#: Inductor sets some of the latter, in the process that first compiles; the target is a value of its own.
_NO_MATTER = re.compile("TORCHTRT_EXECUTORCH|TORCHTRT_GPU$|.*_CACHE_DIR$")
#: Operators of which a name says all that there is to know; others may be anybody's.
_NAMESPACES = frozenset(
    {
        "aten",
        "prims",
        "quantized_decomposed",
        "torchao",
        "dim_order_ops",
        "executorch_cuda",
    }
)
#: Packages of functions, likewise.
_HOMES = frozenset({"_operator", "builtins", "math", "torch", "torch_tensorrt"})
_CONTROL_FLOW = frozenset({"cond", "while_loop", "map_impl", "scan"})
_EDGE = "executorch.exir.dialects.edge._ops.EdgeOpOverload"
_LITERAL = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class _UnknownError(Exception):
    """Something of which it isn't known what it is made of."""


def key(*values: Any) -> str | None:
    """Return the digest of ``values`` and of all that builds; None if it isn't known of all."""
    return _key(builders, values)


def key_for_gpu(*values: Any) -> str | None:
    """Return what :func:`key` does, for values that tell the target themselves, as far as it matters."""
    return _key(lambda: {**builders(), "target": None}, values)


def _key(built_by: Callable[[], dict[str, Any]], values: Sequence[Any]) -> str | None:
    state = _State()
    try:
        state.add(built_by())
        for value in values:
            state.add(value)
    except _UnknownError:
        return None
    return state.hexdigest()


class _State:
    """A digest in the making. Each value has its kind and length, so that none runs into another."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._nodes: dict[Node, int] = {}

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        if type(value) in _LITERAL:
            self._words(type(value).__name__, repr(value))
        elif isinstance(value, Node):
            self._words("node", str(self._nodes[value]))
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._symbol(value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, _NAMED):
            self._words(type(value).__name__, str(value))
        elif isinstance(value, Enum):
            self._words(_name(type(value)), value.name)
        elif isinstance(value, (list, tuple)):
            self._words("sequence", str(len(value)))
            for item in value:
                self.add(item)
        elif isinstance(value, (set, frozenset)):
            self.add(sorted(key_of(item) for item in value))
        elif isinstance(value, Mapping):
            self.add([[key, value[key]] for key in sorted(value, key=str)])
        elif isinstance(value, slice):
            self.add(["slice", value.start, value.stop, value.step])
        elif isinstance(value, GraphModule):
            self._graph(value.graph, value)
        elif isinstance(value, ExportedProgram):
            self._program(value)
        elif callable(value):
            self._function(value)
        else:
            self._object(value)

    def _words(self, *texts: str) -> None:
        for word in texts:
            data = word.encode()
            self._hash.update(b"%d:" % len(data))
            self._hash.update(data)

    def _symbol(self, value: Any) -> None:
        node = value.node
        bounds = node.shape_env.bound_sympy(node.expr) if node.shape_env else ""
        self._words("symbol", str(node.expr), str(bounds))

    def _tensor(self, value: torch.Tensor) -> None:
        fake = isinstance(value, FakeTensor)
        if not fake and type(value) not in _TENSORS or value.layout != torch.strided:
            raise _UnknownError(type(value))
        self._words("tensor", str(value.dtype), str(value.device))
        self.add([[*value.shape], [*value.stride()], fake or value.is_meta])
        if not fake and not value.is_meta:
            self._hash.update(digest_of(value))

    def _graph(self, graph: Graph, owner: Any) -> None:
        self._words("graph", str(len(graph.nodes)))
        for index, node in enumerate(graph.nodes):
            self._nodes[node] = index
            self._words(node.op, node.name)
            if node.op in ("call_function", "call_method"):
                # It names layers. Upstream takes it from placeholders while it builds another engine. Its keys may be
                # addresses of modules.
                layers = node.meta.get("nn_module_stack") or {}
                self.add([node.target, str([*layers.values()])])
            elif node.op in ("get_attr", "call_module"):
                value = owner
                for name in str(node.target).split("."):
                    value = getattr(value, name)
                self.add([str(node.target), value])
            else:
                self.add(str(node.target))
            self.add([node.args, node.kwargs])
            self.add(node.meta.get("val"))

    def _program(self, program: ExportedProgram) -> None:
        self._graph(program.graph, program.graph_module)
        signature = program.graph_signature
        self.add([signature.input_specs, signature.output_specs])
        names = {str(name): str(r) for name, r in program.range_constraints.items()}
        self.add([names, program.state_dict, program.constants])

    def _function(self, value: Any) -> None:
        if _name(type(value)) == _EDGE:
            value = value._op
            self._words("edge")
        module = str(getattr(value, "__module__", None)).partition(".")[0]
        name = getattr(value, "__qualname__", "<")
        if isinstance(value, OpOverload):
            known, name = value.namespace in _NAMESPACES, str(value)
        elif isinstance(value, HigherOrderOperator):
            name = str(value)
            known = name in _CONTROL_FLOW
        else:
            known = isinstance(value, (BuiltinFunctionType, FunctionType))
            known = known and module in _HOMES and "<" not in name
        if not known:
            raise _UnknownError(value)
        self._words("function", module, name)

    def _object(self, value: Any) -> None:
        """Add what is in an object of upstream's own classes, which have no other state."""
        kind = type(value)
        if not kind.__module__.startswith(
            ("torch_tensorrt.", "torch.export.", "executorch.")
        ):
            raise _UnknownError(kind)
        if dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            fields |= getattr(value, "__dict__", {})
        elif hasattr(value, "__dict__"):
            fields = dict(vars(value))
        else:
            raise _UnknownError(kind)
        example = fields.pop(
            "torch_tensor", None
        )  # of an Input: its shape and dtype count
        if example is not None:
            fields["torch_tensor"] = [str(example.dtype), [*example.shape]]
        self._words("object", _name(kind))
        self.add(fields)


def key_of(value: Any) -> str:
    """Return the digest of one value."""
    state = _State()
    state.add(value)
    return state.hexdigest()


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def builders() -> dict[str, Any]:
    """Return who builds: versions, our own sources and patches, the machine, the environment."""
    return {
        "switches": switches(),  # first: it imports what patches are for
        "installed": installed(),
        "patches": patches(),
        "machine": machine(),
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_VARIABLES) and not _NO_MATTER.match(name)
        },
        "gpu": gpu(),
        "target": [gpu.text for gpu in chosen()],
    }


def patches() -> dict[str, str] | None:
    """Return what became of each patch here: some of them are code that is built."""
    statuses = overlay.statuses()
    return statuses and {name: status.state.value for name, status in statuses.items()}


@functools.cache
def installed() -> dict[str, str]:
    versions = {
        str(distribution.name): distribution.version
        for distribution in distributions()
        if str(distribution.name).lower().startswith(_BUILDERS)
    }
    return {**versions, "python": sys.version, "ours": _own_sources()}


def _own_sources() -> str:
    """Return the digest of this distribution's files, which may change between two releases."""
    roots = [str(Path(__file__).parents[1])]
    for name in ("torch_tensorrt", "executorch.backends", "executorch.exir"):
        spec = importlib.util.find_spec(f"{PATCHES}{name}")
        roots += (spec and spec.submodule_search_locations) or ()
    state = hashlib.sha256(__version__.encode())
    for root in map(Path, roots):
        for file in sorted(root.rglob("*.py")):
            state.update(str(file.relative_to(root)).encode())
            state.update(file.read_bytes())
    return state.hexdigest()


@functools.cache
def machine() -> list[str]:
    """Return what a compiler that builds for just this processor goes by."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    told = {
        line for line in lines if line.startswith(("model name", "flags", "Features"))
    }
    return [platform.platform(), platform.machine(), *sorted(told)]


def gpu() -> list[str]:
    """Return what kernels are timed on: the GPU and its driver."""
    if not torch.cuda.is_available():
        return []
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        driver = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        driver = ""
    return [str(properties), driver]
