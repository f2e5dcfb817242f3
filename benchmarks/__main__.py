"""``python -m benchmarks [NAME ...]``: the tables of all benchmarks, or of those named."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

import benchmarks


def main(names: list[str]) -> None:
    """Run the benchmarks called ``names``, all of them if there are none."""
    known = [
        module.name
        for module in iter_modules(benchmarks.__path__)
        if not module.name.startswith("_")
    ]
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    for name in names or known:
        import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
