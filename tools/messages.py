"""The errors that this project raises, as its source has them, and where a user finds each explained.

    python tools/messages.py            the messages that docs/troubleshooting.md lacks, and those it has in vain
    python tools/messages.py --write    fill in the lists of that page

What a message says of the moment is ``…``.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
_TREES = ("torchtrt_executorch", "py", "backends", "exir")
#: Fewer words than this are a part of a message that another place completes.
_LEAST = 12
_LIST = re.compile(r"(<!-- messages: ([^\n]+) -->\n```text\n)(.*?)(```)", re.S)


def messages() -> dict[str, str]:
    """Return each message, and the file that raises it."""
    found: dict[str, str] = {}
    for file in sorted(f for tree in _TREES for f in (ROOT / tree).rglob("*.py")):
        module = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(module):
            for text in _raised(node):
                plain = re.sub(r"\s+", " ", text).strip()
                if len(plain.replace("…", "")) >= _LEAST:
                    found.setdefault(plain, str(file.relative_to(ROOT)))
    return found


def _raised(node: ast.AST) -> Iterator[str]:
    call = node.exc if isinstance(node, ast.Raise) else None
    if isinstance(call, ast.Call) and call.args:
        name = ast.unparse(call.func)
        # What another module of ours catches, to go on by another way, isn't seen by a user.
        if name.lstrip("_")[:1].isupper() or name == "unable":
            yield _text(call.args[0])


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def written(page: str) -> dict[str, list[str]]:
    """Return the messages that a page lists, by the files that a list is of."""
    return {files: body.splitlines() for _, files, body, _ in _LIST.findall(page)}


def filled(page: str) -> str:
    """Return a page with every message in the first of its lists whose files it is of."""
    patterns = [*written(page)]
    lists: dict[str, list[str]] = {each: [] for each in patterns}
    for message, file in messages().items():
        own = next(each for each in patterns if re.search(each, f"{file}: {message}"))
        lists[own].append(message)

    def block(match: re.Match[str]) -> str:
        lines = "".join(f"{each}\n" for each in sorted(lists[match[2]]))
        return f"{match[1]}{lines}{match[4]}"

    return _LIST.sub(block, page)


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    due = filled(page)
    if "--write" in sys.argv:
        PAGE.write_text(due, encoding="utf-8")
        return 0
    for sign, one, other in (("+", due, page), ("-", page, due)):
        for line in sorted({*one.splitlines()} - {*other.splitlines()}):
            print(sign, line)
    return due != page


if __name__ == "__main__":
    sys.exit(main())
