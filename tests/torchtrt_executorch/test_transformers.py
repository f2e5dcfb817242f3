"""transformers' exporter with TensorRT and CUDA: registered, exported, run, saved, loaded, and generating."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import State, patch_statuses

from .. import fresh
from ..backends.cuda.conftest import needs_compilers
from ..without_torch_tensorrt import reason

IN_FORCE = patch_statuses(PATCHES)["transformers-exporter"].state is State.IN_FORCE
needs_exporter = pytest.mark.skipif(not IN_FORCE, reason="needs transformers 5.23")
needs_tensorrt = pytest.mark.skipif(bool(reason()), reason=reason())
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with contextlib.nullcontext() if reason() else emulated_engines():
        yield


def backends(program: Any) -> set[str]:
    plan = program.executorch_program.execution_plan[0]
    return {each.id for each in plan.delegates}


def export(
    backend: str, inputs: dict[str, Any], folder: Path, **sizes: int
) -> tuple[Any, torch.Tensor]:
    """Export a BERT, compare it with eager, also once it is saved in ``folder`` and loaded; with eager's output."""
    from transformers import BertConfig, BertModel
    from transformers.exporters.base import ExportedModel
    from transformers.exporters.configs import ExecutorchConfig
    from transformers.exporters.exporter_executorch import ExecutorchExporter

    torch.manual_seed(0)
    config = BertConfig(**{**SIZES, **sizes})
    model = BertModel(config, add_pooling_layer=backend != "cuda").eval()
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
    config = ExecutorchConfig(backend=backend)
    exported = ExecutorchExporter().export(model, dict(inputs), config=config)
    torch.testing.assert_close(exported(**inputs).last_hidden_state, expected)
    exported.save_pretrained(folder)
    loaded = ExportedModel.from_pretrained(folder)
    torch.testing.assert_close(loaded(**inputs).last_hidden_state, expected)
    loaded.save_pretrained(folder / "again")
    again = (folder / "again/model.pte").read_bytes()
    assert again == (folder / "model.pte").read_bytes()
    return exported, exported(**inputs).last_hidden_state


@needs_exporter
@needs_tensorrt
def test_an_encoder_with_a_mask(tmp_path: Path) -> None:
    """A mask that isn't causal; as it was exported, and as it was saved and loaded again."""
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    inputs = {"input_ids": torch.randint(0, 99, (2, 7)), "attention_mask": mask}
    exported, _ = export("tensorrt", inputs, tmp_path)
    assert "TensorRTBackend" in backends(exported.program)


@needs_exporter
def test_what_executorch_s_wheel_can_run_it_runs(tmp_path: Path) -> None:
    from executorch.runtime import Method

    inputs = {"input_ids": torch.randint(0, 99, (1, 4))}
    exported, _ = export("xnnpack", inputs, tmp_path)
    assert isinstance(exported.runners["model"].method, Method)


@needs_exporter
@needs_compilers
def test_cuda_needs_no_gpu_and_keeps_the_type(tmp_path: Path) -> None:
    """The delegate is compiled for the described GPU; without one a stand-in computes for it."""
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    inputs = {"input_ids": torch.randint(0, 99, (1, 4))}
    exported, made = export("cuda", inputs, tmp_path, **sizes)
    assert backends(exported.program) == {"CudaBackend"}
    assert made.dtype is torch.float32


@needs_exporter
@needs_tensorrt
def test_a_decoder_with_a_static_cache_generates_eager_s_tokens() -> None:
    """The cache is the caller's, and written in place."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.exporters.configs import ExecutorchConfig
    from transformers.exporters.exporter_executorch import ExecutorchExporter
    from transformers.exporters.utils import decompose_for_generation

    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_key_value_heads=2, eos_token_id=None)
    model = LlamaForCausalLM(config).eval()
    prompt, new = torch.randint(3, 99, (1, 5)), 6
    greedy = GenerationConfig(
        cache_implementation="static", max_new_tokens=new, do_sample=False
    )
    given = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
    wanted = model.generate(**given, generation_config=greedy)[0, prompt.shape[1] :]
    length = GenerationConfig(cache_implementation="static", max_length=16)
    backend = ExecutorchConfig(backend="tensorrt")
    exported = ExecutorchExporter().export_for_generation(
        model, given, backend, generation_config=length
    )
    for component in exported.components.values():
        assert "TensorRTBackend" in backends(component.program)
    parts = decompose_for_generation(model, given, generation_config=length)
    (_, prefill), (_, decode) = parts["prefill"], parts["decode"]
    # As transformers 5.24 calls the cache, or as 5.23 does.
    (name,) = {"cache", "past_key_values"} & {*prefill}
    prefill[name].reset()
    run = exported.runners
    result = run["prefill"](
        **{k: v for k, v in prefill.items() if k in run["prefill"].metadata.kwargs}
    )
    tokens = [int(result.logits[0, -1].argmax())]
    for position in range(prompt.shape[1], prompt.shape[1] + new - 1):
        mask = torch.zeros_like(decode["attention_mask"])
        mask[..., : position + 1] = True
        result = run["decode"](
            input_ids=torch.tensor([tokens[-1:]]),
            attention_mask=mask,
            position_ids=torch.tensor([[position]]),
            **{name: result[name]},
        )
        tokens.append(int(result.logits[0, -1].argmax()))
    assert tokens == wanted.tolist()


def run(
    code: str, *ahead: Path, start: Callable[..., fresh.Done] = fresh.python
) -> Any:
    path = os.pathsep.join([*map(str, ahead), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = start(code, env=environment, cwd=sys.prefix)
    assert done.returncode == 0, done.stderr
    assert "RuntimeWarning: torchtrt-executorch" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_torch_imports_no_transformers() -> None:
    code = "import json, sys, torch; print(json.dumps('transformers' in sys.modules))"
    assert run(code) is False


TABLE = (
    "import json, importlib\n"
    "module = importlib.import_module('transformers.exporters.exporter_executorch')\n"
    "print(json.dumps(sorted(module._BACKEND_PREPARE)))"
)


@needs_exporter
def test_registered_where_the_exporter_is_the_first_import() -> None:
    tensorrt = [] if reason() else ["tensorrt"]
    assert run(TABLE) == ["cuda", "mlx", *tensorrt, "xnnpack"]


@needs_exporter
def test_an_unknown_transformers_is_left_alone(tmp_path: Path) -> None:
    """In silence: most who have it have it for something else."""
    info = tmp_path / "transformers-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: transformers\nVersion: 9.9\n"
    )
    assert run(TABLE, tmp_path, start=fresh.run) == ["cuda", "mlx", "xnnpack"]
