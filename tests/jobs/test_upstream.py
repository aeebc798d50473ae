"""Clients of vllm-omni's own server: their fields work, or are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from framekeeper.errors import InvalidRequest
from framekeeper.jobs import upstream
from framekeeper.jobs.admission import admit
from framekeeper.jobs.video import VideoRequest
from jobs.records import engine

DEFAULT_FORM = {
    "user": "someone",
    "num_outputs_per_prompt": "1",
    "generate_sound": "false",
    "enable_frame_interpolation": "False",
    "frame_interpolation_exp": "1",
    "frame_interpolation_scale": "1.0",
    "extra_params": "{}",
    "return_stage_metrics": "false",
}


def resolved(**fields: Any) -> VideoRequest:
    return admit({"prompt": "a cat", **fields}, [engine()], draw_seed=lambda: 5).request


def test_form_with_upstreams_defaults_is_taken() -> None:
    assert resolved(**DEFAULT_FORM) == resolved()


def test_its_own_names_mean_the_same() -> None:
    request = resolved(
        width="128", height="64", num_frames="17", fps="8", num_inference_steps="4", guidance_scale="3.5",
        guidance_scale_2="2", boundary_ratio="0.9", flow_shift="3", seed="7", negative_prompt="blur",
    )  # fmt: skip
    assert (request.width, request.height, request.num_frames, request.fps) == (128, 64, 17, 8)
    assert (request.guidance_scale, request.guidance_scale_2, request.boundary_ratio) == (3.5, 2, 0.9)
    assert (request.flow_shift, request.seed, request.negative_prompt) == (3, 7, "blur")


@pytest.mark.parametrize("as_text", [True, False])
def test_video_params_mean_the_fields_beside(as_text: bool) -> None:
    block: Any = {"width": 128, "height": 64, "num_frames": 17, "fps": None}
    request = resolved(video_params=json.dumps(block) if as_text else block)
    assert (request.width, request.height, request.num_frames) == (128, 64, 17)


@pytest.mark.parametrize(
    "fields",
    [
        {"video_params": {"width": 64}, "width": 128, "height": 64},
        {"video_params": {"wide": 64}},
        {"video_params": "width=64"},
    ],
)
def test_video_params_that_cannot_be_read_are_named(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="video_params"):
        resolved(**fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_outputs_per_prompt", 2), ("num_outputs_per_prompt", True), ("generate_sound", "true"),
        ("enable_frame_interpolation", 1), ("extra_params", '{"sample_solver": "nope"}'),
        ("lora", {"path": "/etc"}),
        ("true_cfg_scale", 4), ("quality", "high"), ("aspect_ratio", "16:9"), ("short_edge", 480),
        ("video_reference", {"video_url": "http://127.0.0.1/"}),
        ("frame_interpolation_model_path", "/etc/passwd"), ("sound_duration", 3), ("start_time_seconds", 0),
        ("return_stage_metrics", "yes"), ("audio_reference", "x"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolved(**{field: value})
    assert refused.value.param == field
    assert f"{field}=" in refused.value.message
    assert "leave it out" in refused.value.message


def test_every_field_is_decided_one_way_or_the_other() -> None:
    assert all((harmless is None) == (reason == "") for harmless, reason in upstream.FIELDS.values())
