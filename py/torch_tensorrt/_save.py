"""``torch_tensorrt.save(..., output_format="executorch")``: by way of ``export``.

Unlike upstream's it doesn't need Torch-TensorRT's C++ runtime (pytorch/TensorRT#4574), and
writes the program and its external weights whole, or nothing (pytorch/TensorRT#4404).
"""

from __future__ import annotations

import os
from typing import Any

from torchtrt_executorch.files import check_writable, staged, write_program


def save_executorch(
    module: Any,
    file_path: str | os.PathLike[str] = "",
    *,
    backend_config: Any | None = None,
    generate_etrecord: bool = False,
    **options: Any,
) -> None:
    """Lower ``module`` and write it to ``file_path``, external weights as ``.ptd`` files beside it.

    Args:
        module: As :func:`torch_tensorrt.executorch.export` takes it.
        file_path: Where the ``.pte`` goes.
        backend_config: An ``ExecutorchBackendConfig``, for ``to_executorch``.
        generate_etrecord: Write an ETRecord as well, to ``<stem>_etrecord.bin``.
        options: Those of :func:`torch_tensorrt.executorch.export`.

    Raises:
        OSError: ``file_path`` can't be written; known before any work is done.
        TypeError: ``module`` isn't compiled, or an option is unknown.
        ValueError: ``file_path`` is empty; and whatever ``export`` raises.
    """
    if not file_path:
        raise ValueError("file_path is empty: say where the .pte goes")
    target = check_writable(file_path)
    from torch_tensorrt.executorch import export

    edge = export(module, generate_etrecord=generate_etrecord, **options)
    program = edge.to_executorch(backend_config)
    with staged(target) as folder:
        write_program(program, folder / target.name)
        if generate_etrecord:
            program.get_etrecord().save(folder / f"{target.stem}_etrecord.bin")
