"""``torchtrt-executorch export``: a language model whose logits have to be transformers'."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner, Result

from tests.torchtrt_executorch.generation import toy
from torchtrt_executorch import emulated_engines
from torchtrt_executorch.cli import app
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.runtime import load

pytest.importorskip("transformers.integrations.executorch")


def export(*options: str) -> Result:
    result = CliRunner().invoke(app, ["export", *options])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_logits_are_compared_not_tokens() -> None:
    """Of two tokens that are nearly as likely either may come; of a wrong cache no logits are near."""
    from torchtrt_executorch.transformers.language_model import compared

    program = load(toy.saved())

    def difference(change: float) -> tuple[list[int], float]:
        model = toy.Attention()
        model.head.weight += change * torch.randn_like(model.head.weight)

        def llm(tokens: torch.Tensor, **_: bool) -> SimpleNamespace:
            return SimpleNamespace(logits=model(tokens, torch.arange(tokens.shape[1])))

        found: tuple[list[int], float] = compared(llm, program, toy.PROMPT, 40)
        return found

    tokens, found = difference(0)
    assert tokens == toy.eager(toy.PROMPT, 40) and found < 1e-5
    assert 1e-5 < difference(1e-4)[1] < 0.01 < 0.05 < difference(0.3)[1]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["xnnpack", "portable"])
def test_executorch_s_runner_takes_it(backend: str, tmp_path: Path) -> None:
    runner = pytest.importorskip(
        "executorch.extension.llm.runner", reason="this executorch has no runner"
    )
    out, tokenizer = tmp_path / "model.pte", tmp_path / "tokenizer.json"
    options = ["--prefill", backend, "--compare", "64", "--length", "96"]
    said = export(*options, "--out", str(out)).stdout
    assert "transformers' own logits: the same" in said, said
    (line,) = (line for line in said.splitlines() if line.startswith("tokens: "))
    wanted = [*map(int, line.split()[1:])]
    assert len({*wanted}) > 8
    toy.save_tokenizer(tokenizer, 256)
    prompt = toy.text([(7 * i + 3) % 90 for i in range(21)])
    pieces: list[str] = []
    runner.TextLLMRunner(str(out), str(tokenizer)).generate(
        prompt,
        runner.GenerationConfig(max_new_tokens=64, temperature=0.0, echo=False),
        token_callback=pieces.append,
    )
    assert toy.tokens_of("".join(pieces)) == wanted


@pytest.mark.parametrize(
    "form",
    [
        ["prefill", "decode"],
        pytest.param(["forward"], marks=pytest.mark.slow),
        pytest.param(["forward", "--sample"], marks=pytest.mark.slow),
    ],
)
def test_generates(form: list[str], tmp_path: Path) -> None:
    out = tmp_path / "model.pte"
    if "--sample" not in form:
        importlib.import_module("torch_tensorrt")
    methods = [each for each in form if not each.startswith("--")]
    options = ["--compare", "8", "--length", "48", "--chunk", "4", "--out", str(out)]
    if "--sample" in form:
        options += ["--sample", "--prefill", "portable"]
    if "decode" in methods:
        options += ["--decode", "tensorrt"]
    with emulated_engines():
        result = export(*options)
    assert result.exit_code == 0, result.output
    assert "transformers' own logits: the same" in result.stdout
    facts = read(out)
    assert {each.name for each in facts.methods if each.inputs} == {*methods}
    findings = {f.name: f.level for f in advise(facts) if f.name.startswith("runner")}
    assert findings == ({"runner-caches": "note"} if len(methods) > 1 else {})
    # TensorRT's methods share memory of a GPU, which Module can't.
    assert not any("share_memory_arenas" in f.text for f in advise(facts))
    assert bool(facts.common.arenas) == (len(methods) > 1)


def test_a_cache_of_int8_is_half_as_large(tmp_path: Path) -> None:
    """And its logits are near transformers'; without a scale for each token they wouldn't be."""
    pytest.importorskip("transformers", minversion="5.17")
    sizes = []
    for more in ([], ["--cache", "int8"]):
        out = tmp_path / "model.pte"
        options = ["--prefill", "portable", "--length", "400", "--compare", "24"]
        result = export(*options, *more, "--out", str(out))
        assert result.exit_code == 0, result.output
        (method,) = (m for m in read(out).methods if m.inputs)
        sizes.append(sum(each.nbytes for each in method.arenas))
    cache = 2 * 2 * 2 * 400 * 16 * 4  # keys and values of 2 layers and heads, float32
    assert sizes[0] - sizes[1] > 0.5 * cache


def test_a_folder_and_a_target_and_quantized_weights(tmp_path: Path) -> None:
    """Of a saved configuration; weights of linears take half a byte."""
    from transformers import Qwen3Config

    from torchtrt_executorch.transformers.language_model import TINY

    config = Qwen3Config(**{**TINY, "tie_word_embeddings": False, "dtype": "bfloat16"})
    config.save_pretrained(tmp_path)
    out = tmp_path / "model.pte"
    options = ["--prefill", "cuda", "--target", "linux-x86_64:sm_90:80GiB"]
    options += ["--quantize", "int4", "--length", "32", "--compare", "4"]
    result = export(str(tmp_path), *options, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "transformers' own logits: the same" in result.stdout
    facts = read(out)
    method = next(each for each in facts.methods if each.inputs)
    assert {each.gpus for each in method.delegates} == {("sm_90",)}
    linear = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 192) + 64 * 256
    table, packed = 2 * 256 * 64, linear // 2
    weights = sum(n for k, n in facts.named_data.items() if "weight" in k)
    assert table + packed < weights < table + 2 * packed


#: What a checkpoint in bfloat16 is exported as; the others are slow.
BFLOAT16 = (
    "--form xnnpack --quantize int8",
    "--form xnnpack --quantize int4",
    "--form xnnpack+xnnpack --quantize int4 --cache int8",
    "--form xnnpack+xnnpack --cache int8",
    "--form xnnpack --chunk 16",
    "--form xnnpack+portable",
    "--form portable+portable --cache int8",
    "--form xnnpack+cuda",
    "--form cuda+xnnpack",
    "--form cuda+cuda --quantize int8",
    "--form cuda+cuda --quantize float8 --cache int8",
    "--form tensorrt+xnnpack",
    "--form tensorrt+tensorrt --quantize int4",
    "--form tensorrt+cuda",
    "--form tensorrt+cuda --quantize int8",
    "--form tensorrt+cuda --quantize float8",
)


@pytest.mark.parametrize(
    "options",
    [
        *BFLOAT16[:2],
        *(pytest.param(each, marks=pytest.mark.slow) for each in BFLOAT16[2:]),
    ],
)
def test_a_checkpoint_in_bfloat16(options: str, tmp_path: Path) -> None:
    """As they are published; a small model without a checkpoint is in float32."""
    from transformers import Qwen3Config

    from torchtrt_executorch.transformers.language_model import TINY

    if "tensorrt" in options:
        import torch_tensorrt  # noqa: F401
    Qwen3Config(**{**TINY, "dtype": "bfloat16"}).save_pretrained(tmp_path)
    given = [*options.split(), "--target", "linux-x86_64:sm_89:24GiB"]
    given += ["--length", "32", "--compare", "4", "--out", str(tmp_path / "model.pte")]
    result = export(str(tmp_path), *given)
    assert result.exit_code == 0, result.output
    assert "transformers' own logits: the same" in result.stdout


def test_forms_and_targets_are_traced_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And GPUs that differ in memory alone have one library, which keeps the cache: none is copied in a step."""
    monkeypatch.setenv("TORCHTRT_EXECUTORCH_CACHE", str(tmp_path / "cache"))
    options = ["--form", "portable", "--form", "cuda+cuda", "--form", "cuda"]
    options += ["--target", "sm_80:40GiB", "--target", "sm_80:80GiB"]
    options += ["--length", "32", "--compare", "4", "--out", str(tmp_path / "x.pte")]
    with caplog.at_level("INFO"):
        result = export(*options)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("transformers' own logits: the same") == 5
    said = [record.getMessage() for record in caplog.records]
    # For prompts, for single tokens, and for both.
    assert sum(each.startswith("trace ") for each in said) == 3
    taken = [each for each in said if each.startswith("the CUDA library: taken")]
    assert len(taken) >= 3
    files = {
        str(file.parent.relative_to(tmp_path)): read(file)
        for file in tmp_path.rglob("x.pte")
    }
    found = {
        folder: [each.name for each in facts.methods if each.inputs]
        for folder, facts in files.items()
    }
    for folder, facts in files.items():
        caches = [
            keeper for by in facts.common.buffers.values() for keeper in by.values()
        ]
        assert {*caches} == ({"CudaBackend"} if "+" in folder else set())
        if "cuda" in folder:
            assert (
                sum(each.nbytes for m in facts.methods for each in m.arenas)
                < 12_000  # a cache has 16,384 bytes
            )
    both, one = ["decode", "prefill"], ["forward"]
    assert found == {
        "portable": one,
        "cuda+cuda/sm_80_40GiB": both,
        "cuda+cuda/sm_80_80GiB": both,
        "cuda/sm_80_40GiB": one,
        "cuda/sm_80_80GiB": one,
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--form", "cuda+cuda+cuda"], "'cuda+cuda+cuda' is no backend such as cuda"),
        (["--form", "cuda", "--form", "tpu"], "'tpu' is no backend such as cuda"),
        (["--quantize", "int4", "--form", "cuda", "--form", "xnnpack"], "XNNPACK"),
        (["--quantize", "int8", "--prefill", "portable"], "no backend beside XNNPACK"),
        (["--quantize", "float8", "--prefill", "xnnpack"], "int8 or int4"),
        (["--prefill", "cuda", "--target", "sm_nine"], "sm_nine"),
    ],
)
def test_what_can_t_be_exported_so(
    options: list[str], said: str, tmp_path: Path
) -> None:
    result = export(*options, "--out", str(tmp_path / "model.pte"))
    assert result.exit_code == 2
    assert said in result.stderr
    assert not [*tmp_path.iterdir()]


def test_without_torch_tensorrt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchtrt_executorch.transformers import lowering

    monkeypatch.setattr(lowering, "find_spec", lambda name: None)
    result = export("--out", str(tmp_path / "model.pte"))
    assert result.exit_code == 2
    assert "nothing here lowers forward by TensorRT" in result.stderr
    assert "--" not in result.stderr and "cuda" in result.stderr


def test_a_folder_of_no_model(tmp_path: Path) -> None:
    result = export(str(tmp_path), "--out", str(tmp_path / "model.pte"))
    assert result.exit_code == 2
    assert f"{tmp_path} is no folder of a model's" in result.stderr
