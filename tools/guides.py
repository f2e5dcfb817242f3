"""What the guides have to type: their blocks, one after another, as one user would."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
#: Each goes on where the one before it ends, in one process and folder.
ONE_AFTER_ANOTHER = ("quick_start", "routes", "deploying_in_python", "checking")
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.M | re.S)


def script(language: str) -> str:
    """Return the blocks in ``"python"`` or ``"sh"``."""
    pages = (
        (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ONE_AFTER_ANOTHER
    )
    return "\n".join(
        b for page in pages for kind, b in _BLOCK.findall(page) if kind == language
    )
