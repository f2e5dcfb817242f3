"""Each public entry point by itself: ``python entry_points.py NAME FOLDER``, in a fresh process.

What one test imports the next one finds imported, which hides what an entry point forgets to.
So each function here imports what its user would, and nothing runs before it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch


class Model(torch.nn.Module):
    """Two rows for each that it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.sin(), x.cos()])


class Found(torch.nn.Module):
    """As many rows as are found: ``nonzero`` runs in PyTorch, between two engines."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x.sin() > 0).to(torch.float32).cos()


X, MORE = torch.linspace(-1, 1, 8).reshape(2, 4), torch.linspace(-1, 1, 20).reshape(
    5, 4
)
SHAPES = ({0: torch.export.Dim("rows", min=1, max=8)},)
SIZES: dict[str, Any] = {
    "min_shape": (1, 4),
    "opt_shape": (2, 4),
    "max_shape": (8, 4),
    "dtype": torch.float32,
}


def compiled(model: torch.nn.Module | None = None) -> Any:
    """Return the model compiled for 1 to 8 rows."""
    import torch_tensorrt

    return torch_tensorrt.compile(
        (model or Model()).eval(),
        ir="dynamo",
        arg_inputs=[torch_tensorrt.Input(**SIZES)],
        min_block_size=1,
        target_executorch=True,
    )


def check(module: Any, model: torch.nn.Module | None = None) -> None:
    """Compare ``module`` with eager, for two numbers of rows."""
    for x in (X, MORE):
        torch.testing.assert_close(module(x), (model or Model())(x))


def compile(folder: Path) -> None:
    check(compiled())


def dynamo_compile(folder: Path) -> None:
    program = torch.export.export(Model(), (X,), dynamic_shapes=SHAPES)
    import torch_tensorrt

    inputs = [torch_tensorrt.Input(**SIZES)]
    check(torch_tensorrt.dynamo.compile(program, arg_inputs=inputs, min_block_size=1))


def torch_compile(folder: Path) -> None:
    import torch_tensorrt  # noqa: F401

    options = {"min_block_size": 1}
    check(torch.compile(Model(), backend="tensorrt", options=options))


def torch_export(folder: Path) -> None:
    module = compiled()
    check(torch.export.export(module, (X,), dynamic_shapes=SHAPES).module())


def torch_export_data_dependent(folder: Path) -> None:
    module = compiled(Found())
    program = torch.export.export(module, (X,), dynamic_shapes=SHAPES)
    check(program.module(), Found())


def dynamo_export(folder: Path) -> None:
    import torch_tensorrt
    from executorch.exir import to_edge_transform_and_lower

    program = torch_tensorrt.dynamo.export(
        compiled(), arg_inputs=[X], dynamic_shapes=SHAPES, use_legacy_exporter=False
    )
    from torch_tensorrt.executorch import TensorRTPartitioner

    edge = to_edge_transform_and_lower(program, partitioner=[TensorRTPartitioner()])
    check(edge.exported_program().module())


def save_and_load(folder: Path) -> None:
    import torch_tensorrt

    path = str(folder / "model.pt2")
    torch_tensorrt.save(compiled(), path, arg_inputs=[X], dynamic_shapes=SHAPES)
    check(torch_tensorrt.load(path).module())


def save_executorch(folder: Path) -> None:
    import torch_tensorrt

    path = str(folder / "model.pte")
    torch_tensorrt.save(compiled(), path, output_format="executorch")
    from torchtrt_executorch import runtime

    program = runtime.load(path, simulate_devices=True)
    check(lambda x: program.run(x)[0])


def export(folder: Path) -> None:
    import torch_tensorrt

    edge = torch_tensorrt.executorch.export(compiled())
    check(edge.exported_program().module())


def export_with_shapes(folder: Path) -> None:
    from torch_tensorrt.executorch import export

    edge = export(compiled(), arg_inputs=[X], dynamic_shapes=SHAPES)
    check(edge.exported_program().module())


def export_retraced(folder: Path) -> None:
    from torch_tensorrt import Input
    from torch_tensorrt.executorch import export

    inputs = [Input(**SIZES, name="x")]
    check(
        export(compiled(), arg_inputs=inputs, retrace=True).exported_program().module()
    )


def export_data_dependent(folder: Path) -> None:
    from torch_tensorrt.executorch import export

    edge = export(compiled(Found()), arg_inputs=[X], dynamic_shapes=SHAPES)
    check(edge.exported_program().module(), Found())


def executorch_first(folder: Path) -> None:
    from executorch.backends.aoti.aoti_partitioner import AotiPartitioner  # noqa: F401
    from executorch.exir import to_edge

    program = torch.export.export(compiled(), (X,), dynamic_shapes=SHAPES)
    check(to_edge(program).exported_program().module())


ENTRIES = (
    torch_export,
    torch_export_data_dependent,
    dynamo_export,
    save_and_load,
    export_with_shapes,
    export_retraced,
    export_data_dependent,
    executorch_first,
    compile,
    dynamo_compile,
    torch_compile,
    save_executorch,
    export,
)

if __name__ == "__main__":
    entries = {entry.__name__: entry for entry in ENTRIES}
    entries[sys.argv[1]](Path(sys.argv[2]))
