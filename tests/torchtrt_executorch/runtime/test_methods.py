"""Methods: description, state, ownership, threads, registries, and errors that say what to do."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, schema, to_edge
from executorch.exir._serialize._program import (
    deserialize_pte_binary,
    serialize_pte_binary,
)
from torch import nn
from torch.export import Dim, export

from torchtrt_executorch.runtime import (
    Delegate,
    InputError,
    InstructionError,
    Program,
    ProgramError,
    load,
    register_backend,
    register_kernel,
)
from torchtrt_executorch.runtime.profile.stats import Tally

from ...calls import counted
from ...lowering import input_and_output_planning, lower
from . import programs


def edited(pte: bytes, edit: Callable[[schema.Program], None]) -> bytes:
    """``pte`` with its program changed, as a broken exporter would have written it."""
    file = deserialize_pte_binary(pte)
    edit(file.program)
    return bytes(serialize_pte_binary(file, extract_delegate_segments=True))


def instructions(program: schema.Program, kind: type) -> list[Any]:
    (chain,) = program.execution_plan[0].chains
    return [i.instr_args for i in chain.instructions if isinstance(i.instr_args, kind)]


def _program(
    name: str, edit: Callable[[schema.Program], None] | None = None
) -> Program:
    """Load one of ``programs``, as ``edit`` changes it."""
    pte = programs.build(programs.named(name))
    return load(edited(pte, edit) if edit else pte)


def _refused(name: str, edit: Callable[[schema.Program], None], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        _program(name, edit).method()


def _of(model: nn.Module | Callable[..., Any], *inputs: Any) -> Program:
    return load(lower(model, inputs).to_executorch().buffer)


def test_describes_inputs_and_outputs() -> None:
    method = _program("dynamic_mlp").method("forward")
    (given,), (returned,) = method.inputs, method.outputs
    assert (given.shape, given.dtype, given.dynamic) == ((8, 8), torch.float32, True)
    assert given.device == torch.device("cpu")
    assert (returned.name, returned.kind) == ("output 0", "tensor")
    assert returned.shape == (8, 4)
    kinds = [value.kind for value in _program("constant_output").method().outputs]
    assert kinds == ["tensor", "tensor", "int", "NoneType"]


def test_several_methods_keep_their_own_state() -> None:
    class Two(programs.Counter):
        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    two, x = Two(), torch.ones(2)
    exported = {"forward": export(two, (x,))}
    two.forward = two.twice  # type: ignore[method-assign]
    exported["twice"] = export(two, (x,))
    edge = to_edge(exported, constant_methods={"size": 7, "names": ["a", 2.5]})
    program = load(edge.to_executorch().buffer)
    assert set(program.method_names) == {"forward", "twice", "size", "names"}
    assert program.method("size")() == (7,)
    assert program.method("names")() == ("a", 2.5)
    assert [program.run(x)[0][0].item() for _ in range(3)] == [1, 2, 3]
    assert program.method("twice")(x)[0].tolist() == [2, 2]
    assert program.method("forward") is program.method("forward")
    assert program.stats().calls == {"forward": 3, "twice": 1, "size": 1, "names": 1}
    for ask in (program.method, program.inputs, program.outputs):
        with pytest.raises(ProgramError, match="no method 'other'; the program has f"):
            ask("other")


def test_initial_state_of_a_mutable_buffer() -> None:
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    class Starts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor([40.0, 50.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(x)
            return self.count.clone()

    x = torch.tensor([1.0, 2.0])
    config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(["count"])])
    program = load(to_edge(export(Starts(), (x,))).to_executorch(config).buffer)
    assert program.run(x)[0].tolist() == [41, 52]
    assert program.run(x)[0].tolist() == [42, 54]


def test_results_are_the_caller_s_and_inputs_stay_untouched() -> None:
    for name in ("counter", "unplanned_io", "constant_output"):
        case = programs.named(name)
        method = _program(name).method("forward")
        first, second = case.calls()[:2]
        kept = [x.clone() for x in first]
        result = [r for r in method(*first) if isinstance(r, torch.Tensor)]
        copies = [r.clone() for r in result]
        method(*second)
        for ours, copy in zip(result, copies, strict=True):
            assert torch.equal(ours, copy)
            ours.fill_(-7)
        for given, copy in zip(first, kept, strict=True):
            assert torch.equal(given, copy)


def test_threads_take_turns() -> None:
    method = _program("counter").method("forward")
    seen: list[float] = []

    def call(_: int) -> None:
        for _ in range(20):
            seen.append(method(torch.ones(3))[0][0].item())

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(call, range(4))] == [None] * 4
    assert sorted(seen) == list(range(1, 81))


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": True}])
def test_delegates_go_with_their_program(options: Any) -> None:
    """Not with Python's next collection, which may come while TensorRT holds a lock."""
    pte = programs.build(programs.named("xnnpack_mlp"))
    gc.collect()
    gc.disable()
    try:
        program = load(pte, **options)
        method = program.method()
        method(torch.randn(3, 8))
        method.clone()(torch.randn(3, 8))
        kept = [weakref.ref(each) for each in method._delegates.values()]
        kept.append(weakref.ref(method))
        del program, method
        assert [each() for each in kept] == [None] * len(kept)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.nn.functional.pad(x, (-1, -1)), (3, 5)),
        (lambda x: x.sum(-1) * 2 + 1 + x.cumsum(0), ()),
    ],
)
def test_what_executorch_s_own_kernels_refuse_or_end_the_process_at(
    function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(_of(function, x).run(x)[0], function(x))


def test_tensors_without_elements() -> None:
    (output,) = _of(nn.ReLU(), torch.rand(0, 3)).run(torch.rand(0, 3))
    assert output.shape == (0, 3) and output.dtype == torch.float32


def test_inputs_in_another_memory_order_are_laid_out() -> None:
    method = _program("unplanned_io").method("forward")
    x = torch.randn(8, 4)
    assert torch.equal(method(x.t())[0], method(x.t().contiguous())[0])


def test_clones_run_side_by_side_with_state_of_their_own() -> None:
    method = _program("counter").method()
    x = torch.ones(3)
    assert [method(x)[0][0].item() for _ in range(2)] == [1, 2]
    clone = method.clone()
    assert [clone(x)[0][0].item() for _ in range(2)] == [1, 2]
    assert method(x)[0][0].item() == 3
    original = _program("xnnpack_mlp").method()
    calls = programs.named("xnnpack_mlp").calls()  # seeded for all threads: once
    expected = [original(*inputs)[0] for inputs in calls]

    def results(method: Any) -> list[torch.Tensor]:
        return [method(*inputs)[0] for inputs in calls * 20]

    with ThreadPoolExecutor(3) as threads:
        each = original, original.clone(), original.clone()
        for found in threads.map(results, each):
            assert all(map(torch.equal, found, expected * 20))


def test_executorch_is_told_once_of_a_shape_that_stays() -> None:
    """And what came of it isn't fetched again."""
    method = _program("xnnpack_dynamic").method()
    method(torch.rand(3, 8))
    (delegate,) = method._delegates.values()
    native, calls = delegate._native, []  # type: ignore[attr-defined]
    for name in ("call", "get_outputs"):
        original = getattr(native, name)

        def counted(*args: Any, original: Any = original) -> Any:
            calls.append(1)
            return original(*args)

        setattr(native, name, counted)
    assert method(torch.ones(3, 8))[0].shape == (3, 4) and not calls
    assert method(torch.ones(5, 8))[0].shape == (5, 4) and len(calls) == 1


def test_a_move_keeps_to_the_kind_of_value() -> None:
    """What reads it afterwards goes by the dtype that the program gives the target."""

    def widen(program: schema.Program) -> None:
        plan = program.execution_plan[0]
        target = instructions(program, schema.MoveCall)[0].move_to
        plan.values[target].val.scalar_type = schema.ScalarType.BYTE

    _refused("cond", widen, "float32 and torch.uint8")


def test_a_kernel_costs_little_more_than_torch_s() -> None:
    """Checks are made when a method is bound: a call makes none that torch doesn't."""
    steps = 100

    def repeated(x: torch.Tensor) -> torch.Tensor:
        for _ in range(steps):
            x = torch.sin(x)
        return x

    x, y = torch.randn(8), torch.empty(8)
    method = _of(repeated, x).method()
    sin = torch.ops.aten.sin.out

    def ours() -> None:
        method(x)

    def theirs() -> None:
        for _ in range(steps):
            sin(x, out=y)

    ours(), theirs()
    # Per step one more, and a few per call.
    assert counted(ours) < counted(theirs) + 1.5 * steps


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "takes 1 input and is given 0"),
        ((torch.ones(3, 8, dtype=torch.float64),), "float64; it has to be torch.float32"),
        ((torch.ones(3, 9),), r"^input 0 of forward has shape \[3, 9\] where the program allows at most \[8, 8\]"),
        ((torch.ones(9, 8),), "at most"),
        ((torch.ones(8),), "at most"),
        ((3,), "is a int, not a tensor"),
    ],
)  # fmt: skip
def test_wrong_inputs(inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _program("dynamic_mlp").run(*inputs)


def test_numbers_are_part_of_the_program() -> None:
    program = _of(lambda x, factor: x * factor, torch.ones(2), 3)
    assert program.run(torch.ones(2), 3)[0].tolist() == [3, 3]
    with pytest.raises(InputError, match="exported for 3"):
        program.run(torch.ones(2), 4)


def test_kernels_are_found_by_name_or_registered() -> None:
    def rename(program: schema.Program) -> None:
        for operator in program.execution_plan[0].operators:
            if operator.name == "aten::mul":
                operator.name = "mine::multiply"

    _refused("counter", rename, r"instruction \d+: no kernel for .*mine::mul")
    for kernel in (lambda x, y, out: torch.mul(x, y, out=out), torch.ops.aten.mul.out):
        register_kernel("mine::multiply.out", kernel)
        try:
            assert _program("counter", rename).run(torch.ones(3))[0].tolist() == [1] * 3
        finally:
            register_kernel("mine::multiply.out", None)


@pytest.mark.parametrize(
    "name",
    [
        *("aten::from_file.out", "aten::add.Tensor", "aten::add.nothing"),
        *("__class__::x.", "_dir::x.", "load_library::x.", "aten::__init__."),
        "tensorrt::execute_engine.",
        "tensorrt::no_op_placeholder_for_execute_engine.",
        "aten::_convert_indices_from_csr_to_coo.out",
        "aten::set_.source_Storage_storage_offset",
    ],
)
def test_a_program_can_not_name_what_is_no_kernel(name: str) -> None:
    def rename(program: schema.Program) -> None:
        found = program.execution_plan[0].operators[-1]
        found.name, found.overload = name.split(".")

    of_torch = "csr_to_coo" in name or "set_" in name
    _refused("mlp", rename, "ExecuTorch has none" if of_torch else "no kernel for")


def test_enumerations_are_checked_before_torch_sees_them() -> None:
    """torch takes a tensor, or any number, for a dtype, and crashes."""

    def use_as_dtype(program: schema.Program) -> None:
        plan = program.execution_plan[0]
        for call in instructions(program, schema.KernelCall):
            if plan.operators[call.op_index].name == "aten::cumsum":
                call.args[2] = 0

    said = r"instruction \d+: aten::cumsum.out.*argument dtype.*Tensor"
    _refused("cache", use_as_dtype, said)


def test_a_loop_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtrt_executorch.runtime.method.MAX_INSTRUCTIONS", 500)

    def never_done(program: schema.Program) -> None:
        plan = program.execution_plan[0]
        plan.values.append(schema.EValue(schema.Bool(False)))
        jump = schema.JumpFalseCall(len(plan.values) - 1, destination_instruction=0)
        plan.chains[0].instructions.insert(0, schema.Instruction(jump))

    with pytest.raises(InstructionError, match=r"jump if false.*stopped after 500 "):
        _program("mlp", never_done).run(*programs.named("mlp").calls()[0])


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (schema.KernelCall, "op_index", 99),
        (schema.KernelCall, "op_index", -1),
        (schema.KernelCall, "args", [0, 10_000]),
        (schema.KernelCall, "args", [-3]),
        (schema.KernelCall, "args", []),
        (schema.JumpFalseCall, "destination_instruction", 1000),
        (schema.JumpFalseCall, "destination_instruction", -1),
        (schema.JumpFalseCall, "cond_value_index", 1000),
        (schema.MoveCall, "move_to", -1),
        (schema.MoveCall, "move_from", 5000),
    ],
)
def test_indices_are_checked_before_anything_runs(
    kind: type, field: str, value: Any
) -> None:
    def edit(program: schema.Program) -> None:
        setattr(instructions(program, kind)[0], field, value)

    _refused("cond", edit, r"forward: instruction \d+: ")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: setattr(t, "sizes", [2**30, 2**30, 2**30]), "is no shape"),
        (lambda t: setattr(t, "sizes", [-1]), "is no shape"),
        (lambda t: setattr(t, "sizes", [4096]), "no order|arena"),
        (lambda t: setattr(t, "dim_order", [7] * len(t.sizes)), "no order"),
        (lambda t: setattr(t, "storage_offset", 3), "storage offset"),
        (lambda t: setattr(t.allocation_info, "memory_id", 9), "arena 9"),
        (lambda t: setattr(t.allocation_info, "memory_offset_high", 9), "arena"),
        (lambda t: setattr(t.allocation_info, "memory_offset_low", 2), "unaligned"),
    ],
)  # fmt: skip
def test_tensors_stay_in_their_arena(edit: Callable[[Any], None], message: str) -> None:
    def change(program: schema.Program) -> None:
        plan = program.execution_plan[0]
        edit(plan.values[plan.inputs[0]].val)

    _refused("mlp", change, message)


def test_kernel_failures_name_the_instruction() -> None:
    """An index beyond the table, which torch refuses."""
    said = r"forward: instruction \d+ \(aten::embed"
    with pytest.raises(InstructionError, match=said):
        _program("transformer").run(torch.full((1, 4), 99))


def test_an_unknown_backend_says_how_to_add_it() -> None:
    def rename(program: schema.Program) -> None:
        for delegate in program.execution_plan[0].delegates:
            delegate.id = "NoSuchBackend"

    _refused("xnnpack_mlp", rename, "NoSuchBackend.*register_backend")


@pytest.mark.parametrize("args", [[], [0]])
def test_a_delegate_has_to_return_something(args: list[int]) -> None:
    def empty(program: schema.Program) -> None:
        instructions(program, schema.DelegateCall)[0].args = args

    _refused("xnnpack_mlp", empty, "XnnpackBackend.*without a value to return")


def test_a_registered_backend_runs() -> None:
    class Halves(Delegate):
        def execute(self, args: Any) -> None:
            args[-1].write(torch.full((3, 4), 0.5))

    contexts: list[Any] = []

    def backend(context: Any) -> Halves:
        contexts.append(context)
        return Halves()

    register_backend("XnnpackBackend", backend)
    try:
        (result,) = _program("xnnpack_mlp").run(torch.ones(3, 8))
    finally:
        register_backend("XnnpackBackend", None)
    assert result.unique().tolist() == [0.5]
    (context,) = contexts
    assert (context.backend_id, context.num_inputs) == ("XnnpackBackend", 1)
    assert context.name == "forward/0 (XnnpackBackend)"


@pytest.mark.parametrize("makes_results", [False, True])
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("result", ["as planned", "transposed"])
def test_a_registered_backend_is_bound_once(
    makes_results: bool, planned: bool, result: str
) -> None:
    bound: list[Any] = []

    class Sums(Delegate):
        def __init__(self, context: Any) -> None:
            self.makes_results = makes_results

        def bind(self, args: Any) -> Callable[[], None]:
            bound.append(args)

            def run() -> None:
                given, taken = args
                made = given.tensor.sum() + torch.zeros(3, 4)
                if result == "transposed":  # in another memory order, so it is copied
                    made = made.t().contiguous().t()
                # Without memory of its own it has none from the call before, either.
                assert (taken.data is None) == (makes_results and not planned)
                taken.take(made)

            return run

    case = programs.named("xnnpack_mlp")
    config = input_and_output_planning(planned)
    pte = programs.build(dataclasses.replace(case, config=lambda: config))
    register_backend("XnnpackBackend", Sums)
    try:
        method = load(pte).method()
    finally:
        register_backend("XnnpackBackend", None)
    kept = [(n, method(torch.full((3, 8), float(n)))[0]) for n in range(4)]
    for n, result_ in kept:
        assert result_.unique().tolist() == [24.0 * n] and result_.is_contiguous()
    assert len(bound) == 1


def test_statistics_count_by_name() -> None:
    program = _program("map")
    program.run(*programs.named("map").calls()[0])
    stats = program.stats()
    assert stats.calls == {"forward": 1}
    assert stats.kernels["executorch_prim::et_copy_index.tensor"] == 4
    assert stats.delegates == {} and stats.copies == {} and stats.staged == {}


def test_clones_that_are_gone_are_counted_and_keep_nothing() -> None:
    """Each left its counters behind, for as long as the program was there."""

    def tallies() -> int:
        return sum(type(each) is Tally for each in gc.get_objects())

    before, program = tallies(), _program("map")
    method, inputs = program.method(), programs.named("map").calls()[0]
    for _ in range(20):
        method.clone()(*inputs)
    method(*inputs)
    stats = program.stats()
    assert stats.calls == {"forward": 21}
    assert stats.kernels["executorch_prim::et_copy_index.tensor"] == 4 * 21
    # The method's, the last clone's, and those of all before it.
    assert tallies() <= before + 3


def test_a_dynamic_output_may_not_outgrow_its_plan() -> None:
    """A bound that is lowered after export: the kernel's result no longer fits."""

    def narrow(program: schema.Program) -> None:
        plan = program.execution_plan[0]
        plan.values[plan.outputs[0]].val.sizes[0] = 6

    x, shapes = torch.ones(4, 2), ({0: Dim("n", min=2, max=8)},)
    edge = lower(lambda x: torch.cat([x, x]), (x,), dynamic_shapes=shapes)
    program = load(edited(edge.to_executorch().buffer, narrow))
    assert program.run(torch.ones(3, 2))[0].shape == (6, 2)
    said = r"aten::cat.out.*\[8, 2\].*at most \[6, 2\]"
    with pytest.raises(InstructionError, match=said):
        program.run(x)


@pytest.mark.parametrize(
    ("operator", "operands", "result"),
    [
        ("add", (2**62, 2**62), None),
        ("mul", (2**62, 4), None),
        ("mul", (2**62, -2), -(2**63)),
        ("neg", (-(2**63),), None),
        ("sub", (-(2**62), 2**62), -(2**63)),
        ("mod", (-7, 2), 1),
        ("floordiv", (-7, 2), -4),
    ],
)
def test_integers_have_64_bits(
    operator: str, operands: tuple[int, ...], result: int | None
) -> None:
    """Else a few instructions make numbers of gigabytes."""

    def compute(program: schema.Program) -> None:
        plan = program.execution_plan[0]
        first = len(plan.values)
        plan.values += [schema.EValue(schema.Int(n)) for n in (*operands, 0)]
        plan.operators.append(schema.Operator(f"executorch_prim::{operator}", "Scalar"))
        args = list(range(first, len(plan.values)))
        call = schema.KernelCall(len(plan.operators) - 1, args)
        plan.chains[0].instructions.append(schema.Instruction(call))
        plan.outputs = [args[-1]]

    method, inputs = _program("mlp", compute).method(), programs.named("mlp").calls()[0]
    if result is not None:
        assert method(*inputs) == (result,)
        return
    with pytest.raises(InstructionError, match=f"prim::{operator}.*more than 64 bits"):
        method(*inputs)
