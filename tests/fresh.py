"""Processes of their own, in which PyTorch is imported already: that is most of what they would take.

They are forked from one that has imported PyTorch and its compiler, which all of upstream's packages
import, with plug-ins off, and nothing of ours or upstream's. Each then has its environment and path, calls the
plug-ins if that environment says so, as the end of ``import torch`` does, and runs the code as
``python -c`` would. What depends on who imports torch, and where it is not imported, is for
an interpreter of its own: :func:`python`, which is also taken where a variable of Python's or PyTorch's
differs, since those are read once.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_FILE = os.path.abspath(__file__)
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: Variables that are read when Python, PyTorch or a library starts.
_READ_ONCE = (
    "PYTHON",
    "TORCH_",
    "TORCHINDUCTOR",
    "TORCHDYNAMO",
    "TRITON",
    "OMP",
    "LD_",
)
#: Those of them that are not; a process that has compiled something has them set for what it starts.
_READ_LATER = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

Done = subprocess.CompletedProcess[str]

#: Of garbage collection. Looking for garbage in what is imported takes a fifth of the time, and finds hardly any.
THRESHOLDS = (100_000, 20, 50)


#: Ahead of code that imports torch first: PyTorch makes once what it does in the tests' own processes.
_ONCE = f"""
import sys, torch
sys.path.insert(0, {os.path.dirname(_FILE)!r})
from decompositions import ask_once
from graphs import make_once
ask_once(), make_once()
del sys.path[0], sys.modules["decompositions"], sys.modules["graphs"], ask_once, make_once, sys, torch
"""


def python(
    code: str,
    *arguments: str,
    env: dict[str, str],
    cwd: Any = None,
    once: bool = False,
) -> Done:
    """Run ``code``, which begins with no import from the future, in an interpreter of its own.

    With ``once``, for code that lowers, it has imported torch, and makes once there what the tests'
    own processes do: a first lowering takes half as long, and others a third.
    """
    quick = f"__import__('gc').set_threshold{THRESHOLDS}\n{_ONCE if once else ''}{code}"
    return subprocess.run(
        [sys.executable, "-c", quick, *arguments],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def run(
    code: str, *arguments: str, env: dict[str, str], cwd: Any = None, once: bool = True
) -> Done:
    """Run ``code`` in a process that was forked after ``import torch``; like :func:`python`."""
    server = _server()
    if not server.suits(env):
        return python(code, *arguments, env=env, cwd=cwd, once=once)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        request = {
            "argv": ["-c", *arguments],
            "code": code,
            "env": env,
            "cwd": str(cwd or os.getcwd()),
            "once": once,
        }
        status = server.ask(request, output.fileno(), errors.fileno())
        output.seek(0)
        errors.seek(0)
        return Done([], status, output.read(), errors.read())


class _Server:
    """The process that others are forked from, and the socket to it."""

    def __init__(self) -> None:
        self._env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TORCHTRT_")
            and name not in ("PYTHONPATH", *_READ_LATER)
        }
        self._socket, other = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, _FILE, str(other.fileno())],
            env={**self._env, "OMP_NUM_THREADS": "1", AUTOLOAD: "0"},
            pass_fds=[other.fileno()],
            cwd=sys.prefix,
        )
        other.close()
        atexit.register(self.close)

    def suits(self, env: dict[str, str]) -> bool:
        """Whether a process with this environment can be forked."""
        ahead = env.get("PYTHONPATH", "").split(os.pathsep)
        if any(Path(folder, "sitecustomize.py").exists() for folder in ahead if folder):
            return False

        def read_once(variables: dict[str, str]) -> dict[str, str]:
            others = ("PYTHONPATH", "OMP_NUM_THREADS", AUTOLOAD, *_READ_LATER)
            return {
                name: value
                for name, value in variables.items()
                if name.startswith(_READ_ONCE) and name not in others
            }

        return read_once(env) == read_once(self._env)

    def ask(self, request: dict[str, Any], *files: int) -> int:
        """Have one forked; return its exit status once it has ended."""
        data = json.dumps(request).encode()
        socket.send_fds(self._socket, [len(data).to_bytes(8, "little")], [*files])
        self._socket.sendall(data)
        return int.from_bytes(self._socket.recv(8), "little", signed=True)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


def _serve(connection: socket.socket) -> None:
    """Fork a process for each request, until there are no more."""
    before = {*os.environ}
    import torch
    import torch._dynamo
    import torch._inductor.fx_passes.reinplace  # noqa: F401  # all of upstream's packages do, in the end

    imported = {name: os.environ[name] for name in {*os.environ} - before}
    gc.freeze()  # or each process looks for garbage in all of this, time and again
    gc.set_threshold(*THRESHOLDS)
    while True:
        header, files, _, _ = socket.recv_fds(connection, 8, 2)
        if not header:
            return
        length, data = int.from_bytes(header, "little"), b""
        while len(data) < length:
            data += connection.recv(length - len(data))
        child = os.fork()
        if child == 0:
            connection.close()
            request = json.loads(data)
            request["env"] = {**imported, **request["env"]}
            _become(request, *files)
        for each in files:
            os.close(each)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(status.to_bytes(8, "little", signed=True))


def _become(request: dict[str, Any], output: int, errors: int) -> None:
    """Be the process that was asked for, and end."""
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    ahead = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[0:1] = ["", *filter(None, ahead)]
    sys.path_importer_cache.clear()
    sys.argv = request["argv"]
    if request["once"]:
        ask_once()
        make_once()
    main = type(sys)("__main__")
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    status = 0
    try:
        if os.environ.get(AUTOLOAD, "1") == "1":
            sys.modules["torch"]._import_device_backends()
        exec(compile(request["code"], "<string>", "exec"), vars(main))
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    from decompositions import ask_once
    from graphs import make_once

    for name in ("decompositions", "graphs"):
        del sys.modules[name]  # the code that is run may import them as the tests do
    sys.path.pop(0)  # this folder, which no other process has
    sys.path.insert(0, "")
    _serve(socket.socket(fileno=int(sys.argv[1])))
