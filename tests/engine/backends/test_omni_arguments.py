"""Options of a profile in vllm-omni's words; wrong ones are refused before anything is imported."""

from __future__ import annotations

from typing import Any

import pytest

from framekeeper.engine.backends.omni_arguments import engine_arguments

ONE = {"device": "cuda", "devices": 1}


def test_defaults() -> None:
    arguments = engine_arguments("/model", ONE)
    assert arguments["model"] == "/model"
    assert arguments["num_gpus"] == 1
    assert arguments["distributed_executor_backend"] == "uni"
    assert arguments["enforce_eager"] is True
    assert arguments["cache_backend"] == "none"
    assert not arguments["enable_layerwise_offload"]
    assert not arguments["enable_cpu_offload"]
    assert "quantization_config" not in arguments
    assert "diffusion_attention_config" not in arguments


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"executor": "multiprocess"}, {"distributed_executor_backend": "mp"}),
        ({"compile": "regional"}, {"enforce_eager": False, "diffusion_compile_granularity": "regional"}),
        ({"compile": "full"}, {"enforce_eager": False, "diffusion_compile_granularity": "full"}),
        ({"offload": "model"}, {"enable_cpu_offload": True, "enable_layerwise_offload": False}),
        (
            {"offload": "layerwise", "offload_pin_memory": False},
            {"enable_layerwise_offload": True, "pin_cpu_memory": False},
        ),
        ({"attention": "flash_attn"}, {"diffusion_attention_config": {"default": {"backend": "FLASH_ATTN"}}}),
        ({"quantization": "fp8"}, {"quantization_config": "fp8"}),
        ({"vae": {"fast_path": "channels_last"}}, {"vae_fast_path": "channels_last"}),
        ({}, {"vae_fast_path": "lossless", "video_output_transport": {"enable_device_postprocess": True}}),
        (
            {"attention_quantization": "fp8"},
            {
                "additional_config": {
                    "framekeeper_offload_prefetch": "async",
                    "framekeeper_attention_quantization": "fp8",
                }
            },
        ),
        ({"cache": "teacache"}, {"cache_backend": "tea_cache"}),
        ({"vae": {"tiling": True}}, {"vae_use_tiling": True, "vae_use_slicing": False}),
        ({"boundary_ratio": 0.9, "flow_shift": 12.0}, {"boundary_ratio": 0.9, "flow_shift": 12.0}),
    ],
)
def test_each_option_in_upstreams_words(options: dict[str, Any], expected: dict[str, Any]) -> None:
    arguments = engine_arguments("/model", {**ONE, **options})
    assert {name: arguments[name] for name in expected} == expected


def test_a_group_is_filled_by_its_degrees() -> None:
    arguments = engine_arguments(
        "/model",
        {
            "device": "cuda",
            "devices": 4,
            "executor": "multiprocess",
            "parallel": {"ulysses": 2, "cfg": 2, "vae": 4},
        },
    )
    assert arguments["num_gpus"] == 4
    assert arguments["parallel_config"]["ulysses_degree"] == 2
    assert arguments["parallel_config"]["cfg_parallel_size"] == 2
    assert arguments["parallel_config"]["vae_patch_parallel_size"] == 4
    assert "use_hsdp" not in arguments["parallel_config"]


def test_weights_sharded_over_ranks_of_their_own() -> None:
    options = {"device": "cuda", "devices": 2, "executor": "multiprocess", "parallel": {"hsdp": 2}}
    config = engine_arguments("/model", options)["parallel_config"]
    assert config["use_hsdp"] is True
    assert config["hsdp_shard_size"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**ONE, "ofload": "none"}, "unknown option: ofload"),
        ({"device": "cuda"}, "devices is missing"),
        ({**ONE, "dtype": "half"}, "dtype is 'half'"),
        ({**ONE, "offload": "disk"}, "offload is 'disk'"),
        ({**ONE, "parallel": {"tp": 2}}, "unknown parallel: tp"),
        ({**ONE, "vae": {"tiles": True}}, "unknown vae: tiles"),
        ({**ONE, "devices": 2}, "parallel degrees make 1 ranks, devices is 2"),
        ({**ONE, "devices": 2, "parallel": {"cfg": 2}}, "executor in_process drives one device"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        engine_arguments("/model", options)
