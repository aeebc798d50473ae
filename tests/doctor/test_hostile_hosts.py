"""Checkpoints and hosts of the worst kind: each ends soon in a sentence and a status, without a traceback."""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest

from system import PROJECT

SHARD = "transformer/diffusion_pytorch_model.safetensors"
SECONDS = 30
"""Of a busy machine; all but the hanging driver take less than two on an idle one."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user, or to mount")


def framekeeper(*arguments: str, home: Path, before: tuple[str, ...] = (), **changes: Any) -> Any:
    """Run the command line on a host of its own; `changes` are the process's, `env` what differs in it."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEKEEPER_")}
    environment = inherited | {
        "FRAMEKEEPER_VAR": str(home / "var"),
        "FRAMEKEEPER_PROFILES": str(PROJECT / "configs" / "profiles"),
        "FRAMEKEEPER_RUNTIMES": str(home / "runtimes"),
        "FRAMEKEEPER_MODEL": str(home / "model"),
        **changes.pop("env", {}),
    }
    for name in changes.pop("without", ()):
        environment.pop(name, None)
    how: dict[str, Any] = {"cwd": home, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    began = time.monotonic()
    ended = subprocess.run(
        [*before, sys.executable, "-m", "framekeeper", *arguments],
        env=environment, text=True, check=False, timeout=120, **(how | changes),
    )  # fmt: skip
    assert "Traceback" not in (ended.stderr or "") + (ended.stdout or ""), ended.stderr
    assert time.monotonic() - began < SECONDS
    return ended


def headed(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


def of_tensors(**tensors: dict[str, Any]) -> bytes:
    return headed(json.dumps(tensors).encode())


def cut(shard: Path) -> None:
    os.truncate(shard, 30)


def pipe(shard: Path) -> None:
    shard.unlink()
    os.mkfifo(shard)


def endless(shard: Path) -> None:
    shard.unlink()
    shard.symlink_to("/dev/zero")


def round_and_round(shard: Path) -> None:
    shard.unlink()
    shard.symlink_to(shard.name)
    (shard.parent / "again").symlink_to(".")


def layers(shard: Path) -> None:
    config = shard.parent / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_layers": 100_000_000}))


def shards(shard: Path) -> None:
    index = shard.parent / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": [], "b": {"c": 1}, "d": 3}}')


def nested(name: str) -> Callable[[Path], None]:
    return lambda shard: (shard.parent / name).write_text("[" * 200_000) and None


def written(content: bytes) -> Callable[[Path], None]:
    return lambda shard: shard.write_bytes(content) and None


HUGE = {"dtype": "F32", "shape": [10**300] * 2000, "data_offsets": [0, 10**18]}
SICK: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut in its header": (cut, f"{SHARD} ends inside its header: 30 of at least "),
    "noise": (written(bytes(range(1, 256)) * 400), "does not begin as a safetensors file does"),
    "header of 99 MB": (written(headed(b"{" + b'"a":' * 12_000_000, 99_000_000)), "ends inside its header"),
    "header nested a million deep": (
        written(headed(b'{"a":' + b"[" * 1_000_000)),
        "a header that is no JSON",
    ),
    "sizes of 600,000 digits": (written(of_tensors(a=HUGE)), "describes a as larger than any disk"),
    "pipe": (pipe, f"{SHARD} is no file"),
    "endless file": (endless, f"{SHARD} is no file"),
    "link to itself": (round_and_round, "Too many levels of symbolic links"),
    "a hundred million layers": (layers, "config.json has no usable num_layers"),
    "index of lists": (shards, "is missing, but model.safetensors.index.json names it"),
    "configuration nested deep": (nested("config.json"), "config.json cannot be read: maximum recursion"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SICK)
def test_a_sick_checkpoint_is_named_by_file_and_fault(kind: str, tmp_path: Path) -> None:
    spoil, sentence = SICK[kind]
    model = checkpoint_files.model(tmp_path / "model")
    spoil(model / SHARD)
    for more in ((), ("--deep", "--json")):
        ended = framekeeper("weights", "check", str(model), *more, home=tmp_path)
        assert ended.returncode == 1
        assert sentence in ended.stdout


@pytest.mark.slow
def test_ten_thousand_tensors_are_read_in_seconds(tmp_path: Path) -> None:
    model = checkpoint_files.model(tmp_path / "model")
    many = {
        f"blocks.{i}.x": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [i * 128, (i + 1) * 128]}
        for i in range(10_000)
    }
    (model / SHARD).write_bytes(of_tensors(**many) + bytes(1_280_000))
    ended = framekeeper("weights", "check", str(model), "--deep", "--json", home=tmp_path)
    record = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert record["tensors"] > 10_000
    assert record["seconds"] < 10
    assert len(record["findings"]) < 100, "what is alike is counted"


@as_root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "status", "sentence"),
    [
        ("", 2, "is not readable"),
        ("transformer", 1, "transformer cannot be read: Permission denied (user 65534)"),
        (SHARD, 1, f"{SHARD} cannot be read: Permission denied"),
    ],
)
def test_what_another_user_may_not_read_is_named(
    place: str, status: int, sentence: str, open_directory: Path
) -> None:
    model = checkpoint_files.model(open_directory / "model")
    for path in (model, *model.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IRGRP | stat.S_IROTH | (0o111 if path.is_dir() else 0))
    (model / place).chmod(0o700)
    nobody = ("setpriv", "--reuid", "65534", "--clear-groups")
    ended = framekeeper("weights", "check", str(model), home=open_directory, before=nobody)
    assert ended.returncode == status
    assert sentence in " ".join((ended.stdout + ended.stderr).replace("│", " ").split())
    # The doctor of that user: the same sentence, and none about what else it may not look into.
    doctor = framekeeper("doctor", "cpu-tiny", "--fast", home=open_directory, before=nobody)
    assert doctor.returncode == 1


@pytest.mark.slow
def test_a_driver_that_hangs_is_asked_once_and_named(tmp_path: Path) -> None:
    checkpoint_files.model(tmp_path / "model")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\ntrap '' TERM INT HUP\nsleep 120\n")
    smi.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = framekeeper("doctor", "h200", "--fast", home=tmp_path, env={"PATH": path})
    assert ended.returncode == 1
    assert "nvidia-smi says: no answer in 20 s" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd",
    [
        {"env": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}},
        {"without": ("HOME", "USER", "PATH", "LANG")},
        {"before": ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")},
    ],
    ids=["locale C", "no home", "empty /proc"],
)
def test_the_doctor_does_without_what_is_usual_elsewhere(odd: dict[str, Any], tmp_path: Path) -> None:
    if "before" in odd and os.getuid() != 0:
        pytest.skip("needs to mount")
    checkpoint_files.model(tmp_path / "model")
    ended = framekeeper("doctor", "cpu-tiny", "--fast", "--json", home=tmp_path, **odd)
    record = json.loads(ended.stdout)
    fatal = {finding["check"] for finding in record["findings"] if finding["severity"] == "fatal"}
    assert fatal <= {"runtime"}, "no engine is installed here; everything else is in order"
    assert ended.returncode == (1 if fatal else 0)


@as_root
@pytest.mark.slow
def test_triage_says_which_directory_it_cannot_write(tmp_path: Path) -> None:
    model = checkpoint_files.model(tmp_path / "model")
    read_only = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none /mnt && cd /mnt && exec "$@"', "sh")
    variables = {"FRAMEKEEPER_VAR": "var", "FRAMEKEEPER_ENGINE_PYTHON": sys.executable}
    ended = framekeeper("triage", "cpu-tiny", home=tmp_path, before=read_only, env=variables)
    assert ended.returncode == 2
    assert "FRAMEKEEPER_VAR: /mnt/var/run cannot be used (Read-only file system)" in ended.stderr
    assert model.is_dir()
    doctor = framekeeper("doctor", "cpu-tiny", "--fast", home=tmp_path, before=read_only, env=variables)
    assert doctor.returncode == 1
    assert "/mnt/var/media cannot be written by this user" in doctor.stdout


@pytest.mark.slow
def test_a_place_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    checkpoint_files.model(tmp_path / "model")
    (tmp_path / "file").touch()
    elsewhere = {"FRAMEKEEPER_VAR": str(tmp_path / "file" / "var")}
    ended = framekeeper("doctor", "cpu-tiny", "--fast", home=tmp_path, env=elsewhere)
    assert ended.returncode == 1
    assert f"{tmp_path}/file/var/media cannot be written by this user" in ended.stdout


@pytest.mark.slow
def test_a_working_directory_that_is_gone_is_a_wrong_configuration(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    ended = framekeeper(
        "doctor", home=tmp_path, before=("sh", "-c", f'cd {gone} && rmdir {gone} && exec "$@"', "sh")
    )
    assert ended.returncode == 2
    assert "the working directory cannot be used (No such file or directory)" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [("doctor", "--fast"), ("doctor", "--fast", "--json")])
def test_an_output_that_is_full_or_closed_is_no_traceback(command: tuple[str, ...], tmp_path: Path) -> None:
    checkpoint_files.model(tmp_path / "model")
    with Path("/dev/full").open("w") as full:
        ended = framekeeper(*command, home=tmp_path, stdout=full)
    assert ended.returncode == 1
    assert ended.stderr.strip() == "the output cannot be written: No space left on device"
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        framekeeper(*command, home=tmp_path, stdout=closed)


@pytest.mark.slow
def test_a_bundle_that_does_not_fit_says_so(tmp_path: Path, full_disk: Path) -> None:
    checkpoint_files.model(tmp_path / "model")
    bundle = full_disk / "bundle.zip"
    ended = framekeeper("doctor", "--fast", "--bundle", str(bundle), home=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.strip() == f"--bundle {bundle}: cannot be written (No space left on device)"


@pytest.mark.slow
def test_readings_that_never_end_are_refused(tmp_path: Path) -> None:
    ended = framekeeper("doctor", "--readings", "/dev/zero", home=tmp_path)
    assert ended.returncode == 2
    assert "--readings /dev/zero: is no file of readings" in ended.stderr
    shutil.rmtree(tmp_path / "var", ignore_errors=True)
