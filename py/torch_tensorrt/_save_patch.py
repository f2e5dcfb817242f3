"""Amends ``torch_tensorrt._compile``: ``save`` for ExecuTorch, by way of ``export``.

Unlike upstream's it doesn't need Torch-TensorRT's C++ runtime (pytorch/TensorRT#4574), and
writes the program and its external weights whole, or nothing (pytorch/TensorRT#4404).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.files import check_writable, staged, write_program
from torchtrt_executorch.overlay.wrapping import wrapped

#: Options of upstream's ``save`` for other formats, which mean nothing to ExecuTorch.
_OTHER_FORMATS = ("extra_files", "pickle_protocol", "use_legacy_exporter")


def apply(module: ModuleType) -> None:
    """Wrap ``save``."""
    vars(module).update(save=wrapped(module.save, _save))


def _save(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if kwargs.get("output_format") != "executorch":
        return function(*args, **kwargs)
    options = {
        name: value
        for name, value in kwargs.items()
        if name not in ("output_format", *_OTHER_FORMATS)
    }
    return save_executorch(*args, **options)


def save_executorch(
    module: Any,
    file_path: str | os.PathLike[str] = "",
    *,
    backend_config: Any | None = None,
    generate_etrecord: bool = False,
    stand_ins: bool = False,
    **options: Any,
) -> None:
    """Lower ``module`` and write it to ``file_path``, external weights as ``.ptd`` files beside it.

    Args:
        module: As :func:`torch_tensorrt.executorch.export` takes it.
        file_path: Where the ``.pte`` goes.
        backend_config: An ``ExecutorchBackendConfig``, for ``to_executorch``.
        generate_etrecord: Write an ETRecord as well, to ``<stem>_etrecord.bin``.
        stand_ins: Write what this process keeps to run in the place of engines that it can't run
            as well, to ``<stem>_stand_ins.zip``, for ``runtime.load(..., stand_ins=FILE)``.
        options: Those of :func:`torch_tensorrt.executorch.export`.

    Raises:
        ProgramError: ``stand_ins``, and this process keeps none.
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
        if stand_ins:
            _write_stand_ins(folder, target)


def _write_stand_ins(folder: Path, target: Path) -> None:
    from torchtrt_executorch.runtime import save_stand_ins

    path = folder / f"{target.stem}_stand_ins.zip"
    save_stand_ins(folder / target.name, path)
