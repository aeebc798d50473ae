"""One line of an engine's log, freed from what differs between builds, hosts, ranks and log collectors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]

#: Longer lines are cut: an error's words stand at its beginning, and time must not grow with one huge line.
LONGEST = 1_000

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b.")
# What is left of a colour whose first characters were cut off.
_BROKEN_COLOUR = re.compile(r"^\[?\d{1,3}(?:;\d{1,3})+m")
# (DiffusionWorker pid=3110), (VllmWorker rank=5 pid=33503), (APIServer pid=1), (EngineCore_DP0 pid=271)
_PROCESS = re.compile(r"\(([A-Za-z][\w.-]*(?: [\w.-]+=[\w.:-]+)+)\) ?")
# [rank0]:, [Rank 2]:, [default0]:, [3]: as torchrun and c10d print them, [Stage-0] as vllm-omni does
_RANK = re.compile(r"\[(?:rank|Rank|default)? ?(\d+)\]:[ ]?|\[(Stage-\d+)\] ?")
_STAMP = re.compile(
    r"\[?(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
    r"(?: [A-Z]{2,3}\d+)?\]?[ :]{0,2}"
    r"|\[\d\d-\d\d \d\d:\d\d:\d\d\] ?"
    r"|\[ *\d+\.\d{6}\] ?"  # the kernel's
    r"|\d\d:\d\d:\d\d(?:[.,]\d+)? "
)
# vLLM writes the level, month and day, time and the place in brackets; Python's own logging level and module.
_LEVEL = re.compile(
    r"\[?(DEBUG|INFO|WARNING|WARN(?=[:\]]| \d)|ERROR|CRITICAL|FATAL)\]?(?=[ :\t])(?::[\w.]+:|:)?"
    r"(?: \d\d-\d\d \d\d:\d\d:\d\d)?(?: \[?[^\]\s]{1,80}:\d+\])?(?: - )? ?"
)
# glog: "W1202 09:07:12.104000 14527 path:53] " and c10d's "[E817 17:40:34.22 ProcessGroupNCCL.cpp:1515] "
_GLOG = re.compile(
    r"\[?([IWEF])(?:\d{3,4} \d\d:\d\d:\d\d\.\d+)?(?: +\d+)? ?"
    r"[^\s\]]{0,300}\.(?:py|cpp|cc|h|hpp|cu):\d+\] ?"
)
# " - __main__ - INFO - " after a time stamp, Python's most copied format; NCCL's "host:1:2 [0] NCCL INFO "
_LOGGER = re.compile(r"- [\w.]{1,80} - (?=[A-Z]{4,8} - )")
_NCCL = re.compile(r"[\w.-]{1,64}:\d+:\d+ \[\d+\] (?:[\w./]{1,80}:\d+ )?NCCL (INFO|TRACE) ")
# docker compose's "engine-1  | ", Kubernetes' "stdout F "
_COLLECTOR = re.compile(r"[a-z0-9][\w.-]{0,60}-\d+ +\| ?|std(?:out|err) [FP] ")
_GLOG_LEVELS: dict[str, Level] = {"I": "info", "W": "warning", "E": "error", "F": "error"}
_WORD_LEVELS: dict[str, Level] = {
    "DEBUG": "debug",
    "INFO": "info",
    "WARNING": "warning",
    "WARN": "warning",
    "ERROR": "error",
    "CRITICAL": "error",
    "FATAL": "error",
    "TRACE": "debug",
}
_PREFIXES = (_PROCESS, _RANK, _LEVEL, _GLOG, _STAMP, _LOGGER, _NCCL, _COLLECTOR, _BROKEN_COLOUR)
_FIRST = frozenset("([-_" + ascii_letters + digits)


@dataclass(frozen=True, slots=True)
class Line:
    """`source` names the process and rank that wrote it, empty where the line does not say."""

    text: str
    source: str = ""
    level: Level | None = None


def clean(raw: str) -> str:
    """Without colours and control characters; of a progress bar only its last state."""
    text = raw[: 4 * LONGEST]
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    text = text.rstrip()
    if "\r" in text:
        text = text.rpartition("\r")[2]
    if not text.isprintable():
        text = "".join(each if each.isprintable() or each == "\t" else " " for each in text)
    return text[:LONGEST]


def normalised(text: str) -> Line:
    """Strip prefixes of a clean line as often as they are there, in any order."""
    source: list[str] = []
    level: Level | None = None
    while text and text[0] in _FIRST:
        for expression in _PREFIXES:
            match = expression.match(text)
            if match is None or not match[0]:
                continue
            if expression is _PROCESS or expression is _RANK:
                source.append(match[1] or match[match.lastindex or 1])
            elif expression is _LEVEL or expression is _NCCL:
                level = _WORD_LEVELS[match[1]]
            elif expression is _GLOG:
                level = _GLOG_LEVELS[match[1]]
            text = text[match.end() :]
            break
        else:
            break
    return Line(text, " ".join(source), level)
