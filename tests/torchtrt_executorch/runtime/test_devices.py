"""``simulate_devices``: a ``.pte`` that hands a tensor to the wrong side is reported."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any, Callable, final

import pytest
import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    schema,
)
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import (
    generate_partitions_from_list_of_nodes,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from torch.export import ExportedProgram, export

from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.runtime import (
    DeviceError,
    ProgramError,
    Staging,
    Transfers,
    load,
)

from ...lowering import delegates, lower
from . import programs
from .test_methods import edited, instructions

pytestmark = programs.needs_device_copies


@final
class CudaPayloadTestBackend(BackendDetails):
    """Puts into a program what ExecuTorch's ``CudaBackend`` does.

    Under a name of its own: ExecuTorch finds backends by theirs, in all tests of this process.
    """

    #: The library and its weights.
    blobs = b"library", b"weights"

    @staticmethod
    def preprocess(
        program: ExportedProgram, specs: list[CompileSpec]
    ) -> PreprocessResult:
        store = NamedDataStore()
        library, weights = CudaPayloadTestBackend.blobs
        store.add_named_data("a_so_blob", library)
        store.add_named_data("a_weights_blob", weights)
        named = store.get_named_data_store_output()
        return PreprocessResult(b"a_so_blob\na_weights_blob", data_store_output=named)


class MulOn(Partitioner):
    """Takes every multiplication, for ``device``."""

    def __init__(self, device: str) -> None:
        super().__init__()
        specs = [CompileSpec("target_device", device.encode())]
        self._mul = DelegationSpec(CudaPayloadTestBackend.__name__, specs)

    def partition(self, program: ExportedProgram) -> PartitionResult:
        nodes = [n for n in program.graph.nodes if "mul" in str(n.target)]
        partitions = generate_partitions_from_list_of_nodes(
            program.graph_module, pattern_list=[[node] for node in nodes]
        )
        for partition in partitions:
            for node in partition.nodes:
                node.meta["delegation_tag"] = f"mul{partition.id}"
        tags = {f"mul{p.id}": self._mul for p in partitions}
        return PartitionResult(tagged_exported_program=program, partition_tags=tags)


def lowered(device: str) -> EdgeProgramManager:
    """Host, device, host."""
    inputs = (torch.randn(2, 3),)
    edge = lower(lambda x: ((x + 1) * x).relu(), inputs, MulOn(device))
    for module in delegates(edge):
        module._backend_id = "CudaBackend"
    return edge


def export_on(device: str) -> bytes:
    return bytes(lowered(device).to_executorch().buffer)


build = cache(export_on)


def _run(edit: Callable[[schema.Program], None], device: str = "cuda:0") -> Any:
    """Run it in a simulation; what that finds wrong with devices is also known from the plan alone."""
    pte = edited(build(device), edit)
    program = load(pte, simulate_devices=True)
    (method,) = read(pte).methods
    try:
        program.run(torch.randn(2, 3))
    except DeviceError as error:
        index, text = method.faults[0]
        assert f"instruction {index} (" in str(error)
        (finding,) = [f for f in advise(read(pte)) if f.name == "unsound"][:1]
        assert finding.level == "warning" and text in finding.text
        raise
    assert method.faults == []
    return program.stats()


def _without(name: str) -> Callable[[schema.Program], None]:
    """Remove a copy: who read its result reads its source."""

    def edit(program: schema.Program) -> None:
        plan = program.execution_plan[0]
        calls = instructions(program, schema.KernelCall)
        names = [plan.operators[call.op_index].name for call in calls]
        copy = calls[names.index(f"et_copy::{name}")]
        source, target = copy.args[:2]
        chain = plan.chains[0]
        chain.instructions = [i for i in chain.instructions if i.instr_args is not copy]
        for instruction in chain.instructions:
            args = instruction.instr_args.args
            args[:] = [source if index == target else index for index in args]

    return edit


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_a_sound_program_runs_and_counts_its_copies(device: str) -> None:
    stats = _run(lambda program: None, device)
    assert stats.copies == {
        "host_to_device": Transfers(2, 2 * 24),
        "device_to_host": Transfers(1, 24),
    }
    assert stats.staged == {}
    # Without a GPU the library can't run, which has to be said.
    assert stats.not_run == {"forward/0 (CudaBackend)"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("_h2d_copy", r"3 \(forward/0 \(CudaBackend\)\): value \d lives on cpu.*_h2d_copy"),
        ("_d2h_copy", r"5 \(aten::relu.out\): value \d+ lives on cuda:0.*host kernel.*_d2h_"),
    ],
)  # fmt: skip
def test_what_a_missing_copy_would_have_moved(name: str, message: str) -> None:
    """No delegate on a device takes a host's tensor, and no kernel of the host a device's."""
    with pytest.raises(DeviceError, match=f"instruction {message}"):
        _run(_without(name))


@pytest.mark.parametrize(
    ("backend", "given", "kind"),
    [
        ("CudaBackend", schema.Double(1.5), "float"),
        ("CudaBackend", schema.DoubleList([1.5]), "list"),
        ("XnnpackBackend", schema.DoubleList([1.5]), "list"),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_no_tensor_is_named_as_an_argument(
    backend: str, given: Any, kind: str, which: int
) -> None:
    """Not as a slot of the file, which nobody has seen."""

    def edit(program: schema.Program) -> None:
        (plan,) = program.execution_plan
        plan.delegates[0].id = backend
        (call,) = instructions(program, schema.DelegateCall)
        plan.values.append(schema.EValue(given))
        call.args[which] = len(plan.values) - 1

    program = load(edited(build("cuda:0"), edit), simulate_devices=True)
    said = rf"forward/0 .*: its input {which} is a {kind}"
    with pytest.raises(ProgramError, match=said):
        program.run(torch.randn(2, 3))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_label_that_is_not_where_the_memory_is(which: int) -> None:
    def relabel(program: schema.Program) -> None:
        (call,) = instructions(program, schema.DelegateCall)
        value = program.execution_plan[0].values[call.args[which]].val
        value.extra_tensor_info.device_index = 1

    said = r"instruction \d \(.*value \d+ is labelled cuda:1.*on cuda:0"
    with pytest.raises(DeviceError, match=said):
        _run(relabel)


def _arena_on_another_gpu(program: schema.Program) -> None:
    plan = program.execution_plan[0]
    for entry in plan.non_const_buffer_device:
        entry.device_index = 1
    for value in plan.values:
        extra = getattr(value.val, "extra_tensor_info", None)
        if extra is not None:
            extra.device_index = 1


def _copy_in_the_wrong_direction(program: schema.Program) -> None:
    for operator in program.execution_plan[0].operators:
        if operator.name == "et_copy::_h2d_copy":
            operator.name = "et_copy::_d2h_copy"


def _condition_on_a_device(program: schema.Program) -> None:
    plan = program.execution_plan[0]
    (call,) = instructions(program, schema.DelegateCall)
    plan.values[call.args[-1]].val.scalar_type = schema.ScalarType.BOOL
    jump = schema.JumpFalseCall(call.args[-1], destination_instruction=0)
    plan.chains[0].instructions.insert(0, schema.Instruction(jump))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_arena_on_another_gpu, r"forward/0 \(CudaBackend\).*lives on cuda:1.*on cuda:0"),
        (_copy_in_the_wrong_direction, "copies from a device, but is given"),
        (_condition_on_a_device, "the host reads it"),
    ],
)  # fmt: skip
def test_a_value_on_the_wrong_side(edit: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        _run(edit)


@pytest.mark.parametrize("name", ["_h2d_copy", "_d2h_copy"])
def test_a_branch_that_no_run_takes(name: str) -> None:
    """The plan shows it, and so a simulation that doesn't take it."""

    def skip(program: schema.Program) -> None:
        _without(name)(program)
        plan = program.execution_plan[0]
        plan.values.append(schema.EValue(schema.Bool(False)))
        steps = plan.chains[0].instructions
        for step in steps:
            assert not isinstance(step.instr_args, schema.JumpFalseCall)
        jump = schema.JumpFalseCall(len(plan.values) - 1, len(steps) + 1)
        steps.insert(0, schema.Instruction(jump))

    pte = edited(build("cuda:0"), skip)
    with pytest.raises(DeviceError, match=f"instruction {4 if 'h2d' in name else 6}"):
        load(pte, simulate_devices=True).run(torch.randn(2, 3))
    (method,) = read(pte).methods
    assert method.faults


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a host without CUDA")
def test_without_a_simulation_a_missing_gpu_is_an_error() -> None:
    said = "needs a CUDA device.*simulate_devices=True"
    with pytest.raises(ProgramError, match=said):
        load(build("cuda:0")).method()


@pytest.mark.parametrize("payload", [b"b\nb_weights", b"one", b"a\nb\nc", b"\xff\xfe"])
def test_a_payload_that_names_no_library(payload: bytes) -> None:
    """Or one that is not there."""

    def spoil(program: schema.Program) -> None:
        (inline,) = program.backend_delegate_data
        inline.data = payload

    missing = payload == b"b\nb_weights"
    said = "'b'.*data_files" if missing else r"forward/0 \(CudaBackend\): the payload"
    with pytest.raises(ProgramError, match=said):
        _run(spoil)


@pytest.mark.parametrize("value", [b"nonsense", b"cuda:x", b"\xff"])
def test_a_target_device_that_is_none(value: bytes) -> None:
    def spoil(program: schema.Program) -> None:
        (delegate,) = program.execution_plan[0].delegates
        delegate.compile_specs[0].value = value

    with pytest.raises(ProgramError, match="is no device"):
        _run(spoil)


def test_without_device_memory_the_cuda_delegate_moves_its_tensors() -> None:
    """Labels alone move nothing: so it was planned before executorch 1.4."""
    config = ExecutorchBackendConfig(enable_non_cpu_memory_planning=False)
    pte = bytes(lowered("cuda:0").to_executorch(config).buffer)
    program = load(pte, simulate_devices=True)
    program.run(torch.randn(2, 3))
    staging = Staging(1, Transfers(2, 2 * 24), Transfers(1, 24))
    assert program.stats().staged == {"forward/0 (CudaBackend)": staging}
    assert program.stats().copies == {}


def test_a_cpu_delegate_takes_no_device_tensor() -> None:
    def move(program: schema.Program) -> None:
        plan = program.execution_plan[0]
        (call,) = instructions(program, schema.DelegateCall)[:1]
        tensor, cuda = plan.values[call.args[0]].val, schema.DeviceType.CUDA
        tensor.extra_tensor_info = schema.ExtraTensorInfo(device_type=cuda)
        sizes, where = plan.non_const_buffer_sizes, tensor.allocation_info
        sizes.append(sizes[where.memory_id])
        where.memory_id = len(sizes) - 1
        device = schema.NonConstBufferDevice(where.memory_id, cuda, 0)
        plan.non_const_buffer_device = [device]

    pte = edited(programs.build(programs.named("xnnpack_mlp")), move)
    said = "XnnpackBackend.*takes tensors on cpu.*_d2h_copy"
    with pytest.raises(DeviceError, match=said):
        load(pte, simulate_devices=True).run(torch.randn(3, 8))


class Scaled(torch.nn.Module):
    """``x * y`` and a weight, so that the library has one to be given."""

    def __init__(self) -> None:
        super().__init__()
        # AOTInductor inlines short vectors, and keeps what has more dimensions.
        self.scale = torch.nn.Parameter(torch.arange(1.0, 7.0).view(2, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y * self.scale


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs g++")
def test_an_aotinductor_library_with_its_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The path of ``CudaBackend``, with a library that AOTInductor built for the CPU."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    with torch.no_grad():
        files = torch._inductor.aot_compile(
            export(Scaled(), (x, y)).module(),
            (x, y),
            options={
                "aot_inductor.package": True,
                "aot_inductor.package_constants_in_so": False,
                "aot_inductor.package_constants_on_disk_format": "binary_blob",
            },
        )
    blobs = [
        Path(file).read_bytes()
        for ending in (".wrapper.so", ".blob")
        for file in files
        if str(file).endswith(ending)
    ]
    monkeypatch.setattr(CudaPayloadTestBackend, "blobs", tuple(blobs))
    program = load(export_on("cpu"))
    expected = ((x + 1) * x * torch.arange(1.0, 7.0).view(2, 3)).relu()
    for _ in range(2):
        torch.testing.assert_close(program.run(x)[0], expected)
    monkeypatch.setattr(CudaPayloadTestBackend, "blobs", (b"no library", b"weights"))
    with pytest.raises(ProgramError, match="the library can't be loaded"):
        load(export_on("cpu")).method()
