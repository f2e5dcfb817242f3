"""Write tests/long_tests.txt: the tests that take longest, which `make test` leaves to CI.

    make test MARKS="not slow" TESTS=--junit-xml=FILE && python3 tools/long_tests.py FILE [--keep 0.28]

Tests are listed until the rest takes ``--keep`` of the time of all.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "long_tests.txt"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--keep", type=float, default=0.28)
    given = parser.parse_args()
    total: dict[str, float] = {}
    longest: dict[str, float] = {}
    for case in ElementTree.parse(given.file).iter("testcase"):
        name, seconds = function_of(case), float(case.get("time") or 0)
        total[name] = total.get(name, 0.0) + seconds
        longest[name] = max(longest.get(name, 0.0), seconds)
    rest, listed = sum(total.values()), []
    limit = given.keep * rest
    for name in sorted(longest, key=longest.__getitem__, reverse=True):
        if rest <= limit:
            break
        rest -= total[name]
        listed.append(name)
    LIST.write_text("".join(f"{name}\n" for name in sorted(listed)))
    print(f"{len(listed)} tests, each of {longest[listed[-1]]:.1f} s or more")


def function_of(case: ElementTree.Element) -> str:
    """Return the path and the name of the function that a case is of, as ``tests/test_a.py::test_b``."""
    module, name = case.get("classname") or "", case.get("name") or ""
    return f"{module.replace('.', '/')}.py::{name.partition('[')[0]}"


if __name__ == "__main__":
    main()
