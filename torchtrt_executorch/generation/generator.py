"""Generate with a language model's program: a prompt, then a token at a time.

The program has a method ``forward``, or ``prefill`` for a prompt and ``decode`` for what follows it. A method
takes tokens (1, n) and their positions (n,), integers, and returns logits (1, n, vocabulary), or those of
the last token, as transformers' ``TorchExportableModuleWithStaticCache`` does; the cache is its state. A
prompt is given in pieces as long as the method takes, and where no method takes more than one token, one
after another.
"""

from __future__ import annotations

import collections.abc
import threading
import warnings
import weakref
from collections.abc import Sequence
from inspect import GEN_CLOSED, getgeneratorstate

import torch

from torchtrt_executorch.generation.metadata import (
    EXPORT_AGAIN,
    NAMES,
    Metadata,
    Takes,
    methods_of,
    mismatches,
)
from torchtrt_executorch.runtime import Method, Program

#: What yields the tokens of one sequence.
Tokens = collections.abc.Generator[int, None, None]

#: The last sequence of each program, which has the cache until it is through or let go of.
_sequences: weakref.WeakKeyDictionary[Program, weakref.ref[Tokens]] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.Lock()


class Generator:
    """Greedy decoding, or sampling, with a program, whose cache holds one sequence at a time.

    Warns of constant methods that ExecuTorch's runners would fail with.

    Attributes:
        metadata: What the program's constant methods say.

    Raises:
        ValueError: The program has no such methods.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        prompt, step = methods_of(program.method_names)
        self._prompt, self._step = (
            _Tokens(program.method(each)) for each in (prompt, step)
        )
        self.metadata = Metadata.of(_constants(program))
        self._room = self.metadata.max_context_len
        for problem in mismatches(self.metadata, prompt, self._prompt.described):
            warnings.warn(f"{problem}: {EXPORT_AGAIN}", RuntimeWarning, stacklevel=2)
        if not self._step.takes(1):
            raise ValueError(
                f"{step} takes {self._step.most} tokens at a time, and one is needed: give it a dynamic "
                "length, or add a method decode"
            )

    def __call__(
        self,
        prompt: Sequence[int],
        count: int,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        stop: Sequence[int] | None = None,
    ) -> Tokens:
        """Return what yields up to ``count`` tokens after ``prompt``, fewer if one is in ``stop``.

        Each call begins a sequence of its own, in the same cache. ``temperature`` 0 takes the likeliest
        token. ``stop`` is by default those that end a text by the program's method ``get_eos_ids``.

        Raises:
            RuntimeError: Another sequence of the program's, of this generator or another, has tokens to
                come yet: iterate it to its end or ``close()`` it, or load the program a second time.
            ValueError: The prompt is empty, or longer than what the cache has room for, which the program's
                method ``get_max_context_len`` says, if it has one.
        """
        if not prompt:
            raise ValueError("a prompt has at least one token")
        if self._room is not None:
            if len(prompt) > self._room:
                raise ValueError(
                    f"the prompt has {len(prompt)} tokens, and the program has room for {self._room}"
                )
            count = min(count, self._room - len(prompt) + 1)
        drawn = torch.Generator()
        if seed is None:
            drawn.seed()
        else:
            drawn.manual_seed(seed)
        stops = self.metadata.eos_ids if stop is None else stop
        sequence = self._tokens(prompt, count, temperature, drawn, stops)
        with _lock:
            other = _sequences.get(self._program, _nobody)()
            if other is not None and getgeneratorstate(other) != GEN_CLOSED:
                raise RuntimeError(
                    "the program is in the midst of another sequence, which has its cache: iterate that "
                    "one to its end, close() it, or load the program a second time"
                )
            _sequences[self._program] = weakref.ref(sequence)
        return sequence

    def _tokens(
        self,
        prompt: Sequence[int],
        count: int,
        temperature: float,
        drawn: torch.Generator,
        stop: Sequence[int],
    ) -> Tokens:
        position, rest = 0, [*prompt]
        while rest:
            method, length = self._prompt, min(len(rest), self._prompt.most)
            if length == 1 or not method.takes(length):
                method, length = self._step, 1
            logits = method(rest[:length], position)
            position, rest = position + length, rest[length:]
        for index in range(count):
            token = _drawn(logits, temperature, drawn)
            yield token
            if token in stop or index == count - 1:
                return
            logits = self._step([token], position)
            position += 1


def _nobody() -> None:
    """What refers to no sequence."""


class _Tokens:
    """A method that takes tokens.

    Attributes:
        most: How many it takes at once.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        inputs = method.inputs
        shapes = [each.shape for each in inputs]
        if not 1 <= len(inputs) <= 2 or any(not shape for shape in shapes):
            raise ValueError(
                f"{method.name} takes {len(inputs)} input{'s' * (len(inputs) != 1)}; tokens (1, n) and positions (n,) are due"
            )
        self._types = [each.dtype for each in inputs]
        self._dynamic = inputs[0].dynamic
        self.most: int = shapes[0][-1]  # type: ignore[index]

    @property
    def described(self) -> Takes:
        logits, *_ = self._method.outputs
        fewest = 1 if self._dynamic else self.most
        return Takes(self.most, fewest, (logits.shape or (0,))[-1])

    def takes(self, count: int) -> bool:
        return count == self.most or (self._dynamic and count < self.most)

    def __call__(self, tokens: list[int], position: int) -> torch.Tensor:
        """The logits of what comes after ``tokens``, which begin at ``position``."""
        positions = range(position, position + len(tokens))
        given = [
            torch.tensor([tokens], dtype=self._types[0]),
            *(torch.tensor(positions, dtype=each) for each in self._types[1:]),
        ]
        logits, *_ = self._method(*given)
        last: torch.Tensor = logits.reshape(-1, logits.shape[-1])[-1]
        return last.float().cpu()


def _constants(program: Program) -> dict[str, tuple[object, ...]]:
    """What constant methods return, by their names."""
    return {
        name: program.method(name)()
        for name in NAMES
        if name in program.method_names and not program.inputs(name)
    }


def _drawn(logits: torch.Tensor, temperature: float, drawn: torch.Generator) -> int:
    if temperature <= 0:
        return int(logits.argmax())
    chances = torch.softmax(logits / temperature, -1)
    return int(torch.multinomial(chances, 1, generator=drawn))
