"""YAML with the line of every key, read the way people expect: `off` is a word, a key twice is a fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from framekeeper.profiles.faults import Fault, ProfileError

KeyPath = tuple[str | int, ...]
_BOOL = "tag:yaml.org,2002:bool"
_C_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_C_LOADER):  # type: ignore[misc]  # the C loader where libyaml is there: ten times as fast
    """YAML 1.2's booleans: only true and false, so that `compile: off` stays a word."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|false)$"), list("tf"))


@dataclass(frozen=True)
class Document:
    """A mapping read from one file, and the line of every key in it."""

    file: str
    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """`file:line` of the deepest part of `path` that the file has; line 1 where it has none."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.file}:{self.lines.get(path, 1)}"


def _walk(node: yaml.Node | None, path: KeyPath, lines: dict[KeyPath, int]) -> Iterator[KeyPath]:
    """Record the line of every key below `node`; yields the paths of keys that occur twice."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            below = (*path, key.value)
            if key.value in seen:
                yield below
            seen.add(key.value)
            lines[below] = key.start_mark.line + 1
            yield from _walk(value, below, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            yield from _walk(value, (*path, index), lines)


def _fault(where: str, key: str, reason: str, advice: str) -> ProfileError:
    return ProfileError([Fault(where=where, key=key, value="", reason=reason, advice=advice)])


def read(path: Path) -> Document:
    """Read one YAML mapping. Raises ProfileError when the file is missing or is not one."""
    file = str(path)
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else None
        lines: dict[KeyPath, int] = {}
        twice = list(_walk(node, (), lines))
    except OSError as error:
        raise _fault(file, "file", f"cannot be read ({error.strerror})", "an existing file") from None
    except UnicodeDecodeError:
        raise _fault(file, "file", "is not UTF-8 text", "a YAML file in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _fault(f"{file}:{line}", "file", f"is not YAML ({error.problem})", "correct YAML") from None
    except yaml.YAMLError as error:
        raise _fault(file, "file", f"is not YAML ({error})", "correct YAML") from None
    except RecursionError:
        raise _fault(file, "file", "holds itself, or is nested too deep", "no alias there") from None
    except (ValueError, AttributeError) as error:
        # PyYAML's own way with what looks like a date, or was said to be a number, and is none.
        raise _fault(file, "file", f"has a value that cannot be read ({error})", "text in quotes") from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise _fault(f"{file}:1", "file", "is not a mapping of keys to values", "keys such as `serves:`")
    document = Document(file, data, lines)
    if twice:
        raise ProfileError(
            [
                Fault(
                    where=document.where(path),
                    key=".".join(map(str, path)),
                    value="",
                    reason="is there twice, and only one would count",
                    advice="it once",
                )
                for path in twice
            ]
        )
    return document
