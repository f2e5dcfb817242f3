"""Constant methods that describe a language model to its host, by the names that ExecuTorch's runners read.

``extension/llm/runner/constants.h`` of ExecuTorch has the names, ``llm_runner_helper.cpp`` the defaults of missing
ones. ``TextLLMRunner`` splits a prompt into chunks of at most ``get_max_seq_len`` tokens, and gives them to
``prefill`` or ``forward`` if ``enable_dynamic_shape`` is true, else one token after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram

MAX_SEQ_LEN, MAX_CONTEXT_LEN = "get_max_seq_len", "get_max_context_len"
DYNAMIC, KV_CACHE = "enable_dynamic_shape", "use_kv_cache"
VOCAB_SIZE, BOS_ID, EOS_IDS = "get_vocab_size", "get_bos_id", "get_eos_ids"

#: All of them.
NAMES = (
    MAX_SEQ_LEN,
    MAX_CONTEXT_LEN,
    DYNAMIC,
    KV_CACHE,
    VOCAB_SIZE,
    BOS_ID,
    EOS_IDS,
)


@dataclass(frozen=True)
class Metadata:
    """Values of a program's constant methods; None for those it lacks.

    Attributes:
        max_seq_len: The longest prefill chunk, in tokens.
        max_context_len: The tokens that the KV cache has room for; ``max_seq_len`` where the file doesn't say.
        enable_dynamic_shape: Whether prefill takes chunks of 1 to ``max_seq_len`` tokens.
        use_kv_cache: Whether methods keep a cache, and take positions.
        vocab_size: The logits of a token.
        bos_id: The token that a text begins with.
        eos_ids: The tokens that a text ends with.
    """

    max_seq_len: int | None = None
    max_context_len: int | None = None
    enable_dynamic_shape: bool = False
    use_kv_cache: bool = True
    vocab_size: int | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, constants: Mapping[str, Sequence[object]]) -> Metadata:
        """Parse the results of constant methods.

        Raises:
            ValueError: One of them returns an invalid value.
        """
        chunk = _number(constants, MAX_SEQ_LEN, 1)
        return cls(
            max_seq_len=chunk,
            max_context_len=_number(constants, MAX_CONTEXT_LEN, 1) or chunk,
            enable_dynamic_shape=bool(_number(constants, DYNAMIC, 0)),
            use_kv_cache=_number(constants, KV_CACHE, 0) != 0,
            vocab_size=_number(constants, VOCAB_SIZE, 1),
            bos_id=_number(constants, BOS_ID, 0),
            eos_ids=tuple(
                _whole(token_id, EOS_IDS, 0) for token_id in constants.get(EOS_IDS, ())
            ),
        )


@dataclass(frozen=True)
class Takes:
    """Sizes of a method's token input and output.

    Attributes:
        most: The most tokens of a call.
        fewest: The fewest.
        vocabulary: The logits of a token that it returns; 0 where it returns tokens.
    """

    most: int
    fewest: int
    vocabulary: int

    def __str__(self) -> str:
        if self.fewest == self.most:
            return str(self.most)
        return f"{self.fewest} to {self.most}"


def methods_of(names: Sequence[str]) -> tuple[str, str]:
    """Return the methods of a language model that take a prompt and a token: ``forward`` may be both.

    Raises:
        ValueError: There are no such methods.
    """
    prompt = "prefill" if "prefill" in names else "forward"
    step = "decode" if "decode" in names else "forward"
    if not {prompt, step} <= {*names}:
        raise ValueError(
            f"a language model has a method forward, or prefill and decode; this has {', '.join(names)}"
        )
    return prompt, step


#: Advice for a file that has one of these problems.
EXPORT_AGAIN = (
    "export it again, with what torchtrt_executorch.generation.constant_methods returns"
)


def mismatches(metadata: Metadata, name: str, prompt: Takes) -> Iterator[str]:
    """Yield the problems of a file's metadata with ExecuTorch's runners, a sentence each.

    They refuse a file that has no ``get_max_seq_len``, so nothing else is wrong with it.

    Args:
        name: The method that takes a prompt.
        prompt: Sizes of its input and output.
    """
    chunk = metadata.max_seq_len
    if chunk is None:
        return
    if metadata.enable_dynamic_shape:
        if prompt.fewest > 1 or prompt.most < chunk:
            yield (
                f"{MAX_SEQ_LEN} says that {name} takes 1 to {chunk} tokens at once, and it takes {prompt}, so "
                "ExecuTorch's runners fail"
            )
    elif prompt.fewest > 1:
        yield (
            f"{name} takes {prompt} tokens at once, and ExecuTorch's runners give it one at a time, as {DYNAMIC} "
            "isn't true, and fail"
        )
    elif prompt.most > 1:
        yield (
            f"{name} takes {prompt} tokens at once, and ExecuTorch's runners give it one at a time, as {DYNAMIC} "
            "isn't true"
        )
    if prompt.vocabulary and metadata.vocab_size not in (None, prompt.vocabulary):
        yield (
            f"{VOCAB_SIZE} is {metadata.vocab_size}, and {name} returns logits of {prompt.vocabulary} tokens"
        )


def constant_methods(
    programs: Mapping[str, ExportedProgram],
    max_context_len: int,
    *,
    generation_config: Any = None,
    vocab_size: int | None = None,
    shared_by_host: bool = False,
) -> dict[str, Any]:
    """Return the constant methods of a language model, for ``to_edge_transform_and_lower``.

    ``TextLLMRunner`` of ExecuTorch gives each method memory of its own, so that the tokens of ``prefill`` and
    ``decode`` would be those of two caches. It refuses a file that doesn't say ``get_max_seq_len``, so that is
    left out for two methods, and for those that return tokens, as ``SampledInMethod`` does.

    Args:
        programs: By name, the methods: ``forward``, or ``prefill`` and ``decode``. They take tokens (1, n), or their
            embeddings (1, n, hidden), and positions (n,), int64, and return logits (1, n or 1, vocabulary), or take
            what ``SampledInMethod`` does.
        max_context_len: The tokens that the cache has room for.
        generation_config: transformers' ``GenerationConfig``, or what else has ``bos_token_id`` and ``eos_token_id``.
        vocab_size: Of methods that return tokens; by default the logits of a token.
        shared_by_host: Whether all hosts of the file give both methods one memory, so that it may say
            ``get_max_seq_len`` in spite of them.

    Raises:
        ValueError: There are no such methods; or the one that takes a prompt doesn't take 1 to some number of
            tokens, no more than ``max_context_len``; or the other one doesn't take one token.
    """
    prompt, step = methods_of([*programs])
    takes, decode = _takes(programs[prompt], prompt), _takes(programs[step], step)
    if takes.fewest > 1:
        raise ValueError(
            f"{prompt} takes {takes} tokens at once, and prompts may be shorter: export it with "
            f"Dim('tokens', min=1, max={takes.most}) for their number"
        )
    if decode.fewest > 1:
        raise ValueError(
            f"{step} takes {decode} tokens at once, and one is needed: export it with one token"
        )
    if takes.most > max_context_len:
        raise ValueError(
            f"{prompt} takes up to {takes.most} tokens at once, and the cache has room for {max_context_len}: "
            f"export it with Dim('tokens', min=1, max={max_context_len}), or name a larger max_context_len"
        )
    methods: dict[str, Any] = {
        MAX_CONTEXT_LEN: max_context_len,
        DYNAMIC: takes.most > 1,
        KV_CACHE: len(programs[prompt].graph_signature.user_inputs) > 1,
    }
    if vocab_size or takes.vocabulary:
        methods[VOCAB_SIZE] = vocab_size or takes.vocabulary
    if takes.vocabulary and (prompt == step or shared_by_host):
        # A prompt that is given a token at a time is a chunk of any length.
        methods[MAX_SEQ_LEN] = takes.most if takes.most > 1 else max_context_len
    return methods | special_tokens(generation_config)


def special_tokens(generation_config: Any) -> dict[str, Any]:
    """Return the constant methods that say which tokens a text begins and may end with.

    Args:
        generation_config: transformers' ``GenerationConfig``, or what else has ``bos_token_id`` and ``eos_token_id``.
    """
    bos, eos = (
        getattr(generation_config, name, None)
        for name in ("bos_token_id", "eos_token_id")
    )
    methods: dict[str, Any] = {}
    if bos is not None:
        methods[BOS_ID] = int(bos)
    if eos is not None:
        ids = eos if isinstance(eos, Sequence) else [eos]
        methods[EOS_IDS] = [int(token_id) for token_id in ids]
    return methods


def _takes(program: ExportedProgram, name: str) -> Takes:
    """Return the sizes of an exported method's token input and output."""
    import torch

    inputs = {*program.graph_signature.user_inputs}
    *_, output = program.graph.nodes
    values = [
        node.meta["val"]
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in inputs
    ]
    outputs = [
        node.meta["val"]
        for node in output.args[0]
        if node.name in program.graph_signature.user_outputs
    ]
    tensors = [
        value for value in (*values, *outputs) if isinstance(value, torch.Tensor)
    ]
    sampled = bool(outputs) and not outputs[0].dtype.is_floating_point
    allowed = ((4, 5), (1, 2)) if sampled else ((1, 2), (1,))
    counts = len(values), len(outputs)
    if (
        any(count not in sizes for count, sizes in zip(counts, allowed, strict=True))
        or len(tensors) < sum(counts)
        or values[0].ndim not in (2, 3)
    ):
        raise ValueError(
            f"{name} takes {len(values)} inputs and returns {len(outputs)} outputs; tokens (1, n) and positions "
            "(n,) are due, and logits (1, n, vocabulary)"
        )
    count = values[0].shape[1]
    vocabulary = 0 if sampled else int(outputs[0].shape[-1])
    if isinstance(count, int):
        return Takes(count, count, vocabulary)
    bounds = program.range_constraints[count.node.expr]
    if not bounds.upper.is_Integer:
        raise ValueError(
            f"{name} takes any number of tokens at once: export it with Dim('tokens', min=1, max=...) for "
            "their number"
        )
    return Takes(int(bounds.upper), int(bounds.lower), vocabulary)


def _number(
    constants: Mapping[str, Sequence[object]], name: str, minimum: int
) -> int | None:
    if name not in constants:
        return None
    values = constants[name]
    return _whole(values[0] if len(values) == 1 else values, name, minimum)


def _whole(value: object, name: str, minimum: int) -> int:
    """Return a number of a file, which may hold anything."""
    if not isinstance(value, int) or value < minimum:
        raise ValueError(
            f"{name} returns {str(value)[:80]}; a whole number from {minimum} on is due"
        )
    return int(value)
