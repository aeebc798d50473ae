"""The whole weights check, in its order: files, headers, experts, shapes, quantisation, values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from framekeeper.checkpoint import layout
from framekeeper.doctor.finding import Finding, few
from framekeeper.doctor.weights.channels import channel_findings
from framekeeper.doctor.weights.component import Component, read_component
from framekeeper.doctor.weights.header import Tensor
from framekeeper.doctor.weights.quantised import QUANTISED, quantisation_findings
from framekeeper.doctor.weights.values import is_scale, numbers, readable, value_findings
from framekeeper.doctor.weights.wan import CLASS, shape_findings

EXPERTS = ("transformer", "transformer_2")
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_BOUNDARY = "https://github.com/vllm-project/vllm-omni/pull/980"
_SAMPLE = 65_536


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The components that hold weights, with what was found while reading their headers."""

    directory: Path
    components: tuple[Component, ...]
    findings: tuple[Finding, ...]

    @property
    def tensors(self) -> int:
        """Number of tensors in all components."""
        return sum(len(component.tensors) for component in self.components)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.end - t.begin for component in self.components for t in component.tensors.values())


def check_headers(directory: Path) -> Checkpoint:
    """Everything that can be told without reading a single weight."""
    faults = layout.faults(directory)
    inside = {path: layout.listed(path)[0] for path in layout.listed(directory)[0]}
    holding = [
        path for path, files in inside.items() if any(file.suffix in layout.WEIGHT_ENDINGS for file in files)
    ]
    found = [_layout_finding(fault) for fault in faults]
    components = []
    for folder in holding:
        bad = [path for path in inside[folder] if any(f.startswith(f"{path} ") for f in faults)]
        component = read_component(folder, bad)
        components.append(component)
        found += component.findings
        if component.name in EXPERTS:
            found += shape_findings(component) + few(quantisation_findings(component))
        found += _dtype_findings(component)
    found += _expert_findings(directory, {component.name: component for component in components})
    found += channel_findings(directory, [each for each in components if each.name in EXPERTS])
    return Checkpoint(directory=directory, components=tuple(components), findings=tuple(found))


def check_values(checkpoint: Checkpoint, progress: Callable[[int], None] = lambda _: None) -> list[Finding]:
    """Read every tensor, in bounded memory; `progress` is told the bytes as they are read."""
    found = []
    for component in checkpoint.components:
        # In the order of the disk.
        in_order = sorted(component.tensors.items(), key=lambda item: (str(item[1].file), item[1].begin))
        for name, tensor in in_order:
            if not readable(tensor) or not tensor.elements:
                progress(tensor.end - tensor.begin)
                continue
            try:
                found += value_findings(name, tensor, numbers(tensor, progress))
            except OSError as error:
                found.append(_unreadable(tensor, str(error)))
    return few(found) + _same_experts(checkpoint)


def bytes_to_read(checkpoint: Checkpoint) -> int:
    """What `check_values` will report as progress, in all."""
    return checkpoint.bytes


def told_bytes(size: int) -> str:
    """Such as "57.16 GB" or "1.2 MB"."""
    return f"{size / 1e9:,.2f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def _layout_finding(sentence: str) -> Finding:
    return Finding(
        check="weights-folder",
        severity="fatal",
        seen=sentence,
        why="the pipeline cannot be loaded without it",
        advice="fetch the model again, whole and from one revision",
        evidence="https://github.com/turboderp/exllama/issues/242" if "git-lfs" in sentence else "",
    )


def _unreadable(tensor: Tensor, error: str) -> Finding:
    return Finding(
        check="values",
        severity="fatal",
        seen=f"{tensor.file} cannot be read: {error}",
        why="the load would end in the same place",
        advice="the disk, then the file",
    )


def _dtype_findings(component: Component) -> list[Finding]:
    """Plain weights in a type that is none of a model's, or another than its config.json names."""
    if component.quantization:
        return []
    where = component.folder / "config.json"
    sizes: dict[str, int] = {}
    for tensor in component.tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.end - tensor.begin
    known = {*_DTYPES.values(), *QUANTISED}
    found = []
    if odd := sorted(dtype for dtype in sizes if dtype not in known):
        found.append(
            Finding(
                check="weights-dtype",
                severity="warn",
                seen=f"{component.folder} holds tensors of type {', '.join(odd)} and no quantization_config",
                why="loaders convert them or refuse them, and packed numbers converted are noise",
                advice="weights in bfloat16, float16 or float32, or the config.json that explains them",
            )
        )
    named = component.config.get("torch_dtype") or component.config.get("dtype")
    wanted = _DTYPES.get(str(named).removeprefix("torch."))
    if wanted and sizes and max(sizes, key=lambda dtype: sizes[dtype]) != wanted:
        most = max(sizes, key=lambda dtype: sizes[dtype])
        found.append(
            Finding(
                check="weights-dtype",
                severity="note",
                seen=f"{where} says {named}, and most of the weights are {most}",
                why="they are converted while they load, which takes time and memory",
                advice="nothing, if the load is quick enough",
            )
        )
    return found


def _expert_findings(directory: Path, components: dict[str, Component]) -> list[Finding]:
    try:
        index = json.loads((directory / layout.INDEX).read_text(encoding="utf-8"))
        experts = layout.experts(directory)
    except (OSError, ValueError):
        return []  # said by the layout
    ratio = index.get("boundary_ratio")
    if experts == 1:
        if ratio is None and not (directory / "transformer_2").is_dir():
            return []
        seen = f"boundary_ratio {ratio}" if ratio is not None else "the folder transformer_2"
        return [
            Finding(
                check="experts",
                severity="fatal",
                seen=f"{directory / layout.INDEX} names no transformer_2, but there is {seen}",
                why="a model of two experts with one of them makes noise of one half of its steps",
                advice="fetch model_index.json and transformer_2 of the same revision",
                evidence=_BOUNDARY,
            )
        ]
    first, second = (components.get(name) for name in EXPERTS)
    if first is None or second is None or not (first.whole and second.whole):
        return []
    differing = sorted(
        name
        for name in first.tensors.keys() | second.tensors.keys()
        if _form(first.tensors.get(name)) != _form(second.tensors.get(name))
    )
    if not differing:
        return []
    name = differing[0]
    return [
        Finding(
            check="experts",
            severity="fatal" if first.config.get("_class_name") == CLASS else "warn",
            seen=f"{len(differing)} tensor(s) of the two experts differ in form: {name} is "
            f"{_form(first.tensors.get(name))} in transformer and {_form(second.tensors.get(name))} in "
            "transformer_2",
            why="both come from one architecture; one of them is of another model, or quantised otherwise",
            advice="fetch both experts of one revision",
            evidence=_BOUNDARY,
        )
    ]


def _form(tensor: Tensor | None) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}" if tensor else "missing"


def _same_experts(checkpoint: Checkpoint) -> list[Finding]:
    """Two experts with the same numbers: one was copied to both places."""
    first, second = (next((c for c in checkpoint.components if c.name == name), None) for name in EXPERTS)
    if first is None or second is None:
        return []
    matrices = [
        name
        for name, tensor in first.tensors.items()
        if len(tensor.shape) > 1 and not is_scale(name) and name in second.tensors
    ]
    if not matrices or any(_start(first, name) != _start(second, name) for name in matrices):
        return []
    return [
        Finding(
            check="experts",
            severity="warn",
            seen=f"transformer and transformer_2 have the same bytes in each of {len(matrices)} matrices",
            why="the experts are trained for different noise; one of them was copied to both places",
            advice="fetch transformer and transformer_2 again",
            evidence=_BOUNDARY,
        )
    ]


def _start(component: Component, name: str) -> bytes:
    tensor = component.tensors[name]
    with tensor.file.open("rb") as file:
        file.seek(tensor.begin)
        return file.read(min(_SAMPLE, tensor.end - tensor.begin))
