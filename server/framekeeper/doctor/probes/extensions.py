"""Do the engine's libraries and their compiled extensions load, and does CUDA come up.

Options: `device` (cpu or cuda), `modules` (names to import, in order), `extensions` (whether vllm's own
compiled modules are part of this runtime).
"""

# ruff: noqa: PLC0415  A probe is asked before it imports what may end it.

from __future__ import annotations

import importlib
import importlib.util
from functools import partial
from pathlib import Path

from framekeeper.doctor.probes.answer import attempt, options, tell


def imported(name: str) -> str:
    """Import a module; returns its version. Raises whatever its import raises."""
    module = importlib.import_module(name)
    return str(getattr(module, "__version__", "it loads"))


def cuda() -> str:
    """Bring CUDA up and name its cards. Raises RuntimeError with the driver's words, such as error 802."""
    import torch

    torch.cuda.init()
    count = torch.cuda.device_count()
    known = set(torch.cuda.get_arch_list())
    names = []
    for index in range(count):
        card = torch.cuda.get_device_properties(index)
        names.append(f"{card.name} sm_{card.major}{card.minor}")
        # The smallest kernel there is: a card without code for it ends here, `no kernel image is available`.
        if float(torch.ones(8, device=f"cuda:{index}").sum()) != 8.0:
            raise RuntimeError(f"card {index} adds eight ones to something else")
    if not count:
        raise RuntimeError("CUDA came up and shows no card")
    return f"CUDA {torch.version.cuda}: {', '.join(names)}; code for {', '.join(sorted(known))}"


def extension_modules() -> list[str]:
    """Names of vllm's compiled modules, by its files; empty where there is no vllm."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        return []
    root = Path(next(iter(found.submodule_search_locations)))
    files = sorted(root.glob("*_C*.so")) + sorted(root.glob("vllm_flash_attn/*.so"))
    return [
        ".".join(("vllm", *path.relative_to(root).with_name(path.name.split(".")[0]).parts)) for path in files
    ]


def main() -> None:
    """One line for each module."""
    wanted = options()
    for name in wanted["modules"]:
        if not attempt(f"import {name}", partial(imported, name)) and name == "torch":
            return
    if wanted["device"] == "cuda" and not attempt("cuda", cuda):
        return
    if not wanted["extensions"]:
        return
    modules = extension_modules()
    if not modules:
        tell("extension vllm", False, "vllm has no compiled modules")
    for name in modules:
        attempt(f"extension {name}", partial(imported, name))


if __name__ == "__main__":
    main()
