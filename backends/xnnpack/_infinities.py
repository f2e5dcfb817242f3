"""Quote infinities and NaN in JSON, as flatc reads them: before ExecuTorch 1.5 upstream writes Python's ``-Infinity``."""

from __future__ import annotations

import re

#: A string, which is left as it is, or a number that is none of JSON's.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
_QUOTED = {"Infinity": '"inf"', "-Infinity": '"-inf"', "NaN": '"nan"'}


def quote_infinities(text: str) -> str:
    """Return the JSON that ``json.dumps`` wrote of an XNNPACK graph with infinities and NaNs as strings: a pad by ``-inf``."""
    if "Infinity" not in text and "NaN" not in text:
        return text
    return _TOKENS.sub(lambda token: _QUOTED.get(token[0], token[0]), text)
