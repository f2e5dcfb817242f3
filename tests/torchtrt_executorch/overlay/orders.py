"""Prints what is in force after imports in several orders before the overlay; run by the tests, as a script.

``ORDERS`` in the environment names a file with a list of lists of modules. Each order has a process of its own, which
imports them with the overlay off, activates it, imports the rest, and looks at every name of upstream's
there. What it found is compared with a process in which the overlay came first and left out the same
patches. Processes are forked from one that has imported torch, since that is what takes the time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch  # noqa: F401

from torchtrt_executorch import overlay
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import SKIP
from torchtrt_executorch.overlay.upstream import locate

LOOKED_AT = ("executorch.exir", "executorch.backends", "transformers.exporters")
NAMES = [
    name
    for name in dict.fromkeys(name for patch in PATCHES for name in patch.modules)
    if name.startswith(LOOKED_AT) and locate(name)
]


def forked(work: Callable[[list[str]], Any], names: list[str]) -> Any:
    """Return what ``work`` makes of ``names`` in a process of its own, by way of JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            with open(writer, "w") as answer:
                json.dump(work(names), answer)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        text = answer.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(text)


def origin(value: Any) -> list[str | bool | None]:
    """Return where a value is from: a class or function of ours has the name of upstream's."""
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    names = [str(getattr(value, f"__{of}__", None)) for of in ("module", "qualname")]
    home = sys.modules.get(names[0])
    current = getattr(home, names[1], None) is value
    return [*names, getattr(code, "co_filename", None), current]


def classes(value: type) -> Iterator[Any]:
    """Yield the origins of a class's bases and of what is in it."""
    for base in value.__mro__[1:]:
        yield str(base), origin(base)
    for member, held in vars(value).items():
        yield member, type(held).__name__, origin(held)


def found() -> dict[str, Any]:
    """Return each name of upstream's modules and classes, with the origin of what it is bound to."""
    facts: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(LOOKED_AT) or not isinstance(module, ModuleType):
            continue
        facts[name] = getattr(module, "__file__", None)
        for attribute, value in list(vars(module).items()):
            if attribute.startswith("__"):
                continue
            if isinstance(value, ModuleType):
                facts[f"{name}.{attribute}"] = value is sys.modules.get(value.__name__)
                continue
            facts[f"{name}.{attribute}"] = [type(value).__name__, origin(value)]
            if isinstance(value, type) and value.__module__ == name:
                facts[f"{name}.{attribute}"] += list(classes(value))
    return {
        name: str(fact) for name, fact in facts.items() if " at 0x" not in str(fact)
    }


def in_force(before: list[str]) -> list[Any]:
    """Import ``before``, activate the overlay, import the rest; return what is in force then."""
    for name in before:
        importlib.import_module(name)
    overlay.activate()
    for name in NAMES:
        importlib.import_module(name)
    statuses = overlay.statuses() or {}
    return [
        {name: [each.state.value, each.reason] for name, each in statuses.items()},
        found(),
    ]


def without(skipped: list[str]) -> dict[str, Any]:
    """Return what there is where the overlay comes first and leaves out ``skipped``."""
    os.environ[SKIP] = ",".join(skipped)
    facts: dict[str, Any] = in_force([])[1]
    return facts


def main() -> None:
    results: list[Any] = []
    expected: dict[tuple[str, ...], dict[str, Any]] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for order in json.loads(Path(os.environ["ORDERS"]).read_text()):
            statuses, facts = forked(in_force, order)
            left_out = [n for n, (state, _) in statuses.items() if state != "in force"]
            if tuple(left_out) not in expected:
                expected[tuple(left_out)] = forked(without, left_out)
            usual = expected[tuple(left_out)]
            wrong = [n for n in {*facts, *usual} if facts.get(n) != usual.get(n)]
            results.append([statuses, {n: [facts.get(n), usual.get(n)] for n in wrong}])
    print(json.dumps(results))


if __name__ == "__main__":
    main()
