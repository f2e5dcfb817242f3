"""Export a Qwen3 from a folder by ``torchtrt-executorch export``: resident memory, and seconds, by step.

``python -m benchmarks export_memory [--sizes 0.6B] [--layers 28] [--prefill cuda] [--decode cuda] [--quantize int4]
[--sparse]``. The weights are random, or, with ``--sparse``, a file with holes: zeros but for the beginning of each.

Caches are empty before each export.

Memory is that of the process and all that it starts, sampled from outside of it: anonymous, which has to be had, and
mapped from files, which the system takes back when it needs it. Files in a folder in memory (tmpfs) count as the
latter, so that ``TMPDIR`` should be none.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks._processes import with_caches_in

#: Hidden, intermediate, layers, attention heads, heads of keys and values, and whether the head is the embedding.
SIZES: dict[str, tuple[int, int, int, int, int, bool]] = {
    "tiny": (64, 192, 2, 4, 2, True),
    "0.6B": (1024, 3072, 28, 16, 8, True),
    "1.7B": (2048, 6144, 28, 16, 8, True),
    "4B": (2560, 9728, 36, 32, 8, True),
    "8B": (4096, 12288, 36, 32, 8, False),
}
_VOCABULARY, _HEAD = 151_936, 128
_SAMPLED = 0.05  # seconds between two looks
_RANDOM = 1 << 12  # elements of a weight in a sparse file that aren't zero
_MARK = "step "
_KINDS = ("resident", "anonymous", "mapped")


def configuration(size: str, layers: int | None = None) -> dict[str, Any]:
    """Return the configuration of a Qwen3, as transformers saves one."""
    hidden, intermediate, depth, heads, kv_heads, tied = SIZES[size]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": 256 if size == "tiny" else _VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers or depth,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 16 if size == "tiny" else _HEAD,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000,
    }


def write_model(folder: Path, config: dict[str, Any], sparse: bool) -> int:
    """Write a model's folder, a weight at a time; return the bytes of all weights."""
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    end = 0
    for name, shape in _weights(config):
        start, end = end, end + 2 * torch.Size(shape).numel()
        header[name] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [start, end],
        }
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator().manual_seed(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        base = file.tell()
        for name, row in header.items():
            (start, stop), norm = row["data_offsets"], "norm" in name
            count = (stop - start) // 2
            count = min(count, _RANDOM) if sparse and not norm else count
            weight = torch.randn(count, generator=generator).mul_(0.02).add_(norm)
            file.seek(base + start)
            file.write(weight.bfloat16().view(torch.uint8).numpy().data)
        file.truncate(base + end)
    return end


def _weights(config: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"]
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for index in range(config["num_hidden_layers"]):
        shapes = {
            "input_layernorm": [hidden],
            "self_attn.q_proj": [queries, hidden],
            "self_attn.k_proj": [keys, hidden],
            "self_attn.v_proj": [keys, hidden],
            "self_attn.o_proj": [hidden, queries],
            "self_attn.q_norm": [head],
            "self_attn.k_norm": [head],
            "mlp.gate_proj": [inner, hidden],
            "mlp.up_proj": [inner, hidden],
            "mlp.down_proj": [hidden, inner],
            "post_attention_layernorm": [hidden],
        }
        for name, shape in shapes.items():
            yield f"model.layers.{index}.{name}.weight", shape
    yield "model.norm.weight", [hidden]
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", [config["vocab_size"], hidden]


class _Memory:
    """The most that a process and all below it had, until :meth:`taken`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._most = (0, 0, 0)

    def look(self) -> None:
        tree = _tree(self._pid)
        # What a child shares with its parent since it was forked counts once, which takes longer to find.
        read = _alone if len(tree) == 1 else _shared
        try:
            found = [read(process) for process in tree]
        except (OSError, KeyError):  # one has ended
            return
        anonymous, mapped = map(sum, zip(*found, strict=True))
        with self._lock:
            row = (anonymous + mapped, anonymous, mapped)
            self._most = tuple(map(max, self._most, row))  # type: ignore[assignment]

    def taken(self) -> tuple[int, int, int]:
        """Return the most resident, anonymous and mapped bytes, each for itself, and begin anew."""
        with self._lock:
            most, self._most = self._most, (0, 0, 0)
        return most


def _alone(process: int) -> tuple[int, int]:
    rows = _rows(f"/proc/{process}/status")
    return rows["RssAnon"], rows["RssFile"] + rows["RssShmem"]


def _shared(process: int) -> tuple[int, int]:
    rows = _rows(f"/proc/{process}/smaps_rollup")
    return rows["Pss_Anon"], rows["Pss_File"] + rows["Pss_Shmem"]


def _rows(file: str) -> dict[str, int]:
    """Return the sizes in a file of the kernel's, in bytes."""
    lines = (line.split() for line in Path(file).read_text().splitlines())
    return {words[0][:-1]: int(words[1]) << 10 for words in lines if words[-1] == "kB"}


def _tree(pid: int) -> list[int]:
    try:
        return [pid, *(each.pid for each in psutil.Process(pid).children(True))]
    except psutil.NoSuchProcess:
        return []


def measure(
    arguments: list[str], cache: Path
) -> list[tuple[str, float, int, int, int]]:
    """Run ``torchtrt-executorch export`` with ``arguments``, and all caches in the folder ``cache``.

    Returns:
        By step its name, seconds of CPU, and the most resident, anonymous and mapped bytes.
    """
    command = [sys.executable, "-W", "ignore", "-m", __name__, "--run", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=with_caches_in(cache)
    )
    memory, over = _Memory(process.pid), threading.Event()

    def sample() -> None:
        while not over.wait(_SAMPLED):
            memory.look()

    sampler = threading.Thread(target=sample)
    sampler.start()
    rows: list[tuple[str, float, int, int, int]] = []
    before = 0.0
    try:
        for line in process.stdout or ():
            if not line.startswith(_MARK):
                print("  ", line, end="")
                continue
            used, name = line[len(_MARK) :].rstrip().split(" ", 1)
            rows.append((name, float(used) - before, *memory.taken()))
            before = float(used)
    finally:
        over.set()
        sampler.join()
        process.wait()
    if process.returncode:
        sys.exit(f"the export ended with {process.returncode}")
    return rows


class _Steps(logging.Handler):
    """Says each step that ends, with the seconds of CPU that all took."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "%s: %.1f s" and isinstance(record.args, tuple):
            _say(str(record.args[0]))


def _say(step: str) -> None:
    times = os.times()
    print(f"{_MARK}{sum(times[:4]):.2f} {step}", flush=True)


def run(arguments: list[str]) -> None:
    """Export in this process, and say on stdout when each step has ended."""
    from torchtrt_executorch import progress
    from torchtrt_executorch.cli import app

    _say("import")
    progress.logger.addHandler(_Steps())
    progress.logger.setLevel(logging.INFO)
    progress.logger.propagate = False
    failed = app(["export", *arguments], standalone_mode=False)
    _say("end")
    sys.exit(failed)


def table(
    size: str, layers: int | None, sparse: bool, options: list[str], work: Path
) -> None:
    """Export one model, and print what each step took."""
    folder = work / "model"
    folder.mkdir()
    config = configuration(size, layers)
    nbytes = write_model(folder, config, sparse)
    depth = config["num_hidden_layers"]
    print(f"\n{size}, {depth} layers, {nbytes:,} bytes of weights; {' '.join(options)}")
    out = work / "model.pte"
    start = time.perf_counter()
    arguments = [str(folder), "--compare", "0", "--out", str(out), *options]
    rows = measure(arguments, work / "caches")
    seconds = time.perf_counter() - start
    print(f"{'step':<44}{'CPU s':>8}{'resident':>11}{'anonymous':>11}{'mapped':>9} GB")
    for name, used, *most in rows:
        figures = "".join(f"{each / 1e9:>10.2f}" for each in most)
        print(f"{name:<44}{used:>8.1f} {figures}")
    peaks = [max(row[i] for row in rows) for i in (2, 3, 4)]
    total = sum(row[1] for row in rows)
    # No weight is read before it is quantized or compiled: what is there until then is the process's own.
    loaded = 1 + [row[0] for row in rows].index("load")
    own = [max(row[i] for row in rows[:loaded]) for i in (2, 3, 4)]
    times = ", ".join(
        f"{(peak - before) / nbytes:.2f} {what}"
        for peak, before, what in zip(peaks, own, _KINDS, strict=True)
    )
    print(f"times the weights, above the process's own {own[0] / 1e9:.2f} GB: {times}")
    print(f"{total:.0f} s of CPU, {seconds:.0f} s")
    for file in sorted(out.parent.glob("model.*")):
        print(f"  {file.name}: {file.stat().st_size:,} bytes")


def main(arguments: list[str] | None = None) -> None:
    """Print a table for each size and depth."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks export_memory")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["0.6B"])
    parser.add_argument("--layers", nargs="+", type=int, default=[None])
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--folder", type=Path, help="Where files go, and stay.")
    given, options = parser.parse_known_args(arguments or [])
    options = options or ["--prefill", "cuda", "--decode", "cuda"]
    for size in given.sizes:
        for layers in given.layers:
            with tempfile.TemporaryDirectory(dir=given.folder) as work:
                table(size, layers, given.sparse, options, Path(work))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2:])
    else:
        main(sys.argv[1:])
