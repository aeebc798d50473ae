"""Seconds of `framekeeper weights check`: headers of 28 billion parameters (aim: 2 s), and reading values.

    python bench/weights_check.py [--record] [--megabytes N]

Two experts of Wan2.2-T2V-A14B's shape in 12 shards each are written as sparse files: whole headers, no data.
Then one file of N MB of bfloat16 as trained weights have it is read as `--deep` reads it, twice: the second
time from memory. `--record` appends the result to bench/results/weights_check.jsonl.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "doctor"))

from checkpoint_files import CONFIG, Spec, model, write, write_json  # noqa: E402

from framekeeper.doctor.weights import values  # noqa: E402
from framekeeper.doctor.weights.check import check_headers  # noqa: E402
from framekeeper.doctor.weights.header import read_header  # noqa: E402
from framekeeper.doctor.weights.wan import expected  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "weights_check.jsonl"
A14B = CONFIG | {
    "num_attention_heads": 40,
    "attention_head_dim": 128,
    "ffn_dim": 13_824,
    "num_layers": 40,
    "text_dim": 4096,
    "freq_dim": 256,
}
SHARDS = 12


def write_a14b(directory: Path) -> None:
    """The folder of T2V-A14B with both transformers in sparse shards and an index."""
    model(directory)
    items: list[tuple[str, Spec]] = [(name, ("BF16", shape, b"")) for name, shape in expected(A14B).items()]
    for name in ("transformer", "transformer_2"):
        folder = directory / name
        (folder / "diffusion_pytorch_model.safetensors").unlink()
        write_json(folder / "config.json", A14B)
        placed, total = {}, 0
        for number in range(SHARDS):
            shard = f"diffusion_pytorch_model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
            part = dict(items[number::SHARDS])
            write(folder / shard, part, sparse=True)
            placed |= dict.fromkeys(part, shard)
            total += sum(t.end - t.begin for t in read_header(folder / shard).values())
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        write_json(folder / "diffusion_pytorch_model.safetensors.index.json", index)


def deep(directory: Path, megabytes: int) -> dict[str, Any]:
    """Seconds of reading random bfloat16, and what the process needed at its peak."""
    path = directory / "values.safetensors"
    piece = bytearray(os.urandom(2**20))
    # Signs and fractions at random, magnitudes between 0.002 and 0.03.
    piece[1::2] = bytes(0x3B + (byte & 1) | byte & 0x80 for byte in piece[1::2])
    data = bytes(piece) * megabytes
    write(path, {"weight": ("BF16", (megabytes, 2**19), data)})
    tensor = read_header(path)["weight"]
    del data
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        values.numbers(tensor)
        seconds.append(time.perf_counter() - begin)
    return {
        "deep_mb": megabytes,
        "deep_gb_per_s": round(megabytes * 2**20 / seconds[-1] / 1e9, 2),
        "numpy": values.HAS_NUMPY,
    }


def main(record: bool, megabytes: int) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "model"
        write_a14b(directory)
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            checkpoint = check_headers(directory)
            seconds.append(time.perf_counter() - begin)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = {
            "parameters": sum(t.elements for c in checkpoint.components for t in c.tensors.values()),
            "tensors": checkpoint.tensors,
            "findings": len(checkpoint.findings),
            "headers_s_median": round(sorted(seconds)[2], 4),
            "headers_s_slowest": round(max(seconds), 4),
            "peak_mib": round(peak / 1024),
            **deep(Path(temporary), megabytes),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2),
        }
    print(json.dumps(result))
    if record:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    return 0 if result["headers_s_slowest"] < 2 and not result["findings"] else 1


if __name__ == "__main__":
    size = int(sys.argv[sys.argv.index("--megabytes") + 1]) if "--megabytes" in sys.argv else 256
    sys.exit(main("--record" in sys.argv, size))
