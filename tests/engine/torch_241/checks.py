"""Checks of engine/torch_241 that need its torch: run in that runtime's Python, which has no pytest.

    python checks.py RESULT.json

Each function named check_* asserts; the result maps its name to None or to what went wrong. They run in their
order in this file, in one process: the first ones see it before anything was supplied.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from doubles import Cuda, Patched, raises

# -- before anything was supplied -------------------------------------------------------------------------


def check_another_version_is_refused_before_anything_changes() -> None:
    import torch

    from framekeeper.engine.backends.device import open_device
    from framekeeper.engine.torch_241 import missing_apis, upstream, versions

    real = versions.metadata.version
    for name, other in (("vllm", "0.15.0"), ("vllm-omni", "0.20.0"), ("diffusers", "0.37.0")):
        changed = {name: other}
        with Patched(versions.metadata, version=lambda asked, c=changed: c.get(asked) or real(asked)):
            words = raises(versions.WrongVersion, lambda: upstream.prepare(open_device("cpu")))
        assert f"{name} is {other}, must be {versions.OMNI_014[name]}" in words, words
        assert "Install the runtime anew" in words
    with Patched(versions.metadata, version=lambda _asked: "2.5.0"):
        assert "torch is 2.5.0, must be 2.4.1" in raises(versions.WrongVersion, missing_apis.install)
    assert "vllm" not in sys.modules
    assert "vllm_omni" not in sys.modules
    assert not hasattr(torch.library, "infer_schema"), "the shims are for what is missing"
    assert not hasattr(torch.nn.functional.scaled_dot_product_attention, "grouped")


def check_a_missing_package_is_refused_by_name() -> None:
    from framekeeper.engine.torch_241 import versions

    def absent(_name: str) -> str:
        raise versions.metadata.PackageNotFoundError

    with Patched(versions.metadata, version=absent):
        words = raises(versions.WrongVersion, lambda: versions.require(versions.OMNI_014))
    assert "vllm-omni is not installed, must be 0.14.0" in words


def check_a_local_part_of_a_version_counts_for_nothing() -> None:
    from framekeeper.engine.torch_241 import versions

    with Patched(versions.metadata, version=lambda name: f"{versions.OMNI_014[name]}+cu124"):
        assert versions.require(versions.OMNI_014)["torch"] == "2.4.1+cu124"


def check_a_card_that_is_not_there_is_told() -> None:
    from framekeeper.engine.backends.device import open_device

    assert "finds no card" in raises(RuntimeError, lambda: open_device("cuda"))


# -- what torch lacks -------------------------------------------------------------------------------------


def check_attention_with_fewer_key_heads_is_attention_with_them_repeated() -> None:
    import torch
    from torch.nn import functional

    from framekeeper.engine.torch_241 import missing_apis

    plain = functional.scaled_dot_product_attention
    missing_apis.install()
    missing_apis.install()
    query, key, value = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    made = functional.scaled_dot_product_attention(query, key, value, None, 0.0, False, enable_gqa=True)
    # Head i of the queries reads head i // 3 of the keys.
    for head in range(6):
        alone = plain(query[:, head], key[:, head // 3], value[:, head // 3])
        assert torch.allclose(made[:, head], alone, atol=1e-6)
    same = torch.randn(2, 2, 5, 8)
    assert torch.equal(
        functional.scaled_dot_product_attention(same, key, value, enable_gqa=False, scale=0.3),
        plain(same, key, value, scale=0.3),
    )


def check_schemas_are_those_of_newer_torch() -> None:
    """The texts are torch 2.13.0's own for the same functions; see schema_table in test_torch241_shims.py."""
    import torch
    from schema_table import FUNCTIONS

    for function, mutates, wanted in FUNCTIONS:
        assert torch.library.infer_schema(function, mutates_args=mutates) == wanted
    assert torch.library.infer_schema(FUNCTIONS[0][0], op_name="thing").startswith("thing(")


def check_what_no_schema_has_is_refused() -> None:
    from schema_table import WRONG

    from framekeeper.engine.torch_241.infer_schema import infer_schema

    for function, mutates, words in WRONG:
        message = raises(ValueError, lambda f=function, m=mutates: infer_schema(f, mutates_args=m))
        assert words in message, message


def check_an_operator_registered_by_its_schema_runs() -> None:
    import torch
    from schema_table import scaled

    library = torch.library.Library("framekeeper_checks", "DEF")
    library.define("scaled" + torch.library.infer_schema(scaled, mutates_args=()))
    library.impl("scaled", scaled, "CPU")
    output = torch.ops.framekeeper_checks.scaled(torch.ones(3), [2, 3], how="sum")
    assert output.tolist() == [5.0, 5.0, 5.0]


def check_supplied_modules_are_importable_and_empty() -> None:
    import importlib

    import torch

    importlib.import_module("torch.distributed._symmetric_memory")
    guards = importlib.import_module("torch._C._dynamo.guards")
    assert isinstance(guards.GuardManager, type)
    assert torch._C._dynamo.guards is guards
    assert "cannot import" in raises(
        ImportError, lambda: exec("from torch.distributed._symmetric_memory import x")
    )
    # What vllm writes at import, without having imported the module.
    torch._inductor.config.compile_threads = 1


# -- vllm and vllm-omni -----------------------------------------------------------------------------------


def check_upstream_is_importable_without_its_extension_its_server_and_triton() -> None:
    from framekeeper.engine.backends.device import open_device
    from framekeeper.engine.torch_241 import upstream

    cpu = open_device("cpu")
    found = upstream.prepare(cpu)
    assert upstream.prepare(cpu) == found
    from vllm.triton_utils import HAS_TRITON
    from vllm_omni.diffusion import diffusion_engine  # noqa: F401

    assert not HAS_TRITON
    assert "vllm._C" not in sys.modules
    assert "vllm_omni.entrypoints" not in sys.modules
    assert sys.modules.get("triton", "absent") is not None, "hidden for a moment only"


def check_both_packages_ask_our_platform() -> None:
    import torch
    from vllm.platforms import current_platform
    from vllm_omni.platforms import current_omni_platform

    for platform in (current_platform, current_omni_platform):
        assert type(platform).__name__ == "CpuPlatform"
        assert platform.is_out_of_tree()
        assert not platform.is_cuda()
        assert platform.get_torch_device(3) == torch.device("cpu")
        assert platform.get_device_count() == 1
        assert platform.get_device_name() == "cpu"
        assert platform.get_free_memory() > 1 << 20
        assert platform.is_available()
        assert not platform.supports_torch_inductor()
        platform.set_device(torch.device("cpu"))
        platform.import_kernels()
        platform.synchronize()
        platform.empty_cache()
        with platform.inference_mode():
            assert torch.is_inference(torch.ones(1))


def check_another_attention_is_refused() -> None:
    from vllm_omni.platforms import current_omni_platform as platform

    words = raises(ValueError, lambda: platform.get_diffusion_attn_backend_cls("FLASH_ATTN", 128))
    assert "set torch_sdpa" in words
    assert platform.get_diffusion_attn_backend_cls(None, 128).endswith(".SDPABackend")
    assert platform.get_diffusion_attn_backend_cls("torch_sdpa", 128).endswith(".SDPABackend")


def check_vllm_takes_torchs_own_operators() -> None:
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.layernorm import RMSNorm

    with set_current_vllm_config(VllmConfig()):
        norm = RMSNorm(16, eps=1e-6)
    x = torch.randn(4, 16)
    assert torch.allclose(norm(x), x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), atol=1e-5)
    assert utils.dispatch_unquantized_gemm() is utils.default_unquantized_gemm
    weight, bias = torch.randn(3, 16), torch.randn(3)
    assert torch.allclose(
        utils.default_unquantized_gemm(norm, x, weight, bias), x @ weight.T + bias, atol=1e-5
    )


def check_attention_layers_are_torchs_attention() -> None:
    import torch
    from vllm_omni.diffusion.attention.selector import get_attn_backend

    layer = get_attn_backend(8).get_impl_cls()(num_heads=2, head_size=8, softmax_scale=0.5)
    # Upstream has an instance of its own for float32.
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        query, key, value = (torch.randn(1, tokens, 2, 8, dtype=dtype) for tokens in (5, 7, 7))
        made = layer.forward(query, key, value)
        scores = torch.einsum("bqhd,bkhd->bhqk", query.float(), key.float()) * 0.5
        wanted = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value.float())
        assert made.dtype == dtype
        assert torch.allclose(made.float(), wanted, atol=tolerance)


# -- a card that is not there -----------------------------------------------------------------------------


def check_a_card_is_asked_by_torchs_own_functions() -> None:
    import torch

    from framekeeper.engine.backends.device import CudaDevice
    from framekeeper.engine.torch_241 import platform

    cuda = Cuda()
    with Patched(torch, cuda=cuda):
        card = CudaDevice()
    assert card.torch_device == torch.device("cuda", 0)
    assert (card.name(), card.memory(), card.peak_memory(), card.free_memory()) == ("Some card", 11, 12, 13)
    card.synchronize()
    card.reset_peak_memory()
    card.empty_cache()
    assert cuda.calls[1] == "set_device"
    assert cuda.calls[-3:] == ["synchronize", "reset_peak_memory_stats", "empty_cache"]
    card._torch = Cuda()
    card._torch.ones = lambda *_args, device: torch.ones(1) if device == card.torch_device else None
    card.compute()
    import vllm.platforms
    import vllm_omni.platforms

    before = vllm.platforms._current_platform, vllm_omni.platforms._current_omni_platform
    try:
        made = platform.install(card)
        assert vllm.platforms._current_platform.is_out_of_tree(), "so vllm takes torch's operators there too"
        assert vllm_omni.platforms._current_omni_platform.get_torch_device() == card.torch_device
        assert (made.device_type, made.dispatch_key) == ("cuda", "CUDA")
    finally:
        vllm.platforms._current_platform, vllm_omni.platforms._current_omni_platform = before


def main(result: Path) -> None:
    outcome: dict[str, str | None] = {}
    import offload_checks

    checks = {**globals(), **vars(offload_checks)}
    for name in [name for name in checks if name.startswith("check_")]:
        try:
            checks[name]()
            outcome[name] = None
        except BaseException:
            outcome[name] = traceback.format_exc()
    result.write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
