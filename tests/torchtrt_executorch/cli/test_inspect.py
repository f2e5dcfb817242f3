"""``torchtrt-executorch inspect`` on a real ``.pte`` with an emulated engine and a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
import torch
import torch_tensorrt
from click.testing import Result
from typer.testing import CliRunner

from torchtrt_executorch.cli import app

from ...lowering import compile_emulated, lower


def above(x: torch.Tensor) -> torch.Tensor:
    """x (4, 8) float32 -> row and column, int64, of what is above a threshold."""
    return torch.nonzero(torch.relu(x) * 2 > 1)


@pytest.fixture(scope="module")
def pte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "model.pte"
    compiled = compile_emulated(above, [torch.randn(4, 8)])
    torch_tensorrt.save(compiled, path, output_format="executorch")
    return path


def test_says_where_everything_runs_and_that_the_engine_is_emulated(pte: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(pte)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for expected in ("TensorRTBackend", "cuda:0", "EMULATED", "x -> output0"):
        assert expected in result.output
    assert "aten::nonzero.out" in result.output


@pytest.mark.parametrize("name", ["[bold]", "[/red]"])
def test_names_that_look_like_markup_are_shown(tmp_path: Path, name: str) -> None:
    data = lower(torch.nn.ReLU(), (torch.rand(2),)).to_executorch().buffer
    padded = name.ljust(len("aten::relu"), "_").encode()
    (tmp_path / "model.pte").write_bytes(data.replace(b"aten::relu", padded))
    result = call(tmp_path / "model.pte")
    assert result.exit_code == 0, result.exception
    assert f"kernel {name}" in result.output


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that needs nothing but kernels of the host."""
    path = tmp_path_factory.mktemp("plain") / "plain.pte"
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    edge = lower(model, (torch.randn(2, 4),))
    path.write_bytes(edge.to_executorch().buffer)
    return path


def call(*arguments: object) -> Result:
    command = ["inspect", *map(str, arguments)]
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, command)


def test_80_columns(pte: Path) -> None:
    lines = call(pte).output.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("TensorRTBackend" in line for line in lines)


def test_files(pte: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    assert call(pte, "--html", page, "--svg", picture).exit_code == 0
    assert "TensorRTBackend" in page.read_text()
    root = ElementTree.parse(picture).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "TensorRTBackend" in "".join(root.itertext())
    assert sorted(tmp_path.iterdir()) == [page, picture]


def test_json(pte: Path, plain: Path) -> None:
    tree = json.loads(call(pte, "--json", "--diff", plain).stdout)
    assert tree["schema"] == "torchtrt-executorch/inspection/1"
    assert tree["methods"][0]["delegates"][0]["emulated"] is True
    assert "emulated" in [each["name"] for each in tree["findings"]]
    assert "delegates" in [each["what"] for each in tree["changes"]]


def test_difference(pte: Path, plain: Path) -> None:
    said = call(pte, "--diff", plain).output
    assert "aten::addmm.out" in said and "before" in said
    assert "Nothing changed" in call(plain, "--diff", plain).output


def test_strict(pte: Path, plain: Path) -> None:
    assert call(plain, "--strict").exit_code == 0
    assert call(pte).exit_code == 0
    strict = call(pte, "--strict")
    assert strict.exit_code == 1 and "EMULATED" in strict.output
    findings = json.loads(call(pte, "--json").stdout)["findings"]
    ignored = [word for each in findings for word in ("--ignore", each["name"])]
    assert call(pte, "--strict", *ignored).exit_code == 0


#: What is asked for, and what is said; {} is a folder that holds what `bad` makes.
BAD = {
    "not there": (["{}/none.pte"], "No such file"),
    "a folder": (["{}"], "it is a folder"),
    "empty": (["{}/empty.pte"], "empty"),
    "another type": (["{}/picture.png"], "identifier"),
    "short": (["{}/short.pte"], "truncated"),
    "a newer schema": (["{}/newer.pte"], "incompatible version"),
    "no such GPU": (["{}/plain.pte", "--gpu", "huge"], "as in sm_87"),
    "no memory": (["{}/plain.pte", "--target", "sm_87"], "--target 'sm_87' gives no memory"),
    "no such method": (["{}/plain.pte", "--svg", "{}/x.svg", "--method", "no"], "no method"),
    "another suffix": (["{}/plain.pte", "--html", "{}/plain.pte"], "ends in .html"),
    "a folder to write": (["{}/plain.pte", "--html", "{}/folder.html"], "folder"),
    "nowhere to write": (["{}/plain.pte", "--html", "{}/no/x.html"], "no folder"),
    "no other": (["{}/plain.pte", "--diff", "{}/none.pte"], "No such file"),
    "no data": (["{}/plain.pte", "--data", "{}/none.ptd"], "No such file"),
    "other data": (["{}/plain.pte", "--data", "{}/empty.pte"], "empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, plain: Path, tmp_path: Path) -> None:
    """One sentence, exit 2, nothing written."""
    whole = plain.read_bytes()
    (tmp_path / "folder.html").mkdir()
    for name, data in {
        "plain.pte": whole,
        "empty.pte": b"",
        "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(200),
        "short.pte": whole[: len(whole) // 2],
        "newer.pte": whole.replace(b"ET12", b"ET13"),
    }.items():
        (tmp_path / name).write_bytes(data)
    before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    arguments, said = BAD[case]
    result = call(*(each.replace("{}", str(tmp_path)) for each in arguments))
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert isinstance(result.exception, SystemExit)
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before


def test_every_byte_that_is_wrong_is_a_sentence(plain: Path, tmp_path: Path) -> None:
    """Whatever a byte is changed to, the page is made or the file is refused."""
    whole, damaged = plain.read_bytes(), tmp_path / "damaged.pte"
    random = Random(0)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(3):
            data[random.randrange(len(data))] = random.randrange(256)
        damaged.write_bytes(data)
        result = call(damaged, "--html", tmp_path / "page.html")
        assert result.exit_code in (0, 2), result.exception
        assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("package", ["executorch", "torch"])
@pytest.mark.parametrize("command", ["inspect", "run"])
def test_without_a_package(
    package: str, command: str, plain: Path, tmp_path: Path
) -> None:
    """What isn't installed is said in a sentence, with what to install."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "def hide(name, path=None, target=None):\n"
        f"    absent = name.partition('.')[0] == {package!r}\n"
        "    return None if absent else find(name, path, target)\n"
        "PathFinder.find_spec = hide\n"
    )
    inputs = ["--inputs", str(plain)] if command == "run" else []
    done = subprocess.run(
        [sys.executable, "-m", "torchtrt_executorch.cli", command, str(plain), *inputs],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{command} needs {package}, which isn't installed: pip install {package}"
    ]
