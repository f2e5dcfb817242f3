"""``ordered_streams=False``: what ExecuTorch's C++ runtime may run at the same time is reported."""

from __future__ import annotations

import copy
import functools
import itertools
import re

import pytest
import torch
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.runtime import Delegate, DeviceError, load, register_backend
from torchtrt_executorch.runtime.delegates import inputs_of
from torchtrt_executorch.runtime.plans.analysis import fences
from torchtrt_executorch.runtime.plans.placement_check import find_violations
from torchtrt_executorch.runtime.plans.plan import BackendInfo
from torchtrt_executorch.runtime.plans.reader import read_plans
from torchtrt_executorch.runtime.reading.files import read_program

from ...loading import load_benchmark, load_file
from . import programs as runtime_programs

pytestmark = runtime_programs.needs_device_copies
# The check in C++ shares these.
standin, models = (load_file(f"tests/cpp/{name}.py") for name in ("standin", "models"))
releases = load_file("tests/cpp/releases.py")
delegates_of = releases.delegates_of
OWN, EXECUTORCH = releases.DELEGATE_RELEASES  # whose streams engines are on
MIXED = load_file("tests/cpp/programs.py").MIXED
PROGRAMS = [model for model in models.MODELS if not model.real_only]


@pytest.fixture(autouse=True)
def standins():
    register_backend("CudaBackend", standin.StandInDelegate)
    register_backend("TensorRTBackend", standin.StandInDelegate)
    with delegates_of(OWN):
        yield
    register_backend("CudaBackend", None)
    register_backend("TensorRTBackend", None)


@functools.cache
def lowered(model, backends):
    """The model and its edge program, of which copies are emitted."""
    return load_file("tests/cpp/programs.py").lower(model, False, backends)


@functools.cache
def emitted(model, option="default", side="ours-2.13", backends=("CudaBackend",)):
    programs = load_file("tests/cpp/programs.py")
    module, edge = lowered(model, backends)
    return module, programs.emit(edge, programs.OPTIONS[option](), side).buffer


def plan_of(buffer):
    """What the runtime makes of the only method of a program."""
    (plan,) = read_plans(read_program(buffer, ()), inputs_of).values()
    return plan


def faults(buffer, ordered):
    """What is wrong with a program by its plan alone."""
    plan = plan_of(buffer)

    def about(payload):
        return BackendInfo(
            payload.target_device("cpu"), payload.backend_id != "CudaBackend"
        )

    return [each.text for each in find_violations(plan, about, ordered)]


def check(model, module, buffer, ordered):
    assert faults(buffer, ordered is not False) == []
    program = load(buffer, simulate_devices=True, ordered_streams=ordered)
    module = copy.deepcopy(module)  # which may have state
    for run in range(2):
        x = model.inputs(model.small, run)
        expected = module(x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        torch.testing.assert_close(program.run(x), expected, atol=1e-5, rtol=1e-4)


def refused(model, buffer, words):
    """A run says so, and the plan without one."""
    program = load(buffer, simulate_devices=True, ordered_streams=False)
    with pytest.raises(DeviceError, match=words):
        for run in range(2):
            program.run(model.inputs(model.small, run))
    assert any(re.search(words, text) for text in faults(buffer, False))
    assert faults(buffer, True) == []


class Makes(standin.StandInDelegate):
    makes_results = True


@pytest.mark.parametrize(
    "model, option",
    [(model, option) for model in PROGRAMS for option in model.options],
    ids=lambda value: getattr(value, "name", value),
)
def test_programs_are_in_order_on_streams_of_their_own(model, option):
    """Where delegates make their results, too."""
    module, buffer = emitted(model, option)
    check(model, module, buffer, ordered=False)
    check(model, module, buffer, ordered=None)
    if option != "default":
        register_backend("CudaBackend", Makes)
        check(model, module, buffer, ordered=None)


@pytest.mark.parametrize(
    "name", ["shared-input", "handed-over", "host-reads-both", "reused-memory"]
)
def test_programs_for_one_stream_say_so_and_are_not_in_order_on_several(name):
    model = models.by_name(name)
    module, buffer = emitted(model, side="one-stream")
    check(model, module, buffer, ordered=True)
    check(model, module, buffer, ordered=None)  # the program says what it needs
    refused(model, buffer, r"may .*nothing orders the two on cuda:0")


@pytest.mark.parametrize(
    "backends, words",
    [
        (("CudaBackend", "CudaBackend"), r"which forward/\d .*may still be writing"),
        (("CudaBackend", "TensorRTBackend"), "a copy from that device has to stand"),
        (("TensorRTBackend", "CudaBackend"), "which the copy to .*may still be writing"),
    ],
)  # fmt: skip
def test_who_waits_for_whom(backends, words):
    """On some host none waits for its own work, and engines not for copies to the device."""
    model = models.by_name("handed-over")
    _, buffer = emitted(model, side="upstream", backends=backends)
    refused(model, buffer, words)


def test_engines_wait_for_one_another():
    """They share a stream: what they hand over needs no copy, and what a copy hands them needs one."""
    model = models.by_name("handed-over")
    module, buffer = emitted(model, backends=("TensorRTBackend",))
    check(model, module, buffer, ordered=False)
    plan = plan_of(buffer)
    assert sum(each.delegate is not None for each in plan.operations) > 1
    assert len(fences(plan)) == 1
    _, buffer = emitted(model, side="upstream", backends=("TensorRTBackend",))
    refused(model, buffer, "which the copy to .*may still be writing")


@pytest.mark.parametrize(
    "backends, some",
    [
        (("TensorRTBackend",), False),
        (("TensorRTBackend", "CudaBackend"), False),
        (("CudaBackend", "TensorRTBackend"), True),
    ],
)
def test_engines_on_executorch_s_streams_need_less(backends, some):
    """They are done when they return, or all is on one stream: only what CUDA delegates hand them waits."""
    model = models.by_name("handed-over")
    module, buffer = emitted(model, side="ours", backends=backends)
    with delegates_of(EXECUTORCH):
        check(model, module, buffer, ordered=False)
    plan = plan_of(buffer)
    assert [plan.operations[index].name for index in fences(plan)] == (
        ["et_copy::_h2d_copy.out"] if some else []
    )
    # The other release's delegate isn't done by then.
    refused(model, buffer, "nothing orders the two")


def test_mixed_programs_are_in_order_on_executorch_s_streams():
    for model, backends in itertools.product(PROGRAMS, MIXED):
        module, buffer = emitted(model, side="ours", backends=backends)
        with delegates_of(EXECUTORCH):
            check(model, module, buffer, ordered=False)


@pytest.mark.parametrize(
    "name, backend, some",
    [
        ("handed-over", "CudaBackend", True),
        ("handed-over", "TensorRTBackend", True),
        ("around-the-host", "CudaBackend", False),
    ],
)
def test_what_is_there_for_the_order_of_streams_is_left_out_on_one(name, backend, some):
    model = models.by_name(name)
    module, buffer = emitted(model, backends=(backend,))
    simulated = load(buffer, simulate_devices=True, ordered_streams=False)
    program = load(buffer)
    copies = []
    for each in (simulated, program):
        x = model.inputs(model.small, 0)
        torch.testing.assert_close(
            each.run(x)[0], _first(module(x)), atol=1e-5, rtol=1e-4
        )
        copies.append(sum(traffic.copies for traffic in each.stats().copies.values()))
    plan = plan_of(buffer)
    needless = fences(plan)
    assert copies[0] - copies[1] == len(needless)
    assert bool(needless) == some
    for index in needless:  # and nothing but a byte that nobody made
        source, out, _ = plan.operations[index].args
        others = [each for i, each in enumerate(plan.operations) if i != index]
        assert not any({source, out} & {*each.args} for each in others)


def _first(results):
    return results[0] if isinstance(results, tuple) else results


def view_between(x, w):
    """A delegate reads a view of another one's output and nothing else. It is planned away."""
    v = (torch.mm(x, w) + x).view(x.shape[0] // 4, 4 * x.shape[1])
    return torch.relu(v) + v


VIEW_BETWEEN = models.Model("view-between", models.of(view_between, 1), ("view_copy",))


@pytest.mark.parametrize("backend", ["CudaBackend", "TensorRTBackend"])
@pytest.mark.parametrize("model", [*PROGRAMS, VIEW_BETWEEN], ids=lambda m: m.name)
def test_a_delegate_s_inputs_are_told_from_its_outputs(model, backend):
    """What reads a view that was planned away reads what nobody seems to have written.

    Where what it is a view of is read before, and not again, nothing but the delegate tells.
    """
    module, buffer = emitted(model, backends=(backend,))
    plan = plan_of(buffer)
    for each in plan.operations:
        if each.delegate is not None:
            payload = bytes(plan.delegates[each.delegate].payload)
            assert each.inputs == int(payload.split()[0])
    check(model, module, buffer, ordered=None)


def test_memory_that_is_still_read_is_not_written(monkeypatch):
    """Without the planner's knowledge of it, a delegate writes where another one reads."""
    from executorch.exir.passes.streams import lifetimes

    monkeypatch.setattr(lifetimes, "extend_lifetimes", lambda module: None)
    model = models.by_name("reused-memory")
    _, buffer = emitted.__wrapped__(model)  # not what was emitted with it
    refused(model, buffer, "writes .*may still read")


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("backend", ["CudaBackend", "TensorRTBackend"])
def test_benchmark_programs_are_in_order(index, backend):
    scenario = load_benchmark("propagate_device_pass").scenarios()[index]
    edge = scenario.edge(backend)
    register_backend(backend, lambda context: _Nothing())
    program = edge.to_executorch()
    load(program.buffer, simulate_devices=True, ordered_streams=False).run(
        *scenario.inputs
    )


class _Nothing(Delegate):
    """A delegate whose results don't matter."""

    def execute(self, args):
        pass


def test_inspect_says_what_a_program_needs(tmp_path):
    for side, says in (("ours-2.13", False), ("one-stream", True)):
        _, buffer = emitted(models.by_name("handed-over"), side=side)
        path = tmp_path / "model.pte"
        path.write_bytes(buffer)
        result = CliRunner().invoke(app, ["inspect", str(path)], env={"COLUMNS": "200"})
        assert ("one stream for all delegates" in result.output) == says


def test_the_option_is_for_simulations():
    _, buffer = emitted(models.by_name("alone"))
    with pytest.raises(ValueError, match="simulate_devices=True"):
        load(buffer, ordered_streams=False)
