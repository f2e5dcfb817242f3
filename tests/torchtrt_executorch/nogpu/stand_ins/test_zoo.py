"""What is written in one process loads in another, which has imported torchtrt_executorch alone."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import executorch.kernels.quantized  # noqa: F401  # out variants of quantized operators
import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch.utils._pytree import tree_leaves

from torchtrt_executorch.nogpu.emulation import payload
from torchtrt_executorch.nogpu.stand_ins import StandIn
from torchtrt_executorch.nogpu.stand_ins.file import write
from torchtrt_executorch.nogpu.stand_ins.on_host import on_host

from .... import fresh
from ...zoo import ZOO

#: Runs files, each group in a process of its own, forked once torchtrt_executorch was imported; says what went
#: wrong.
CODE = """
import json, os, sys, traceback
from pathlib import Path
import torch, torchtrt_executorch
from torchtrt_executorch.runtime import load
from torchtrt_executorch.nogpu.emulation import payload
from torchtrt_executorch.nogpu.stand_ins.file import StandInFile

early = ("executorch.exir.passes.dim_order", "torchao", "torchvision", "torch.ao.quantization.fx")
assert not [name for name in sys.modules if name.startswith(early)]

def run(folder, form):
    inputs, expected = torch.load(folder / "calls.pt")
    if form == "stand-in":
        file = StandInFile(folder / "stand_ins.zip")
        (name,) = file.payloads
        found = file.find(name)(inputs)
    elif form == "engine":
        found = payload.load((folder / "engine").read_bytes())(inputs)
    else:
        found = load(folder / "model.pte").run(*inputs)
    found = [each for each in found if isinstance(each, torch.Tensor)]
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)

wrong = []
for together in json.loads(sys.argv[2]):
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        for name, form in together:
            try:
                run(Path(sys.argv[1]) / name, form)
            except BaseException as error:
                os.write(theirs, f"{name}, {form}: {error!r}"[:900].encode() + b"\\0")
        os._exit(0)
    os.close(theirs)
    with open(ours) as said:
        wrong += said.read().split("\\0")[:-1]
    os.waitpid(child, 0)
print(json.dumps(wrong))
"""

#: Kinds of which ExecuTorch makes no program by itself.
NO_PROGRAM = {"complex"}


@pytest.fixture(scope="module")
@torch.no_grad()
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each model: its stand-in, its emulated engine, its program, a call and what comes of it."""
    folder = tmp_path_factory.mktemp("zoo")
    config = EdgeCompileConfig(_check_ir_validity=False)
    for name, kind in ZOO.items():
        own = folder / name
        own.mkdir()
        program, inputs = kind.program()
        edge = to_edge_transform_and_lower(program, compile_config=config)
        partition = on_host(edge.exported_program())
        write(own / "stand_ins.zip", {"0" * 64: StandIn(partition)})
        (own / "engine").write_bytes(payload.dump(partition))
        try:
            edge.to_executorch().save(own / "model.pte")
        except RuntimeError as error:
            assert "ExecuTorch has no kernel" in str(error) or name in NO_PROGRAM, name
        # It writes to the buffers, which the program had in common with all of these.
        leaves = tree_leaves(program.module()(*inputs))
        expected = [each for each in leaves if isinstance(each, torch.Tensor)]
        torch.save((inputs, expected), own / "calls.pt")
    return folder


def wrong(folder: Path, groups: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """What went wrong with files, by kind and form, each group in an interpreter that has no other."""
    done = fresh.python(CODE, str(folder), json.dumps(groups), env={**os.environ})
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_they_run_where_torchtrt_executorch_alone_was_imported(folder: Path) -> None:
    """All stand-ins in one interpreter, and of the other files one that needs something there."""
    engines, programs = [("cast", "engine")], [("static int8", "program")]
    assert (
        wrong(folder, [[(kind, "stand-in") for kind in ZOO], engines, programs]) == []
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["stand-in", "engine", "program"])
def test_each_runs_in_an_interpreter_of_its_own(folder: Path, form: str) -> None:
    kinds = [k for k in ZOO if form != "program" or (folder / k / "model.pte").exists()]
    assert wrong(folder, [[(kind, form)] for kind in kinds]) == []


def test_none_of_them_says_where_it_was_exported(folder: Path) -> None:
    for own in folder.iterdir():
        with zipfile.ZipFile(own / "stand_ins.zip") as file:
            texts = [file.read(each) for each in file.namelist()]
        for text in (*texts, (own / "engine").read_bytes()):
            for trace in (b"stack_trace", b"nn_module_stack", b".py", b"site-packages"):
                assert trace not in text, (own.name, trace)
