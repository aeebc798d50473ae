"""What is admitted, what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framekeeper.errors import FramekeeperError, InvalidRequest, ModelNotFound, NoEngine
from framekeeper.jobs.admission import KNOWN, admit
from framekeeper.jobs.engines import Engine, EngineState
from framekeeper.jobs.video import VideoRequest
from jobs.records import ADMITS, DEFAULTS, engine

ENGINES = [engine()]


def admitted(engines: list[Engine] | None = None, **fields: Any) -> VideoRequest:
    return admit({"prompt": "a cat", **fields}, engines or ENGINES, draw_seed=lambda: 5).request


def refused(engines: list[Engine] | None = None, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        admitted(engines, **fields)
    return caught.value


def test_prompt_alone_gets_every_default() -> None:
    accepted = admit({"prompt": "a cat"}, ENGINES, draw_seed=lambda: 5)
    model, request = accepted.model, accepted.request
    assert model == "tiny"
    assert request == VideoRequest(
        prompt="a cat", negative_prompt=None, width=64, height=64, num_frames=9, fps=8,
        num_inference_steps=6, guidance_scale=4.0, guidance_scale_2=3.0, boundary_ratio=0.875,
        flow_shift=5.0, seed=5,
    )  # fmt: skip


def test_form_text_is_read_to_the_same_values_as_json() -> None:
    values = {
        "negative_prompt": "dogs", "size": "128x64", "num_frames": 17, "fps": 24, "num_inference_steps": 3,
        "guidance_scale": 1.5, "guidance_scale_2": 0, "boundary_ratio": 1e-1, "flow_shift": 100,
        "seed": 2**63 - 1,
    }  # fmt: skip
    assert admitted(**values) == admitted(**{name: str(value) for name, value in values.items()})


def test_null_counts_as_absent() -> None:
    assert admitted(**dict.fromkeys([name for name in KNOWN if name != "prompt"])) == admitted()


def test_width_and_height_stand_for_size() -> None:
    assert admitted(width=32, height=48) == admitted(size="32x48")
    assert admitted(size="32x48", width="32", height="48") == admitted(size="32x48")


@pytest.mark.parametrize(
    ("seconds", "frames"),
    [("4", 33), (4, 33), (0.01, 1), ("1.125", 9), ("1.4", 13), (6.0, 49), ("6.125", 49)],
)
def test_seconds_become_the_nearest_frames_of_4k_plus_1(seconds: Any, frames: int) -> None:
    assert admitted(seconds=seconds).num_frames == frames


def test_seconds_that_agree_with_num_frames_are_admitted() -> None:
    assert admitted(seconds="4", num_frames=33).num_frames == 33


def test_seed_is_drawn_when_absent_and_then_fixed() -> None:
    drawn = {admit({"prompt": "a cat"}, ENGINES).request.seed for _ in range(8)}
    assert len(drawn) > 1
    assert all(0 <= seed < 2**63 for seed in drawn)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"prompt": ""}, "prompt", "blank"),
        ({"prompt": " \n\t "}, "prompt", "blank"),
        ({"prompt": 5}, "prompt", "prompt=5 is not text"),
        ({"prompt": ["a"]}, "prompt", "not text"),
        ({"prompt": "x" * 10_001}, "prompt", "10001 characters, the most is 10000"),
        ({"prompt": "a\0b"}, "prompt", "NUL character at position 1"),
        ({"prompt": "a\ud800"}, "prompt", "surrogate"),
        ({"negative_prompt": "x" * 10_001}, "negative_prompt", "10001 characters"),
        ({"negative_prompt": "\0"}, "negative_prompt", "NUL"),
        ({"negative_prompt": False}, "negative_prompt", "negative_prompt=false is not text"),
        ({"size": "big"}, "size", "size='big' is not of the form WIDTHxHEIGHT"),
        ({"size": "64X64"}, "size", "WIDTHxHEIGHT"),
        ({"size": "64x64 "}, "size", "WIDTHxHEIGHT"),
        ({"size": "-64x64"}, "size", "WIDTHxHEIGHT"),
        ({"size": "٦٤x64"}, "size", "WIDTHxHEIGHT"),
        ({"size": 64}, "size", "WIDTHxHEIGHT"),
        ({"size": ""}, "size", "WIDTHxHEIGHT"),
        ({"size": "100x64"}, "size", "width 100 is not a multiple of 16: set 96x64"),
        ({"size": "0x64"}, "size", "width 0 is not within 16..16384: set 16x64"),
        ({"size": "64x16400"}, "size", "height 16400 is not within 16..16384"),
        ({"size": "256x128"}, "size", "32768 pixels, the most is 16384 (as in 128x128): set 176x80"),
        ({"size": "16384x16"}, "size", "set 1024x16"),
        ({"width": 64}, "height", "height is missing beside width"),
        ({"height": 64}, "width", "width is missing beside height"),
        ({"width": 64, "height": 64, "size": "64x32"}, "size", "contradicts width=64 and height=64"),
        ({"width": True, "height": 64}, "width", "width=true is not an integer"),
        ({"width": -16, "height": 64}, "width", "width -16 is not within"),
        ({"num_frames": 10}, "num_frames", "num_frames=10 is not 4k+1"),
        ({"num_frames": 10}, "num_frames", "set 9 or 13"),
        ({"num_frames": 53}, "num_frames", "more than 49"),
        ({"num_frames": 50}, "num_frames", "more than 49"),
        ({"num_frames": 0}, "num_frames", "less than 1"),
        ({"num_frames": 9.5}, "num_frames", "num_frames=9.5 is not an integer"),
        ({"num_frames": "9.5"}, "num_frames", "not an integer"),
        ({"num_frames": " 9"}, "num_frames", "not an integer"),
        ({"num_frames": "1_7"}, "num_frames", "not an integer"),
        ({"num_frames": "0x9"}, "num_frames", "not an integer"),
        ({"num_frames": ""}, "num_frames", "not an integer"),
        ({"num_frames": True}, "num_frames", "num_frames=true is not an integer"),
        ({"num_frames": 10**400}, "num_frames", "integer of very many digits is more than 49"),
        ({"seconds": "8"}, "seconds", "is 65 frames, the most is 49: set at most 6.125 seconds"),
        ({"seconds": "4", "num_frames": 17}, "seconds", "is 33 frames and contradicts num_frames=17"),
        ({"seconds": "four"}, "seconds", "not a number"),
        ({"seconds": 0}, "seconds", "too small"),
        ({"seconds": "-1"}, "seconds", "too small"),
        ({"seconds": True}, "seconds", "not a number"),
        ({"fps": 0}, "fps", "less than 1"),
        ({"fps": 61}, "fps", "more than 60"),
        ({"fps": "fast"}, "fps", "set an integer from 1 to 60"),
        ({"num_inference_steps": 0}, "num_inference_steps", "less than 1"),
        ({"num_inference_steps": 51}, "num_inference_steps", "more than 50"),
        ({"guidance_scale": 31}, "guidance_scale", "more than 30"),
        ({"guidance_scale": -0.1}, "guidance_scale", "too small"),
        ({"guidance_scale": float("nan")}, "guidance_scale", "nan is not finite"),
        ({"guidance_scale": "nan"}, "guidance_scale", "not finite"),
        ({"guidance_scale": "1e999"}, "guidance_scale", "not finite"),
        ({"guidance_scale": "-inf"}, "guidance_scale", "not finite"),
        ({"guidance_scale": 10**400}, "guidance_scale", "more than 30"),
        ({"guidance_scale": "4,5"}, "guidance_scale", "not a number"),
        ({"guidance_scale": -(10**400)}, "guidance_scale", "too small"),
        ({"guidance_scale": {}}, "guidance_scale", "guidance_scale=an object is not a number"),
        ({"guidance_scale_2": 31}, "guidance_scale_2", "more than 30"),
        ({"boundary_ratio": 1.01}, "boundary_ratio", "more than 1"),
        ({"boundary_ratio": -0.01}, "boundary_ratio", "too small"),
        ({"flow_shift": 0}, "flow_shift", "set a number above 0 up to 100"),
        ({"flow_shift": 101}, "flow_shift", "more than 100"),
        ({"seed": -1}, "seed", "less than 0"),
        ({"seed": 2**63}, "seed", "more than 9223372036854775807"),
        ({"seed": 1.5}, "seed", "not an integer"),
        ({"input_reference": {"image_url": "http://x"}}, "input_reference", "from text only"),
        ({"num_frame": 9}, "num_frame", "'num_frame' is not a known field: did you mean num_frames?"),
        ({"callback": "x"}, "callback", "'callback' is not a known field: known are model, prompt,"),
        ({"model": 5}, "model", "model=5 is not text: set one of tiny"),
    ],
)  # fmt: skip
def test_fault_is_named_with_its_field_value_and_remedy(
    fields: dict[str, Any], param: str, words: str
) -> None:
    error = refused(**fields)
    assert words in error.message
    assert error.param == param
    assert len(error.message) < 500


def test_whole_number_may_be_written_as_a_float() -> None:
    assert admitted(fps="24.0", num_frames="9.0", seed=7.0).fps == 24


def test_all_faults_are_told_at_once_and_the_first_names_the_field() -> None:
    error = refused(prompt=" ", size="100x64", num_frames=10, fps=99, seed=-1, sead=1)
    for words in ("prompt is blank", "size=100x64", "num_frames=10", "fps=99", "seed=-1", "mean seed?"):
        assert words in error.message
    assert error.param == "prompt"


def test_long_value_is_not_repeated_whole() -> None:
    assert len(refused(seed="9" * 5000).message) < 200


def test_without_any_engine_the_request_may_be_repeated() -> None:
    with pytest.raises(NoEngine) as caught:
        admit({"prompt": "a cat"}, [])
    assert caught.value.retry_after


def test_unknown_model_names_what_exists() -> None:
    with pytest.raises(ModelNotFound, match="set one of tiny") as caught:
        admitted(model="sora-2")
    assert caught.value.param == "model"


def test_several_models_must_be_chosen_from() -> None:
    engines = [engine("a", model="large"), engine("b", model="small")]
    assert "several are served: set one of large, small" in refused(engines).message
    assert admit({"prompt": "a cat", "model": "small"}, engines).model == "small"


def test_shape_is_admitted_by_any_engine_of_the_model() -> None:
    wide = engine("b", admits={**ADMITS, "size": "256x256", "num_frames": 9}, state=EngineState.FAILED)
    assert admitted([engine("a"), wide], size="256x256").width == 256
    assert admitted([engine("a"), wide], num_frames=49).num_frames == 49
    error = refused([engine("a"), wide], size="256x256", num_frames=49)
    assert "No engine admits size=256x256 together with num_frames=49" in error.message
    assert "128x128 with 49 frames and 50 steps or 256x256 with 9 frames and 50 steps" in error.message


def test_defaults_are_those_of_a_running_engine() -> None:
    stopped = engine("a", defaults={**DEFAULTS, "fps": 30}, state=EngineState.STOPPED)
    assert admitted([stopped, engine("b")]).fps == 8


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.just("64x64"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from(KNOWN) | st.text(max_size=20), anything, max_size=8))
def test_whatever_comes_is_admitted_within_limits_or_refused_in_utf8(fields: dict[str, Any]) -> None:
    try:
        request = admit(fields, ENGINES).request
    except FramekeeperError as error:
        assert error.message.encode()  # noqa: PT017
        assert error.param is not None  # noqa: PT017
        return
    assert request.width * request.height <= 128 * 128
    assert (request.num_frames - 1) % 4 == 0
    assert 1 <= request.num_frames <= 49
    assert 0 < request.flow_shift <= 100  # type: ignore[operator]
