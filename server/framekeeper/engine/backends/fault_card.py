"""What only a card can do wrong, for the fault backend: never in a shipped profile."""

from __future__ import annotations

from typing import Any

#: torch compiles this with NVRTC: every thread reads where nothing is.
_READ_NOWHERE = """
template <typename T> T read_nowhere(T x) { return x + *reinterpret_cast<volatile T*>(16); }
"""
#: Cycles; years.
_FOR_EVER = 1 << 62
_held: list[Any] = []


def strike(how: str, gigabytes: float = 0) -> None:
    """`how` is hold (take `gigabytes` and keep them), illegal_access, hung_kernel or out_of_memory.

    All but hold end in what torch raises, hung_kernel never. Raises ValueError on another word.
    """
    import torch  # noqa: PLC0415  only where a fault wants it

    cuda: Any = torch.cuda
    match how:
        case "hold":
            _held.append(torch.ones(int(gigabytes * 1e9), dtype=torch.uint8, device="cuda"))
            cuda.synchronize()
        case "illegal_access":
            read = cuda.jiterator._create_jit_fn(_READ_NOWHERE)
            read(torch.ones(1024, device="cuda"))
            cuda.synchronize()
        case "hung_kernel":
            cuda._sleep(_FOR_EVER)
            cuda.synchronize()
        case "out_of_memory":
            while True:
                _held.append(torch.empty(2 * 10**9, dtype=torch.uint8, device="cuda"))
        case _:
            raise ValueError(f"no such fault of a card: {how!r}")
