"""Write the files that ``files.py`` damages: one of each kind, as exporters and runtimes write them.

``python -m tests.fuzz.collect`` writes those that are missing from ``corpus/files``; one of a CUDA library takes a
minute.
"""

from __future__ import annotations

import copy
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir import to_edge_transform_and_lower as lower
from torch.export import export

FILES = Path(__file__).parent / "corpus" / "files"
X = torch.ones(2, 4)


def _case(name: str) -> bytes:
    from tests.torchtrt_executorch.runtime import programs

    return programs.build(programs.named(name))


def _planned() -> bytes:
    from tests.torchtrt_executorch.inspection.programs import planned

    return planned()


def _engine() -> bytes:
    from tests.torchtrt_executorch.inspection.programs import emulated

    return emulated()


def _quantized() -> bytes:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    model = export(torch.nn.Linear(4, 3).eval(), (X,)).module()
    prepared = prepare_pt2e(model, quantizer)
    prepared(X)
    program = export(convert_pt2e(prepared), (X,))
    return bytes(
        lower(program, partitioner=[XnnpackPartitioner()]).to_executorch().buffer
    )


def _several_methods() -> bytes:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() + 1

    methods = {name: export(Model(), (X,)) for name in ("forward", "other")}
    return bytes(to_edge(methods).to_executorch().buffer)


def _external(which: int) -> bytes:
    torch.manual_seed(0)
    edge = to_edge(export(torch.nn.Linear(4, 3), (X,)))
    program = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))
    ((_, ptd),) = program._tensor_data.items()
    return bytes(ptd if which else program.buffer)


def _bundled() -> bytes:
    from executorch.devtools import BundledProgram
    from executorch.devtools.bundled_program.config import (
        MethodTestCase,
        MethodTestSuite,
    )
    from executorch.devtools.bundled_program.serialize import (
        serialize_from_bundled_program_to_flatbuffer as serialize,
    )

    model = torch.nn.Linear(4, 3)
    cases = [MethodTestCase(inputs=(X,), expected_outputs=(model(X),))]
    program = to_edge(export(model, (X,))).to_executorch()
    return bytes(
        serialize(BundledProgram(program, [MethodTestSuite("forward", cases)]))
    )


_stand_ins: list[bytes] = []


def _cuda() -> bytes:
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    from torchtrt_executorch.runtime import save_stand_ins

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() * 2

    name = CudaBackend.generate_method_name_compile_spec("forward")
    program = export(copy.deepcopy(Model()), (X,))
    edge = lower(program, partitioner=[CudaPartitioner([name])])
    made = edge.to_executorch()
    with tempfile.TemporaryDirectory() as folder:
        made.save(str(Path(folder, "model.pte")))
        pte, *ptds = sorted(Path(folder).iterdir(), key=lambda each: each.suffix)
        data = pte.read_bytes()
        save_stand_ins(pte, Path(folder, "zip"), [p for p in ptds])
        _stand_ins.append(Path(folder, "zip").read_bytes())
    return data


def _stand_in() -> bytes:
    if not _stand_ins:
        _cuda()
    return _stand_ins[0]


def _etdump() -> bytes:
    from torchtrt_executorch.runtime import load

    program = load(_case("mlp"), profile=True)
    for _ in range(3):
        program.run(torch.ones(3, 8))
    with tempfile.TemporaryDirectory() as folder:
        program.profile().save(Path(folder, "dump"))
        return Path(folder, "dump").read_bytes()


#: By the name of its file.
KINDS: dict[str, Callable[[], Any]] = {
    **{
        f"{name}.pte": lambda name=name: _case(name)  # type: ignore[misc]
        for name in ("convnet", "dynamic_view", "cond", "map", "cache", "structured")
    },
    "xnnpack.pte": lambda: _case("xnnpack_mlp"),
    "devices.pte": _planned,
    "engine.pte": _engine,
    "cuda.pte": _cuda,
    "quantized.pte": _quantized,
    "methods.pte": _several_methods,
    "external.pte": lambda: _external(0),
    "external.ptd": lambda: _external(1),
    "bundled.bpte": _bundled,
    "stand_ins.zip": _stand_in,
    "times.etdp": _etdump,
}


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    for name, make in KINDS.items():
        packed = FILES / f"{name}.xz"
        if not (FILES / name).exists() and not packed.exists():
            data = make()
            small = len(data) < 1 << 16
            target = FILES / name if small else packed
            target.write_bytes(data if small else lzma.compress(data))
            print(name, len(data), flush=True)
