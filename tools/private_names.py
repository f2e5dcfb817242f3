"""Checks that tests ask for behaviour: none takes a name with an underscore from our own packages, or
from objects of their classes.

    python tools/private_names.py

Modules may have one, as upstream's have: what they call without is for others. And that tests stand at the
path that they test.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Where our packages are, and below which name they are imported.
ROOTS = {
    "torchtrt_executorch": "torchtrt_executorch",
    "py/torch_tensorrt": "torch_tensorrt",
    "backends": "executorch.backends",
    "exir": "executorch.exir",
}
PATCHES = "torchtrt_executorch.patches."
#: Names that may be asked for, and why.
ALLOWED = {
    "_piece": "buffers of any size: no program of them all can be made in time",
    "_offsets": "likewise",
    "_payloads": "a payload that no program here has, so that its stand-in is written",
    "_kept": "how many stand-ins there are, which users have no need of",
    "_library": "libraries that are called by hand, beside the delegate that calls them",
    "_load": "likewise",
    "_backend_id": "upstream's, of a lowered module",
    "_schema": "PyTorch's, of an operator",
    "_prepare": "the zoo's, which is no package of ours",
    "_values": "where tensors lie, which no result tells",
    "_delegates": "that nobody holds them any more",
    "_native": "what ExecuTorch is asked again, which no result tells",
    "_plans": "the library of a program that is timed alone",
    "_steps": "how often a GPU's graphs were captured",
    "_graphs": "likewise",
}

#: Folders of tests that are no folder of ours, and why.
APART = {
    "cpp": "ExecuTorch's C++ runtime",
    "fuzz": "hostile files, whoever reads them",
    "gpu": "for a machine with a GPU",
    "needed": "what upstream does without a patch",
    "random_models": "from the model to its results",
    "torchtrt_executorch/tensorrt_rtx": "where TensorRT-RTX builds",
}


def our_modules() -> dict[str, Path]:
    """Return our modules by the name that they are imported by, with their files."""
    return {
        ".".join(
            [package, *file.relative_to(ROOT / folder).with_suffix("").parts]
        ).removesuffix(".__init__"): file
        for folder, package in ROOTS.items()
        for file in (ROOT / folder).rglob("*.py")
        if folder == package or file.stem != "__init__"  # upstream has its own
    }


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def taken(tree: ast.Module, ours: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Yield the lines and names with an underscore that are taken from our modules."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module = node.module.removeprefix(PATCHES)
            for each in node.names:
                whole = f"{module}.{each.name}"
                if whole in ours:
                    bound[each.asname or each.name] = whole
                elif module in ours and private(each.name):
                    yield node.lineno, whole
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.asname and each.name in ours:
                    bound[each.asname] = each.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in bound and private(node.attr):
                yield node.lineno, f"{bound[node.value.id]}.{node.attr}"
        elif isinstance(node, ast.Call) and "attr" in ast.unparse(node.func):
            match node.args:
                case [ast.Name(id=owner), ast.Constant(value=str(name)), *_]:
                    if owner in bound and private(name):
                        yield node.lineno, f"{bound[owner]}.{name}"


def own_attributes(files: Iterable[Path]) -> set[str]:
    """Return the attributes and methods with an underscore that our classes have."""
    found = set()
    for node in (each for f in files for each in ast.walk(ast.parse(f.read_text()))):
        match node:
            case ast.Attribute(ctx=ast.Store(), value=ast.Name(id="self"), attr=name):
                found.add(name)
            case ast.ClassDef(body=body):
                found |= {n.name for n in body if isinstance(n, ast.FunctionDef)}
    return {name for name in found if private(name)}


def looked_at(tree: ast.Module, attributes: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines and attributes with an underscore that are taken from objects of our classes."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in attributes
            and ast.unparse(node.value) not in ("self", "cls", "torch")
        ):
            yield node.lineno, ast.unparse(node)


def unmirrored(folder: Path) -> bool:
    """Whether a folder of tests has the name of none of ours, nor a reason for it."""
    below = folder.relative_to(ROOT / "tests")
    return str(below) not in APART and not (ROOT / below).is_dir()


def main() -> int:
    ours, wrong, excused = our_modules(), [], set()
    attributes = own_attributes(ours.values())
    for file in sorted((ROOT / "tests").rglob("*.py")):
        where = file.relative_to(ROOT)
        tree = ast.parse(file.read_text())
        for line, name in (*taken(tree, ours), *looked_at(tree, attributes)):
            if (last := name.rpartition(".")[2]) in ALLOWED:
                excused.add(last)
            else:
                wrong.append(
                    f"{where}:{line}: {name} is nobody's business but its module's"
                )
        if file.name.startswith("test_") and unmirrored(file.parent):
            wrong.append(
                f"{where}: there is no folder of ours that it would be the tests of"
            )
    wrong += [
        f"{Path(__file__).name}: no test asks for {n}"
        for n in sorted({*ALLOWED} - excused)
    ]
    print("\n".join(wrong), end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
