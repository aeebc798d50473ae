"""The compile caches: whether files in them are damaged, and removing them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from framekeeper.profiles.runtimes import RUNTIMES

_ELF = b"\x7fELF"
# A killed compiler leaves files like these; looking at more than so many would hold up a start.
_MOST_FILES = 20_000


def damaged(directory: Path) -> tuple[str, ...]:
    """A sentence for each file below the caches that its reader would choke on; sizes and first bytes only.

    Inductor and Triton write a file under another name and rename it, but disks fill up and hosts lose
    power: what is left is empty or begins with zeros.
    """
    return tuple(_faults(directory))


def _faults(directory: Path) -> Iterator[str]:
    looked = 0
    for name in RUNTIMES:
        for path in (directory / name).rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            looked += 1
            if looked > _MOST_FILES:
                return
            try:
                fault = _fault(path)
            except FileNotFoundError:  # an engine that compiles renames its files meanwhile
                continue
            except OSError as error:
                fault = f"cannot be read ({error.strerror})"
            if fault:
                yield f"{path} {fault}"


def _fault(path: Path) -> str | None:
    if path.suffix not in (".so", ".json", ".cubin", ".py", ".cpp", ".ptx"):
        return None
    if not path.stat().st_size:
        # Inductor marks packages with an empty one.
        return None if path.name == "__init__.py" else "is empty"
    if path.suffix in (".so", ".cubin"):
        with path.open("rb") as file:
            start = file.read(len(_ELF))
        return None if start == _ELF else "does not begin as a compiled file does"
    if path.suffix == ".json":
        try:
            json.loads(path.read_bytes())
        except ValueError:
            return "is no whole JSON"
    return None


def clear_caches(directory: Path) -> list[Path]:
    """Remove the compile caches below the cache directory: folders of runtimes we ship, nothing else.

    The weights of the hub's cache lie beside them and stay, and so does whatever is not ours. Links are not
    followed. Returns what was removed. Raises OSError where it cannot be.
    """
    removed = []
    for name in RUNTIMES:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            removed.append(path)
    return removed
