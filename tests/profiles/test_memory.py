"""The memory model against what torch had allocated on an H200, on rows it was and was not fitted on."""

from __future__ import annotations

from typing import Any

import pytest

from framekeeper.profiles.memory import (
    budget,
    denoising_peak,
    host_bytes,
    largest_frames,
    offloaded_bytes,
    reserved_peak,
)
from framekeeper.profiles.wan import A14B, I2V_A14B, TI2V_5B, architecture
from profile_samples import GIB, profile

# The measurements' text encoder: two of UMT5-XXL's layers and 512 words.
ENCODER = 512 * 4096 + 2 * (4 * 4096 * 4096 + 3 * 4096 * 10_240)
LARGE: dict[str, Any] = {"admits": {"size": "1280x720"}}
ONE_EXPERT: dict[str, Any] = {"defaults": {"boundary_ratio": 0.0}}

# Peak allocation in bytes / 1e9 while denoising 81 frames.
FITTED = [
    ("eager", {}, 61.65),
    ("regional", {"compile": "regional"}, 60.85),
]
HELD_OUT = [
    ("fp8", {"quantization": "fp8"}, 33.6, 0.03),
    ("fp8-compiled", {"quantization": "fp8", "compile": "regional"}, 32.7, 0.03),
    ("720p", {**LARGE, **ONE_EXPERT}, 37.2, 0.03),
    ("720p-compiled", {**LARGE, **ONE_EXPERT, "compile": "regional"}, 35.3, 0.03),
    ("layerwise-0.24", {"offload": "layerwise", **ONE_EXPERT}, 6.19, 0.20),
    ("layerwise", {"offload": "layerwise", **ONE_EXPERT}, 5.8, 0.20),
    ("layerwise-compiled", {"offload": "layerwise", "compile": "regional", **ONE_EXPERT}, 5.0, 0.20),
    ("layerwise-fp8", {"offload": "layerwise", "quantization": "fp8", **ONE_EXPERT}, 5.1, 0.20),
]


# Peak reservation in bytes / 1e9 of whole videos of 81 frames on an H200, vllm-omni 0.30 (docs/verified.md).
WHOLE: dict[str, Any] = {"vae": {"tiling": False}}
EIGHT: dict[str, Any] = {"quantization": "fp8", "compile": "regional"}
RESERVED = [
    ("480p", {**WHOLE, **ONE_EXPERT}, 37.24),
    ("480p-compiled", {**WHOLE, **ONE_EXPERT, "compile": "regional"}, 36.03),
    ("480p-fp8-compiled", {**WHOLE, **ONE_EXPERT, **EIGHT}, 22.5),
    ("480p-both-tiled-compiled", {"compile": "regional"}, 63.3),
    ("480p-layers", {**ONE_EXPERT, "offload": "layerwise"}, 8.05),
    ("480p-layers-both", {"offload": "layerwise"}, 10.8),
    ("720p", {**WHOLE, **ONE_EXPERT, **LARGE}, 47.75),
    ("720p-compiled", {**WHOLE, **ONE_EXPERT, **LARGE, "compile": "regional"}, 49.14),
    ("720p-fp8-compiled", {**WHOLE, **ONE_EXPERT, **LARGE, **EIGHT}, 35.82),
    ("720p-both-compiled", {**WHOLE, **LARGE, "compile": "regional"}, 77.8),
    ("720p-both-fp8-compiled", {**WHOLE, **LARGE, **EIGHT}, 51.7),
    ("720p-layers", {**ONE_EXPERT, **LARGE, "offload": "layerwise"}, 14.06),
]


@pytest.mark.parametrize(("name", "changes", "measured"), RESERVED)
def test_reservation_is_within_a_tenth_of_what_was_measured(
    name: str, changes: dict[str, Any], measured: float
) -> None:
    predicted = reserved_peak(profile(**changes), text_encoder=ENCODER) / 1e9
    assert predicted == pytest.approx(measured, rel=0.10)


def test_page_locked_blocks_take_the_next_power_of_two() -> None:
    # A worker with two experts' layers and an encoder of two blocks had 89.8 GB, 2.9 of them without weights.
    layers = profile(offload="layerwise")
    assert offloaded_bytes(layers, text_encoder_layers=2) / 1e9 == pytest.approx(89.8 - 2.9, rel=0.01)
    loose = profile(offload="layerwise", offload_pin_memory=False)
    assert offloaded_bytes(loose, text_encoder_layers=2) / 1e9 == pytest.approx(57.0, rel=0.01)


@pytest.mark.parametrize(("name", "changes", "measured"), FITTED)
def test_model_meets_the_rows_it_was_fitted_on(name: str, changes: dict[str, Any], measured: float) -> None:
    assert denoising_peak(profile(**changes), text_encoder=ENCODER) / 1e9 == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(("name", "changes", "measured", "above"), HELD_OUT)
def test_model_is_never_below_and_little_above_other_rows(
    name: str, changes: dict[str, Any], measured: float, above: float
) -> None:
    predicted = denoising_peak(profile(**changes), text_encoder=ENCODER) / 1e9
    assert measured * 0.995 <= predicted <= measured * (1 + above)
    assert predicted - measured < 0.9


def test_parameters_are_those_of_the_published_models() -> None:
    assert A14B.expert / 1e9 == pytest.approx(14.3, abs=0.05)
    assert TI2V_5B.expert / 1e9 == pytest.approx(5.0, abs=0.05)
    assert A14B.text_encoder / 1e9 == pytest.approx(5.68, abs=0.01)
    assert A14B.tokens(832, 480, 81) == 32_760
    assert A14B.tokens(1280, 720, 81) == 75_600


def test_an_i2v_model_is_known_by_its_name_and_counts_as_unmeasured() -> None:
    same, other = profile(), profile(serves="wan2.2-i2v-a14b", admits={"image": "required"})
    assert architecture(other) is I2V_A14B
    found, plain = budget(other), budget(same)
    assert found is not None
    assert plain is not None
    assert (found.bytes, found.measured, plain.measured) == (plain.bytes, False, True)


def test_budget_is_the_sum_of_its_lines_and_says_what_is_extrapolated() -> None:
    plain = budget(profile())
    assert plain is not None
    assert plain.bytes == sum(line.bytes for line in plain.lines)
    assert plain.measured
    guess = budget(profile(offload="model"))
    assert guess is not None
    assert not guess.measured


def test_untiled_decode_needs_more_than_denoising() -> None:
    tiled, whole = budget(profile()), budget(profile(vae={"tiling": False}))
    assert tiled is not None
    assert whole is not None
    assert "VAE decode" in [line.name for line in whole.lines]
    assert whole.bytes > tiled.bytes


def test_both_experts_do_not_fit_a_24_gb_card_but_their_layers_do() -> None:
    resident, streamed = budget(profile()), budget(profile(offload="layerwise"))
    assert resident is not None
    assert streamed is not None
    assert streamed.bytes < 24 * GIB < resident.bytes
    assert host_bytes(profile(offload="layerwise")) > 2 * 28 * 1e9


def test_largest_number_of_frames_that_fits_is_found() -> None:
    streamed = profile(offload="layerwise", **LARGE)
    frames = largest_frames(streamed, 22 * GIB)
    assert frames is not None
    assert frames % 4 == 1
    assert largest_frames(profile(), 22 * GIB) is None


def test_unknown_model_and_cpu_have_no_budget() -> None:
    assert budget(profile(serves="other", model="other")) is None
    assert budget(profile(devices={"kind": "cpu"}, runtime="omni-0.30-cpu")) is None
