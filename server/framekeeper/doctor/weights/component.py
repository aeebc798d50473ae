"""One component of a checkpoint: its tensors from all shards, held against its index."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framekeeper.doctor.finding import Finding
from framekeeper.doctor.weights.header import HeaderFault, Tensor, read_header

_HALF = "https://github.com/lyogavin/airllm/issues/137"
_FORM = "https://github.com/huggingface/safetensors#format"
_INDEX = ".safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class Component:
    """`tensors` holds what could be read. `whole` is False where any of it could not."""

    name: str
    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    findings: tuple[Finding, ...]
    whole: bool = True
    quantization: dict[str, Any] = field(default_factory=dict)


def read_component(folder: Path, known_bad: Collection[Path] = ()) -> Component:
    """Read every header below `folder`. Files in `known_bad` were reported already and are passed over."""
    findings: list[Finding] = []
    tensors: dict[str, Tensor] = {}
    files = sorted(folder.glob("*.safetensors"))
    whole = not any(bad.parent == folder for bad in known_bad)
    for path in files:
        if path in known_bad:
            continue
        try:
            header = read_header(path)
        except HeaderFault as fault:
            whole = False
            findings.append(_broken(path, str(fault)))
            continue
        twice = sorted(header.keys() & tensors.keys())
        if twice:
            findings.append(_twice(path, tensors[twice[0]].file, twice))
        tensors |= header
    findings += [_pickle(path) for path in sorted(folder.glob("*.bin")) if not files]
    for index in sorted(folder.glob(f"*{_INDEX}")):
        findings += _index_findings(index, tensors, files, whole)
    config = _json(folder / "config.json")
    return Component(
        name=folder.name,
        folder=folder,
        config=config,
        tensors=tensors,
        findings=tuple(findings),
        whole=whole,
        quantization=_quantization(folder, config),
    )


def _quantization(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What the component says about its quantisation, {} for nothing.

    ModelOpt writes `hf_quant_config.json` beside the configuration or the same keys into it.
    """
    claimed = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(claimed, dict):
        beside = _json(folder / "hf_quant_config.json").get("quantization")
        claimed = {"quant_method": "modelopt", **beside} if isinstance(beside, dict) else {}
    return claimed


def _broken(path: Path, reason: str) -> Finding:
    return Finding(
        check="weights-file",
        severity="fatal",
        seen=f"{path} {reason}",
        why="a half download or a wrong file ends every load with `Error while deserializing header`",
        advice=f"fetch {path.name} again and compare its size with the source's",
        evidence=_HALF if "truncated" in reason or "ends" in reason else _FORM,
    )


def _twice(path: Path, other: Path, names: list[str]) -> Finding:
    return Finding(
        check="weights-twice",
        severity="fatal",
        seen=f"{len(names)} tensor(s), such as {names[0]}, are in {path} and in {other.name}",
        why="which of them is loaded depends on the order of the files",
        advice="remove the set of files that is not meant: another variant, or an older download",
    )


def _pickle(path: Path) -> Finding:
    return Finding(
        check="weights-pickle",
        severity="warn",
        seen=f"{path} is a pickle, which cannot be checked without running it",
        why="a pickle runs code when it is loaded, and a damaged one is found only then",
        advice="the same weights as .safetensors",
    )


def _index_findings(index: Path, tensors: dict[str, Tensor], files: list[Path], whole: bool) -> list[Finding]:
    content = _json(index)
    placed = content.get("weight_map")
    if not isinstance(placed, dict) or not whole:
        return []  # said elsewhere, and what is missing follows from it
    wrong = sorted(
        name for name, shard in placed.items() if name not in tensors or tensors[name].file.name != str(shard)
    )
    unnamed = sorted(tensors.keys() - placed.keys())
    found = []
    if wrong:
        found.append(
            Finding(
                check="weights-index",
                severity="fatal",
                seen=f"{index} names {len(wrong)} tensor(s) that are not in the shard it says: "
                f"{_some(wrong)}",
                why="the loader looks for them there",
                advice="fetch the index and the shards again, from one revision",
            )
        )
    if unnamed:
        stray = sorted({tensors[name].file.name for name in unnamed})
        found.append(
            Finding(
                check="weights-index",
                severity="warn",
                seen=f"{len(unnamed)} tensor(s) in {_some(stray)} are not in {index}: {_some(unnamed)}",
                why="some loaders read them all the same, others do not",
                advice="fetch the index and the shards again, from one revision",
            )
        )
    metadata = content.get("metadata")
    claimed = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = sum(tensors[name].end - tensors[name].begin for name in placed if name in tensors)
    if isinstance(claimed, int) and claimed != total and not wrong and files:
        found.append(
            Finding(
                check="weights-index",
                severity="warn",
                seen=f"{index} speaks of {claimed:,} bytes, and its tensors have {total:,}",
                why="index and shards were not written together: the tensors may have been converted since",
                advice="fetch the index and the shards again, from one revision",
            )
        )
    return found


def _some(names: list[str], most: int = 3) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _json(path: Path) -> dict[str, Any]:
    """A file's object; {} where it cannot be read, which `layout.faults` reports."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
