"""Rules about the picture that a video may start from."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.rules.rule import Finding, omni_source, rule
from framekeeper.profiles.schema import Profile
from framekeeper.profiles.wan import pictures

_T2V = omni_source("diffusion/models/wan2_2/pipeline_wan2_2.py")
_I2V = omni_source("diffusion/models/wan2_2/pipeline_wan2_2_i2v.py")
_HUB = "https://huggingface.co/Wan-AI"
_REASONS = {
    "none": "the model makes videos from text only, and vllm-omni drops a picture in silence",
    "required": "the model makes videos from a picture only, and a job without one fails",
}


@rule("picture-of-model", _T2V, _I2V, f"{_HUB}/Wan2.2-I2V-A14B-Diffusers")
def picture_of_model(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """T2V models take no picture, I2V models need one, TI2V models do both; told by the model's name."""
    model = pictures(profile) if profile.backend != "fault" else None
    if model in _REASONS and profile.admits.image != model:
        yield Finding(
            key="admits.image",
            value=profile.admits.image,
            reason=_REASONS[model],
            advice=f"admits.image: {model}",
        )


@rule("picture-in-vllm-omni-0.14", "https://github.com/vllm-project/vllm-omni/releases/tag/v0.14.0")
def picture_in_old_omni(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """With vllm-omni 0.14 nobody has tried pictures; diffusers' pipelines of the same runtime take them."""
    old = profile.runtime == "torch-2.4.1-cu124" and profile.backend == "vllm_omni"
    if old and profile.admits.image != "none":
        yield Finding(
            key="admits.image",
            value=profile.admits.image,
            reason="this backend does not hand pictures to vllm-omni 0.14",
            advice="backend: diffusers, or runtime: omni-0.30-cu130",
        )


RULES = (picture_of_model, picture_in_old_omni)
