"""Generate with a language model's program: a prompt, then a token at a time.

The program has a method ``forward``, or ``prefill`` for a prompt and ``decode`` for the tokens after it. A method
takes tokens (1, n) and their positions (n,), integers, and returns logits (1, n, vocabulary), or those of
the last token, as transformers' ``TorchExportableModuleWithStaticCache`` does, or as ``SampledInMethod`` takes
temperature and seed, too, and returns tokens; the cache is its state. A prompt is passed in chunks as long as the
method supports, or one token after another.
"""

from __future__ import annotations

import collections.abc
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import takewhile
from typing import Literal

import torch

from torchtrt_executorch.generation.metadata import (
    EXPORT_AGAIN,
    NAMES,
    Metadata,
    Takes,
    methods_of,
    mismatches,
)
from torchtrt_executorch.generation.sampling import (
    LogitsProcessor,
    SampledThere,
    Sampler,
)
from torchtrt_executorch.runtime import Method, Program

#: Generator of one sequence's tokens.
Tokens = collections.abc.Generator[int, None, None]

#: Returns guesses of the next tokens, from the tokens so far.
Draft = Callable[[Sequence[int]], Sequence[int]]

#: A token of ``stop``, as many tokens as were asked for, or a full cache.
FinishReason = Literal["stop", "length", "full"]

#: The tokens whose keys and values are in each program's cache.
_caches: weakref.WeakKeyDictionary[Program, list[int]] = weakref.WeakKeyDictionary()

#: The last sequence of each program, which has the cache until it is through or let go of.
_sequences: weakref.WeakKeyDictionary[Program, weakref.ref[Tokens]] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.Lock()


class Generator:
    """Greedy decoding, or sampling, with a program, whose cache holds one sequence at a time.

    Warns of constant methods that ExecuTorch's runners would fail with.

    Attributes:
        metadata: Values of the program's constant methods.
        finish_reason: Why the last sequence ended; None before its end.

    Raises:
        ValueError: The program has no such methods.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        prompt, step = methods_of(program.method_names)
        self._prompt, self._step = (
            _Tokens(program.method(name)) for name in (prompt, step)
        )
        self.metadata = Metadata.of(_constants(program))
        self._room = self.metadata.max_context_len
        self._cached = _caches.setdefault(program, [])
        self.finish_reason: FinishReason | None = None
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
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        logits_processor: LogitsProcessor | None = None,
        seed: int | None = None,
        stop: Sequence[int] | None = None,
        keep_prefix: bool = False,
        draft: Draft | None = None,
    ) -> Tokens:
        """Return what yields up to ``count`` tokens after ``prompt``, fewer if one is in ``stop``.

        Each call begins a sequence of its own, in the same cache. ``temperature`` and the four after it are
        :class:`Sampler`'s.

        Args:
            stop: By default those that end a text by the program's method ``get_eos_ids``.
            keep_prefix: Whether to go back to the last token that the prompt has in common with the sequence before,
                whose keys and values the cache has. Not for models with other state than such a cache.
            draft: Function of the tokens so far, which returns a guess of the next ones, of any length. They are
                verified at once, by the method that takes a prompt: tokens are the same, in fewer calls.

        Raises:
            RuntimeError: Another sequence of the program's, of this generator or another, has tokens to
                come yet: iterate it to its end or ``close()`` it, or load the program a second time.
            ValueError: The prompt is empty, has a token outside of the vocabulary, or is longer than what the cache
                has room for, which the program's method ``get_max_context_len`` says, if it has one; a number is
                outside of its range; or with ``draft`` the method doesn't return the logits of each token.
        """
        if not prompt:
            raise ValueError("a prompt has at least one token")
        self._check(prompt, "prompt")
        if draft is not None and not self._prompt.returns_all:
            raise ValueError(
                f"{self._prompt.name} takes {self._prompt.described} tokens at once and doesn't return the logits "
                "of each, by which a draft is verified: export it with a dynamic length, and with all logits"
            )
        limit = count
        if self._room is not None:
            if len(prompt) > self._room:
                raise ValueError(
                    f"the prompt has {len(prompt)} tokens, and the program has room for {self._room}"
                )
            limit = min(count, self._room - len(prompt) + 1)
        self._step.check_options(top_k, top_p, repetition_penalty, logits_processor)
        choose = (SampledThere if self._step.sampled else Sampler)(
            temperature, top_k, top_p, repetition_penalty, logits_processor, seed
        )
        stops = self.metadata.eos_ids if stop is None else stop
        last: FinishReason = "full" if limit < count else "length"
        sequence = self._tokens(
            [*prompt], limit, choose, stops, keep_prefix, draft, last
        )
        with _lock:
            other = _sequences.get(self._program, _nobody)()
            if other is not None and getgeneratorstate(other) != GEN_CLOSED:
                raise RuntimeError(
                    "the program is in the midst of another sequence, which has its cache: iterate that "
                    "one to its end, close() it, or load the program a second time"
                )
            _sequences[self._program] = weakref.ref(sequence)
        self.finish_reason = None
        return sequence

    def _tokens(
        self,
        tokens: list[int],
        count: int,
        choose: Sampler | SampledThere,
        stop: Sequence[int],
        keep_prefix: bool,
        draft: Draft | None,
        last: FinishReason,
    ) -> Tokens:
        options = choose.inputs
        start = self._kept(tokens) if keep_prefix else 0
        logits = self._prefill(tokens, start, options)
        # Tokens that are in the cache already, and what each row of logits after the first comes after.
        guessed: list[int] = []
        for remaining in reversed(range(count)):
            token = choose(tokens, logits[0])
            tokens.append(token)
            yield token
            if token in stop or not remaining:
                self.finish_reason = "stop" if token in stop else last
                return
            if guessed and guessed[0] == token:
                guessed, logits = guessed[1:], logits[1:]
                continue
            guessed = self._guessed(draft, tokens, remaining - 1) if draft else []
            method = self._prompt if guessed else self._step
            input_tokens = [token, *guessed]
            logits = self._run(
                method, input_tokens, len(tokens) - 1, options, len(input_tokens)
            )

    def _prefill(
        self, tokens: list[int], position: int, options: Sequence[float]
    ) -> torch.Tensor:
        """Fill the cache from ``position`` on; return the logits of the token after the last one."""
        while position < len(tokens):
            rest = len(tokens) - position
            method, length = self._prompt, min(rest, self._prompt.most)
            if length == 1 or not method.takes(length):
                method, length = self._step, 1
            piece = tokens[position : position + length]
            logits = self._run(method, piece, position, options, 1)
            position += length
        return logits

    def _run(
        self,
        method: _Tokens,
        tokens: list[int],
        position: int,
        options: Sequence[float],
        last: int,
    ) -> torch.Tensor:
        """Call a method, and record the tokens in the cache."""
        cached = self._cached
        del cached[position:]  # which is what the cache has, should the call fail
        logits = method(tokens, position, options, last)
        cached += tokens
        return logits

    def _kept(self, tokens: list[int]) -> int:
        """Return how many of these are in the cache; the last one's logits are wanted yet."""
        pairs = zip(tokens[:-1], self._cached, strict=False)
        alike = takewhile(lambda pair: pair[0] == pair[1], pairs)
        return sum(1 for _ in alike)

    def _guessed(self, draft: Draft, tokens: list[int], most: int) -> list[int]:
        most = min(most, self._prompt.most - 1)
        guessed = [*draft(tuple(tokens))][:most] if most > 0 else []
        self._check(guessed, "draft")
        return guessed

    def _check(self, tokens: Sequence[int], what: str) -> None:
        vocabulary = self._prompt.described.vocabulary or self.metadata.vocab_size
        for index, token in enumerate(tokens):
            if not 0 <= token < (vocabulary or float("inf")):
                raise ValueError(
                    f"token {token} of the {what}, number {index}, is outside of the vocabulary of {vocabulary} tokens"
                )


def _nobody() -> None:
    """Default in place of a weak reference: there is no sequence."""


class _Tokens:
    """A method that takes tokens.

    Attributes:
        most: The most tokens of a call.
    """

    def __init__(self, method: Method) -> None:
        self._method, self.name = method, method.name
        inputs, outputs = method.inputs, method.outputs
        shapes = [info.shape for info in inputs]
        shape = (1, *((outputs and outputs[0].shape) or (0,)))
        dtype = outputs[0].dtype if outputs else None
        #: Whether it returns tokens.
        self.sampled = dtype is not None and not dtype.is_floating_point
        allowed = (4, 5) if self.sampled else (1, 2)
        if len(inputs) not in allowed or any(not shape for shape in shapes):
            raise ValueError(
                f"{method.name} takes {len(inputs)} input{'s' * (len(inputs) != 1)}; tokens (1, n) and positions (n,) are due"
                + ", and temperature, seed and maybe top_p (1,)" * self.sampled
            )
        self._types = [info.dtype for info in inputs]
        dynamic = inputs[0].dynamic
        self.most: int = shapes[0][-1]  # type: ignore[index]
        rows, vocabulary = (shape[-1], 0) if self.sampled else shape[-2:]
        #: Sizes of its input and output.
        fewest = 1 if dynamic else self.most
        self.described = Takes(self.most, fewest, vocabulary)
        #: Whether it returns the logits of each of several tokens, or what follows each.
        self.returns_all = self.most > 1 and dynamic and rows == self.most

    def check_options(
        self,
        top_k: int | None,
        top_p: float | None,
        repetition_penalty: float | None,
        logits_processor: LogitsProcessor | None,
    ) -> None:
        """Refuse what a method that samples by itself can't be told."""
        if not self.sampled:
            return
        options = {
            "top_k": top_k,
            "top_p": top_p if len(self._types) < 5 else None,
            "repetition_penalty": repetition_penalty,
            "logits_processor": logits_processor,
        }
        for option, value in options.items():
            if value is not None:
                raise ValueError(
                    f"{self.name} returns tokens, and has no input for {option}: leave it out, or export a program "
                    "that returns logits"
                )

    def takes(self, count: int) -> bool:
        return self.described.fewest <= count <= self.described.most

    def __call__(
        self, tokens: list[int], position: int, options: Sequence[float], last: int
    ) -> torch.Tensor:
        """Return the logits (last, vocabulary) of the token after each of the ``last`` tokens, or those tokens (last,)."""
        positions = range(position, position + len(tokens))
        inputs = [
            torch.tensor([tokens], dtype=self._types[0]),
            *(torch.tensor(positions, dtype=dtype) for dtype in self._types[1:2]),
        ]
        if not self.sampled:
            logits, *_ = self._method(*inputs)
            rows: torch.Tensor = logits.reshape(-1, logits.shape[-1])[-last:]
            return rows.float().cpu()
        types = self._types[2:]
        pairs = zip(options, types, strict=False)  # top_p may have no input
        inputs += [torch.tensor([value], dtype=dtype) for value, dtype in pairs]
        last_logits: torch.Tensor = self._method(*inputs)[0]
        return last_logits.reshape(-1)[-last:].cpu()


def _constants(program: Program) -> dict[str, tuple[object, ...]]:
    """Return the results of constant methods, by name."""
    return {
        name: program.method(name)()
        for name in NAMES
        if name in program.method_names and not program.inputs(name)
    }
