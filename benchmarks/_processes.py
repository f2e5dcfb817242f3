"""Processes of their own: a function that is stopped after a time or beyond an amount of memory, and an environment with empty caches."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def with_caches_in(folder: Path) -> dict[str, str]:
    """Return this process's environment with all caches of compilation in ``folder``, which is empty."""
    caches = (
        "TORCHTRT_EXECUTORCH_CACHE",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
    )
    return os.environ | {name: str(folder / name) for name in caches}


def apart(
    function: Callable[..., dict[str, Any]],
    *arguments: Any,
    seconds: float,
    gigabytes: float = float("inf"),
) -> dict[str, Any]:
    """Call a function in a forked process.

    Args:
        seconds: How long it may take.
        gigabytes: How much resident memory it and its children may have together.

    Returns:
        What it returns, or ``error``: that it was stopped, or how its process ended.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_send, args=(sender, function, arguments)
    )
    process.start()
    sender.close()
    deadline = time.monotonic() + seconds
    try:
        while not receiver.poll(0.2):
            if time.monotonic() > deadline:
                return {"error": f"later than {seconds:g} s"}
            if _resident(process.pid) > gigabytes * 1e9:
                return {"error": f"more memory than {gigabytes:g} GB"}
        return dict(receiver.recv())
    except EOFError:
        process.join()
        return {"error": f"the process ended with {process.exitcode}"}
    finally:
        _end(process)


def _send(sender: Any, function: Callable[..., Any], arguments: Any) -> None:
    os.setsid()  # so that compilers that it starts end with it
    sender.send(function(*arguments))


def _resident(pid: int | None) -> int:
    """Return how many bytes of memory a process and its children have, 0 if it has ended."""
    try:
        parent = psutil.Process(pid)
        tree = [parent, *parent.children(recursive=True)]
        return sum(each.memory_info().rss for each in tree)
    except psutil.NoSuchProcess:
        return 0


def _end(process: Any) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended, or has no group yet
        process.kill()
    process.join()
