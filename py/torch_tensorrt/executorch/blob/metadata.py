"""Metadata of an engine blob: JSON, validated when written and when read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Callable, Iterator, NoReturn, Sequence

from torch_tensorrt.executorch.blob.layout import Layout
from torch_tensorrt.executorch.engines.record import (
    Slot,
    aliases,
    names,
    parse_device_id,
    text,
)

_ALIAS_KIND = "kv_cache_update"


@dataclass(slots=True)
class TensorRTIOBinding:
    """One input or output of an engine.

    Attributes:
        name: The tensor's name in the engine.
        dtype: Its data type's name; empty if the engine is to say.
        shape: Its extents, -1 where dynamic; empty if the engine is to say.
        is_input: Whether it is an input.
    """

    name: str
    dtype: str = ""
    shape: list[int] = field(default_factory=list)
    is_input: bool = True


@dataclass
class TensorRTBlobMetadata:
    """Metadata of an engine in a blob, for the runtime.

    Attributes:
        io_bindings: Inputs in the order of the delegate's arguments, then outputs likewise.
        aliased_io: Per output that shares an input's memory, the input's name and the kind,
            ``kv_cache_update`` or ``user``. Only :attr:`Layout.TR02` has it.
        hardware_compatible: Whether the engine also runs on newer GPUs than it was built on.
        device_id: Index of the GPU that runs it.
        serialized_metadata: Torch-TensorRT's own, base64 text.
        target_platform: Operating system and architecture, ``linux_x86_64``.
    """

    io_bindings: list[TensorRTIOBinding] = field(default_factory=list)
    aliased_io: dict[str, tuple[str, str]] = field(default_factory=dict, kw_only=True)
    hardware_compatible: bool = False
    device_id: int = 0
    serialized_metadata: str = ""
    target_platform: str = ""

    def to_json(self, layout: Layout | None = None) -> bytes:
        """Return the metadata as it stands in a blob of ``layout``, by default the installed one.

        Raises:
            ValueError: A value can't stand in a blob, or the layout has no place for it.
        """
        layout = layout or Layout.installed()
        self.validate()
        if self.aliased_io and layout is not Layout.TR02:
            raise ValueError(
                f"aliased_io: before torch-tensorrt {Layout.TR02.release} the runtime gives "
                f"{', '.join(self.aliased_io)} memory of its own instead of the input's; build "
                "the engine without aliased outputs, or export with that release"
            )
        # The C++ reader looks for the keys in this order.
        tree: dict[str, Any] = {"io_bindings": [asdict(b) for b in self.io_bindings]}
        if layout is Layout.TR02:
            tree["aliased_io"] = [
                {"output": output, "input": source, "kind": kind}
                for output, (source, kind) in self.aliased_io.items()
            ]
        tree.update((key, getattr(self, key)) for key in _SCALARS)
        return json.dumps(tree, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes | bytearray | memoryview) -> TensorRTBlobMetadata:
        """Read JSON that isn't trusted. Missing keys have their defaults, unknown ones are skipped.

        Raises:
            ValueError: It isn't what :meth:`to_json` writes; says what, and where.
        """
        tree = _object("metadata", _parse(data))
        metadata = cls(**{key: tree[key] for key in _SCALARS if key in tree})
        for _, entry in _entries(tree, "io_bindings"):
            known = {key: entry[key] for key in _BINDING if key in entry}
            metadata.io_bindings.append(TensorRTIOBinding(**{"name": "", **known}))
        for where, entry in _entries(tree, "aliased_io"):
            output = entry.get("output")
            if type(output) is not str or output in metadata.aliased_io:
                _reject(f"{where}.output", output, "a name that no other entry has")
            alias = entry.get("input", ""), entry.get("kind", _ALIAS_KIND)
            metadata.aliased_io[output] = alias
        metadata.validate()
        return metadata

    @classmethod
    def from_record(
        cls, record: Sequence[Any], parse_device: Callable[[str], int] = parse_device_id
    ) -> TensorRTBlobMetadata:
        """Return what an engine record says. A device that can't be read is GPU 0.

        Args:
            record: An engine record.
            parse_device: Reads the device; raises ValueError if it can't.

        Raises:
            ValueError: A slot isn't UTF-8, or names and aliases contradict each other.
        """
        try:
            device_id = parse_device(text(record, Slot.DEVICE))
        except ValueError:
            device_id = 0
        metadata = cls(
            io_bindings=[
                TensorRTIOBinding(name, is_input=slot is Slot.INPUT_NAMES)
                for slot in (Slot.INPUT_NAMES, Slot.OUTPUT_NAMES)
                for name in names(record, slot)
            ],
            aliased_io=aliases(record),
            hardware_compatible=(text(record, Slot.HARDWARE_COMPATIBLE) == "1"),
            device_id=device_id,
            serialized_metadata=text(record, Slot.METADATA),
            target_platform=text(record, Slot.TARGET_PLATFORM),
        )
        metadata.validate()
        return metadata

    def validate(self) -> None:
        """Check every value.

        Raises:
            ValueError: A value is of the wrong type, out of range, not text that C can hold,
                or contradicts another; says what, and where.
        """
        seen = set()
        for i, binding in enumerate(self.io_bindings):
            where = f"io_bindings[{i}]"
            _check_text(f"{where}.name", binding.name, allow_empty=False)
            _check_text(f"{where}.dtype", binding.dtype)
            _check_bool(f"{where}.is_input", binding.is_input)
            if type(binding.shape) is not list:
                _reject(f"{where}.shape", binding.shape, "a list")
            for j, extent in enumerate(binding.shape):
                _check_int(f"{where}.shape[{j}]", extent, -1, 2**63 - 1)
            if (binding.name, binding.is_input) in seen:
                _reject(f"{where}.name", binding.name, "a name of its own")
            seen.add((binding.name, binding.is_input))
        for i, (output, (source, kind)) in enumerate(self.aliased_io.items()):
            where = f"aliased_io[{i}]"
            _check_text(f"{where}.output", output, allow_empty=False)
            _check_text(f"{where}.input", source, allow_empty=False)
            _check_text(f"{where}.kind", kind, allow_empty=False)
            if seen and not {(output, False), (source, True)} <= seen:
                _reject(where, (output, source), "an output and an input of the engine")
        _check_bool("hardware_compatible", self.hardware_compatible)
        _check_int("device_id", self.device_id, 0, 2**31 - 1)
        _check_text("serialized_metadata", self.serialized_metadata)
        _check_text("target_platform", self.target_platform)


_BINDING = [attribute.name for attribute in fields(TensorRTIOBinding)]
_SCALARS = [attribute.name for attribute in fields(TensorRTBlobMetadata)][2:]


def _parse(data: bytes | bytearray | memoryview) -> Any:
    """Parse JSON at a cost that is bounded by its size: no deep nests, no crowds of containers."""
    try:
        source = str(data, "utf-8")
        # An empty list takes 2 bytes here and 60 in memory. What to_json writes has one container
        # in 24 bytes at the most.
        if source.count("[") + source.count("{") > 16 + len(source) // 16:
            raise ValueError("more objects and lists than metadata can have")
        return json.loads(
            source,
            object_pairs_hook=_unique_keys,
            parse_int=_short_int,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"engine blob: metadata: {error}") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > 32:
        raise ValueError(f"an object with {len(pairs)} members")
    tree = dict(pairs)
    if len(tree) < len(pairs):  # the C++ reader takes the first, Python the last
        raise ValueError(f"an object with a key twice: {[key for key, _ in pairs]}")
    return tree


def _short_int(digits: str) -> int:
    if len(digits) > 20:  # int() takes quadratic time
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _no_number(token: str) -> NoReturn:
    raise ValueError(f"a number that is no integer: {token[:32]}")


def _entries(tree: dict[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    entries = tree.get(key, [])
    if type(entries) is not list:
        _reject(key, entries, "a list")
    for i, entry in enumerate(entries):
        yield f"{key}[{i}]", _object(f"{key}[{i}]", entry)


def _object(where: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        _reject(where, value, "an object")
    return value


def _check_bool(where: str, value: Any) -> None:
    if type(value) is not bool:
        _reject(where, value, "true or false")


def _check_int(where: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        _reject(where, value, f"an integer from {low} to {high}")


def _check_text(where: str, value: Any, allow_empty: bool = True) -> None:
    if type(value) is not str or not (value or allow_empty):
        _reject(where, value, "text" if allow_empty else "text that is not empty")
    if "\0" in value:
        _reject(where, value, "text without NUL, where C would end it")
    try:
        value.encode()
    except UnicodeEncodeError:
        _reject(where, value, "text that UTF-8 can hold")


def _reject(where: str, value: Any, expected: str) -> NoReturn:
    shown = repr(value[:64] if isinstance(value, (str, list)) else value)
    raise ValueError(f"engine blob: metadata: {where} is {shown[:160]}, not {expected}")
