"""Build engines in a process of their own, which survives a crash of the builder.

TensorRT-RTX's optimizer crashes on some networks (1.5.0.114: heads of grouped convolutions side by
side, as MGP-STR and LeViT have them). It needs no GPU to build, so that a forked process can do it.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import logging
import mmap
import os
import select
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import wrapt

#: Whether the operating system supports builds out of this process; TensorRT-RTX runs on Linux and Windows.
POSSIBLE = hasattr(os, "fork") and hasattr(os, "memfd_create")

#: Seconds without any use of the processor after which a build is told of, and is given up. It
#: computes all the time: what waits that long waits for a lock that nobody in its process holds.
STANDING_STILL = 60.0
GIVEN_UP = 900.0

_builders: weakref.WeakValueDictionary[int, BuilderProcess] = (
    weakref.WeakValueDictionary()
)


class BuilderProcess(wrapt.ObjectProxy):
    """``tensorrt.Builder``, which builds in a process of its own.

    Args:
        builder: The builder.
        log: Logger of the builder; messages of the other process are logged here, too.
    """

    def __init__(self, builder: Any, log: logging.Logger) -> None:
        super().__init__(builder)
        self._self_log = log
        self._self_thread = threading.get_ident()
        _builders[id(self)] = self

    def build_serialized_network(self, network: Any, config: Any) -> memoryview | None:
        """Return the engine, or None if the builder makes none.

        While another thread has a builder, too, this is done in the caller's own process. Raises
        ``RuntimeError`` if the builder crashes, or its engine doesn't arrive as it was built.
        """
        here = threading.get_ident()
        if any(builder._self_thread != here for builder in list(_builders.values())):
            # A forked process would wait for good for a lock of TensorRT's that the thread holds.
            return self.__wrapped__.build_serialized_network(network, config)  # type: ignore[no-any-return]
        plan = os.memfd_create("engine")
        try:
            told = self._build(plan, network, config)
            if told["length"] is None:
                return None
            if os.fstat(plan).st_size == told["length"] > 0:
                engine = memoryview(
                    mmap.mmap(plan, told["length"], access=mmap.ACCESS_READ)
                )
                if hashlib.sha256(engine).hexdigest() == told["digest"]:
                    return engine
            raise RuntimeError("the engine was damaged between two processes")
        finally:
            os.close(plan)

    def _build(self, plan: int, network: Any, config: Any) -> dict[str, Any]:
        """Build to the file ``plan``; return what the builder's process tells of the engine."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Python warns of other threads' locks: the process calls the builder, and ends. For that moment
            # the filter is all threads'.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _build_and_exit(
                self.__wrapped__, network, config, plan, writer, self._self_log
            )
        os.close(writer)
        told: dict[str, Any] = {}
        try:
            for line in _lines(reader, child, self._self_log):
                message = json.loads(line)
                if isinstance(message, dict):
                    told = message
                    break
                self._self_log.log(*message)
        finally:
            os.close(reader)
            code = _end(child)
        if "length" in told:
            return told
        if "error" in told:
            raise RuntimeError(
                f"building failed, in a process of its own: {told['error']}"
            )
        raise RuntimeError(f"the builder crashed{_why(code)}, in a process of its own")


def _lines(reader: int, child: int, log: logging.Logger) -> Iterator[str]:
    """Yield what ``child`` writes to a pipe, line by line, until it ends.

    The end of the file isn't waited for: whatever else was forked meanwhile holds the pipe open.
    Nor is there a signal to wait for where the application ignores them.
    """
    text, ended, told = b"", False, False
    used, since = -1.0, time.monotonic()
    while True:
        if select.select([reader], [], [], 0 if ended else 0.2)[0]:
            chunk = os.read(reader, 1 << 16)
            *lines, text = (text + chunk).split(b"\n")
            yield from (line.decode() for line in lines)
            if chunk:
                continue
        if ended:
            return
        ended = not _is_running(child)
        now = _processor_seconds(child)
        if now != used:
            used, since, told = now, time.monotonic(), False
        still = time.monotonic() - since
        if still > GIVEN_UP:
            raise RuntimeError(
                f"the builder stood still for {still:.0f} s, in a process of its own ({child}), "
                "and was ended"
            )
        if still > STANDING_STILL and not told:
            told = True
            log.warning(
                "the builder, in a process of its own (%d), has stood still for %.0f s",
                child,
                still,
            )


def _is_running(child: int) -> bool:
    """Whether a process that was forked from this one is there, and not merely to be waited for."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:  # SIGCHLD is ignored, or somebody waits for all processes
        return False


def _processor_seconds(child: int) -> float:
    """Return the CPU seconds of a process; where they are unknown, the time."""
    try:
        with open(f"/proc/{child}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return float(fields[11]) + float(fields[12])


def _end(child: int) -> int | None:
    """End a process and wait for it; return its exit code, None where it can't be had."""
    try:
        if _is_running(child):
            os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except (ChildProcessError, ProcessLookupError):
        return None


def _why(code: int | None) -> str:
    if code is None:
        return ""
    if code >= 0:
        return f" (exit status {code})"
    known = {number.value: number.name for number in signal.Signals}
    return f" ({known.get(-code, f'signal {-code}')})"


def _build_and_exit(
    builder: Any, network: Any, config: Any, plan: int, writer: int, log: logging.Logger
) -> NoReturn:
    """Write the engine to the file ``plan``, and to ``writer`` a line for each of the log's, and one about it."""
    import resource  # which Windows hasn't

    try:
        # A crash is the caller's to tell, in a sentence.
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(writer, "w", encoding="utf-8", buffering=1) as messages:
            # Filters apply where the lines are read.
            log.handlers, log.filters, log.propagate = [_Lines(messages)], [], False
            try:
                engine = builder.build_serialized_network(network, config)
                told = {"length": None} if engine is None else _write(plan, engine)
            except Exception as error:
                told = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(told), file=messages)
    finally:
        os._exit(0)  # without what Python does at its end, which is the caller's


def _write(plan: int, engine: Any) -> dict[str, Any]:
    """Write all of ``engine`` to the file ``plan``; return its length and digest."""
    with memoryview(engine).cast("B") as data:
        with open(plan, "wb", closefd=False) as file:
            file.write(data)
        return {"length": len(data), "digest": hashlib.sha256(data).hexdigest()}


class _Lines(logging.Handler):
    """A line of JSON for each message."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        print(json.dumps([record.levelno, record.getMessage()]), file=self._file)
