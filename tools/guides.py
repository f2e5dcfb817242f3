"""What the guides have to type: their blocks, one after another, as one user would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Sequence

ROOT = Path(__file__).parents[1]
#: Each goes on where the one before it ends, in one process and folder.
ONE_AFTER_ANOTHER = (
    *("docs/quick_start.md", "docs/routes.md"),
    *("docs/deploying_in_python.md", "docs/checking.md"),
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(page: str, languages: Sequence[str]) -> list[str]:
    """Return the blocks of a page in one of ``languages``, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block for kind, block in _BLOCK.findall(text) if kind in languages]


def script(language: str, pages: Sequence[str] = ONE_AFTER_ANOTHER) -> str:
    """Return the blocks of some pages in ``"python"`` or ``"sh"``."""
    return "\n".join(block for page in pages for block in blocks(page, (language,)))
