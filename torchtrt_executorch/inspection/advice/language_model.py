"""Advice on hosts of a language model: what ExecuTorch's runners read from its file, and pass to its methods."""

from __future__ import annotations

from collections.abc import Iterator

from torchtrt_executorch.generation.metadata import (
    EXPORT_AGAIN,
    MAX_CONTEXT_LEN,
    MAX_SEQ_LEN,
    NAMES,
    Metadata,
    Takes,
    methods_of,
    mismatches,
)
from torchtrt_executorch.inspection.advice.finding import Finding
from torchtrt_executorch.inspection.formatting import short
from torchtrt_executorch.inspection.model.facts import HOST, Facts, Method
from torchtrt_executorch.runtime.reading import common_state

#: By kind of shared buffers, the hosts in which both methods share them.
_RIGHT_IN = {
    common_state.SHARED: "hosts that give both methods the same memory ({}examples/cpp/shared_memory.h)",
    common_state.IN_LIBRARIES: "hosts that set weight_sharing_across_methods of CudaBackend",
}

_ONE_METHOD = (
    "For TextLLMRunner export one method forward, of dynamic length. If none but hosts that share memory "
    "are to run the file, --ignore it."
)


def language_model(facts: Facts) -> Iterator[Finding]:
    """Find what is wrong with a language model for ExecuTorch's ``TextLLMRunner``."""
    if not facts.constants.keys() & {MAX_SEQ_LEN, MAX_CONTEXT_LEN}:
        return
    methods = {method.name: method for method in facts.methods}
    if "text_decoder" in methods:
        return  # which other runners call, with embeddings
    constants = {
        name: facts.constants[name] for name in NAMES if name in facts.constants
    }
    advice = f"{EXPORT_AGAIN[0].upper()}{EXPORT_AGAIN[1:]}."
    try:
        prompt, step = methods_of([*methods])
        metadata = Metadata.of(constants)
    except ValueError as error:
        text = f"No host of language models takes the file: {short(str(error), 300)}."
        yield Finding("runner-metadata", "warning", text, advice)
        return
    takes = _takes(methods[prompt])
    for problem in mismatches(metadata, prompt, takes) if takes else ():
        yield Finding("runner-metadata", "warning", f"{problem}.", advice, prompt)
    if prompt != step:
        yield from _two_methods(facts, prompt, step, metadata.max_seq_len is None)


def _two_methods(
    facts: Facts, prompt: str, step: str, is_refused: bool
) -> Iterator[Finding]:
    kinds = {need.kind for need in facts.common.needs()}
    if not kinds or common_state.SEPARATE in kinds:
        return  # which is wrong in any host, and a finding by itself
    # Module shares its first two arenas, and none on a device.
    arenas = {a.index for m in facts.methods for a in m.arenas if a.device != HOST}
    by_module = not arenas and facts.common.arenas <= {1, 2}
    right = " and ".join(
        _RIGHT_IN[kind].format("Module's share_memory_arenas, or " * by_module)
        for kind in sorted(kinds)
    )
    text = f"{prompt} and {step} have one cache in torchtrt_executorch.runtime, and in {right}; "
    if is_refused:
        text += (
            "TextLLMRunner of ExecuTorch, where each would have a cache of its own, refuses the file, as it has "
            f"no {MAX_SEQ_LEN}."
        )
    else:
        text += "in TextLLMRunner of ExecuTorch each has a cache of its own, and tokens are wrong."
    level = "note" if is_refused else "warning"
    yield Finding("runner-caches", level, text, _ONE_METHOD)


def _takes(method: Method) -> Takes | None:
    """Return the sizes of the method's token input and output; None if it has other inputs or outputs."""
    if not method.inputs or not method.outputs:
        return None
    tokens, logits = (
        method.values[index] for index in (method.inputs[0], method.outputs[0])
    )
    if len(tokens.shape) != 2 or not logits.shape:
        return None
    most = tokens.shape[-1]
    vocabulary = 0 if logits.dtype.startswith("int") else logits.shape[-1]
    return Takes(most, 1 if tokens.dynamic else most, vocabulary)
