"""Functions and the schemas that torch's own public `infer_schema` makes of them.

    python schema_table.py

prints whether the torch of that Python agrees; run by tests in both runtimes' Pythons.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch
from torch import Tensor


def scaled(x: Tensor, factors: list[int], how: str = "sum") -> Tensor:
    assert how == "sum"
    return x * sum(factors)


def defaults(
    x: Tensor | None,
    n: int = 1,
    f: float = 0.5,
    b: bool = True,
    s: str | None = None,
    t: torch.dtype = torch.float16,
    d: torch.device | None = None,
) -> None: ...


def keywords(x: Tensor, *, sizes: Sequence[int], others: Optional[list[float]] = None) -> list[Tensor]: ...  # type: ignore[empty-body]  # noqa: UP045


def several(x: Tensor, y: Tensor, many: list[Tensor]) -> tuple[Tensor, int]: ...  # type: ignore[empty-body]


def classic(x: Union[Tensor, None], n: Optional[int] = None) -> bool: ...  # type: ignore[empty-body]  # noqa: UP007, UP045


FUNCTIONS: list[tuple[Any, Any, str]] = [
    (scaled, (), '(Tensor x, SymInt[] factors, str how="sum") -> Tensor'),
    (
        defaults,
        (),
        "(Tensor? x, SymInt n=1, float f=0.5, bool b=True, str? s=None, "
        "ScalarType t=float16, Device? d=None) -> ()",
    ),
    (keywords, (), "(Tensor x, *, SymInt[] sizes, float[]? others=None) -> Tensor[]"),
    (several, ("y", "many"), "(Tensor x, Tensor(a1!) y, Tensor(a2!)[] many) -> (Tensor, SymInt)"),
    (several, "unknown", "(Tensor(a0!) x, Tensor(a1!) y, Tensor(a2!)[] many) -> (Tensor, SymInt)"),
    (classic, (), "(Tensor? x, SymInt? n=None) -> bool"),
]


def strange(x: dict[str, int]) -> Tensor: ...  # type: ignore[empty-body]


def positional(x: Tensor, /) -> Tensor: ...  # type: ignore[empty-body]


def odd_default(x: Tensor, n: int = (1,)) -> Tensor: ...  # type: ignore[empty-body,assignment]


WRONG: list[tuple[Any, Any, str]] = [
    (strange, (), "parameter x has the type dict[str, int]"),
    (positional, (), "positional-only"),
    (odd_default, (), "default (1,)"),
    (scaled, ("y",), "mutates_args names y"),
    (scaled, ("how",), "parameter how is in mutates_args and no tensor"),
]


if __name__ == "__main__":
    for function, mutates, wanted in FUNCTIONS:
        found = torch.library.infer_schema(function, mutates_args=mutates)
        if found != wanted:
            sys.exit(f"{function.__name__}: {found}")
