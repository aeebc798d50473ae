"""Names and shapes of a Wan transformer's tensors, derived from its config.json.

As diffusers' models/transformers/transformer_wan.py builds it, in 0.36 and 0.40:
https://github.com/huggingface/diffusers/blob/v0.36.0/src/diffusers/models/transformers/transformer_wan.py
"""

from __future__ import annotations

import math
from typing import Any

from framekeeper.doctor.finding import Finding, few
from framekeeper.doctor.weights.component import Component
from framekeeper.doctor.weights.header import Tensor

CLASS = "WanTransformer3DModel"
_SOURCE = "https://github.com/huggingface/diffusers/blob/v0.36.0/src/diffusers/models/transformers/transformer_wan.py"
_PACKED = {"U8", "I32", "F4"}
"""Types in which several weights share an element, so that shapes say nothing."""
_ANCILLARY = ("scale", "zero_point", "_scale_inv", "scale_weight", "amax", "scale_input")
_IMAGE = ("condition_embedder.image_embedder.", "add_k_proj.", "add_v_proj.", "norm_added_k.")
"""Parts that only image-to-video models have; their shapes are not derived."""


_MOST = 1_000_000
"""No width of a model comes near it, and no number of layers may make a check endless."""
_MOST_LAYERS = 1_000


class NotDerivable(Exception):
    """The configuration lacks a number; the message names its key."""


def expected(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape by name. Raises NotDerivable."""

    def number(key: str, default: int | None = None, most: int = _MOST) -> int:
        value = config.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise NotDerivable(key)
        return value

    hidden = number("num_attention_heads") * number("attention_head_dim")
    feed_forward, layers = number("ffn_dim"), number("num_layers", most=_MOST_LAYERS)
    inputs, text, frequencies = number("in_channels"), number("text_dim"), number("freq_dim", 256)
    outputs = number("out_channels", inputs)
    patch = config.get("patch_size", [1, 2, 2])
    if not isinstance(patch, list) or not all(isinstance(side, int) for side in patch):
        raise NotDerivable("patch_size")
    shapes: dict[str, tuple[int, ...]] = {"scale_shift_table": (1, 2, hidden)}
    shapes |= {"patch_embedding.weight": (hidden, inputs, *patch), "patch_embedding.bias": (hidden,)}
    linears = {
        "condition_embedder.time_embedder.linear_1": (hidden, frequencies),
        "condition_embedder.time_embedder.linear_2": (hidden, hidden),
        "condition_embedder.time_proj": (6 * hidden, hidden),
        "condition_embedder.text_embedder.linear_1": (hidden, text),
        "condition_embedder.text_embedder.linear_2": (hidden, hidden),
        "proj_out": (outputs * math.prod(patch), hidden),
    }
    for layer in range(layers):
        block = f"blocks.{layer}"
        shapes[f"{block}.scale_shift_table"] = (1, 6, hidden)
        for attention in ("attn1", "attn2"):
            for part in ("to_q", "to_k", "to_v", "to_out.0"):
                linears[f"{block}.{attention}.{part}"] = (hidden, hidden)
            if config.get("qk_norm"):
                shapes[f"{block}.{attention}.norm_q.weight"] = (hidden,)
                shapes[f"{block}.{attention}.norm_k.weight"] = (hidden,)
        linears[f"{block}.ffn.net.0.proj"] = (feed_forward, hidden)
        linears[f"{block}.ffn.net.2"] = (hidden, feed_forward)
        if config.get("cross_attn_norm"):
            shapes |= {f"{block}.norm2.weight": (hidden,), f"{block}.norm2.bias": (hidden,)}
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def shape_findings(component: Component) -> list[Finding]:
    """Tensors that are missing, unknown or of another shape than the configuration's."""
    where = component.folder / "config.json"
    if component.config.get("_class_name") != CLASS or not component.whole:
        return []
    try:
        wanted = expected(component.config)
    except NotDerivable as error:
        return [
            Finding(
                check="weights-config",
                severity="fatal",
                seen=f"{where} has no usable {error}",
                why="the transformer is built from it before its weights are loaded",
                advice="fetch config.json again, from the same revision as the weights",
                evidence=_SOURCE,
            )
        ]
    there = component.tensors
    missing = [name for name in wanted if name not in there]
    unknown = [
        name
        for name in there
        if name not in wanted and not name.endswith(_ANCILLARY) and not any(part in name for part in _IMAGE)
    ]
    found = []
    if missing:
        found.append(_missing(component, missing))
    if unknown:
        found.append(_unknown(component, unknown))
    for name, shape in wanted.items():
        tensor = there.get(name)
        if tensor is not None and tensor.shape != shape and tensor.dtype not in _PACKED:
            found.append(_other_shape(name, tensor, shape))
    return few(found)


def _missing(component: Component, names: list[str]) -> Finding:
    layers = component.config["num_layers"]
    blocks = {int(name.split(".")[1]) for name in names if name.startswith("blocks.")}
    empty = [
        block
        for block in sorted(blocks)
        if not any(n.startswith(f"blocks.{block}.") for n in component.tensors)
    ]
    detail = f"; of {layers} blocks {len(empty)} are not there at all, from {empty[0]} on" if empty else ""
    return Finding(
        check="weights-missing",
        severity="fatal",
        seen=f"{component.folder} lacks {len(names)} tensor(s), such as {names[0]}{detail}",
        why="a tensor that is not loaded keeps what its memory held, and the video is noise",
        advice="fetch all shards and config.json from one revision; other names belong to another format "
        "(the original Wan one, ComfyUI's), which needs converting",
        evidence=_SOURCE,
    )


def _unknown(component: Component, names: list[str]) -> Finding:
    return Finding(
        check="weights-unknown",
        severity="warn",
        seen=f"{component.folder} holds {len(names)} tensor(s) that its configuration has no place for, "
        f"such as {names[0]}",
        why="they are dropped at load, so weights and configuration do not belong together",
        advice="fetch config.json and the weights from one revision",
        evidence=_SOURCE,
    )


def _other_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Finding:
    transposed = len(shape) == 2 and tensor.shape == shape[::-1]
    advice = "config.json and weights from one revision"
    if transposed:
        advice = (
            "weights as [outputs, inputs]: loaders transpose them into the column-major operand themselves"
        )
    return Finding(
        check="weights-shape",
        severity="fatal",
        seen=f"{tensor.file}: {name} is {list(tensor.shape)}, and config.json makes it {list(shape)}"
        + (" (transposed)" if transposed else ""),
        why="the load ends with a size mismatch",
        advice=advice,
        evidence=_SOURCE,
    )
