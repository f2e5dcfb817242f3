"""TORCHTRT_GPU: what is read, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtrt_executorch.nogpu.builder.installed import installed_builder
from torchtrt_executorch.nogpu.target.gpu_description import (
    PLATFORMS,
    VARIABLE,
    GpuDescription,
    configured_gpu,
    configured_gpus,
    own_platform,
)


@given(
    major=st.integers(1, 99), minor=st.integers(0, 9), memory=st.integers(1, 1 << 20)
)
def test_reads_what_is_described(major: int, minor: int, memory: int) -> None:
    gpu = GpuDescription.parse(f"sm_{major}{minor}:{memory}MiB")
    assert gpu.capability == (gpu.major, gpu.minor) == (major, minor)
    assert gpu.total_memory == memory * 1024**2


@given(
    platform=st.sampled_from(["", *PLATFORMS]),
    gpus=st.dictionaries(
        st.integers(10, 999), st.integers(1, 1 << 20), min_size=1, max_size=4
    ),
)
def test_a_machine_around_them(platform: str, gpus: dict[int, int]) -> None:
    described = ",".join(f"sm_{of}:{size}MiB" for of, size in gpus.items())
    text = f"{platform}:{described}" if platform else described
    found = GpuDescription.parse_list(text)
    assert {gpu.platform for gpu in found} == {platform or own_platform()}
    assert {gpu.major * 10 + gpu.minor: gpu.total_memory >> 20 for gpu in found} == gpus
    for gpu in found:
        assert GpuDescription.parse(gpu.text) == gpu


def test_forms_that_describe_the_same() -> None:
    """A GiB is 1024 MiB, and an architecture-specific target has the capability of its family."""
    parse = GpuDescription.parse
    assert parse("sm_87:16GiB") == parse("sm_87:16384MiB")
    assert parse("sm_90a:80GiB") == parse("sm_90:80GiB")


@pytest.mark.parametrize(
    "text",
    [
        *("sm_87", "sm_87:", "sm_87:16", "sm_87:16GB", "sm_87:16 GiB", "sm_87:-1GiB"),
        *("sm_87:0GiB", "sm_8:16GiB", "sm_07:16GiB", "8.7:16GiB", "H100"),
        *(" sm_87:16GiB", "sm_87:16GiB\n", "sm_87:١GiB", ":sm_87:16GiB"),
        *("linux:sm_87:16GiB", "linux-arm:sm_87:16GiB", "windows-aarch64:sm_87:16GiB"),
    ],
)
def test_an_error_names_the_variable_the_value_and_the_form(text: str) -> None:
    with pytest.raises(ValueError) as error:
        GpuDescription.parse(text)
    assert f"{VARIABLE}={text!r}" in str(error.value)
    assert f"{VARIABLE}=sm_90:80GiB" in str(error.value)


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_description_it_is_one_that_the_builder_supports(
    environment, value
) -> None:
    environment(VARIABLE, value)
    expected = {"TensorRT": (9, 0), "TensorRT-RTX": (8, 0)}
    assert configured_gpu().capability == expected[installed_builder().name]


def test_the_environment_describes(environment) -> None:
    environment(VARIABLE, "sm_87:16GiB")
    assert configured_gpu() == GpuDescription(8, 7, 16 * 1024**3)


def test_several_are_one_that_each_of_them_can_stand_in_for(environment) -> None:
    environment(VARIABLE, "sm_90:80GiB,sm_80:40GiB,sm_86:16GiB,sm_90:40GiB")
    gpus = [(gpu.capability, gpu.total_memory >> 30) for gpu in configured_gpus()]
    assert gpus == [((8, 0), 40), ((8, 6), 16), ((9, 0), 40)]
    gpu = configured_gpu()
    assert (gpu.capability, gpu.total_memory) == ((8, 0), 16 << 30)
    assert gpu.name == "described sm_80, built for sm_80, sm_86, sm_90"


def test_one_of_several_that_is_misdescribed() -> None:
    other = "sm_80:16GiB,linux-aarch64:sm_87:16GiB"
    for text in ("sm_80:16GiB,", ",", other, "sm_80:16GiB;sm_90:16GiB"):
        with pytest.raises(ValueError, match="commas between several"):
            GpuDescription.parse_list(text)
