"""Fields of vllm-omni's own `/v1/videos` form that this service has no use for.

A client of that server moves over by changing the address: what such a field asks for by default happens here
anyway and is accepted; anything else is refused with the reason, never silently dropped. The names are those
of VideoGenerationRequest in vllm-omni 0.30 (https://github.com/vllm-project/vllm-omni).
"""

from __future__ import annotations

import json
from typing import Any

from framekeeper.jobs.fields import Fields, shown

_NO_SOUND = "Wan2.2 makes no sound"
_NO_INTERPOLATION = "frames are not interpolated, num_frames and fps are what is made"
#: A field, the values that ask for nothing, and why the others cannot be had. None: any value is fine.
FIELDS: dict[str, tuple[tuple[Any, ...] | None, str]] = {
    "user": (None, ""),
    "frame_interpolation_exp": (None, ""),
    "frame_interpolation_scale": (None, ""),
    "frame_interpolation_model_path": ((), _NO_INTERPOLATION),
    "enable_frame_interpolation": ((False,), _NO_INTERPOLATION),
    "num_outputs_per_prompt": ((1,), "a job makes one video; submit several, or POST /v1/videos/batch"),
    "generate_sound": ((False,), _NO_SOUND),
    "sound_duration": ((), _NO_SOUND),
    "return_stage_metrics": ((False,), "seconds of every phase are in /metrics"),
    "extra_params": (({},), "parameters are named one by one here"),
    "lora": (({},), "adapters belong to a profile's model, not to a request"),
    "true_cfg_scale": ((), "Wan2.2 takes guidance_scale and guidance_scale_2"),
    "quality": ((), "choose num_inference_steps instead"),
    "aspect_ratio": ((), "set size instead"),
    "short_edge": ((), "set size instead"),
    "start_time_seconds": ((), "there is no reference video"),
    "video_reference": ((), "Wan2.2 starts from text, or from a picture"),
    "audio_reference": ((), "Wan2.2 starts from text, or from a picture"),
    "input_references": ((), "a video starts from one picture, input_reference"),
}
NAMES = frozenset(FIELDS)
REFUSED = frozenset(name for name, (harmless, _) in FIELDS.items() if harmless is not None)
#: What its block `video_params` may hold; each means the field of the same name.
PARAMS = ("width", "height", "num_frames", "fps")


def read_upstream(read: Fields) -> None:
    """Note every field of upstream's whose value asks for something that cannot be had."""
    for name, (harmless, reason) in FIELDS.items():
        value = read.values.get(name)
        if value is None or harmless is None:
            continue
        if not any(_plain(value) == each and type(_plain(value)) is type(each) for each in harmless):
            only = f"; leave it out, or set {json.dumps(harmless[0])}" if harmless else "; leave it out"
            read.refuse(name, f"{name}={shown(value)} is not supported: {reason}{only}.")


def unpack(values: dict[str, Any]) -> dict[str, Any]:
    """The fields with those of `video_params` beside the others, where it is such a block.

    A field that is given in both places, and anything else, is left as it is: it is refused by name.
    """
    block = _plain(values.get("video_params"))
    if not isinstance(block, dict) or not all(
        name in PARAMS and (value is None or values.get(name) in (None, value))
        for name, value in block.items()
    ):
        return values
    rest = {name: value for name, value in values.items() if name != "video_params"}
    return rest | {name: value for name, value in block.items() if value is not None}


def _plain(value: Any) -> Any:
    """A value of a form as JSON means it: "false" is False, "1" is 1."""
    if isinstance(value, str):
        try:
            return json.loads(value.lower() if value.lower() in ("true", "false") else value)
        except (ValueError, RecursionError):
            return value
    return value
