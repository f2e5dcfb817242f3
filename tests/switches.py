"""What is set for the whole process, and what of it another thread sees change while a function runs."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any

import torch


def switches() -> dict[str, Any]:
    """Each switch by its name, as this thread sees it."""
    backends = torch.backends
    found: dict[str, Any] = {
        "default dtype": torch.get_default_dtype(),
        "warnings": list(warnings.filters),
        "warnings' output": warnings.showwarning,
        "logging": (logging.root.level, logging.root.manager.disable),
        "gc": (gc.isenabled(), gc.get_threshold()),
        "recursion": sys.getrecursionlimit(),
        "interval": sys.getswitchinterval(),
        "path": list(sys.path),
        "streams": (sys.stdout, sys.stderr),
        "hooks": (sys.excepthook, threading.excepthook),
        "interrupt": signal.getsignal(signal.SIGINT),
        "folder": os.getcwd(),
        "threads": torch.get_num_threads(),
        "seed": torch.initial_seed(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "precision": torch.get_float32_matmul_precision(),
        "tf32": (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32),
        "cudnn": (backends.cudnn.enabled, backends.cudnn.benchmark),
        "mkldnn": backends.mkldnn.enabled,
        "attention": (
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
        ),
        "raw stream": hasattr(torch._C, "_cuda_getCurrentRawStream"),
    }
    found |= {f"${name}": value for name, value in os.environ.items()}
    return found


def loggers() -> dict[str, Any]:
    """What this thread may log, by logger."""
    found: dict[str, Any] = {}
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            heard = not logger.disabled
            if heard and logger.filters:
                heard = bool(
                    logger.filter(logger.makeRecord(name, 40, "", 0, "", (), None))
                )
            found[f"log of {name}"] = (logger.level, logger.propagate, heard)
    return found


def changed_meanwhile(
    function: Callable[[], Any], folders: tuple[str, ...]
) -> tuple[set[str], set[str]]:
    """Run ``function``, and look from another thread at each call by or of what is below ``folders``.

    At the first one of each function by each other.

    Returns:
        The names of switches that were seen to change; and ``FILE: FUNCTION`` of what below ``folders``
        changes warning filters, which upstream does as well.
    """
    before: dict[str, Any] = {}
    changed: set[str] = set()
    filtering: set[str] = set()
    called: set[tuple[CodeType, CodeType]] = set()
    filters = {
        each.__code__
        for each in (
            warnings.catch_warnings.__enter__,
            warnings.filterwarnings,
            warnings.simplefilter,
        )
    }
    process = os.getpid()

    def compare() -> None:
        now = switches() | loggers()
        changed.update(
            name
            for name in before.keys() | now.keys()
            # Loggers come with the modules that are imported.
            if (name in before or not name.startswith("log of "))
            and before.get(name) != now.get(name)
        )

    # Not an executor, whose lock is held while a process is forked.
    asked: SimpleQueue[bool] = SimpleQueue()
    answered: SimpleQueue[None] = SimpleQueue()

    def answer() -> None:
        before.update(switches() | loggers())
        answered.put(None)
        while asked.get():
            compare()
            answered.put(None)

    def look(frame: FrameType, event: str, _: object) -> None:
        if os.getpid() != process:  # forked, without the other thread
            sys.settrace(None)
            return
        caller = frame.f_back.f_code if frame.f_back else frame.f_code
        calls_out = caller.co_filename.startswith(folders)
        if calls_out and frame.f_code in filters:
            filtering.add(f"{caller.co_filename}: {caller.co_name}")
        edge = frame.f_code, caller
        if edge not in called and (
            calls_out or frame.f_code.co_filename.startswith(folders)
        ):
            called.add(edge)
            asked.put(True)
            answered.get()

    other = threading.Thread(target=answer)
    other.start()
    answered.get()
    traced = sys.gettrace()
    sys.settrace(look)
    try:
        function()
    finally:
        sys.settrace(traced)
        asked.put(False)
        other.join()
    return changed, filtering
