"""Lets the torchvision wheel from PyPI be imported beside a CPU build of torch.

vllm-omni's Wan package imports torchvision (its image-to-video pipeline resizes pictures with it), and so
does transformers when it is installed. The wheel on PyPI is a CUDA build: its extension cannot be loaded
here, which torchvision tolerates, but then `import torchvision` fails on describing two operators that the
extension would have defined (`torchvision::nms`, `torchvision::qnms` in `_meta_registrations.py`). Defining
their schemas first is enough; nobody calls them.
"""

from __future__ import annotations

from typing import Any

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}

_library: list[Any] = []
"""Keeps the definitions alive: torch removes them with the object that made them."""


def predefine() -> None:
    """Define the operators, unless something has; call before the first import of torchvision or vllm.

    Needed in every process that imports torchvision; vllm's platform plugin calls it, so a
    spawned worker process is served too. Harmless with a torchvision whose extension does load only when it
    is not called: the extension would define the operators a second time, so it is for the CPU alone.
    """
    if _library:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        if not torch._C._dispatch_has_kernel(f"torchvision::{name}"):
            library.define(schema)
    _library.append(library)
