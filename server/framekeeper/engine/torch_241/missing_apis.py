"""Functions and modules that torch 2.4.1 lacks and its users in this runtime import.

    torch.library.infer_schema            vllm/utils/torch_utils.py, at import
    torch._inductor.config                vllm/env_override.py reads it as an attribute without importing it
    torch.distributed._symmetric_memory   vllm/distributed/parallel_state.py, at import
    torch._C._dynamo.guards               vllm/compilation/wrapper.py, at import, for annotations
    scaled_dot_product_attention          diffusers passes `enable_gqa`, which came with torch 2.5

Only the first and the last are ever called on our path. The other modules are empty: taking something out of
them raises, as it should.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import sys
import types
from typing import Any

import torch
from torch.nn import functional

from framekeeper.engine.torch_241 import versions
from framekeeper.engine.torch_241.infer_schema import infer_schema


def install() -> None:
    """Supply them in this process; harmless when repeated. Raises WrongVersion on another torch."""
    versions.require({"torch": versions.OMNI_014["torch"]})
    importlib.import_module("torch._inductor.config")
    # setattr, because no annotation of torch knows these names.
    setattr(torch.library, "infer_schema", infer_schema)  # noqa: B010
    _supply("torch.distributed._symmetric_memory", {})
    # Two annotations name the class; its methods are read only while vllm compiles, which we refuse.
    _supply("torch._C._dynamo.guards", {"GuardManager": type("GuardManager", (), {})})
    if not hasattr(functional.scaled_dot_product_attention, "grouped"):
        functional.scaled_dot_product_attention = _with_groups(functional.scaled_dot_product_attention)


def _supply(name: str, content: dict[str, Any]) -> None:
    """Make module `name` importable with this content, where it is not or lacks some of it."""
    parent_name, _, child = name.rpartition(".")
    try:
        module = importlib.import_module(name)
    except ImportError:
        parent = importlib.import_module(parent_name)
        # A submodule of the extension torch._C is an attribute and no file; then it is there already.
        module = getattr(parent, child, None) or types.ModuleType(name, "Supplied by Framekeeper.")
        if module.__spec__ is None:
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
        setattr(parent, child, module)
    for key, value in content.items():
        if not hasattr(module, key):
            setattr(module, key, value)


def _with_groups(original: Any) -> Any:
    """`scaled_dot_product_attention` with `enable_gqa`: fewer key heads than query heads are repeated.

    https://pytorch.org/docs/2.5/generated/torch.nn.functional.scaled_dot_product_attention.html
    """

    @functools.wraps(original)
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        enable_gqa: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        if enable_gqa:
            key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        output: torch.Tensor = original(query, key, value, *args, **kwargs)
        return output

    attention.grouped = True  # type: ignore[attr-defined]
    return attention
