"""``torchtrt-executorch targets``: what it names can be described, and nothing is told twice."""

from __future__ import annotations

import json

from packaging.version import Version
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.nogpu.builder.installed import TENSORRT_RTX, installed_builder
from torchtrt_executorch.nogpu.target.gpu_description import PLATFORMS, GpuDescription


def test_each_target_is_one() -> None:
    rows = json.loads(CliRunner().invoke(app, ["targets", "--json"]).stdout)
    assert {row["target"].partition(":")[0] for row in rows} == set(PLATFORMS)
    for row in rows:
        gpus = GpuDescription.parse_list(row["target"])
        assert row["target"] == ",".join(
            gpu.text.removeprefix(f"{gpu.platform}:") if index else gpu.text
            for index, gpu in enumerate(gpus)
        )
    if installed_builder() is TENSORRT_RTX:
        served = {row["target"] for row in rows if row["engines"] == "yes"}
        assert "linux-x86_64:sm_89:8GiB" in served
        on_arm = {target for target in served if "aarch64" in target}
        from_1_6 = Version(TENSORRT_RTX.installed_version() or "0") >= Version("1.6")
        assert on_arm == ({"linux-aarch64:sm_121:128GiB"} if from_1_6 else set())


def test_the_table_has_them() -> None:
    said = CliRunner().invoke(app, ["targets"], env={"COLUMNS": "200"}).output
    assert "Jetson AGX Thor" in said and "linux-aarch64:sm_110:128GiB" in said
