"""The weights check against folders that are fine and folders broken in every way it knows."""

from __future__ import annotations

import json
import math
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import (
    CONFIG,
    LAYER,
    Spec,
    change,
    floats,
    model,
    ones,
    quantised,
    transformer,
    write,
    write_json,
    write_raw,
    zeros,
)
from typer.testing import CliRunner

from framekeeper.doctor.finding import Finding, count
from framekeeper.doctor.weights import values
from framekeeper.doctor.weights.check import check_headers, check_values
from framekeeper.doctor.weights.commands import app
from framekeeper.doctor.weights.header import HeaderFault, Tensor, read_header
from framekeeper.doctor.weights.wan import expected

FP8 = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
WEIGHTS = "diffusion_pytorch_model.safetensors"


def findings(directory: Path, *, deep: bool = False) -> list[Finding]:
    checkpoint = check_headers(directory)
    return [*checkpoint.findings, *(check_values(checkpoint) if deep else [])]


def grave(directory: Path, *, deep: bool = False) -> dict[str, str]:
    """What was seen by check, of fatal findings only; each says why and what to do."""
    found = [each for each in findings(directory, deep=deep) if each.severity == "fatal"]
    assert all(each.why and each.advice for each in found)
    return {each.check: each.seen for each in reversed(found)}


def test_a_whole_model_has_no_fault_deep_or_not(tmp_path: Path) -> None:
    assert findings(model(tmp_path), deep=True) == []


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize(("dtype", "method"), [("F8_E4M3", "fp8"), ("I8", "int8")])
def test_a_whole_quantised_model_has_no_fault(
    tmp_path: Path, dtype: str, method: str, channels: bool
) -> None:
    model(tmp_path, quantised(dtype, channels=channels), quantization_config={"quant_method": method})
    assert findings(tmp_path, deep=True) == []


HEADERS: dict[str, tuple[Any, bytes, str]] = {
    "not JSON": (b"{not json", b"", "no JSON"),
    "a list": (b"[]", b"", "does not begin"),
    "a gap": ({"a": {"dtype": "I8", "shape": [2], "data_offsets": [4, 6]}}, bytes(6), "gap"),
    "an overlap": (
        {
            "a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]},
            "b": {"dtype": "I8", "shape": [4], "data_offsets": [2, 6]},
        },
        bytes(6),
        "overlaps",
    ),
    "too few bytes for the shape": (
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}},
        bytes(8),
        "8 bytes instead of 16",
    ),
    "an unknown type": ({"a": {"dtype": "F5", "shape": [1], "data_offsets": [0, 1]}}, bytes(1), "F5"),
    "no offsets": ({"a": {"dtype": "I8", "shape": [1]}}, bytes(1), "without dtype"),
    "a negative shape": ({"a": {"dtype": "I8", "shape": [-1], "data_offsets": [0, 1]}}, bytes(1), "-1"),
    "missing data": ({"a": {"dtype": "I8", "shape": [9], "data_offsets": [0, 9]}}, bytes(4), "truncated"),
    "more data": ({"a": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}, bytes(4), "3 bytes after"),
    "a name twice": (
        b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        bytes(1),
        "twice",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_header_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    header, data, reason = HEADERS[name]
    write_raw(tmp_path / "x.safetensors", header, data)
    with pytest.raises(HeaderFault, match=reason):
        read_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\x01\x02", "ends after 2 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer"),
        (struct.pack("<Q", 1 << 62) + b"{}", "does not begin"),
        (struct.pack("<Q", 5000) + b'{"a":', "ends inside its header"),
        (b"<!DOCTYPE html><html>", "does not begin"),
    ],
)
def test_a_file_that_is_no_safetensors_file_is_told_apart(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(HeaderFault, match=reason):
        read_header(tmp_path / "x.safetensors")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write(path, {"a": ones("BF16", 3), "b": ones("F32")})
    whole = path.read_bytes()
    assert set(read_header(path)) == {"a", "b"}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(HeaderFault):
            read_header(path)


def test_a_truncated_shard_is_one_fault_not_a_hundred(tmp_path: Path) -> None:
    path = model(tmp_path) / "transformer" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    found = findings(tmp_path)
    assert [each.check for each in found] == ["weights-file"]
    assert "truncated" in found[0].seen


def test_a_pointer_is_one_fault(tmp_path: Path) -> None:
    path = model(tmp_path) / "vae" / "model.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert [each.check for each in findings(tmp_path)] == ["weights-folder"]


def sharded(directory: Path, **index: Any) -> Path:
    """The transformer in two shards with an index."""
    folder = model(directory) / "transformer"
    (folder / WEIGHTS).unlink()
    tensors = transformer()
    halves = [dict(list(tensors.items())[:20]), dict(list(tensors.items())[20:])]
    names = ["a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors"]
    for name, half in zip(names, halves, strict=True):
        write(folder / name, half)
    placed = {tensor: name for name, half in zip(names, halves, strict=True) for tensor in half}
    total = sum(len(data) for _, _, data in tensors.values())
    content = {"metadata": {"total_size": total}, "weight_map": placed, **index}
    write_json(folder / "diffusion_pytorch_model.safetensors.index.json", content)
    return folder


def test_a_sharded_model_is_fine(tmp_path: Path) -> None:
    sharded(tmp_path)
    assert findings(tmp_path) == []


def test_index_and_shards_that_disagree_are_told(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["proj_out.weight"] = "a-00001-of-00002.safetensors"
    content["weight_map"]["ghost"] = "a-00001-of-00002.safetensors"
    del content["weight_map"]["proj_out.bias"]
    write_json(index, content)
    found = [each for each in findings(tmp_path) if each.check == "weights-index"]
    assert [each.severity for each in found] == ["fatal", "warn"]
    assert "ghost" in found[0].seen
    assert "proj_out.weight" in found[0].seen
    assert "proj_out.bias" in found[1].seen


def test_a_wrong_total_size_is_a_warning(tmp_path: Path) -> None:
    sharded(tmp_path, metadata={"total_size": 5})
    assert [each.severity for each in findings(tmp_path)] == ["warn"]


def test_a_missing_shard_is_told(tmp_path: Path) -> None:
    (sharded(tmp_path) / "a-00002-of-00002.safetensors").unlink()
    assert "is missing" in grave(tmp_path)["weights-folder"]


def test_the_same_tensors_in_two_files_are_told(tmp_path: Path) -> None:
    write(model(tmp_path) / "transformer" / "model.fp16.safetensors", transformer())
    assert "model.fp16.safetensors" in grave(tmp_path)["weights-twice"]


def test_missing_blocks_are_counted(tmp_path: Path) -> None:
    model(tmp_path, num_layers=3)
    assert "of 3 blocks 1 are not there at all, from 2 on" in grave(tmp_path)["weights-missing"]


def test_unknown_tensors_are_a_warning(tmp_path: Path) -> None:
    change(model(tmp_path), {"blocks.7.attn1.to_q.weight": ones("BF16", 4)})
    assert {each.check for each in findings(tmp_path)} == {"weights-unknown"}


@pytest.mark.parametrize(("key", "value"), [("ffn_dim", 128), ("attention_head_dim", 8), ("text_dim", 64)])
def test_a_configuration_of_another_size_is_told(tmp_path: Path, key: str, value: int) -> None:
    assert "config.json makes it" in grave(model(tmp_path, **{key: value}))["weights-shape"]


def test_a_configuration_without_a_size_is_told(tmp_path: Path) -> None:
    assert "ffn_dim" in grave(model(tmp_path, ffn_dim=None))["weights-config"]


def test_a_transposed_weight_is_named_so(tmp_path: Path) -> None:
    change(model(tmp_path), {f"{LAYER}.weight": ones("BF16", 64, 32)})
    assert "transposed" in grave(tmp_path)["weights-shape"]


def test_a_second_expert_that_is_missing_is_told(tmp_path: Path) -> None:
    index = model(tmp_path) / "model_index.json"
    content = json.loads(index.read_text())
    del content["transformer_2"]
    write_json(index, content)
    assert "names no transformer_2" in grave(tmp_path)["experts"]


def test_a_model_of_one_expert_is_fine(tmp_path: Path) -> None:
    index = model(tmp_path) / "model_index.json"
    write_json(
        index, {**json.loads(index.read_text()), "transformer_2": [None, None], "boundary_ratio": None}
    )
    for path in (tmp_path / "transformer_2").iterdir():
        path.unlink()
    (tmp_path / "transformer_2").rmdir()
    assert findings(tmp_path, deep=True) == []


def of_pipeline(folder: Path, **index: Any) -> Path:
    path = folder / "model_index.json"
    write_json(path, {**json.loads(path.read_text()), **index})
    return folder


def with_channels(folder: Path, inputs: int) -> Path:
    """The model with transformers that take so many channels."""
    for name in ("transformer", "transformer_2"):
        write_json(folder / name / "config.json", {**CONFIG, "in_channels": inputs})
        tensors = {**transformer(fill=len(name)), "patch_embedding.weight": ones("BF16", 32, inputs, 1, 2, 2)}
        write(folder / name / WEIGHTS, tensors)
    return folder


def test_a_model_that_starts_from_pictures_is_fine(tmp_path: Path) -> None:
    folder = with_channels(model(tmp_path), 36)
    of_pipeline(folder, _class_name="WanImageToVideoPipeline", image_encoder=[None, None])
    assert findings(folder, deep=True) == []


def test_transformers_for_texts_in_a_pipeline_for_pictures_are_told(tmp_path: Path) -> None:
    folder = of_pipeline(model(tmp_path), _class_name="WanImageToVideoPipeline")
    assert "36 channels" in grave(folder)["weights-channels"]


def test_transformers_for_pictures_in_a_pipeline_for_texts_are_told(tmp_path: Path) -> None:
    folder = of_pipeline(with_channels(model(tmp_path), 36), _class_name="WanPipeline")
    assert "16 channels" in grave(folder)["weights-channels"]


def test_experts_of_two_forms_are_told(tmp_path: Path) -> None:
    tensors = {**transformer(), "proj_out.bias": ones("F32", 64)}
    write(model(tmp_path) / "transformer_2" / WEIGHTS, tensors)
    assert "proj_out.bias" in grave(tmp_path)["experts"]


def test_one_expert_in_both_places_is_a_warning(tmp_path: Path) -> None:
    folder = model(tmp_path)
    (folder / "transformer_2" / WEIGHTS).write_bytes((folder / "transformer" / WEIGHTS).read_bytes())
    assert [(each.check, each.severity) for each in findings(folder, deep=True)] == [("experts", "warn")]


def test_a_promise_of_fp8_over_bf16_weights_is_told(tmp_path: Path) -> None:
    assert "no matrix has that type: BF16" in grave(model(tmp_path, **FP8))["quantisation"]


def test_fp8_weights_without_a_promise_are_told(tmp_path: Path) -> None:
    assert "no quantization_config" in grave(model(tmp_path, quantised()))["quantisation"]


def test_modelopts_own_file_is_a_promise(tmp_path: Path) -> None:
    folder = model(tmp_path)
    for name in ("transformer", "transformer_2"):
        write_json(folder / name / "hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}})
    assert "promises fp8 (modelopt)" in grave(folder)["quantisation"]


def test_matrices_left_out_need_an_exception(tmp_path: Path) -> None:
    changes: dict[str, Spec | None] = {f"{LAYER}.weight": ones("BF16", 32, 64), f"{LAYER}.weight_scale": None}
    change(model(tmp_path, **FP8), changes, quantised())
    assert [each.severity for each in findings(tmp_path)] == ["warn", "warn"]
    for name in ("transformer", "transformer_2"):
        ignored = {**FP8["quantization_config"], "ignored_layers": ["ffn.net.2"]}
        write_json(tmp_path / name / "config.json", {**CONFIG, "quantization_config": ignored})
    assert findings(tmp_path) == []


SCALE = f"{LAYER}.weight_scale"
SCHEME = {"num_bits": 8, "type": "int", "symmetric": False}
ASYMMETRIC = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": SCHEME}}}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [16, 16]}
BROKEN_SCALES: dict[str, tuple[dict[str, Spec | None], dict[str, Any], str]] = {
    "no scale": ({SCALE: None}, {}, "has no blocks.0.ffn.net.2.weight_scale"),
    "a scale for every column": ({SCALE: floats(*[0.1] * 64)}, {}, "not shape"),
    "a scale of integers": ({SCALE: ones("I8")}, {}, "not type F32"),
    "no zero point": ({}, ASYMMETRIC, "no weight_zero_point"),
    "a zero point of floats": ({f"{LAYER}.weight_zero_point": floats(0.0)}, {}, "not integers"),
    "no scale of inputs": ({}, STATIC, "no input_scale"),
    "two scales of inputs": ({f"{LAYER}.input_scale": floats(0.1, 0.1)}, {}, "not one F32 number"),
    "one scale instead of blocks": ({}, BLOCKS, r"[2, 4]"),
}


@pytest.mark.parametrize("name", BROKEN_SCALES)
def test_a_scale_of_the_wrong_form_is_told(tmp_path: Path, name: str) -> None:
    changes, config, reason = BROKEN_SCALES[name]
    asymmetric = config is ASYMMETRIC
    base = quantised("I8" if asymmetric else "F8_E4M3")
    config = config or FP8["quantization_config"]
    change(model(tmp_path, quantization_config=config), changes, base)
    seen = [each.seen for each in findings(tmp_path) if each.check == "scale" and LAYER in each.seen]
    assert len(seen) == 2, "once for each expert"
    assert reason in seen[0]


def test_scales_by_blocks_are_fine(tmp_path: Path) -> None:
    tensors = quantised()
    for name in [each for each in tensors if each.endswith("weight_scale")]:
        rows, columns = tensors[name.removesuffix("_scale")][1]
        shape = (rows // 16, columns // 16)
        del tensors[name]
        tensors[f"{name}_inv"] = floats(*[0.01] * math.prod(shape), shape=shape)
    assert findings(model(tmp_path, tensors, quantization_config=BLOCKS)) == []


def test_scales_in_bf16_are_a_warning(tmp_path: Path) -> None:
    change(model(tmp_path, **FP8), {SCALE: ones("BF16")}, quantised())
    assert {(each.check, each.severity) for each in findings(tmp_path)} == {("scale", "warn")}


def test_sizes_that_sixteen_does_not_divide_are_told(tmp_path: Path) -> None:
    tensors = {**quantised(), f"{LAYER}.weight": ones("F8_E4M3", 32, 60)}
    assert "32x60, and 16 does not divide both" in grave(model(tmp_path, tensors, **FP8))["scale"]


NAN, INF, DENORMAL = float("nan"), float("inf"), 1e-42
BAD_SCALES = [(NAN, "NaN"), (INF, "infinite"), (0.0, "zero"), (DENORMAL, "denormal"), (-0.1, "negative")]


@pytest.fixture(params=["numpy", "standard library"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "numpy":
        monkeypatch.setattr(values, "HAS_NUMPY", False)


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(("value", "word"), BAD_SCALES)
def test_a_bad_scale_is_found_only_by_reading_it(tmp_path: Path, value: float, word: str) -> None:
    scales = floats(*[0.1] * 31, value, shape=(32, 1))
    change(model(tmp_path, **FP8), {SCALE: scales}, quantised(channels=True))
    assert grave(tmp_path) == {}
    assert word in grave(tmp_path, deep=True)["values"]


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    ("name", "spec", "severity"),
    [
        ("proj_out.bias", ("BF16", (64,), b"\x80\x3f" * 63 + b"\xc0\x7f"), "fatal"),
        ("proj_out.bias", zeros("BF16", 64), None),
        (f"{LAYER}.weight", zeros("BF16", 32, 64), "fatal"),
        (f"{LAYER}.weight", ("BF16", (32, 64), b"\x01\x00" * 2048), "warn"),
        (f"{LAYER}.weight", ("BF16", (32, 64), b"\x00\x7f" * 2048), "warn"),
        (f"{LAYER}.weight", ("F16", (32, 64), b"\x00\x7c" + b"\x00\x3c" * 2047), "fatal"),
        (f"{LAYER}.weight", ("F32", (32, 64), struct.pack("<2048f", NAN, *[1.0] * 2047)), "fatal"),
        (f"{LAYER}.weight", ("F64", (32, 64), struct.pack("<2048d", *[1.0] * 2048)), None),
    ],
)
def test_bad_weights_are_found(tmp_path: Path, name: str, spec: Spec, severity: str | None) -> None:
    change(model(tmp_path), {name: spec})
    found = [each.severity for each in findings(tmp_path, deep=True) if each.check == "values"]
    assert found == ([severity] * 2 if severity else [])


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "I8"])
def test_both_readers_count_the_same(tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    every = b"".join(struct.pack("<H", bits) for bits in range(1 << 16))
    path.write_bytes(every)
    tensor = Tensor(
        dtype=dtype, shape=(len(every) * 8 // values_bits(dtype),), file=path, begin=0, end=len(every)
    )
    first = values.numbers(tensor)
    monkeypatch.setattr(values, "HAS_NUMPY", False)
    assert values.numbers(tensor) == first
    greatest = {"BF16": 3.39e38, "F16": 65504, "F8_E4M3": 448, "F8_E5M2": 57344, "I8": 128}
    if dtype in greatest:
        assert first.greatest == pytest.approx(greatest[dtype], rel=0.01)


def values_bits(dtype: str) -> int:
    return 8 if dtype == "I8" else values.FORMS[dtype].bytes * 8


def test_reading_values_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write(path, {"weight": ("BF16", (1024, 64 * 1024), b"")}, sparse=True)
    tensor = read_header(path)["weight"]
    told: list[int] = []
    tracemalloc.start()
    seen = values.numbers(tensor, told.append)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen.zero == seen.elements
    assert sum(told) == 128 * 1024**2
    assert peak < 32 * 1024**2


def test_headers_of_28_billion_parameters_take_under_two_seconds(tmp_path: Path) -> None:
    big = {**CONFIG, "num_attention_heads": 40, "attention_head_dim": 128, "ffn_dim": 13824, "num_layers": 40}
    big |= {"text_dim": 4096, "freq_dim": 256}
    folder = model(tmp_path)
    tensors: dict[str, Spec] = {name: ("BF16", shape, b"") for name, shape in expected(big).items()}
    for name in ("transformer", "transformer_2"):
        write_json(folder / name / "config.json", big)
        write(folder / name / WEIGHTS, tensors, sparse=True)
    begin = time.perf_counter()
    checkpoint = check_headers(folder)
    assert time.perf_counter() - begin < 2
    assert checkpoint.findings == ()
    assert checkpoint.bytes > 57e9


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check", *arguments])
    return result.exit_code, result.output


def test_command_exits_0_1_and_2(tmp_path: Path) -> None:
    model(tmp_path / "fine")
    code, text = run(str(tmp_path / "fine"), "--deep")
    assert (code, "every weight read" in text) == (0, True)
    code, text = run(str(model(tmp_path / "wrong", **FP8)))
    assert (code, "do:" in text) == (1, True)
    code, text = run(str(tmp_path / "nothing"))
    assert (code, "is not a directory" in text) == (2, True)


def test_command_speaks_json(tmp_path: Path) -> None:
    code, text = run(str(model(tmp_path, **FP8)), "--json")
    record = json.loads(text)
    assert code == 1
    assert record["findings"][0].keys() == {"check", "severity", "seen", "why", "advice", "evidence"}
    assert record["findings"][0]["severity"] == "fatal"


def damage_by_bytes(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [damage_by_bytes])
def test_damage_anywhere_in_a_header_never_raises(
    tmp_path: Path, damage: Callable[[Path, int], None]
) -> None:
    path = model(tmp_path) / "vae" / "model.safetensors"
    whole = path.read_bytes()
    for position in range(len(whole) - 64):
        path.write_bytes(whole)
        damage(path, position)
        # A name may change without harm; nothing else may pass.
        assert count(findings(tmp_path), "fatal") <= 1
