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
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.M | re.S)


def script(language: str, pages: Sequence[str] = ONE_AFTER_ANOTHER) -> str:
    """Return the blocks of some pages in ``"python"`` or ``"sh"``."""
    texts = ((ROOT / page).read_text(encoding="utf-8") for page in pages)
    blocks = (found for text in texts for found in _BLOCK.findall(text))
    return "\n".join(block for kind, block in blocks if kind == language)
