"""An emulated engine in an engine's place: files, pickles, processes, threads, errors."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch.fx import GraphModule

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.nogpu.emulation import emulation_enabled, flat
from torchtrt_executorch.nogpu.emulation.payload import MAGIC, dump, is_emulated, load

from .... import fresh
from ....lowering import compile_emulated, engines

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def compiled(model: torch.nn.Module) -> GraphModule:
    return compile_emulated(model, [X], target_executorch=False)


@pytest.fixture(scope="module")
def payload(compiled: GraphModule) -> bytes:
    return bytes(compiled._run_on_acc_0.serialized_engine)


def test_it_is_asked_for(model: torch.nn.Module) -> None:
    assert not emulation_enabled()
    with emulated_engines():
        assert emulation_enabled()
        with emulated_engines():
            pass
        assert emulation_enabled()
    assert not emulation_enabled()


def test_log_says_emulated(
    model: torch.nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "torchtrt_executorch"):
        compile_emulated(model, [X], target_executorch=False)
    (record,) = [r for r in caplog.records if "EMULATED" in r.message]
    assert "not in TensorRT" in record.message


def test_bindings(compiled: GraphModule) -> None:
    import tensorrt as trt

    engine = compiled._run_on_acc_0.engine.cuda_engine
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    modes = [engine.get_tensor_mode(name) for name in names]
    assert modes == [trt.TensorIOMode.INPUT, trt.TensorIOMode.OUTPUT]
    assert [engine.get_tensor_shape(name) for name in names] == [(2, 3), (2, 4)]
    assert {engine.get_tensor_dtype(name) for name in names} == {trt.DataType.FLOAT}
    assert not any(engine.is_shape_inference_io(name) for name in names)
    with pytest.raises(AttributeError, match="emulated and has no create_engine_in"):
        engine.create_engine_inspector()


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "state", "exported"])
def test_copies_and_files(
    way: str, compiled: GraphModule, model: torch.nn.Module, tmp_path: Path
) -> None:
    again: Any = copy.deepcopy(compiled)
    held = again._run_on_acc_0
    if way == "pickle":  # the engine; upstream's Python module has a lock in it
        held.engine = pickle.loads(pickle.dumps(compiled._run_on_acc_0.engine))
    elif way == "state":
        state = pickle.loads(pickle.dumps(compiled.state_dict()))
        held.engine = held.serialized_engine = None
        again.load_state_dict(state)
        assert is_emulated(held.engine.serialized_engine)
    elif way == "exported":
        path = str(tmp_path / "model.ep")
        torch_tensorrt.save(compiled, path, arg_inputs=[X])
        again = torch_tensorrt.load(path).module()
    torch.testing.assert_close(again(X), model(X))


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ([], "takes 1 input, 0 given"),
        ([X, X], "takes 1 input, 2 given"),
        ([X.double()], r"float32 of shape \[2, 3\] as input x, torch.float64"),
        ([X[0]], r"torch.float32 of shape \[3\] given"),
        ([X[:1]], r"torch.float32 of shape \[1, 3\] given"),
    ],
)
def test_inputs_are_checked(payload: bytes, inputs: list[Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        load(payload)(inputs)


def test_payload_that_is_none() -> None:
    for engine in (b"", b"ftrt" * 100, MAGIC[:-1]):
        assert not is_emulated(engine)
        with pytest.raises(ValueError, match="not an emulated engine"):
            load(engine)


def test_damaged_payload(payload: bytes) -> None:
    """Cut anywhere, or with bytes changed, it is an error or the same program."""
    for length in (len(MAGIC), len(MAGIC) + 10, len(payload) // 2, len(payload) - 30):
        with pytest.raises(ValueError, match="damaged emulated engine"):
            load(payload[:length])
    model, table = payload.index(b"graph_module"), payload.index(b'[["PARAMETER"')
    for place in (len(MAGIC), model, model + 200, table, len(payload) - 20):
        broken = bytearray(payload)
        broken[place : place + 12] = b"\xff" * 12
        with pytest.raises(ValueError, match="damaged emulated engine"):
            load(broken)
    torch.save({"a": X}, file := io.BytesIO())  # no program at all
    with pytest.raises(ValueError, match="damaged emulated engine"):
        load(MAGIC + file.getvalue())


def test_equal_programs_give_equal_bytes(payload: bytes) -> None:
    assert dump(flat.read(memoryview(payload)[len(MAGIC) :])) == payload


def test_threads(compiled: GraphModule, model: torch.nn.Module) -> None:
    """One compiled module runs on several threads at once."""

    def run(seed: int) -> None:
        x = torch.full((2, 3), float(seed))
        for _ in range(20):
            torch.testing.assert_close(compiled(x), model(x))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(8)))


def test_asked_for_on_one_thread_only() -> None:
    with emulated_engines(), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(emulation_enabled).result()


@pytest.mark.parametrize("options", [{}, {"target_executorch": True}])
def test_torch_compile(options: dict[str, Any], model: torch.nn.Module) -> None:
    torch._dynamo.reset()
    settings = {"min_block_size": 1, **options}
    ours = torch.compile(model, backend="torch_tensorrt", options=settings)
    with emulated_engines():
        torch.testing.assert_close(ours(X), model(X))


def test_engine_that_needs_an_output_allocator_says_so() -> None:
    def nonzero(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x.relu())

    ours = compile_emulated(nonzero, [X], target_executorch=False)
    (name,) = engines(ours)
    assert ours.get_submodule(name).requires_output_allocator
    torch.testing.assert_close(ours(X), nonzero(X))


PROCESS = """
import hashlib, json, torch, torch_tensorrt
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
    def forward(self, x):
        return self.linear(x).relu()
x = torch.linspace(-1, 1, 6).reshape(2, 3)
model = Model().eval()
compiled = torch_tensorrt.compile(model, ir="dynamo", arg_inputs=[x], min_block_size=1)
engine = bytes(compiled._run_on_acc_0.serialized_engine)
print(json.dumps([hashlib.sha256(engine).hexdigest(), torch.equal(compiled(x), model(x))]))
"""


def test_environment_switch_and_the_same_bytes_in_every_process(payload: bytes) -> None:
    settings = {"TORCHTRT_EMULATE": "1", "OMP_NUM_THREADS": "1"}
    done = fresh.run(PROCESS, env={**os.environ, **settings}, cwd=sys.prefix)
    assert done.returncode == 0, done.stderr
    digest, agrees = json.loads(done.stdout.splitlines()[-1])
    assert agrees
    assert digest == hashlib.sha256(payload).hexdigest()
