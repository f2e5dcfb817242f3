"""Models of transformers' by upstream's method names: outputs are eager's, and tokens transformers' own."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torchtrt_executorch.transformers import tiny_models
from torchtrt_executorch.generation.multimodal import generate, transcribe, transduce
from torchtrt_executorch.runtime import Program

from ...backends.cuda.conftest import needs_compilers
from ...lowering import load

pytest.importorskip("transformers.integrations.executorch")
LENGTH, TOKENS = 48, 16
METHODS = {
    "dinov2": ["forward"],
    "gemma3": ["vision_encoder", "token_embedding", "text_decoder"],
    "parakeet_tdt": ["preprocessor", "encoder", "decoder_step", "joint"],
    "silero_vad": ["forward"],
    "voxtral": ["audio_encoder", "token_embedding", "text_decoder"],
    "whisper": ["encoder", "text_decoder"],
}
SAYS_NOTHING = ("dinov2", "silero_vad")


def exportable(name: str, folder: Path, **form: Any) -> Any:
    """A small model, as it is exported."""
    from torchtrt_executorch.transformers import exportable, kinds

    if name == "silero_vad":
        tiny_models.silero(folder)
    else:
        tiny_models.saved(name, folder)
    return kinds.load(folder, exportable.Form(**{"length": LENGTH, **form}))


def exported(model: Any) -> Program:
    """Its program, loaded."""
    from torchtrt_executorch.transformers.lowering import emitted, lowered

    programs = model.programs()
    edge = lowered(programs, model.backends, model.constants(programs), None)
    return load(emitted(edge))


def tokens(name: str, model: Any, program: Program) -> tuple[list[int], list[int]]:
    """What a program says of what its encoder's example is, and what transformers does."""
    (encoder,) = {"encoder", "vision_encoder", "audio_encoder"} & {*METHODS[name]}
    value, *_ = model.methods[encoder].inputs
    wanted = tiny_models.tokens_of_transformers(name, model.module, value, TOKENS)
    if name == "whisper":
        return transcribe(program, value, [1], TOKENS)[0], wanted
    if name == "parakeet_tdt":
        return transduce(program, value, value.shape[-1], range(5)), wanted
    parts = [
        ("token_embedding", torch.tensor([tiny_models.BEFORE])),
        (encoder, value),
        ("token_embedding", torch.tensor([tiny_models.AFTER])),
    ]
    return generate(program, parts, TOKENS)[0], wanted


@pytest.mark.parametrize(
    "backend",
    ["xnnpack", pytest.param("cuda", marks=[needs_compilers, pytest.mark.slow])],
)
@pytest.mark.parametrize(
    "name",
    [
        each if each == "silero_vad" else pytest.param(each, marks=pytest.mark.slow)
        for each in METHODS
    ],
)
@pytest.mark.timeout(900)
def test_outputs_and_tokens_are_eager_s(
    name: str, backend: str, tmp_path: Path
) -> None:
    model = exportable(name, tmp_path / "model", prefill=backend)
    program = exported(model)
    methods = {each for each in program.method_names if program.inputs(each)}
    assert methods == {*METHODS[name]}
    if name not in SAYS_NOTHING:
        made, wanted = tokens(name, model, program)
        assert made == wanted and len({*made}) > 2
    _, off = model.compared(program, TOKENS)
    assert off < 1e-3


def test_decode_lowers_what_is_called_for_each_token(tmp_path: Path) -> None:
    model = exportable("gemma3", tmp_path, prefill="tensorrt", decode="cuda")
    assert model.backends == {
        "vision_encoder": "tensorrt",
        "token_embedding": "cuda",
        "text_decoder": "cuda",
    }


def test_parakeet_s_features_are_its_extractor_s(tmp_path: Path) -> None:
    from transformers import ParakeetFeatureExtractor

    model = exportable("parakeet_tdt", tmp_path)
    samples, _ = model.methods["preprocessor"].inputs
    module = model.methods["preprocessor"].module
    spoken = samples[:12000]
    wanted = ParakeetFeatureExtractor(feature_size=16)(
        [spoken.numpy()], sampling_rate=16000, return_tensors="pt"
    )
    made, frames = module(samples, torch.tensor([12000]))
    count = int(wanted["attention_mask"].sum())
    assert int(frames) == count == 75
    features = wanted["input_features"][0, :count].T
    torch.testing.assert_close(made[0, :, :count], features, atol=1e-3, rtol=1e-3)
    assert not made[0, :, count:].any()


def test_silero_vad_is_its_package_s() -> None:
    spec = importlib.util.find_spec("silero_vad")
    assert spec is not None, "make environment installs silero-vad"
    from torchtrt_executorch.transformers import kinds, speech

    (package,) = spec.submodule_search_locations or ()
    data = Path(package) / "data"
    ours = speech.SileroNetwork.load(data / kinds.SILERO)
    theirs: Any = torch.jit.load(data / kinds.SILERO)._model
    state = torch.zeros(2, 1, 128)
    for seed in range(3):
        torch.manual_seed(seed)
        sound = 0.1 * torch.randn(1, 576)
        with torch.no_grad():
            made, wanted = ours(sound, state), theirs(sound, state)
        torch.testing.assert_close(made, wanted, atol=1e-5, rtol=1e-4)
        state = wanted[1]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
            "type bert (BertForMaskedLM); exported are those of type dinov2, gemma3,",
        ),
        ({"model_type": "clip"}, "type clip (clip); exported are"),
        ({}, "no folder of a model's, as transformers saves one: 'model_type'"),
    ],
)
def test_other_models_are_refused(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    from torchtrt_executorch.transformers import exportable, kinds

    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        kinds.load(tmp_path, exportable.Form())
    assert said in str(caught.value)


def test_a_cache_without_room_for_an_image(tmp_path: Path) -> None:
    model = exportable("gemma3", tmp_path, length=6)
    with pytest.raises(ValueError, match="makes 4 embeddings, .* room for 6: .* 8"):
        model.compared(None, TOKENS)


@pytest.mark.parametrize("backend", ["cuda", "xnnpack"])
def test_linears_that_no_group_divides_stay_as_they_are(backend: str) -> None:
    from torchtrt_executorch.transformers.lowering import quantize

    sizes = (48, 96, 128, 16, 8)
    model = torch.nn.Sequential(*map(torch.nn.Linear, sizes, sizes[1:]))
    before = [linear.weight for linear in model]
    assert quantize(model, "int4", {backend}) == ["0", "3"]
    same = [
        linear.weight is weight for linear, weight in zip(model, before, strict=True)
    ]
    assert same == [True, False, False, True]
    with pytest.raises(ValueError, match="a multiple of 32: one has 48"):
        quantize(torch.nn.Linear(48, 4), "int4", {backend})


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features", [64, 4096])
def test_linears_for_xnnpack_compute_in_float32(
    scheme: str, dtype: torch.dtype, features: int
) -> None:
    """Large ones, which are quantized by blocks of rows, and those that stay as they are, too."""
    from torchtrt_executorch.transformers.lowering import quantize

    torch.manual_seed(0)
    sizes = (features, 512, 40, 8)
    model = torch.nn.Sequential(*map(torch.nn.Linear, sizes, sizes[1:])).to(dtype)
    x = torch.randn(3, features, dtype=dtype)
    wanted = model(x)
    stays = ["2"] if scheme == "int4" else []  # 40 is no multiple of 32
    assert quantize(model, scheme, {"xnnpack"}) == stays
    assert {each.weight.dtype for each in model[:2]} == {torch.float32}
    result = model(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result, wanted, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("scheme", ["int8", "int4", "float8"])
def test_weights_that_attention_reads_stay_tensors(scheme: str) -> None:
    """``nn.MultiheadAttention`` multiplies by its linear's weight, without calling that."""
    from torchtrt_executorch.transformers.lowering import quantize

    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).train(False)
    quantize(layer.requires_grad_(False), scheme, {"cuda", "tensorrt"})
    assert type(layer.linear1.weight.data) is not torch.Tensor
    torch.export.export(layer, (torch.randn(1, 5, 64),))


@needs_compilers
@pytest.mark.slow
@pytest.mark.builds
@pytest.mark.parametrize("name", [each for each in METHODS if each != "silero_vad"])
@pytest.mark.timeout(900)
def test_encoders_are_engines_and_quantized(name: str, tmp_path: Path) -> None:
    from torchtrt_executorch.transformers.lowering import quantize

    model = exportable(name, tmp_path, prefill="tensorrt", decode="cuda")
    quantize(model.module, "int4", {*model.backends.values()})
    _, off = model.compared(exported(model), TOKENS)
    assert off < 1e-3
