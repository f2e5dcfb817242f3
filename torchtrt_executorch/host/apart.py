"""Engines built in a process of their own, where the builder can't take its caller down.

TensorRT-RTX's optimizer crashes on some networks (1.5.0.114: heads of grouped convolutions side by
side, as MGP-STR and LeViT have them). It needs no GPU to build, so that a forked process can do it.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import mmap
import os
import signal
import threading
import warnings
import weakref
from typing import Any, NoReturn

import wrapt

#: What a build needs of the operating system to be done apart; TensorRT-RTX has Linux, and Windows.
POSSIBLE = hasattr(os, "fork") and hasattr(os, "memfd_create")


_builders: weakref.WeakValueDictionary[int, BuilderApart] = (
    weakref.WeakValueDictionary()
)


class BuilderApart(wrapt.ObjectProxy):
    """``tensorrt.Builder``, which builds in a process of its own.

    Args:
        builder: The builder.
        log: Where the builder's own log goes. What it says there, it says here.
    """

    def __init__(self, builder: Any, log: logging.Logger) -> None:
        super().__init__(builder)
        self._self_log = log
        self._self_thread = threading.get_ident()
        _builders[id(self)] = self

    def build_serialized_network(self, network: Any, config: Any) -> memoryview | None:
        """Return the engine, or None if the builder makes none.

        While another thread has a builder, too, this is done in the caller's own process. Raises
        ``RuntimeError`` if the builder crashes.
        """
        here = threading.get_ident()
        if any(each._self_thread != here for each in list(_builders.values())):
            # A forked process would wait for good for a lock of TensorRT's that the thread holds.
            return self.__wrapped__.build_serialized_network(network, config)  # type: ignore[no-any-return]
        plan = os.memfd_create("engine")
        try:
            self._build(plan, network, config)
            size = os.fstat(plan).st_size
            if not size:
                return None
            return memoryview(mmap.mmap(plan, size, access=mmap.ACCESS_READ))
        finally:
            os.close(plan)

    def _build(self, plan: int, network: Any, config: Any) -> None:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Python warns of other threads' locks: the process calls the builder, and ends.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _build_and_exit(
                self.__wrapped__, network, config, plan, writer, self._self_log
            )
        os.close(writer)
        try:
            with open(reader, encoding="utf-8") as messages:
                for line in messages:
                    self._self_log.log(*json.loads(line))
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            name = signal.Signals(-code).name
            raise RuntimeError(f"the builder crashed ({name}), in a process of its own")


def _build_and_exit(
    builder: Any, network: Any, config: Any, plan: int, writer: int, log: logging.Logger
) -> NoReturn:
    """Write the engine to the file ``plan``, and a line to ``writer`` for each of the log's."""
    import resource  # which Windows hasn't

    try:
        # A crash is the caller's to tell, in a sentence.
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(writer, "w", encoding="utf-8", buffering=1) as messages:
            log.handlers, log.propagate = [_Lines(messages)], False
            try:
                engine = builder.build_serialized_network(network, config)
                if engine is not None:
                    with open(plan, "wb", closefd=False) as file:
                        file.write(memoryview(engine))
            except Exception as error:
                log.error("%s", error)
    finally:
        os._exit(0)  # without what Python does at its end, which is the caller's


class _Lines(logging.Handler):
    """A line of JSON for each message."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        print(json.dumps([record.levelno, record.getMessage()]), file=self._file)
