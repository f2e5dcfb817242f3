"""The guides: what they have to type is typed, in their order, and what they link to is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.nogpu.host.present import can_build_engines
from torchtrt_executorch.overlay.upstream import distribution_release

from . import fresh
from .loading import ROOT, load_file

DOCS = ROOT / "docs"
script = load_file("tools/guides.py").script


def test_what_stands_there_runs(tmp_path: Path) -> None:
    kept = {
        k: v
        for k, v in os.environ.items()
        if k == SWITCH or not k.startswith("TORCHTRT_")
    }
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    commands = [
        line
        for line in script("sh").splitlines()
        if line.startswith("torchtrt-executorch") and "--target" not in line
    ]
    once = dict.fromkeys(line.replace("--strict", "") for line in commands)
    shell = "set -e\n" + "\n".join(once)
    python = script("python")
    builds = can_build_engines()
    assert builds or distribution_release("torch-tensorrt-rtx") is None
    if not builds:  # what the quick start says of such a host
        kept["TORCHTRT_EMULATE"] = "1"
        python = re.sub('.*save_stand_ins\\("model.*', "", python)
    typed = partial(
        subprocess.run, ["bash", "-c", shell], capture_output=True, text=True
    )
    for run in (partial(fresh.python, python, once=True), typed):
        done = run(env=kept, cwd=tmp_path)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert (tmp_path / "times.html").exists()


def test_every_error_is_explained() -> None:
    """Each message that the source raises stands on the page, and no other: tools/messages.py --write."""
    tool = load_file("tools/messages.py")
    page = tool.PAGE.read_text()
    assert tool.filled(page) == page
    assert len(tool.messages()) > 250


def test_the_quick_start_s_tables_have_each_extra_and_triton() -> None:
    page = (DOCS / "quick_start.md").read_text()
    start = page.index("| extra |")
    extras = re.sub(r"\(.*?\)", "", page[start : page.index("\n\n", start)])
    first = [line.split("|")[1] for line in extras.splitlines()[2:]]
    project = (ROOT / "pyproject.toml").read_text()
    section = project[project.index("[project.optional-dependencies]") :]
    declared = re.findall(r"^(\w+) = \[", section[: section.index("\n[", 1)], re.M)
    assert sorted(re.findall(r"`(\w+)`", " ".join(first))) == sorted(declared)
    pairs = set()
    for lane in (ROOT / "constraints").glob("*.txt"):
        pinned = dict(re.findall(r"^(torch|triton)==([\d.]+)", lane.read_text(), re.M))
        torch_release = ".".join(pinned["torch"].split(".")[:2])
        pairs.add((torch_release, pinned["triton"]))
    table = re.findall(r"^\| ([\d.]+) \| `triton==([\d.]+)` \|$", page, re.M)
    assert sorted(table) == sorted(pairs)


def test_each_guide_with_a_script_is_typed_from_a_clean_installation() -> None:
    """Those of patches are for upstream's maintainers, and show fragments."""
    typed = {
        page
        for chapter in load_file("tools/clean_install.py").CHAPTERS
        for page in chapter.pages
    }
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("targets/*.md")]
    with_script = {
        str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text()
    }
    assert with_script <= typed


PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        file = page if not path else page.parent / path
        assert file.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            slugs = {
                re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles
            }
            assert anchor in slugs, link
