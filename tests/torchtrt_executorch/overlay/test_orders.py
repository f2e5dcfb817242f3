"""Whatever was imported before the overlay: a patch is in force whole or not at all, and says which."""

from __future__ import annotations

import json
import random
from itertools import permutations
from pathlib import Path

import pytest

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import State, patch_statuses
from torchtrt_executorch.overlay.upstream import locate

SCRIPT = Path(__file__).with_name("orders.py")
#: What brings nothing of the others with it; all of ExecuTorch's exir comes with the first.
APART = [
    name
    for name in (
        "executorch.exir.program._program",
        "executorch.backends.aoti.aoti_partitioner",
        "executorch.backends.aoti.aoti_backend",
        "executorch.backends.cuda.cuda_backend",
        "transformers.exporters.exporter_executorch",
        "transformers.exporters.runners.runner_executorch",
    )
    if locate(name)
]
EVERY = [
    order for count in range(len(APART) + 1) for order in permutations(APART, count)
]
SAMPLE = [(), (APART[1],), random.Random(7).choice(EVERY)]
#: Each set of them, in one of its orders.
SETS = list(
    {frozenset(o): o for o in random.Random(8).sample(EVERY, len(EVERY))}.values()
)


#: Some 3 s of a processor for each.
SLOW = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]


@pytest.mark.parametrize(
    "orders",
    [
        pytest.param(SAMPLE, id="sample"),
        pytest.param(SETS, id="sets", marks=SLOW),
        pytest.param(EVERY, id="every", marks=SLOW),
    ],
)
def test_whole_or_not_at_all(run, orders, tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text(json.dumps(orders))
    process = run(
        f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')",
        ORDERS=str(tmp_path / "orders.json"),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert len(process.facts) == len(orders)
    usual = patch_statuses(PATCHES)
    for order, (statuses, different) in zip(orders, process.facts, strict=True):
        assert different == {}, order
        for patch in PATCHES:
            state, reason = statuses[patch.name]
            late = [name for name in patch.modules if name in order]
            if late and usual[patch.name].state is State.IN_FORCE:
                said = "imported before the overlay", "needs"
                assert any(words in reason for words in said), reason
            assert not (late and state == "in force"), (order, patch.name)
            assert state != "failed", reason
    statuses, _ = process.facts[0]
    assert "in force" in [state for state, _ in statuses.values()]
    assert any("imported before the overlay: " in text for text in process.warnings)


def test_another_plug_in_that_comes_first(run, tmp_path: Path) -> None:
    """As PyTorch calls it, sorted before ours: ``status`` in such a process says what there is."""
    (tmp_path / "a_plug_in.py").write_text("import executorch.exir\ndef load(): pass\n")
    info = tmp_path / "a_plug_in-1.dist-info"
    info.mkdir()
    metadata = "Metadata-Version: 2.1\nName: a_plug_in\nVersion: 1\n"
    (info / "METADATA").write_text(metadata)
    entry = "[torch.backends]\na_plug_in = a_plug_in:load\n"
    (info / "entry_points.txt").write_text(entry)
    process = run(
        "import json, torch\n"
        "from executorch.exir.program._program import to_edge\n"
        "import executorch.exir.passes.propagate_device_pass as device\n"
        "from torchtrt_executorch.cli.status import report\n"
        "states = {row['name']: row['state'] for row in report()['patches']}\n"
        "print(json.dumps([states, to_edge.__code__.co_filename, device.__file__]))",
        tmp_path,
    )
    states, *files = process.facts
    assert ["executorch" in Path(file).parts for file in files] == [True, True]
    assert states["whole-operators"] == "not applicable"
    assert states["propagate-device-pass"] == "not applicable"
    # Nobody has imported what it replaces.
    assert states["aoti-partitioner"] == "in force"
    told = [text for text in process.warnings if "imported before the overlay" in text]
    assert any(text.startswith("the patch whole-operators") for text in told)
