"""``python -m benchmarks [NAME ...]``: the tables of all benchmarks, or of those named.

``python -m benchmarks NAME --option ...`` hands options to the one that is named.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

import benchmarks

#: Those that take many minutes, and are run by name alone.
ON_REQUEST = ("zoo", "jobs", "models", "operators", "export_memory", "large_files")


def main(arguments: list[str]) -> None:
    """Run the benchmarks that are named, all of them if none is."""
    first = next((i for i, each in enumerate(arguments) if each.startswith("-")), None)
    names, options = arguments[:first], arguments[first:] if first else []
    known = [
        module.name
        for module in iter_modules(benchmarks.__path__)
        if not module.name.startswith("_")
    ]
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    for name in names or known:
        if name in ON_REQUEST and not names:
            continue
        run = import_module(f"benchmarks.{name}").main
        run(options) if options else run()


if __name__ == "__main__":
    main(sys.argv[1:])
