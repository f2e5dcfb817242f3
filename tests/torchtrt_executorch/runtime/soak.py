"""Eight threads with programs of a folder, for as long as they are told to; a process of its own.

``python soak.py FOLDER SECONDS``: each ``FOLDER/NAME/`` has a program, what is beside it, and inputs with what a
model returns for them, call after call. It prints what it did, as JSON, and exits with an error for a wrong result,
and for memory, threads or file descriptors that grow. Every few seconds a call of the main thread is interrupted,
as by Ctrl-C.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from torchtrt_executorch.runtime import Method, Program, load

THREADS = 8
#: What allocators and caches may keep, by chance, of what was freed.
SLACK = 24 * 2**20


class Case:
    """One program of the folder."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._pte = folder / "model.pte"
        self._data = sorted(folder.glob("*.ptd"))
        stand_ins = folder / "stand_ins.zip"
        self._options: dict[str, Any] = {"emulated_engines": True}
        if torch.cuda.is_available():
            self._options["cuda_graphs"] = True
        elif stand_ins.exists():
            self._options["stand_ins"] = stand_ins
        self.calls = torch.load(folder / "calls.pt")

    def load(self, profile: bool) -> Program:
        return load(self._pte, self._data, profile=profile, **self._options)

    def check(self, method: Method, count: int) -> None:
        """That a method whose state is new computes what it is to."""
        for x, right in self.calls[:count]:
            self.check_one(method(x), right)

    def check_one(self, results: tuple[Any, ...], right: torch.Tensor) -> None:
        if not torch.allclose(results[-1].cpu(), right, rtol=1e-3, atol=1e-4):
            raise AssertionError(f"{self.name}: a wrong result")


class Soak:
    def __init__(self, cases: list[Case], seconds: float) -> None:
        self._cases = cases
        self._until = time.monotonic() + seconds
        self.done: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._shared = {case.name: case.load(False).method() for case in cases}

    def over(self) -> bool:
        return bool(self.errors) or time.monotonic() > self._until

    def work(self, seed: int) -> None:
        """Clones of what all share, programs of one's own, both profiled and not, in any order."""
        chance, kept = random.Random(seed), {}
        try:
            while not self.over():
                case = chance.choice(self._cases)
                what = chance.random()
                if what < 0.1:  # a program that is dropped at once
                    program = case.load(profile=chance.random() < 0.5)
                    method = program.method()
                    self.done["loaded"] += 1
                elif what < 0.3 or case.name not in kept:
                    kept[case.name] = method = self._shared[case.name].clone()
                    self.done["cloned"] += 1
                else:
                    del kept[case.name]
                    method = self._shared[case.name].clone()
                count = chance.randint(1, len(case.calls))
                case.check(method, count)
                self.done["calls"] += count
        except BaseException as error:
            self.errors.append(error)

    def interrupt(self, chance: random.Random) -> None:
        """Interrupt calls, and see that others can make them, in this thread and in another one."""
        case = chance.choice(self._cases)
        method = case.load(profile=chance.random() < 0.5).method()
        # One that comes in a destructor is ignored.
        made, late = 0, time.monotonic() + 10
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.02))
            while time.monotonic() < late:
                x, _ = case.calls[made % len(case.calls)]
                method(x)
                made += 1
        except KeyboardInterrupt:
            self.done["interrupted"] += 1
        x, _ = case.calls[0]
        finished = threading.Event()
        thread = threading.Thread(target=lambda: (method(x), finished.set()))
        thread.daemon = True
        thread.start()
        if not finished.wait(60):
            raise AssertionError(f"{case.name}: an interrupted call has left it locked")
        thread.join()
        case.check(method.clone(), len(case.calls))

    def run(self) -> None:
        threads = [
            threading.Thread(target=self.work, args=(seed,), daemon=True)
            for seed in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        chance, seen = random.Random(-1), []
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        begin = time.monotonic()
        while not self.over():
            self.interrupt(chance)
            seen.append(held())
            time.sleep(min(1.0, (self._until - begin) / 100))
        for thread in threads:
            thread.join(120)
            if thread.is_alive():
                raise AssertionError("a thread is stuck")
        if self.errors:
            raise self.errors[0]
        self.steady(seen)

    def steady(self, seen: list[dict[str, int]]) -> None:
        """Compare the last quarter with the second one, by the least of each: what is there always."""
        quarter = len(seen) // 4
        report: dict[str, Any] = {**self.done}
        for what in seen[0]:
            early, late = (
                min(each[what] for each in part)
                for part in (seen[quarter : 2 * quarter], seen[-quarter:])
            )
            report[what] = [early, late]
            if late > early + (SLACK if what == "memory" else 0):
                raise AssertionError(f"{what} grew from {early} to {late}: {report}")
        print(json.dumps(report))


def held() -> dict[str, int]:
    """What this process holds now, once what is free is given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    folders = sorted(each for each in Path(sys.argv[1]).iterdir() if each.is_dir())
    soak = Soak([Case(each) for each in folders], float(sys.argv[2]))
    print("begun", flush=True)
    soak.run()
