"""`torch.library.infer_schema`, public since torch 2.5, with the table of types of 2.4.1.

2.4.1 has a private function of the same purpose that knows its types only as typing's own generics
(`List[int]`) and as objects, and no text as a default. vllm writes `list[int]`, `X | None`, postponed
annotations and texts. https://pytorch.org/docs/2.5/library.html#torch.library.infer_schema
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._library.infer_schema import SUPPORTED_PARAM_TYPES, parse_return

_TYPING: dict[str, Any] = vars(typing)
"""typing's own generics, which ruff and mypy would have replaced: list[int] is not equal to List[int]."""

UNKNOWN = "unknown"
"""As `mutates_args`: every tensor may be written to."""


def infer_schema(
    prototype_function: Callable[..., Any],
    /,
    *,
    mutates_args: Iterable[str] = (),
    op_name: str | None = None,
) -> str:
    """The operator schema of a function with annotations, such as "(Tensor x, SymInt n=1) -> Tensor".

    Raises ValueError for a parameter that no schema can have.
    """
    hints = typing.get_type_hints(prototype_function)
    parameters = inspect.signature(prototype_function).parameters
    named = set() if mutates_args == UNKNOWN else set(mutates_args)

    def fail(what: str) -> typing.NoReturn:
        raise ValueError(f"infer_schema of {prototype_function!r}: {what}")

    if missing := named - set(parameters):
        fail(f"mutates_args names {', '.join(sorted(missing))}, which are no parameters")
    parts: list[str] = []
    for index, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            fail(f"parameter {name} is positional-only or variadic")
        kind = SUPPORTED_PARAM_TYPES.get(_spell(hints.get(name)))
        if kind is None:
            fail(f"parameter {name} has the type {hints.get(name)}, which no schema has")
        if name in named and not kind.startswith("Tensor"):
            fail(f"parameter {name} is in mutates_args and no tensor")
        if name in named or (mutates_args == UNKNOWN and kind.startswith("Tensor")):
            kind = f"Tensor(a{index}!){kind.removeprefix('Tensor')}"
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(f"{kind} {name}{_default(parameter.default, fail)}")
    returned = parse_return(_spell(hints.get("return")), fail)
    return f"{op_name or ''}({', '.join(parts)}) -> {returned}"


def _default(value: Any, fail: Callable[[str], typing.NoReturn]) -> str:
    """How a default is written in a schema, with the equals sign; nothing when there is none."""
    if value is inspect.Parameter.empty:
        return ""
    if value is None or isinstance(value, int | float):
        return f"={value}"
    if isinstance(value, str | torch.device):
        return f'="{value}"'
    if isinstance(value, torch.dtype):
        return f"={str(value).removeprefix('torch.')}"
    return fail(f"default {value!r} cannot be written in a schema")


def _spell(annotation: Any) -> Any:
    """The same type as torch 2.4.1's tables spell it."""
    if annotation is type(None):
        return None
    origin = typing.get_origin(annotation)
    inner = tuple(_spell(argument) for argument in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return _TYPING["Union"][inner]
    if origin is list:
        return _TYPING["List"][inner]
    if origin is Sequence:
        return _TYPING["Sequence"][inner]
    return annotation
