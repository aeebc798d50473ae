"""Can be compiled what Triton and Inductor compile at run time: a C module with Python.h, then torch.compile.

Options: `device`, `compile` (whether torch.compile is tried). Everything is written below a temporary
directory, never into the engine's caches.
"""

# ruff: noqa: PLC0415  A probe is asked before it imports what may end it.

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

from framekeeper.doctor.probes.answer import attempt, options

_SECONDS = 60
_SOURCE = """\
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", 0, -1, 0};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
"""


def c_module(directory: Path) -> str:
    """Compile and load a module in C. Raises RuntimeError with the compiler's first words of error."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("there is no C compiler (gcc, clang or cc)")
    source, target = directory / "probe.c", directory / "probe.so"
    source.write_text(_SOURCE, encoding="ascii")
    include = sysconfig.get_paths()["include"]
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(target)],
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["it said nothing"]
        raise RuntimeError(f"{Path(compiler).name}: {lines[0]}")
    found = importlib.util.spec_from_file_location("probe", target)
    assert found is not None
    assert found.loader is not None
    found.loader.exec_module(importlib.util.module_from_spec(found))
    return f"{Path(compiler).name} with {include}"


def compiled(device: str) -> str:
    """torch.compile of a small function, its result held against eager. Raises where they differ."""
    import torch

    def small(value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(value * 2 + 1).sum(-1)

    began = time.monotonic()
    value = torch.randn(64, 96, device=device)
    result = torch.compile(small)(value)
    if not torch.allclose(result, small(value), rtol=1e-3, atol=1e-3):
        raise RuntimeError("the compiled function gives another result")
    return f"{time.monotonic() - began:.1f} s from nothing"


def main() -> None:
    """One line for C, one for torch.compile."""
    wanted = options()
    with tempfile.TemporaryDirectory(prefix="framekeeper-probe-") as name:
        directory = Path(name)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(directory / "triton")
        attempt("C module", lambda: c_module(directory))
        if wanted["compile"]:
            attempt("torch.compile", lambda: compiled(wanted["device"]))


if __name__ == "__main__":
    main()
