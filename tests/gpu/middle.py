"""A small model as AOTInductor's library, for programs that are put together by hand."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

SHAPE = (8, 64)


class Middle(nn.Module):
    """What a program leaves to AOTInductor between two engines; (8, 64) float32 to the same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.gelu(self.first(x)))


def write(folder: Path) -> None:
    """Compile :class:`Middle` for the GPU that is here: its library and its weights."""
    x = torch.randn(SHAPE, device="cuda")
    with torch.no_grad():
        files = torch._inductor.aot_compile(
            torch.export.export(Middle().cuda().eval(), (x,)).module(),
            (x,),
            options={
                "aot_inductor.package": True,
                "aot_inductor.package_constants_in_so": False,
                "aot_inductor.package_constants_on_disk_format": "binary_blob",
                "aot_inductor.embed_kernel_binary": True,
            },
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in map(Path, map(str, files)):
        for ending in (".wrapper.so", ".blob"):
            if file.name.endswith(ending):
                (folder / f"middle{ending}").write_bytes(file.read_bytes())


def read(folder: Path) -> tuple[bytes, bytes]:
    """The library and the weights in ``folder``, compiled there if nobody has yet."""
    if not (folder / "middle.wrapper.so").exists():
        write(folder)
    library = (folder / "middle.wrapper.so").read_bytes()
    return library, (folder / "middle.blob").read_bytes()
