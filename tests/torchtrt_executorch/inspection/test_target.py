"""Whether a file runs on a machine: each thing that may be wrong with its libraries, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.model.facts import Arena, Delegate, Facts, Method
from torchtrt_executorch.nogpu.target import gpu_description
from torchtrt_executorch.payloads.native_library import NativeLibrary

ORIN = "linux-aarch64:sm_87:16GiB"
#: What a library for a Jetson asks for, made here.
NATIVE = NativeLibrary(
    "linux-aarch64",
    ("libcuda.so.1", "libpthread.so.0", "libc.so.6", "libdl.so.2"),
    ("aoti_torch_empty_strided", "cuLaunchKernel"),
    (2, 18),
)
CUDA = Delegate(
    0, "CudaBackend", "cuda:0", 1 << 20, owner="cuda", gpus=("sm_87",), native=NATIVE
)


def findings(
    *delegates: Delegate, target: str = ORIN, planned: int = 1024
) -> dict[str, str]:
    arenas = [Arena(1, "cuda:0", planned)]
    method = Method("forward", (), (), [], [], delegates, arenas)
    found = advise(Facts("model.pte", 1, [method]), target=target)
    return {each.name: each.level for each in found}


def test_one_that_fits() -> None:
    assert findings(CUDA) == {}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("platform", replace(CUDA, native=replace(NATIVE, platform="linux-x86_64"))),
        ("platform", replace(CUDA, native=replace(NATIVE, platform="windows-x86_64"))),
        ("glibc", replace(CUDA, native=replace(NATIVE, glibc=(2, 38)))),
        ("library", replace(CUDA, native=replace(NATIVE, needed=("libtorch.so",)))),
        ("shim", replace(CUDA, native=replace(NATIVE, undefined=("aoti_torch_cuda_topk",)))),
        ("gpu", replace(CUDA, gpus=("sm_90",))),
        ("gpu", replace(CUDA, owner="tensorrt", native=None, gpus=("sm_89",))),
        ("memory", replace(CUDA, nbytes=17 << 30)),
    ],
)  # fmt: skip
def test_one_thing_wrong(name: str, wrong: Delegate) -> None:
    assert findings(wrong) == {name: "warning"}


@pytest.mark.parametrize(
    ("version", "target", "names"),
    [
        ("1.5.0.114", "linux-x86_64:sm_121:16GiB", set()),
        ("1.6.1.120", "linux-aarch64:sm_121:16GiB", set()),
        ("1.5.0.114", "linux-aarch64:sm_121:16GiB", {"platform"}),
        ("1.6.1.120", "windows-x86_64:sm_121:16GiB", {"platform"}),
        ("1.6.1.120", ORIN, {"gpu"}),
    ],
)
def test_an_engine_of_a_release_that_is_for_other_machines(
    version: str, target: str, names: set[str]
) -> None:
    engine = replace(CUDA, owner="tensorrt", native=None, gpus=("sm_121",))
    engine = replace(engine, payload=f"TensorRT-RTX {version}")
    assert findings(engine, target=target).keys() == names


@pytest.mark.parametrize("payload", ["TensorRT-RTX 1.6.1.120", "TensorRT 10.13"])
def test_windows_has_no_delegate_for_engines(payload: str) -> None:
    engine = replace(CUDA, owner="tensorrt", native=None, payload=payload)
    method = Method("forward", (), (), [], [], [engine], [])
    facts = Facts("model.pte", 1, [method])
    for gpus in (("sm_89",), ("sm_90",), None):
        facts.methods[0] = replace(method, delegates=[replace(engine, gpus=gpus)])
        (found,) = advise(facts, target="windows-x86_64:sm_89:16GiB")
        assert "isn't for windows-x86_64" in found.text
        assert "only CudaPartitioner" in found.advice
        assert "TensorRT" not in found.advice


@pytest.mark.parametrize("here", ["linux-x86_64", "linux-aarch64", "win32-AMD64"])
@pytest.mark.parametrize("capability", ["sm_89", "sm_90"])
def test_a_gpu_alone_means_any_machine(
    here: str, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = replace(CUDA, owner="tensorrt", native=None, gpus=("sm_89",))
    engine = replace(engine, payload="TensorRT-RTX 1.5.0.114")
    library = replace(CUDA, index=1, native=None, gpus=("sm_89",))
    method = Method("forward", (), (), [], [], [engine, library], [])
    facts = Facts("model.pte", 1, [method])
    expected = advise(facts, capability)
    monkeypatch.setattr(gpu_description, "own_platform", lambda: here)
    assert advise(facts, capability) == expected
    assert len(expected) == (2 if capability == "sm_90" else 0)
    assert not any("linux-" in each.advice for each in expected)


def test_memory_that_is_planned() -> None:
    assert findings(CUDA, planned=17 << 30) == {"memory": "warning"}


def test_weights_that_delegates_share_count_once() -> None:
    shared = replace(CUDA, nbytes=9 << 30, named_data=("weights",))
    assert findings(shared, replace(shared, index=1)) == {}


def test_each_of_several_gpus() -> None:
    both = "linux-aarch64:sm_87:16GiB,sm_110:64GiB"
    assert findings(CUDA, target=both) == {"gpu": "warning"}
    assert findings(replace(CUDA, gpus=("sm_87", "sm_110")), target=both) == {}


@pytest.mark.parametrize(("gpu", "platforms"), [("sm_87", 1), ("sm_86", 0)])
def test_a_gpu_that_only_machines_with_arm_have(gpu: str, platforms: int) -> None:
    """A library of x86-64 can't be loaded on a Jetson, whatever machine code is in it."""
    here = replace(
        CUDA, gpus=("sm_86", "sm_87"), native=replace(NATIVE, platform="linux-x86_64")
    )
    facts = Facts("model.pte", 1, [Method("forward", (), (), [], [], [here], [])])
    names = [each.name for each in advise(facts, gpu)]
    assert names.count("platform") == platforms


@pytest.mark.parametrize("target", ["sm_87", "linux-arm:sm_87:16GiB", "jetson", ""])
def test_no_target(target: str) -> None:
    with pytest.raises(ValueError, match="linux-aarch64, windows-x86_64"):
        findings(CUDA, target=target)
