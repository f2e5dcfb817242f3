"""Format sizes, durations, tensors and payloads."""

from __future__ import annotations

from torchtrt_executorch.inspection.model.facts import Delegate, Value

#: The longest name that a view shows; a file may hold any.
LONGEST = 120


def size(nbytes: int) -> str:
    """Return ``512 B``, ``1.5 KiB``, ``2.0 GiB``."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration(nanoseconds: float) -> str:
    """Return ``840 ns``, ``12.3 us``, ``4.5 ms``, ``1.2 s``."""
    for unit, most in (("ns", 1e3), ("us", 1e6), ("ms", 1e9)):
        if nanoseconds < most:
            amount = nanoseconds / most * 1e3
            return f"{amount:.0f} {unit}" if unit == "ns" else f"{amount:.1f} {unit}"
    return f"{nanoseconds / 1e9:.1f} s"


def counted(number: int, noun: str) -> str:
    """Return ``1 output``, ``2 outputs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def short(text: str, most: int = LONGEST) -> str:
    """Return ``text`` on one line, printable, its middle left out if it is long."""
    clean = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in text[: 4 * most]
    )
    if len(text) <= most:
        return clean
    half = (most - 1) // 2
    return (
        f"{clean[:half]}…{''.join(c if c.isprintable() else '�' for c in text[-half:])}"
    )


def tensor(value: Value) -> str:
    """Return ``float32 [1, 3, 224, 224], 588.0 KiB, on cuda:0, planned``; the kind of no tensor."""
    if value.kind != "tensor":
        return value.kind
    bound = "at most " if value.dynamic else ""
    shape = ", ".join(map(str, value.shape[:16])) + (
        ", …" if len(value.shape) > 16 else ""
    )
    text = f"{value.dtype} {bound}[{shape}], {size(value.nbytes)}, on {value.device}"
    return f"{text}, {value.storage}" if value.storage else text


def _shapes(delegate: Delegate, name: str) -> str:
    bounds = (
        ("at least", delegate.smallest),
        ("best", delegate.optimal),
        ("at most", delegate.largest),
    )
    said = [f"{bound} {[*shapes[name]]}" for bound, shapes in bounds if name in shapes]
    return f" ({', '.join(said)})" if said else ""


def payload(delegate: Delegate) -> str:
    """Describe a delegate's payload."""
    parts = [delegate.payload] if delegate.payload else []
    if delegate.damaged:
        parts.append(f"damaged: {delegate.damaged}")
    if delegate.inputs or delegate.outputs:
        inputs = [f"{name}{_shapes(delegate, name)}" for name in delegate.inputs]
        parts.append(
            f"{', '.join(inputs)} -> {', '.join(delegate.outputs)}, on {delegate.device}"
        )
    if delegate.shared_stream:
        parts.append("needs a host with one stream for all delegates")
    return "; ".join(parts)
