"""Probes: how they are run and what becomes of those that fail, hang or die; and all of them on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine_runtime import engine_python
from framekeeper.doctor.examine import examine_host
from framekeeper.doctor.finding import count
from framekeeper.doctor.probing import run_probe
from framekeeper.settings import Settings

IMPORTS = {"device": "cpu", "extensions": False}


def imports(tmp_path: Path, name: str, source: str = "", seconds: float = 20) -> list[tuple[str, bool, str]]:
    """What the probe of imports tells of a module with this source."""
    if source:
        (tmp_path / f"{name}.py").write_text(source)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
    options = {**IMPORTS, "modules": [name]}
    told = run_probe(Path(sys.executable), environment, "extensions", options, seconds)
    return [(each.part, each.ok, each.seen) for each in told]


def test_what_a_library_prints_is_no_answer(tmp_path: Path) -> None:
    told = imports(tmp_path, "chatty", "print('{\"part\": \"import chatty\"}')\n__version__ = '7'\n")
    assert told == [("import chatty", True, "7")]


def test_a_library_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert imports(tmp_path, "absent") == [
        ("import absent", False, "ModuleNotFoundError: No module named 'absent'")
    ]


def test_a_probe_that_dies_is_told_with_its_signal_and_last_words(tmp_path: Path) -> None:
    source = "import os, signal, sys\nsys.stderr.write('bad bits\\n')\nsys.stderr.flush()\n"
    told = imports(tmp_path, "deadly", f"{source}os.kill(os.getpid(), signal.SIGSEGV)\n")
    assert told == [("end", False, "the process ended with SIGSEGV: bad bits")]


def test_a_probe_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    source = (
        "import subprocess, sys, time\nfrom pathlib import Path\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"Path({str(mark)!r}).write_text(str(child.pid))\ntime.sleep(60)\n"
    )
    began = time.monotonic()
    told = imports(tmp_path, "stuck", source, seconds=3)
    assert told == [("end", False, "it was not done within 3 s")]
    assert time.monotonic() - began < 15
    state = Path(f"/proc/{mark.read_text()}/stat")
    assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_probe_leaves_the_engines_directories_alone(tmp_path: Path) -> None:
    told = imports(tmp_path, "curious", "import os\n__version__ = os.environ['HOME']\n")
    assert told[0][1]
    assert told[0][2] != str(tmp_path)
    assert not Path(told[0][2]).exists()


def test_a_missing_header_is_told_in_the_compilers_words(tmp_path: Path) -> None:
    gcc = tmp_path / "gcc"
    gcc.write_text("#!/bin/sh\necho 'probe.c:1:10: fatal error: Python.h: No such file' >&2\nexit 1\n")
    gcc.chmod(0o755)
    options = {"device": "cpu", "compile": False}
    (told,) = run_probe(Path(sys.executable), {"PATH": f"{tmp_path}:/bin"}, "compiling", options)
    assert (told.part, told.ok) == ("C module", False)
    assert "fatal error: Python.h" in told.seen


def test_a_c_module_is_compiled_and_loaded_where_there_is_a_compiler() -> None:
    options = {"device": "cpu", "compile": False}
    (told,) = run_probe(Path(sys.executable), {"PATH": os.environ["PATH"]}, "compiling", options)
    assert (told.part, told.ok) == ("C module", True), told.seen


@pytest.mark.slow
def test_memory_that_is_not_there_is_told_with_what_was_had() -> None:
    piece = 100 * 1024**2
    options = {"device": "cpu", "weights": 60 * piece, "working": piece, "piece": piece}
    done = subprocess.run(
        ["bash", "-c", f"ulimit -v 6000000; exec {engine_python()} -m framekeeper.doctor.probes.allocator"],
        input=json.dumps(options),
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"ok": false' in done.stdout
    assert '"part": "weights"' in done.stdout


@pytest.mark.slow
@pytest.mark.stack
def test_every_probe_passes_on_a_cpu(tmp_path: Path) -> None:
    settings = Settings(var=tmp_path, runtimes=engine_python().parents[2])
    examination = examine_host(settings, "cpu-tiny")
    assert count(examination.findings, "fatal") == 0, [str(each) for each in examination.fatal]
    told = {each.probe for each in examination.readings.probes if each.tried}
    assert told == {"extensions", "kernels", "attention", "compiling", "allocator"}
    assert all(each.ok for each in examination.readings.probes if each.tried)
    parts = {each.part for each in examination.readings.probes}
    assert {"import vllm_omni", "matrix bfloat16 on cpu", "vllm-omni TORCH_SDPA", "C module"} <= parts
