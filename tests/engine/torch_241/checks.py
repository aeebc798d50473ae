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
from typing import Any


class _Patched:
    """Sets attributes for a while."""

    def __init__(self, owner: Any, **attributes: Any) -> None:
        self.owner, self.attributes = owner, attributes

    def __enter__(self) -> None:
        self.before = {name: getattr(self.owner, name) for name in self.attributes}
        for name, value in self.attributes.items():
            setattr(self.owner, name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            setattr(self.owner, name, value)


def _raises(kind: type[Exception], work: Any) -> str:
    try:
        work()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


# -- before anything was supplied -------------------------------------------------------------------------


def check_another_version_is_refused_before_anything_changes() -> None:
    import torch

    from framekeeper.engine.backends.device import open_device
    from framekeeper.engine.torch_241 import missing_apis, upstream, versions

    real = versions.metadata.version
    for name, other in (("vllm", "0.15.0"), ("vllm-omni", "0.20.0"), ("diffusers", "0.37.0")):
        changed = {name: other}
        with _Patched(versions.metadata, version=lambda asked, c=changed: c.get(asked) or real(asked)):
            words = _raises(versions.WrongVersion, lambda: upstream.prepare(open_device("cpu")))
        assert f"{name} is {other}, must be {versions.OMNI_014[name]}" in words, words
        assert "Install the runtime anew" in words
    with _Patched(versions.metadata, version=lambda _asked: "2.5.0"):
        assert "torch is 2.5.0, must be 2.4.1" in _raises(versions.WrongVersion, missing_apis.install)
    assert "vllm" not in sys.modules
    assert "vllm_omni" not in sys.modules
    assert not hasattr(torch.library, "infer_schema"), "the shims are for what is missing"
    assert not hasattr(torch.nn.functional.scaled_dot_product_attention, "grouped")


def check_a_missing_package_is_refused_by_name() -> None:
    from framekeeper.engine.torch_241 import versions

    def absent(_name: str) -> str:
        raise versions.metadata.PackageNotFoundError

    with _Patched(versions.metadata, version=absent):
        words = _raises(versions.WrongVersion, lambda: versions.require(versions.OMNI_014))
    assert "vllm-omni is not installed, must be 0.14.0" in words


def check_a_local_part_of_a_version_counts_for_nothing() -> None:
    from framekeeper.engine.torch_241 import versions

    with _Patched(versions.metadata, version=lambda name: f"{versions.OMNI_014[name]}+cu124"):
        assert versions.require(versions.OMNI_014)["torch"] == "2.4.1+cu124"


def check_a_card_that_is_not_there_is_told() -> None:
    from framekeeper.engine.backends.device import open_device

    assert "finds no card" in _raises(RuntimeError, lambda: open_device("cuda"))


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
        message = _raises(ValueError, lambda f=function, m=mutates: infer_schema(f, mutates_args=m))
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
    assert "cannot import" in _raises(
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

    words = _raises(ValueError, lambda: platform.get_diffusion_attn_backend_cls("FLASH_ATTN", 128))
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


class _Cuda:
    """torch.cuda for `CudaDevice`: notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_args: Any) -> Any:
            self.calls.append(name)
            return {
                "is_available": True,
                "get_device_name": "Some card",
                "memory_reserved": 11,
                "max_memory_reserved": 12,
                "mem_get_info": (13, 14),
            }.get(name)

        return call


def check_a_card_is_asked_by_torchs_own_functions() -> None:
    import torch

    from framekeeper.engine.backends.device import CudaDevice
    from framekeeper.engine.torch_241 import platform

    cuda = _Cuda()
    with _Patched(torch, cuda=cuda):
        card = CudaDevice()
    assert card.torch_device == torch.device("cuda", 0)
    assert (card.name(), card.memory(), card.peak_memory(), card.free_memory()) == ("Some card", 11, 12, 13)
    card.synchronize()
    card.reset_peak_memory()
    card.empty_cache()
    assert cuda.calls[1] == "set_device"
    assert cuda.calls[-3:] == ["synchronize", "reset_peak_memory_stats", "empty_cache"]
    card._torch = _Cuda()
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


# -- offload ----------------------------------------------------------------------------------------------


def _blocks(count: int = 4) -> list[Any]:
    import torch

    torch.manual_seed(0)
    blocks = [torch.nn.Linear(6, 6) for _ in range(count)]
    for block in blocks:
        block.register_buffer("shift", torch.randn(6, dtype=torch.float64))
    return blocks


def _run(blocks: list[Any], x: Any) -> Any:
    for block in blocks:
        x = block(x) + block.shift.float()
    return x


def _run_within(blocks: list[Any], x: Any) -> Any:
    """As `_run`, with the buffer added by a hook that runs before the layer is freed."""
    shifts: list[Any] = []
    handles = [
        block.register_forward_hook(lambda module, _args, out: out + module.shift.float(), prepend=True)
        for block in blocks
    ]
    for block in blocks:
        x = block(x)
    for handle in handles:
        handle.remove()
    assert not shifts
    return x


def check_blocking_layers_keep_two_layers_and_change_no_result() -> None:
    import torch

    from framekeeper.engine.torch_241.offload import BlockingLayers

    x = torch.randn(3, 6)
    wanted = _run(_blocks(), x)
    blocks = _blocks()
    layers = BlockingLayers(blocks, torch.device("cpu"), pin_memory=False)
    seen: list[list[int]] = []

    def look(_module: Any, _args: Any) -> None:
        seen.append([index for index, block in enumerate(blocks) if block.weight.numel() == 36])

    for block in blocks:
        block.register_forward_pre_hook(look)
    for _ in range(2):
        assert torch.allclose(_run_within(blocks, x), wanted, atol=1e-6)
    assert seen == [[0, 1], [1, 2], [2, 3], [0, 3]] * 2
    assert layers._copy_stream is None
    assert layers._prefetch_done == [None] * 4, "no event: nothing crosses streams"


def check_blocking_layers_allocate_and_copy_on_the_compute_stream() -> None:
    """By observation: every copy is blocking, and torch.cuda is not even asked for a stream."""
    import torch

    from framekeeper.engine.torch_241.offload import BlockingLayers

    copies: list[bool] = []
    copy = torch.Tensor.copy_

    def noted(self: Any, source: Any, non_blocking: bool = False) -> Any:
        copies.append(non_blocking)
        return copy(self, source, non_blocking=non_blocking)

    cuda = _Cuda()
    blocks = _blocks()
    layers = BlockingLayers(blocks, torch.device("cpu"), pin_memory=False)
    with _Patched(torch.Tensor, copy_=noted), _Patched(torch, cuda=cuda):
        _run_within(blocks, torch.randn(3, 6))
        layers.prefetch_layer(0, non_blocking=True)
    assert len(copies) >= 8, "two types of tensors in each of four layers"
    assert not any(copies)
    assert cuda.calls == []


class _Streams:
    """torch.cuda with streams and events that only note their order."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._current = "compute"
        self._events = 0
        owner = self

        class Stream:
            def __init__(self, name: str = "copy") -> None:
                self.name = name

            def wait_stream(self, other: Any) -> None:
                owner.order.append(f"{self.name} waits for {other.name}")

            def wait_event(self, event: Any) -> None:
                owner.order.append(f"{self.name} waits for event {event.number}")

        class Event:
            def __init__(self) -> None:
                owner._events += 1
                self.number = owner._events

            def record(self, stream: Any) -> None:
                owner.order.append(f"event {self.number} on {stream.name}")

        self.Stream, self.Event = Stream, Event

    def current_stream(self) -> Any:
        return self.Stream(self._current)

    def stream(self, chosen: Any) -> Any:
        return _Patched(self, _current=chosen.name)


def check_upstreams_own_layers_run_before_their_copy_is_awaited() -> None:
    """Why `PrefetchingLayers` exists: with upstream's hooks alone the wait comes when the layer is freed."""
    import torch
    from vllm_omni.diffusion import offload as upstream

    class Cuda:
        def is_cuda(self) -> bool:
            return True

    streams = _Streams()
    blocks = _blocks()
    with _Patched(torch, cuda=streams), _Patched(upstream, current_omni_platform=Cuda()):
        upstream.LayerwiseOffloader(blocks, torch.device("cpu"), pin_memory=False)
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, i=index: streams.order.append(f"layer {i} runs"))
        _run_within(blocks, torch.randn(3, 6))
    ran = streams.order.index("layer 1 runs")
    assert "compute waits for event 2" in streams.order[ran:]
    assert "compute waits for event 2" not in streams.order[:ran]


def check_prefetching_layers_wait_for_their_own_copy_before_they_run() -> None:
    import torch

    from framekeeper.engine.torch_241.offload import PrefetchingLayers

    x = torch.randn(3, 6)
    wanted = _run(_blocks(), x)
    streams = _Streams()
    copy = torch.Tensor.copy_

    def noted(self: Any, source: Any, non_blocking: bool = False) -> Any:
        streams.order.append(f"copy on {streams._current}")
        return copy(self, source, non_blocking=non_blocking)

    blocks = _blocks()
    with _Patched(torch, cuda=streams):
        layers = PrefetchingLayers(blocks, torch.device("cpu"), pin_memory=False)
        events = [layers._prefetch_done[0].number]
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, i=index: streams.order.append(f"layer {i} runs"))
        streams.order.clear()
        with _Patched(torch.Tensor, copy_=noted):
            made = _run_within(blocks, x)
    assert torch.allclose(made, wanted, atol=1e-6)
    assert {line for line in streams.order if line.startswith("copy on")} == {"copy on copy"}
    for index in range(4):
        events.append(events[-1] + 1)
        ran = streams.order.index(f"layer {index} runs")
        assert f"compute waits for event {events[index]}" in streams.order[:ran], (index, streams.order)


class _Pipeline:
    """The parts of a pipeline that offload touches."""

    def __init__(self) -> None:
        import torch

        class Transformer(torch.nn.Module):
            _layerwise_offload_blocks_attr = "blocks"

            def __init__(self) -> None:
                super().__init__()
                self.blocks = torch.nn.ModuleList(_blocks())
                self.head = torch.nn.Linear(6, 6)
                self.table = torch.nn.Parameter(torch.ones(6))

            def forward(self, x: Any) -> Any:
                for block in self.blocks:
                    x = block(x)
                return self.head(x) + self.table

        self.transformer, self.transformer_2 = Transformer(), Transformer()
        self.text_encoder, self.vae = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)


def check_streamed_layers_are_those_of_both_experts() -> None:
    import torch

    from framekeeper.engine.torch_241 import offload

    pipeline: Any = _Pipeline()
    x = torch.randn(2, 6)
    wanted = pipeline.transformer(x), pipeline.transformer_2(x)
    count = offload.stream_layers(pipeline, torch.device("cpu"), pin_memory=True, prefetch="async")
    assert count == 2
    for expert, before in zip((pipeline.transformer, pipeline.transformer_2), wanted, strict=True):
        assert isinstance(expert._layerwise_offloader, offload.BlockingLayers)
        assert not isinstance(expert._layerwise_offloader, offload.PrefetchingLayers), "there is no card"
        assert torch.allclose(expert(x), before, atol=1e-6)
        assert [block.weight.numel() for block in expert.blocks] == [36, 1, 1, 1]
    pipeline.transformer_2 = torch.nn.Linear(1, 1)
    words = _raises(
        RuntimeError,
        lambda: offload.stream_layers(pipeline, torch.device("cpu"), pin_memory=False, prefetch="sync"),
    )
    assert "does not say which" in words


def check_all_but_the_layers_goes_to_the_device() -> None:
    import torch

    from framekeeper.engine.torch_241 import offload

    expert = _Pipeline().transformer
    offload._move_all_but(expert, "blocks", torch.device("meta"))
    where = {name: tensor.device.type for name, tensor in expert.named_parameters()}
    assert {where.pop("table"), where.pop("head.weight"), where.pop("head.bias")} == {"meta"}
    assert set(where.values()) == {"cpu"}


def check_models_take_turns_on_the_device() -> None:
    """What would be moved, in order; on a CPU upstream's own methods have nothing to move."""
    import torch
    from vllm_omni.diffusion import offload as upstream

    from framekeeper.engine.torch_241 import offload

    pipeline: Any = _Pipeline()
    moved: list[tuple[str, str]] = []
    names = {
        pipeline.transformer: "high",
        pipeline.transformer_2: "low",
        pipeline.text_encoder: "text",
    }

    def to_cpu(_self: Any, module: Any) -> None:
        moved.append((names[module], "cpu"))

    def to_gpu(_self: Any, module: Any) -> None:
        moved.append((names[module], "device"))

    with _Patched(upstream.SequentialOffloader, _to_cpu=to_cpu, _to_gpu=to_gpu):
        offload.swap_models(pipeline, torch.device("cpu"), pin_memory=True)
        for module in (pipeline.text_encoder, pipeline.transformer, pipeline.transformer_2):
            moved.append(("run", names[module]))
            module(torch.randn(2, 6))
    assert moved == [
        *[("run", "text"), ("high", "cpu"), ("low", "cpu"), ("text", "device")],
        *[("run", "high"), ("low", "cpu"), ("text", "cpu"), ("high", "device")],
        *[("run", "low"), ("high", "cpu"), ("text", "cpu"), ("low", "device")],
    ]


# -- diffusers' own offload ---------------------------------------------------------------------------------


def check_diffusers_copies_beside_the_computing_only_where_asked_and_possible() -> None:
    import torch

    from framekeeper.engine.backends.diffusers import _place

    class Part:
        def __init__(self) -> None:
            self.calls: list[dict[str, Any]] = []

        def enable_group_offload(self, **how: Any) -> None:
            self.calls.append(how)

        def to(self, device: Any) -> None:
            self.calls.append({"to": device})

    class Pipeline:
        def __init__(self) -> None:
            self.transformer, self.transformer_2, self.text_encoder, self.vae = (Part() for _ in range(4))

    class Device:
        def __init__(self, kind: str) -> None:
            self.kind, self.torch_device = kind, torch.device(kind)

    def placed(kind: str, prefetch: str, *, pin: bool) -> Any:
        pipeline: Any = Pipeline()
        options = {"offload": "layerwise", "offload_prefetch": prefetch, "offload_pin_memory": pin}
        _place(pipeline, options, Device(kind))
        assert pipeline.transformer.calls == pipeline.transformer_2.calls, "both experts"
        assert pipeline.vae.calls == pipeline.text_encoder.calls == [{"to": torch.device(kind)}]
        return pipeline.transformer.calls[0]

    assert placed("cuda", "async", pin=True)["use_stream"] is True
    assert placed("cuda", "async", pin=True)["low_cpu_mem_usage"] is False
    assert placed("cuda", "async", pin=False)["low_cpu_mem_usage"] is True
    assert placed("cuda", "sync", pin=True)["use_stream"] is False
    assert placed("cpu", "async", pin=True)["use_stream"] is False
    assert placed("cuda", "sync", pin=True)["onload_device"] == torch.device("cuda")


def check_diffusers_without_a_stream_blocks() -> None:
    """By observation of its hooks and of torch.cuda: no stream, no copy that the host does not wait for."""
    import torch
    from diffusers import WanTransformer3DModel

    transformer = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=24,
        text_dim=32,
        ffn_dim=48,
        num_layers=2,
        rope_max_seq_len=32,
    )
    cpu = torch.device("cpu")
    transformer.enable_group_offload(
        onload_device=cpu,
        offload_device=cpu,
        offload_type="block_level",
        num_blocks_per_group=1,
        use_stream=False,
    )
    copies: list[bool] = []
    move = torch.Tensor.to

    def noted(self: Any, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Any:
        copies.append(non_blocking)
        return move(self, *args, non_blocking=non_blocking, **kwargs)

    groups = [
        hook.group
        for module in transformer.modules()
        for hook in getattr(getattr(module, "_diffusers_hook", None), "hooks", {}).values()
    ]
    assert len(groups) >= 2
    assert all(group.stream is None and not group.non_blocking for group in groups)
    cuda = _Cuda()
    with _Patched(torch.Tensor, to=noted), _Patched(groups[0], _torch_accelerator_module=cuda):
        groups[0].onload_()
    assert copies
    assert not any(copies)
    assert cuda.calls == []


NAMES = [name for name in dict(globals()) if name.startswith("check_")]


def main(result: Path) -> None:
    outcome: dict[str, str | None] = {}
    for name in NAMES:
        try:
            globals()[name]()
            outcome[name] = None
        except BaseException:
            outcome[name] = traceback.format_exc()
    result.write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
