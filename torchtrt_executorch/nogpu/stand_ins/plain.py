"""Reject stand-in archives that have anything which PyTorch would unpickle or evaluate.

``torch.export.load`` unpickles sample inputs, tensors of subclasses and custom objects, and has sympy evaluate
expressions. Programs that are written without those are loaded by reading JSON.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from torchtrt_executorch.nogpu.stand_ins.archive import DamagedArchiveError

#: Files of an archive without weights, below its folder.
_FILES = re.compile(
    r"[^/]+/(archive_format|archive_version|byteorder|\.data/(version|serialization_id)|"
    r"data/(weights|constants)/model_(weights|constants)_config\.json|"
    r"data/(weights|constants)/(weight|tensor)_\d+|"
    r"data/sample_inputs/model\.pt|models/model\.json)"
)
#: Operators, and Python's and PyTorch's own on sizes.
_TARGETS = re.compile(
    r"torch\.ops\.(aten|prims|quantized_decomposed|higher_order|tensorrt)\.\w+(\.\w+)?|"
    r"_operator\.\w+|math\.\w+|torch\._?sym_\w+",
    re.ASCII,
)
#: Words of an expression of sizes: names of sympy's and PyTorch's functions, properties of symbols, and symbols.
_EXPRESSION_WORDS = re.compile(
    r"Symbol|Integer|Rational|Float|Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv|CeilDiv|CeilToInt|"
    r"FloorToInt|TruncToInt|TruncToFloat|ToFloat|RoundToInt|IntTrueDiv|FloatTrueDiv|FloatPow|PowByNatural|"
    r"ModularIndexing|Where|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|Equality|Unequality|StrictLessThan|LessThan|"
    r"StrictGreaterThan|GreaterThan|positive|integer|nonnegative|nonzero|real|precision|True|False|true|false|"
    r"[suz]\d+|zuf\d+",
    re.ASCII,
)
_EXPRESSION = re.compile(r"[\w\s()+\-*/,.='<>&|~!]*", re.ASCII)
#: Longer than any that a size has, and short enough for sympy.
_LONGEST = 4096
_TREES = {"builtins.tuple", "builtins.list", "builtins.dict", None}


def check_plain(archive: bytes | memoryview) -> None:
    """Check that loading an archive unpickles nothing, evaluates nothing but sizes, and imports nothing.

    Raises:
        DamagedArchiveError: It is none, or has more in it; says what.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            seen = [entry.filename for entry in file.infolist()]
            for name in seen:
                if not _FILES.fullmatch(name) or seen.count(name) > 1:
                    _reject(f"has a file {name!r}")
                if name.endswith("/sample_inputs/model.pt") and file.read(name):
                    _reject("brings sample inputs, which PyTorch unpickles")
                if name.endswith(".json"):
                    for owner, key, value in _members(json.loads(file.read(name))):
                        _check_member(owner, key, value)
    except DamagedArchiveError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError, RecursionError) as error:
        raise DamagedArchiveError(str(error)) from error


def _check_member(owner: dict[str, Any], key: str, value: Any) -> None:
    if key == "use_pickle" and value is not False:
        _reject("brings a tensor that PyTorch unpickles")
    elif key == "path_name" and not re.fullmatch(r"(weight|tensor)_\d+", str(value)):
        _reject(f"brings {value!r}, which is no tensor")
    elif key == "guards_code" and value:
        _reject("brings code that checks inputs")
    elif key == "target" and "inputs" in owner and not _TARGETS.fullmatch(str(value)):
        _reject(f"calls {value!r}")
    elif key in ("expr_str", "expr") and isinstance(value, str):
        names = re.findall(r"[A-Za-z_]\w*", value)
        if (
            len(value) > _LONGEST
            or not _EXPRESSION.fullmatch(value)
            or not all(map(_EXPRESSION_WORDS.fullmatch, names))
        ):
            _reject(f"has a size {value[:64]!r}")
    elif key in ("in_spec", "out_spec", "treespec") and isinstance(value, str):
        for _, name, kind in _members(json.loads(value)):
            if name == "type" and kind not in _TREES:
                _reject(f"nests its arguments in a {kind!r}")


def _members(tree: Any) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the members of all objects of a JSON tree, each with its object."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield tree, key, value
            yield from _members(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _members(value)


def _reject(what: str) -> None:
    raise DamagedArchiveError(f"the program {what}, and isn't loaded")
