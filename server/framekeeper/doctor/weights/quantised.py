"""Whether a quantised checkpoint is quantised as it says, with a scale for every weight.

Forms: vllm's `fp8`, ModelOpt's FP8, compressed-tensors' FP8 and W8A8, vllm-omni's `int8`. The kernel behind
all of them, `cutlass_scaled_mm`, checks neither zero nor NaN scales, refuses sizes that 16 does not divide
and dies of operands in the wrong place, so this looks before anything is loaded.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framekeeper.doctor.finding import Finding
from framekeeper.doctor.weights.component import Component
from framekeeper.doctor.weights.header import Tensor

FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
QUANTISED = (*FLOAT8, "I8")
SCALES = ("weight_scale", "weight_scale_inv", "scale_weight")
"""Names beside `weight`: one or per channel, by blocks, and ComfyUI's."""
_MULTIPLE = 16
_NOT_APPLIED = "https://github.com/vllm-project/vllm-omni/issues/4202"
_KERNEL = "https://github.com/vllm-project/vllm/blob/main/csrc/quantization/w8a8/cutlass/scaled_mm_entry.cu"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a quantization_config promises. `element` is "fp8", "int8", or "other" for what is not known."""

    element: str
    method: str
    ignored: tuple[str, ...]
    symmetric: bool
    static_inputs: bool
    block: tuple[int, int] | None


def claim(config: dict[str, Any]) -> Claim | None:
    """The promise of a component's quantisation configuration, None where there is none.

    `fp8` and `int8` as quant_method mean that the checkpoint holds such tensors: both
    `from_config` (vllm's quantization/fp8.py, vllm-omni's quantization/int8_config.py) go by the name.
    """
    if not config:
        return None
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    weights, inputs = _group(config, "weights"), _group(config, "input_activations")
    algorithm = str(config.get("quant_algo") or "").upper()
    if weights.get("num_bits") == 8:
        element = "fp8" if weights.get("type") == "float" else "int8"
    elif method == "fp8" or algorithm.startswith("FP8"):
        element = "fp8"
    else:
        element = "int8" if method == "int8" else "other"
    block = config.get("weight_block_size") or weights.get("block_structure")
    static = (
        config.get("activation_scheme") == "static" or algorithm == "FP8" or inputs.get("dynamic") is False
    )
    ignored: list[object] = next(
        (config[key] for key in ("ignored_layers", "ignore", "modules_to_not_convert", "exclude_modules")
         if isinstance(config.get(key), list)), []
    )  # fmt: skip
    return Claim(
        element=element,
        method=method or "unnamed",
        ignored=tuple(map(str, ignored)),
        symmetric=weights.get("symmetric", True) is not False,
        static_inputs=static,
        block=(int(block[0]), int(block[1])) if isinstance(block, list) and len(block) == 2 else None,
    )


def _group(config: dict[str, Any], key: str) -> dict[str, Any]:
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        if isinstance(group, dict) and isinstance(group.get(key), dict):
            found: dict[str, Any] = group[key]
            return found
    return {}


def quantised_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices in 8 bits, by the name of their layer."""
    return {
        name.removesuffix(".weight"): tensor
        for name, tensor in tensors.items()
        if name.endswith(".weight") and tensor.dtype in QUANTISED and len(tensor.shape) == 2
    }


def quantisation_findings(component: Component) -> list[Finding]:
    """Promise against tensors, then scale, zero point and size of every quantised weight."""
    promised = claim(component.quantization)
    weights = quantised_weights(component.tensors)
    if promised is not None and promised.element == "other":
        return [
            Finding(
                check="quantisation",
                severity="note",
                seen=f"{component.folder}: the scales of quantisation {promised.method!r} are not known here",
                why="only FP8 and 8-bit integers are checked",
                advice="the warm-up video decides",
            )
        ]
    if not component.whole:
        return []
    found = _promise_findings(component, promised, weights)
    for layer, weight in weights.items():
        found += _layer_findings(component, promised, layer, weight)
    return found


def _promise_findings(
    component: Component, promised: Claim | None, weights: dict[str, Tensor]
) -> list[Finding]:
    where = component.folder / "config.json"
    if promised is None:
        if not weights:
            return []
        layer, weight = next(iter(weights.items()))
        return [
            Finding(
                check="quantisation",
                severity="fatal",
                seen=f"{component.folder} holds {len(weights)} weight(s) in {weight.dtype}, such as {layer}, "
                f"and {where.name} has no quantization_config",
                why="the loader casts them as if they were plain numbers and leaves their scales out: noise",
                advice="the config.json that belongs to these weights, or the unquantised weights",
                evidence=_NOT_APPLIED,
            )
        ]
    types = FLOAT8 if promised.element == "fp8" else ("I8",)
    fitting = [layer for layer, weight in weights.items() if weight.dtype in types]
    if not fitting:
        return [
            Finding(
                check="quantisation",
                severity="fatal",
                seen=f"{where} promises {promised.element} ({promised.method}), and no matrix has that type: "
                f"{', '.join(sorted({t.dtype for t in component.tensors.values()}))}",
                why="such a checkpoint loads as if it were not quantised, or not at all; memory is bf16's",
                advice="the weights that belong to this config.json, or remove quantization_config and set "
                "quantization in the profile",
                evidence=_NOT_APPLIED,
            )
        ]
    plain = [
        name.removesuffix(".weight")
        for name, tensor in component.tensors.items()
        if name.startswith("blocks.")
        and name.endswith(".weight")
        and len(tensor.shape) == 2
        and tensor.dtype not in QUANTISED
    ]
    left = [layer for layer in plain if not is_ignored(layer, promised.ignored)]
    if not left:
        return []
    return [
        Finding(
            check="quantisation",
            severity="warn",
            seen=f"{component.folder}: {len(left)} matrices of the blocks are not in {promised.element}, and "
            f"the configuration does not except them: {', '.join(left[:3])}",
            why="the loader expects a quantised weight and a scale there",
            advice="name them in the quantisation's list of ignored layers, or quantise them",
            evidence=_NOT_APPLIED,
        )
    ]


def is_ignored(layer: str, patterns: tuple[str, ...]) -> bool:
    """Whether a layer is excepted: by its name, a parent's, a part of the path, a wildcard, or `re:`."""
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                if re.match(pattern[3:], layer):
                    return True
            except re.error:
                continue
        elif fnmatch.fnmatch(layer, pattern) or f".{pattern}." in f".{layer}.":
            return True
    return False


def _layer_findings(
    component: Component, promised: Claim | None, layer: str, weight: Tensor
) -> list[Finding]:
    found = []
    rows, columns = weight.shape
    if rows % _MULTIPLE or columns % _MULTIPLE:
        found.append(
            _fault(weight.file, f"{layer}.weight is {rows}x{columns}, and {_MULTIPLE} does not divide both",
                   "cutlass_scaled_mm refuses it (scaled_mm_entry.cu, file and line only)",
                   "leave this layer unquantised")
        )  # fmt: skip
    name = next((f"{layer}.{each}" for each in SCALES if f"{layer}.{each}" in component.tensors), None)
    if name is None:
        return [
            *found,
            _fault(weight.file, f"{layer}.weight is {weight.dtype} and has no {layer}.weight_scale",
                   "without it the numbers mean nothing; the loader may leave the scale as its memory was",
                   "quantise again with a tool that writes the scales"),
        ]  # fmt: skip
    scale = component.tensors[name]
    found += _scale_findings(name, scale, weight, promised)
    found += _zero_point_findings(component, promised, layer, scale)
    inputs = component.tensors.get(f"{layer}.input_scale")
    if inputs is None and promised is not None and promised.static_inputs:
        found.append(
            _fault(weight.file, f"{layer} has no input_scale, and the activations' scheme is static",
                   "a static scheme has nothing else to scale activations by",
                   "calibrate again, or a dynamic scheme")
        )  # fmt: skip
    elif inputs is not None and (inputs.elements != 1 or inputs.dtype != "F32"):
        found.append(_form(f"{layer}.input_scale", inputs, "one F32 number"))
    return found


def _scale_findings(name: str, scale: Tensor, weight: Tensor, promised: Claim | None) -> list[Finding]:
    found = []
    rows, columns = weight.shape
    allowed = {(), (1,), (1, 1), (rows,), (rows, 1)}
    block = promised.block if promised else None
    if name.endswith("_inv") or block:
        high, wide = block or (128, 128)
        allowed = {(-(-rows // high), -(-columns // wide))}
    if scale.shape not in allowed:
        shapes = " or ".join(str(list(each)) for each in sorted(allowed, key=lambda s: (len(s), s)))
        found.append(_form(name, scale, f"shape {shapes} for a weight of {rows}x{columns}"))
    if scale.dtype in ("BF16", "F16"):
        found.append(
            Finding(
                check="scale",
                severity="warn",
                seen=f"{scale.file}: {name} is {scale.dtype}",
                why="cutlass_scaled_mm takes float32 scales only, so it relies on the loader's conversion",
                advice="scales as float32",
                evidence=_KERNEL,
            )
        )
    elif scale.dtype != "F32":
        found.append(_form(name, scale, "type F32"))
    return found


def _zero_point_findings(
    component: Component, promised: Claim | None, layer: str, scale: Tensor
) -> list[Finding]:
    zero = component.tensors.get(f"{layer}.weight_zero_point")
    if zero is None:
        if promised is None or promised.symmetric:
            return []
        return [
            _fault(scale.file, f"{layer} has no weight_zero_point, and the scheme is asymmetric",
                   "every weight is off by its zero point", "quantise again, or symmetrically")
        ]  # fmt: skip
    if zero.dtype not in ("I8", "U8", "I32") or zero.elements != scale.elements:
        return [
            _form(f"{layer}.weight_zero_point", zero, f"integers of the scale's shape {list(scale.shape)}")
        ]
    return []


def _form(name: str, tensor: Tensor, wanted: str) -> Finding:
    return _fault(
        tensor.file,
        f"{name} is {tensor.dtype} of shape {list(tensor.shape)}, not {wanted}",
        "the kernel refuses it, or scales the wrong rows",
        "quantise again, in a form that vllm loads",
    )


def _fault(file: Path, seen: str, why: str, advice: str) -> Finding:
    return Finding(
        check="scale", severity="fatal", seen=f"{file}: {seen}", why=why, advice=advice, evidence=_KERNEL
    )
