"""A g++ command line for AOTInductor that compiles and links with zig for another target triple.

    python driver.py ZIG PLATFORM FOLDER ARGUMENT...

It runs by itself, without PyTorch. FOLDER is zig's cache, which has the target's C and C++ libraries
once they are compiled. Its other inputs are next to the files that it links.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

#: The oldest C library that what is linked runs with: Debian 10's, Ubuntu 20.04's, JetPack 5's.
GLIBC = "2.28"

#: Options that are passed on with what follows them.
_TAKING_A_VALUE = ("-D", "-I", "-isystem", "-include", "-o", "-x")
#: Options that are passed on as they are. What is said of this machine's processor, linker, libraries
#: and debugger is not.
_PASSED = ("-D", "-I", "-O", "-std=", "-f", "-c", "-E", "-shared")
#: g++'s alone, or for a library that the target needn't have.
_DROPPED = ("-fopenmp", "-fno-tree-loop-vectorize", "-fexcess-precision=fast")
#: Headers of this machine's own.
_OF_THIS_MACHINE = ("-I/usr/include", "-I/usr/local/include")

_QUIET = ("-Wno-everything", "-fno-sanitize=undefined", "-g0")

#: DLLs that a library for Windows imports from, by the beginning of symbols.
_DLLS = {
    "aoti_": "aoti_cuda_shims.dll",
    "cuda": "cudart64_{cuda}.dll",
    "cu": "nvcuda.dll",
}
_EXTERNAL, _UNDEFINED = 2, 0


def main(zig: str, platform: str, folder: str, *arguments: str) -> int:
    """Run zig with the arguments of g++'s that it has; return its exit status."""
    if not any(_files(arguments)):
        return _identify(zig, platform)
    windows = platform.startswith("windows")
    environment = caches(folder)
    compiler = [zig, "c++", "-target", triple(platform), *_QUIET]

    def run(*more: str) -> int:
        return subprocess.run([*compiler, *more], env=environment).returncode

    passed = list(_passed(arguments))
    if windows:
        passed = [argument for argument in passed if argument != "-fPIC"]
    if "-shared" not in passed or "-c" in passed:
        return run(*(argument for argument in passed if argument != "-shared"))

    output = Path(passed[passed.index("-o") + 1])
    if windows:
        objects = [
            Path(argument) for argument in passed if argument.endswith((".o", ".obj"))
        ]
        libraries = []
        for name, symbols in _imported(objects, _cuda_version(arguments)).items():
            definition, library = output.with_suffix(
                f".{name}.def"
            ), output.with_suffix(f".{name}.a")
            definition.write_text(
                "\n".join([f"LIBRARY {name}", "EXPORTS", *symbols, ""])
            )
            tool = [zig, "dlltool", "-m", "i386:x86-64", "-D", name]
            tool += ["-d", str(definition), "-l", str(library)]
            subprocess.run(tool, env=environment, check=True)
            libraries.append(str(library))
        return run(*passed, "-s", *libraries)

    # Behind a library without a symbol that is used the linker wouldn't record that it's needed.
    stub, source = output.with_suffix(".libcuda.so"), output.with_suffix(".libcuda.c")
    source.write_text("long cuModuleLoadData(void) { return 0; }\n")
    named = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1"]
    if failed := run("-x", "c", str(source), *named, "-o", str(stub)):
        return failed
    exports = output.with_suffix(".exports")
    # Else all of the C++ library is exported, too, and may be taken for another's.
    exports.write_text("{ global: AOTInductor*; local: *; };\n")
    return run(*passed, "-s", str(stub), f"-Wl,--version-script={exports}")


def _files(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the files to compile or link; a command line without files queries the compiler."""
    rest = iter(arguments)
    for word in rest:
        if word in _TAKING_A_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            yield word


def _identify(zig: str, platform: str) -> int:
    """Print which compiler this is, as clang does for ``--version`` and ``-v``.

    zig 0.15 hands them on to clang with the release of the C library in the target, which clang takes
    for a malformed one.
    """
    done = subprocess.run([zig, "version"], stdout=subprocess.PIPE, text=True)
    if done.returncode == 0:
        print(f"clang version of zig {done.stdout.strip()}")
        print(f"Target: {triple(platform)}")
    return done.returncode


def triple(platform: str) -> str:
    """Return zig's target triple of ``platform``, as ``linux-aarch64``."""
    system, _, machine = platform.partition("-")
    return (
        f"{machine}-windows-gnu"
        if system == "windows"
        else f"{machine}-linux-gnu.{GLIBC}"
    )


def caches(folder: str) -> dict[str, str]:
    """Return the environment in which zig's cache is in ``folder``."""
    cache = os.path.join(folder, "zig")
    return {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **os.environ}


def _passed(arguments: Iterable[str]) -> Iterator[str]:
    rest = iter(arguments)
    for word in rest:
        if word in _TAKING_A_VALUE:
            yield from (word, next(rest).strip())
        elif not word.startswith("-") or (
            word.startswith(_PASSED)
            and word not in _DROPPED
            and not word.startswith(_OF_THIS_MACHINE)
        ):
            yield word


def _cuda_version(arguments: Iterable[str]) -> int:
    """Major version of the CUDA whose headers are on the command line; 13 where there are none."""
    for word in arguments:
        if word.startswith("-I") and (release := cuda_release(word.removeprefix("-I"))):
            return release
    return 13


def cuda_release(include: str | Path) -> int:
    """Major version of the CUDA that the headers in a folder are of, 0 if there are none."""
    header = Path(include, "cuda.h")
    text = header.read_text("latin-1") if header.is_file() else ""
    match = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", text)
    return int(match[1]) // 1000 if match else 0


def _imported(objects: Iterable[Path], cuda: int) -> dict[str, list[str]]:
    """Return the names that object files for Windows import, by library."""
    names_of: dict[str, list[str]] = {}
    names = {name for file in objects for name in undefined(file.read_bytes())}
    for name in sorted(names):
        for start, library in _DLLS.items():
            if re.match(rf"{start}(?<=_)|{start}[A-Z]", name):
                names_of.setdefault(library.format(cuda=cuda), []).append(name)
                break
    return names_of


def undefined(data: bytes) -> Iterator[str]:
    """Names that an object file for Windows (COFF) uses and doesn't define."""
    _, _, _, table, count, _, _ = struct.unpack_from("<HHIIIHH", data)
    strings = table + 18 * count
    index = 0
    while index < count:
        short, offset, value, section, _, storage, more = struct.unpack_from(
            "<4sIIhHBB", data, table + 18 * index
        )
        index += 1 + more
        if section == _UNDEFINED and storage == _EXTERNAL and not value:
            if short == b"\0\0\0\0":
                start = strings + offset
                yield data[start : data.index(b"\0", start)].decode()
            else:
                start = table + 18 * (index - 1 - more)
                yield data[start : start + 8].rstrip(b"\0").decode()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
