"""``torch_tensorrt.save(..., output_format="executorch")`` by way of :func:`torch_tensorrt.executorch.export`.

It needs no C++ runtime, and writes the program and its external weights whole, or nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

#: Options of ``save`` for other formats, which mean nothing to ExecuTorch.
_OTHER_FORMATS = ("extra_files", "pickle_protocol", "use_legacy_exporter")


def executorch_by_export(save: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``save`` so that it writes ExecuTorch's format with :func:`save_executorch`; other formats are unchanged."""

    @functools.wraps(save)
    def save_by_format(module: Any, file_path: Any = "", **options: Any) -> Any:
        if options.get("output_format") != "executorch":
            return save(module, file_path, **options)
        for name in ("output_format", *_OTHER_FORMATS):
            options.pop(name, None)
        return save_executorch(module, file_path, **options)

    return save_by_format


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
        file_path: Path of the ``.pte``.
        backend_config: An ``ExecutorchBackendConfig``, for ``to_executorch``.
        generate_etrecord: Write an ETRecord as well, to ``<stem>_etrecord.bin``.
        options: Options of :func:`torch_tensorrt.executorch.export`.

    Raises:
        OSError: ``file_path`` can't be written; known before any work is done.
        TypeError: ``module`` isn't compiled, or an option is unknown.
        ValueError: ``file_path`` is empty; and whatever ``export`` raises.
    """
    if not file_path:
        raise ValueError("file_path is empty: say where the .pte goes")
    # Here, since torch_tensorrt is imported without ExecuTorch.
    from executorch.exir.program._saved_files import (
        check_writable,
        staged,
        write_program,
    )

    target = check_writable(file_path)
    from torch_tensorrt.executorch import export

    edge = export(module, generate_etrecord=generate_etrecord, **options)
    program = edge.to_executorch(backend_config)
    with staged(target) as folder:
        write_program(program, folder / target.name)
        if generate_etrecord:
            program.get_etrecord().save(folder / f"{target.stem}_etrecord.bin")
