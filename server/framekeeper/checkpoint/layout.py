"""What a diffusers folder of a Wan model lacks, told from the files alone. Standard library only."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

INDEX = "model_index.json"
WEIGHTLESS = {"scheduler", "tokenizer", "feature_extractor", "image_processor"}
"""Components that are configuration only."""

CONFIGS = {
    "scheduler": ("scheduler_config.json",),
    "tokenizer": ("tokenizer_config.json",),
    "feature_extractor": ("preprocessor_config.json",),
    "image_processor": ("preprocessor_config.json",),
}
"""Where a component's configuration is not called config.json."""

NEEDED = ("transformer", "vae", "text_encoder", "tokenizer")
"""What a Wan pipeline cannot do without, whether or not the index names it."""

VOCABULARIES = ("tokenizer.json", "spiece.model")
"""A tokenizer without either is loaded without a complaint, and all prompts become the same unknown words."""

WEIGHT_ENDINGS = (".safetensors", ".bin")
LFS_START = b"version https://git-lfs"
"""First bytes of a pointer that `git clone` leaves where git-lfs is not installed."""


def faults(directory: Path) -> list[str]:
    """Every fault as one sentence that names the path; empty when the folder is complete.

    Files are looked at, not read: whether a weight file holds the right tensors is not checked.
    """
    _, fault = listed(directory)
    if fault:
        return [fault]
    index = directory / INDEX
    content, fault = _read_json(index)
    if fault:
        return [fault]
    components = sorted(_components(content))
    found = [
        f"{index} names no {name}, which a Wan pipeline needs" for name in NEEDED if name not in components
    ]
    for name in components:
        found += _component_faults(directory / name, name)
    return found


def listed(folder: Path) -> tuple[list[Path], str | None]:
    """What lies in a folder, by name, or a sentence why that cannot be told."""
    try:
        return sorted(folder.iterdir()), None
    except (FileNotFoundError, NotADirectoryError):
        return [], f"{folder} is not a directory"
    except OSError as error:
        return [], f"{folder} cannot be read: {error.strerror} (user {os.getuid()})"


def experts(directory: Path) -> int:
    """Number of transformers, 1 or 2, that the index names. Raises ValueError when it cannot be read."""
    content, fault = _read_json(directory / INDEX)
    if fault:
        raise ValueError(fault)
    return 2 if "transformer_2" in _components(content) else 1


def _components(content: dict[str, Any]) -> set[str]:
    """Names whose value is a [library, class] pair; a pair of nulls is a component left out on purpose."""
    return {
        name
        for name, value in content.items()
        if isinstance(value, list) and len(value) == 2 and value[0] is not None
    }


def _component_faults(folder: Path, name: str) -> list[str]:
    files, unlisted = listed(folder)
    if unlisted:
        return [unlisted if folder.exists() else f"{folder} is missing, but {INDEX} names {name}"]
    found = []
    for config in CONFIGS.get(name, ("config.json",)):
        _, fault = _read_json(folder / config)
        found += [fault] if fault else []
    if name == "tokenizer":
        present = [path for path in files if path.name in VOCABULARIES]
        found += [fault for path in present if (fault := _file_fault(path))]
        found += [] if present else [f"{folder} holds no vocabulary ({' or '.join(VOCABULARIES)})"]
    return found if name in WEIGHTLESS else found + _weight_faults(folder, files)


def _weight_faults(folder: Path, files: list[Path]) -> list[str]:
    weights = {path for path in files if path.name.endswith(WEIGHT_ENDINGS)}
    found = []
    for index in sorted(folder.glob("*.index.json")):
        content, fault = _read_json(index)
        if fault:
            found.append(fault)
            continue
        shards = content.get("weight_map")
        if not isinstance(shards, dict) or not shards:
            found.append(f"{index} has no weight_map")
            continue
        named = sorted({str(shard) for shard in shards.values()})
        missing = [shard for shard in named if not _is_file(folder / shard)]
        found += [f"{folder / shard} is missing, but {index.name} names it" for shard in missing]
    if not weights and not found:
        found.append(f"{folder} holds no weights ({' or '.join(WEIGHT_ENDINGS)})")
    return found + [fault for path in sorted(weights) if (fault := _file_fault(path))]


def _file_fault(path: Path) -> str | None:
    """A sentence when a file is certainly no content; reads its first bytes."""
    try:
        # Opening a pipe would wait for its writer, and a device has no end.
        if not stat.S_ISREG(path.stat().st_mode):
            return f"{path} is no file"
        with path.open("rb") as file:
            start = file.read(len(LFS_START))
    except OSError as error:
        # A hub snapshot holds links into its store; a broken one is a download that was cut short.
        return f"{path} cannot be read: {error.strerror}"
    if not start:
        return f"{path} is empty"
    if start == LFS_START:
        return f"{path} is a git-lfs pointer instead of the file; run git lfs pull"
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or holds a null byte
        return False


def _read_json(path: Path) -> tuple[dict[str, Any], str | None]:
    try:
        there = path.exists() or path.is_symlink()
    except OSError:  # said with its reason below
        there = True
    if not there:
        return {}, f"{path} is missing"
    fault = _file_fault(path)
    if fault:
        return {}, fault
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{path} cannot be read: {error}"
    return (content, None) if isinstance(content, dict) else ({}, f"{path} holds no JSON object")
