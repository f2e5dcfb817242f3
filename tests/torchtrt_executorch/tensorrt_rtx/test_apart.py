"""The builder works in a process of its own: what it does there is known here, and a crash is survived."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import threading
import time

import pytest
import torch

from torchtrt_executorch.nogpu.builder import own_process

trt = pytest.importorskip(
    "tensorrt_rtx", reason="needs torch-tensorrt-rtx, and a host without a GPU"
)

pytestmark = pytest.mark.skipif(
    not own_process.POSSIBLE or torch.cuda.is_available(),
    reason="engines are built in this process where it can't fork, or has a GPU",
)


class Monitor(trt.IProgressMonitor):
    """Calls ``happening`` while an engine is being built."""

    def __init__(self, happening):
        super().__init__()
        self.happening = happening

    def phase_start(self, name, parent, steps):
        self.happening()

    def step_complete(self, name, step):
        return True

    def phase_finish(self, name):
        pass


class Log(trt.ILogger):
    def __init__(self, log):
        super().__init__()
        self.log_to = log

    def log(self, severity, message):
        self.log_to.log(
            logging.ERROR if severity <= trt.ILogger.ERROR else logging.INFO, message
        )


@pytest.fixture
def build():
    """Build an engine of one layer; ``happening`` is called in between."""
    log = logging.getLogger(__name__)
    log.setLevel(logging.INFO)
    spoken = Log(log)
    kept = []

    def build(happening=lambda: None, layer="activation"):
        builder = own_process.BuilderProcess(trt.Builder(spoken), log)
        network = builder.create_network()
        x = network.add_input("x", trt.float32, (4, 4))
        if layer == "activation":
            y = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
            network.mark_output(y)
        config = builder.create_builder_config()
        config.progress_monitor = Monitor(happening)
        kept.append((builder, network, config))
        return builder.build_serialized_network(network, config)

    return build


def test_another_process_builds_the_engine(build, tmp_path):
    seen = tmp_path / "process"
    engine = build(lambda: seen.write_text(str(os.getpid())))
    assert bytes(engine[:4]) == b"vtrt"
    assert int(seen.read_text()) != os.getpid()


def test_while_another_thread_builds_it_is_done_here(build, tmp_path):
    """That thread may hold a lock, which nobody would let go of in the other process."""
    seen, held = tmp_path / "process", []
    begin, end = threading.Event(), threading.Event()

    def other():
        held.append(
            own_process.BuilderProcess(
                trt.Builder(Log(logging.getLogger())), logging.getLogger()
            )
        )
        begin.set()
        end.wait()
        held.clear()

    thread = threading.Thread(target=other)
    thread.start()
    begin.wait()
    try:
        assert build(lambda: seen.write_text(str(os.getpid()))) is not None
    finally:
        end.set()
        thread.join()
    assert int(seen.read_text()) == os.getpid()
    build(lambda: seen.write_text(str(os.getpid())))
    assert int(seen.read_text()) != os.getpid()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_an_error(build, number, capfd):
    with pytest.raises(RuntimeError, match=rf"the builder crashed \({number.name}\)"):
        build(lambda: os.kill(os.getpid(), number))
    assert "Fatal Python error" not in capfd.readouterr().err
    assert build() is not None


def test_what_the_builder_says_is_said_here(build, caplog):
    with caplog.at_level(logging.INFO, __name__):
        assert build(layer="none") is None
    said = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert any("at least one output" in record.getMessage() for record in said), said
    assert {record.process for record in said} == {os.getpid()}


def test_an_interrupt_ends_both(build, tmp_path):
    """As a notebook's, which reaches this process alone."""
    seen, ended = tmp_path / "process", threading.Event()

    def slowly():
        seen.write_text(str(os.getpid()))
        signal.pause()

    def interrupt():
        while not seen.exists() or not seen.read_text():
            ended.wait(0.01)
        # One is lost where it meets a callback of the collector.
        while not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(5)

    # Where tests run side by side, their process ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            build(slowly)
    finally:
        ended.set()
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.read_text()), 0)


@pytest.fixture
def ignoring_children():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


def test_an_application_that_ignores_its_children(build, ignoring_children):
    assert bytes(build()[:4]) == b"vtrt"
    with pytest.raises(RuntimeError, match="the builder crashed"):
        build(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_other_ends_are_named(build):
    """By a signal that has no name, or by itself."""
    number = signal.SIGRTMIN + 3
    with pytest.raises(RuntimeError, match=rf"crashed \(signal {number:d}\)"):
        build(lambda: os.kill(os.getpid(), number))
    with pytest.raises(RuntimeError, match=r"crashed \(exit status 0\)"):
        build(lambda: os._exit(0))


@pytest.mark.parametrize("ends", ["well", "in a crash"])
def test_another_process_holds_the_pipe(build, tmp_path, ends):
    """One that was forked from the builder's, and outlives it."""
    seen = tmp_path / "process"

    def fork():
        if not seen.exists():
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                signal.pause()
            seen.write_text(str(child))
            if ends != "well":
                os.abort()

    try:
        if ends == "well":
            assert bytes(build(fork)[:4]) == b"vtrt"
        else:
            with pytest.raises(RuntimeError, match="crashed"):
                build(fork)
    finally:
        os.kill(int(seen.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_an_engine_that_there_is_no_room_for(build, part):
    """A limit of the size of files, which holds for memory that is a file, too."""
    size = len(build())
    limit = int(size * part) - (part == 1.0)

    def narrow():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with pytest.raises(RuntimeError, match="OSError.*[Ff]ile too large"):
        build(narrow)
    assert len(build()) == size


def test_what_the_builder_raises_is_raised(build, monkeypatch):
    class Failing:
        def build_serialized_network(self, network, config):
            raise MemoryError("no more")

    log = logging.getLogger(__name__)
    with pytest.raises(RuntimeError, match="MemoryError: no more"):
        own_process.BuilderProcess(Failing(), log).build_serialized_network(None, None)


def test_a_builder_that_stands_still(build, monkeypatch, caplog):
    monkeypatch.setattr(own_process, "STANDING_STILL", 0.5)
    monkeypatch.setattr(own_process, "GIVEN_UP", 2.0)
    with (
        caplog.at_level(logging.WARNING, __name__),
        pytest.raises(RuntimeError, match="stood still for .* and was ended"),
    ):
        build(signal.pause)
    said = [r.getMessage() for r in caplog.records]
    (said,) = [each for each in said if "stood still" in each]
    (child,) = re.findall(r"process of its own \((\d+)\)", said)
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)
    assert build() is not None


def test_a_builder_that_computes_is_waited_for(build, monkeypatch):
    monkeypatch.setattr(own_process, "GIVEN_UP", 1.5)

    until = []

    def compute():
        until.append(time.process_time() + 4)
        while time.process_time() < until[0]:
            pass

    assert build(compute) is not None
