"""The card and its driver: does NVML answer, are all cards there, is somebody else on them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from framekeeper.doctor.finding import Finding
from framekeeper.doctor.readings import Readings, first_line, gib, joined
from framekeeper.engine import devices
from framekeeper.profiles.memory import budget
from framekeeper.profiles.schema import Profile

_TOOLKIT = "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48"
_XID = "https://docs.nvidia.com/deploy/xid-errors/index.html"
_FORWARD = "https://github.com/gpustack/gpustack/issues/1254"
# What nvidia-smi says when it cannot, why, and what helps.
_REFUSALS = (
    (
        "Unable to determine the device handle",
        "a card is gone until the host is started again, and nvidia-smi ends at it",
        "start the host again, from cold; if it comes back: power, cooling and seat of the card",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/900",
    ),
    (
        "Unknown Error",
        "systemd's daemon-reload takes the devices from a running container that was given them the old way",
        "make a new container (a restart is not enough), and name the devices or use CDI",
        _TOOLKIT,
    ),
    (
        "version mismatch",
        "the driver was updated while its old kernel module runs, or the image brings a driver of its own",
        "reboot the host (or reload the module); no libcuda or libnvidia-ml in an image",
        "https://github.com/E4S-Project/e4s/issues/172",
    ),
    (
        "couldn't communicate",
        "the kernel module is not loaded, so there is no card for CUDA",
        "install the driver for this kernel, or load it: modprobe nvidia",
        "",
    ),
    (
        "No devices were found",
        "the driver runs and shows no card to this container or host",
        "give the container cards (gpus: all, or a device reservation), and look at the host's kernel log",
        "",
    ),
    (
        "fallen off the bus",
        "a card is gone until the host is started again",
        "power, cooling and seat of the card; then a cold start",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/900",
    ),
)
# Xids after which a card is not to be trusted; those of applications (13, 31, 43, 45) follow their crashes.
_XIDS = {
    48: "double-bit ECC error",
    74: "NVLink error",
    79: "the card has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the card's firmware does not answer",
    120: "the card's firmware ended with an error",
}
_APPLICATION_XIDS = {13, 31, 43, 45}


def driver_findings(profile: Profile, readings: Readings) -> list[Finding]:
    """All about the cards; nothing for a profile of a CPU."""
    if profile.devices.kind == "cpu":
        return [Finding(check="driver", severity="ok", seen="the profile needs no card")]
    found = [*_answer(readings), *_xids(readings)]
    if readings.cards.status == 0:
        for check in (_lost, _fabric, _forward_compatibility, _ecc, _mig, _persistence):
            found += check(readings)
        found += _holders(profile, readings)
    return found


def _answer(readings: Readings) -> Iterator[Finding]:
    answer = readings.cards
    if answer.status == 0 and readings.rows():
        names = joined([f"{card.name} ({gib(card.memory_bytes)})" for card in readings.present()])
        version = re.search(r"CUDA Version:\s*([\d.]+)", readings.summary.text)
        cuda = f", for CUDA up to {version[1]}" if version else ""
        driver = readings.rows()[0]["driver_version"]
        yield Finding(check="driver", severity="ok", seen=f"driver {driver}{cuda}: {names or 'no card'}")
        return
    if answer.status is None:
        where = "under Windows install NVIDIA's driver there, not in Linux" if readings.wsl else (
            "in a container, install nvidia-container-toolkit on the host and give the container cards; on a "
            "host, install the driver"
        )  # fmt: skip
        yield Finding(
            check="driver",
            severity="fatal",
            seen="there is no nvidia-smi",
            why="it comes with the driver, and without a driver CUDA finds no card",
            advice=where,
        )
        return
    said = first_line(answer.text)
    for words, why, advice, evidence in _REFUSALS:
        if words.lower() in answer.text.lower():
            yield Finding(
                check="driver", severity="fatal", seen=f"nvidia-smi says: {said}", why=why, advice=advice,
                evidence=evidence,
            )  # fmt: skip
            return
    hung = answer.status == -1
    yield Finding(
        check="driver",
        severity="fatal",
        seen=f"nvidia-smi says: {said}",
        why="a driver that does not answer keeps every CUDA process waiting"
        if hung
        else "CUDA will not start",
        advice="the host's kernel log; then start the host again",
    )


def _lost(readings: Readings) -> Iterator[Finding]:
    known = len(readings.present())
    lines = [line for line in readings.cards.text.splitlines() if line.strip()]
    if len(lines) > known:
        bad = next(line for line in lines if not re.search(r",\s*\d+\.\d,\s*\d+,", line))
        yield Finding(
            check="card-lost",
            severity="fatal",
            seen=f"{len(lines) - known} of {len(lines)} cards do not answer: {bad.strip()}",
            why="a lost card hangs or ends every process that opens it, also beside healthy ones",
            advice="name the healthy cards in devices.uuids, and start the host again",
            evidence="https://github.com/NVIDIA/open-gpu-kernel-modules/issues/900",
        )


def _fabric(readings: Readings) -> Iterator[Finding]:
    states = [state for state in readings.fabric if state.strip() not in ("Completed", "N/A")]
    if states:
        yield Finding(
            check="fabric",
            severity="fatal",
            seen=f"the NVLink fabric of {len(states)} card(s) is: {states[0].strip()}",
            why="CUDA ends with error 802, system not yet initialized, until the fabric manager is done",
            advice="start nvidia-fabricmanager, of exactly the driver's version, on the host",
            evidence=_FORWARD,
        )


def _forward_compatibility(readings: Readings) -> Iterator[Finding]:
    path = readings.environment.get("LD_LIBRARY_PATH", "")
    consumer = [card.name for card in readings.present() if re.search(r"GeForce|RTX \d{4}\b", card.name)]
    if "compat" in path and consumer:
        yield Finding(
            check="forward-compatibility",
            severity="fatal",
            seen=f"LD_LIBRARY_PATH={path} puts CUDA's compat libraries before the driver of a {consumer[0]}",
            why="they are for data-centre cards only: CUDA ends with error 804, or 803 where versions differ",
            advice="take the compat directory out of LD_LIBRARY_PATH, and update the driver instead",
            evidence=_FORWARD,
        )


def _ecc(readings: Readings) -> Iterator[Finding]:
    for row in readings.rows():
        errors = row["ecc.errors.uncorrected.volatile.total"]
        if errors.isdigit() and int(errors):
            yield Finding(
                check="ecc",
                severity="fatal",
                seen=f"{row['uuid']} has counted {errors} uncorrectable memory error(s) since its start",
                why="the next one ends the process, or damages a video without a word",
                advice="reset the card or the host; if they come again, replace the card",
                evidence="https://github.com/vllm-project/vllm/issues/5222",
            )


def _mig(readings: Readings) -> Iterator[Finding]:
    parted = [row["uuid"] for row in readings.rows() if row["mig.mode.current"] == "Enabled"]
    if parted:
        yield Finding(
            check="mig",
            severity="warn",
            seen=f"MIG is on for {joined(parted)}",
            why="a process gets one part of the card, and the memory known here is the whole card's",
            advice="MIG off for this card, or a profile whose memory fits one part",
            evidence="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
        )


def _persistence(readings: Readings) -> Iterator[Finding]:
    off = [row["uuid"] for row in readings.rows() if row["persistence_mode"] == "Disabled"]
    if off and not readings.wsl:
        yield Finding(
            check="persistence",
            severity="note",
            seen=f"persistence mode is off for {joined(off)}",
            why="without any process the driver puts the card down, and each start brings it up again",
            advice="nvidia-persistenced on the host",
            evidence="https://docs.nvidia.com/deploy/driver-persistence/index.html",
        )


def _holders(profile: Profile, readings: Readings) -> Iterator[Finding]:
    cards = {card.uuid: card for card in readings.present()}
    there = devices.parse(readings.processes.text, cards.keys()) if readings.processes.status == 0 else []
    if there:
        yield Finding(
            check="card-held",
            severity="warn",
            seen=joined([str(holder) for holder in there]),
            why="what another process holds is missing at the peak of a video, hours later perhaps",
            advice="nothing if it is this service's own engine; else end the process or use another card",
            evidence="https://github.com/vllm-project/vllm-omni/issues/2317",
        )
        return
    needed = budget(profile)
    for row in readings.rows():
        used, memory = row["memory.used"], row["memory.total"]
        if needed is None or not (used.isdigit() and memory.isdigit()):
            continue
        free = (int(memory) - int(used)) * 1024**2
        if needed.bytes > free and needed.bytes <= int(memory) * 1024**2:
            yield Finding(
                check="card-held",
                severity="warn",
                seen=f"{row['uuid']} has {gib(free)} free, and the profile needs {gib(needed.bytes)}",
                why="somebody holds the rest: a container, a display, or a process that was killed badly",
                advice="look for the holder on the host: fuser -v /dev/nvidia*",
                evidence="https://github.com/vllm-project/vllm/issues/20305",
            )


def _xids(readings: Readings) -> Iterator[Finding]:
    if readings.kernel_log is None:
        yield Finding(
            check="xid",
            severity="note",
            seen="the kernel's log could not be read, so Xids are not known",
            why="the driver tells there that a card has failed",
            advice="on the host: dmesg | grep Xid",
            evidence=_XID,
        )
        return
    numbers = [int(number) for number in re.findall(r"NVRM: Xid \([^)]*\): (\d+)", readings.kernel_log)]
    for number in sorted(set(numbers)):
        if number in _APPLICATION_XIDS:
            continue
        meaning = _XIDS.get(number, "see the driver's list")
        yield Finding(
            check="xid",
            severity="warn",
            seen=f"the kernel's log has Xid {number} {numbers.count(number)} time(s): {meaning}",
            why="the driver saw the card fail since this host was started, and it may do so again",
            advice="start the host again; if it comes back, replace the card",
            evidence=_XID,
        )
    if not set(numbers) - _APPLICATION_XIDS:
        yield Finding(check="xid", severity="ok", seen="the kernel's log has no Xid of a failing card")
