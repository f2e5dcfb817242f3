"""Find the toolchain of CUDA libraries on a host without a GPU: compilers, headers, link stubs.

Headers and programs of CUDA come from a toolkit where there is one, else from NVIDIA's packages in
site-packages.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchtrt_executorch.nogpu.cross.compiler import CrossCompiler
from torchtrt_executorch.nogpu.cross.driver import cuda_release
from torchtrt_executorch.nogpu.cross.requirements import cuda, folders, has_headers

#: PyTorch 2.14's libraries ask for memory that ExecuTorch's CUDA runtime doesn't offer, to load weights in an
#: order of copies that is off by default. The function beside it, which is offered, has the same parameters.
_NO_PINNED_MEMORY = "aoti_torch_empty_strided_pinned=aoti_torch_empty_strided"

#: An error of a library names the file that it's from; with a path the library would be another one in
#: each folder. The linker's ``-s`` takes such names out of the table of symbols.
_NO_PATHS = ("Wno-builtin-macro-redefined", "D__FILE__='\"model.cpp\"'")


class ToolchainError(RuntimeError):
    """Something that CUDA libraries are compiled with is missing, or of another release."""


@dataclasses.dataclass(frozen=True)
class Toolchain:
    """Paths of the toolchain.

    Attributes:
        home: The folder whose ``include`` has ``cuda.h``, and whose ``bin`` may have ``fatbinary``.
        stubs: The folder of link stubs.
        cross: The C++ compiler, if it isn't the one that Inductor finds.
    """

    home: Path
    stubs: Path
    cross: CrossCompiler | None = None

    def overrides(self) -> dict[str, Callable[..., Any]]:
        """Return the overrides that give Inductor's C++ builder these paths."""
        from torch._inductor.cpp_builder import get_cpp_options
        from torch.utils import cpp_extension

        include_paths, library_paths = (
            cpp_extension.include_paths,
            cpp_extension.library_paths,
        )

        def includes(*args: Any, **kwargs: Any) -> list[str]:
            # Where NVIDIA's packages of CUDA 13 have <nv/target>.
            return [*include_paths(*args, **kwargs), self._in_home("include", "cccl")]

        def libraries(*args: Any, **kwargs: Any) -> list[str]:
            return [*library_paths(*args, **kwargs), str(self.stubs)]

        def options(*args: Any, **kwargs: Any) -> Any:
            cpp_options = get_cpp_options(*args, **kwargs)
            definitions, includes, compiling, linking, *others = cpp_options
            return (
                [*definitions, _NO_PINNED_MEMORY],
                includes,
                [*compiling, *_NO_PATHS],
                [*linking, "s"],
                *others,
            )

        return {
            "torch._inductor.cpp_builder:get_cpp_options": options,
            "torch.utils.cpp_extension:_join_cuda_home": self._in_home,
            "torch.utils.cpp_extension:include_paths": includes,
            "torch.utils.cpp_extension:library_paths": libraries,
            **(self.cross.overrides() if self.cross else {}),
        }

    def program(self, name: str) -> str:
        """Return the path of one of CUDA's programs.

        Raises:
            ToolchainError: It isn't there.
        """
        for folder in dict.fromkeys([self.home, *folders()]):
            if (folder / "bin" / name).is_file():
                return str(folder / "bin" / name)
        path = shutil.which(name)
        if path is None:
            raise ToolchainError(
                f"CUDA delegates for more than one GPU are put together by CUDA's {name}, and it "
                f"is not in {self.home / 'bin'}: {cuda()}"
            )
        return path

    def _in_home(self, *names: str) -> str:
        return str(self.home.joinpath(*names))


def find(stubs: Callable[[], Path], cross: CrossCompiler | None = None) -> Toolchain:
    """Find the toolchain's paths.

    Args:
        stubs: Creates the folder of link stubs, once everything else is found.
        cross: The C++ compiler, if it isn't the one that Inductor finds.

    Raises:
        ToolchainError: Triton, a C++ compiler or the headers are missing, or the headers are of
            another CUDA than PyTorch's.
    """
    if importlib.util.find_spec("triton") is None:
        raise no_triton()
    if cross is None:
        check_compiler()
    return Toolchain(home(), stubs(), cross)


def no_triton() -> ToolchainError:
    """The error of whatever needs Triton, where it isn't installed."""
    return ToolchainError(
        f"CUDA delegates are compiled by Triton, and it is not installed: {cuda()}"
    )


def check_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise ToolchainError(
            "CUDA delegates have a host side in C++, and no C++ compiler was found: install "
            "one (Debian and Ubuntu: apt-get install g++), or set CXX to one"
        ) from error


def home() -> Path:
    listed = list(dict.fromkeys(folders()))
    complete = [folder for folder in listed if has_headers(folder)]
    if not complete:
        looked = ", ".join(map(str, listed)) or "site-packages"
        raise ToolchainError(
            "CUDA delegates are compiled with CUDA's headers (cuda.h, cuda_runtime_api.h, "
            f"crt/host_config.h, nv/target), which are not all in any of {looked}: {cuda()}"
        )
    # A CPU build of PyTorch has no CUDA to differ from.
    wanted = torch.version.cuda and int(torch.version.cuda.split(".")[0])
    releases = {folder: cuda_release(folder / "include") for folder in complete}
    for folder, release in releases.items():
        if wanted in (None, release):
            return folder
    folders_of_releases = ", ".join(
        f"{folder} (CUDA {release})" for folder, release in releases.items()
    )
    raise ToolchainError(
        f"this PyTorch is of CUDA {wanted}, and there are only CUDA's headers of other releases, "
        f"{folders_of_releases}: set CUDA_HOME to a toolkit of CUDA {wanted}, or {cuda()}"
    )
