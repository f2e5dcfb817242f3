"""A patch of upstream's C++ is written from our lines and the names that they stand beside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .loading import ROOT, load_file

cpp_patch = load_file("tools/cpp_patch.py")
EditError = cpp_patch.EditError
PATCH = cpp_patch.parse(cpp_patch.EDITS.read_text())
HEADER, SOURCE = PATCH.files
#: Of our own, with the names that the delegate has, so that a checkout of upstream isn't needed.
DELEGATE = {
    HEADER: """\
// struct EngineHandle { bool inflight_pending; };
struct EngineHandle {
  std::mutex mu;
  bool inflight_pending = false;

  ~EngineHandle();
};

class TensorRTBackend final : public BackendInterface {
 public:
  // Error execute(
  Error execute(
      EngineHandle* handle) const override;
};
""",
    SOURCE: """\
EngineHandle::~EngineHandle() {
  if (inflight_pending) {
    ET_LOG(Error, "TensorRTBackend::execute { if must_sync");
  }
}

// Runs TensorRTBackend::execute().
Error TensorRTBackend::execute(EngineHandle* engine) const {
  bool output_staged_to_host = false;
  bool input_staged_from_host = false; /* input_staged_from_host = true { */
  if (on_host(in)) {
    const size_t needed = in.nbytes();
    input_staged_from_host = true;
    copy('{', needed);
  }
  if (on_host(out)) {
    const size_t needed = out.nbytes();
    output_staged_to_host = true;
  }
  // must_sync: if an input was staged.
  const bool must_sync =
      output_staged_to_host || input_staged_from_host;
  if (must_sync) {
    wait();
  }
  return Error::Ok;
}
""",
}
INSERTIONS = [
    pytest.param(path, insertion, id=str(insertion))
    for path, insertions in PATCH.files.items()
    for insertion in insertions
]


def at_hand() -> list[str]:
    """Return checkouts of pytorch/TensorRT that the environment names, as examples/cpp takes one."""
    return [*filter(None, [os.environ.get("TORCH_TENSORRT_SOURCE")])]


@pytest.fixture(params=["our own", *at_hand()])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkout in a repository of its own."""
    upstream = Path(request.param)
    for path, text in DELEGATE.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if upstream.is_dir():
            text = (upstream / path).read_text()
        file.write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def test_the_diff_applies_and_only_adds_lines(tree: Path) -> None:
    before = {path: (tree / path).read_text() for path in PATCH.files}
    diff = PATCH.diff(tree)
    assert not [
        line
        for line in diff.splitlines()
        if line.startswith("-") and not line.startswith("--- a/")
    ]
    subprocess.run(["git", "apply"], cwd=tree, input=diff, text=True, check=True)
    added = 0
    for path, insertions in PATCH.files.items():
        after = (tree / path).read_text()
        assert after == cpp_patch.edited(before[path], insertions, path)
        ours = [line for insertion in insertions for line in insertion.lines]
        added += len(after.splitlines()) - len(before[path].splitlines())
        assert set(ours) <= set(after.splitlines())
    assert added == sum(len(each.lines) for each in sum(PATCH.files.values(), []))


def test_lines_stand_beside_the_names() -> None:
    after = cpp_patch.edited(DELEGATE[SOURCE], PATCH.files[SOURCE], SOURCE)
    lines = [line.strip() for line in after.splitlines()]
    staged = lines.index("input_staged_from_host = true;")
    assert lines[staged + 1] == "staged_input_bytes += needed;"
    sync = lines.index("if (must_sync) {")
    assert lines[sync - 2 : sync] == ["engine->device_id);", "}"]


@pytest.mark.parametrize("path, insertion", INSERTIONS)
def test_a_place_that_is_missing_is_named(path: str, insertion: Any) -> None:
    renamed = DELEGATE[path].replace(insertion.names[-1], "other")
    with pytest.raises(
        EditError, match="no lines have these names|no definitions"
    ) as error:
        cpp_patch.edited(renamed, [insertion], path)
    assert str(error.value).startswith(f"{path}: {insertion}: ")
    with pytest.raises(EditError):
        cpp_patch.edited(renamed, PATCH.files[path], path)


@pytest.mark.parametrize("path, insertion", INSERTIONS)
def test_a_place_that_is_there_twice_is_named(path: str, insertion: Any) -> None:
    lines = DELEGATE[path].splitlines(keepends=True)
    after = cpp_patch.edited(DELEGATE[path], [insertion], path)
    place = after.splitlines().index(insertion.lines[0]) - insertion.after
    lines.insert(place, f"  {' '.join(insertion.names)};\n")
    with pytest.raises(EditError, match="2 lines have these names") as error:
        cpp_patch.edited("".join(lines), [insertion], path)
    assert str(error.value).startswith(f"{path}: {insertion}: ")


@pytest.mark.parametrize(
    "source, scope, words",
    [
        ("void g() {\n  a = 1;\n}\n", "f", "f has no definitions"),
        ("void f();\nvoid f() { }\nint f() { }\n", "f", "f has 2 definitions"),
        ("void f() {\n  a = 1;\n", "f", "the definition of f has no end"),
        ("void f() {\n  call(\n      a);\n}\n", "f", "in the middle of a statement"),
        ("void X::f() {\n  a = 1;\n}\n", "f", "f has no definitions"),
    ],
)
def test_a_definition_that_is_not_one_is_refused(
    source: str, scope: str, words: str
) -> None:
    insertion = cpp_patch.Insertion(False, scope, ("a",), ["  b = 1;"])
    with pytest.raises(EditError, match=words):
        cpp_patch.edited(source, [insertion], "file.cpp")


NOISE = st.sampled_from(
    (
        "// noise: bool inflight_pending { if must_sync",
        "/* noise: Error execute( } */",
        "/* noise: } output_staged_to_host = true; \n noise */",
        'log("noise } if (must_sync) { \\" // input_staged_from_host = true;");',
        "noise('}'); put('\\''); put('\"'); put('{');",
        "// noise: it's EngineHandle {",
    )
)


@pytest.mark.parametrize("path", DELEGATE)
@given(st.data())
def test_comments_and_strings_are_no_places(path: str, data: st.DataObject) -> None:
    source = ""
    for line in DELEGATE[path].splitlines(keepends=True):
        source += line
        if line.endswith(("{\n", ";\n", "}\n")):
            source += "".join(f"{text}\n" for text in data.draw(st.lists(NOISE)))
    after = cpp_patch.edited(source, PATCH.files[path], path)
    kept = [line for line in after.splitlines() if "noise" not in line]
    plain = cpp_patch.edited(DELEGATE[path], PATCH.files[path], path)
    assert kept == plain.splitlines()


@pytest.mark.parametrize("line", ["@@ behind f: a", "@@ after f", "+int a;", "@"])
def test_a_file_of_edits_says_which_line_is_wrong(line: str) -> None:
    with pytest.raises(EditError, match="neither a path, a place nor an insertion"):
        cpp_patch.parse(f"Subject\n---\nfile.cpp\n{line}\n")


def test_the_command_prints_the_patch_or_what_is_missing(tree: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "cpp_patch.py"), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Subject: [PATCH] Log host I/O staging")
    check = ["git", "apply", "--check"]
    subprocess.run(check, cwd=tree, input=done.stdout, text=True, check=True)
    (tree / SOURCE).unlink()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert f"has no {SOURCE}" in done.stderr


def test_the_page_shows_these_lines() -> None:
    page = (ROOT / "docs" / "patches" / "host_staging.md").read_text()
    edits = cpp_patch.EDITS.read_text().partition("\n---\n")[2]
    assert f"```diff\n{edits}```\n" in page
