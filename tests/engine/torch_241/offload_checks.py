"""Checks of offloading, in that runtime's Python; run by checks.py after its own, which prepare upstream."""

from __future__ import annotations

from typing import Any

from doubles import Cuda, Patched, Pipeline, Streams, blocks_of, raises, run, run_within


def check_blocking_layers_keep_two_layers_and_change_no_result() -> None:
    import torch

    from framekeeper.engine.torch_241.offload import BlockingLayers

    x = torch.randn(3, 6)
    wanted = run(blocks_of(), x)
    blocks = blocks_of()
    layers = BlockingLayers(blocks, torch.device("cpu"), pin_memory=False)
    seen: list[list[int]] = []

    def look(_module: Any, _args: Any) -> None:
        seen.append([index for index, block in enumerate(blocks) if block.weight.numel() == 36])

    for block in blocks:
        block.register_forward_pre_hook(look)
    for _ in range(2):
        assert torch.allclose(run_within(blocks, x), wanted, atol=1e-6)
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

    cuda = Cuda()
    blocks = blocks_of()
    layers = BlockingLayers(blocks, torch.device("cpu"), pin_memory=False)
    with Patched(torch.Tensor, copy_=noted), Patched(torch, cuda=cuda):
        run_within(blocks, torch.randn(3, 6))
        layers.prefetch_layer(0, non_blocking=True)
    assert len(copies) >= 8, "two types of tensors in each of four layers"
    assert not any(copies)
    assert cuda.calls == []


def check_upstreams_own_layers_run_before_their_copy_is_awaited() -> None:
    """Why `PrefetchingLayers` exists: with upstream's hooks alone the wait comes when the layer is freed."""
    import torch
    from vllm_omni.diffusion import offload as upstream

    class Cuda:
        def is_cuda(self) -> bool:
            return True

    streams = Streams()
    blocks = blocks_of()
    with Patched(torch, cuda=streams), Patched(upstream, current_omni_platform=Cuda()):
        upstream.LayerwiseOffloader(blocks, torch.device("cpu"), pin_memory=False)
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, i=index: streams.order.append(f"layer {i} runs"))
        run_within(blocks, torch.randn(3, 6))
    ran = streams.order.index("layer 1 runs")
    assert "compute waits for event 2" in streams.order[ran:]
    assert "compute waits for event 2" not in streams.order[:ran]


def check_prefetching_layers_wait_for_their_own_copy_before_they_run() -> None:
    import torch

    from framekeeper.engine.torch_241.offload import PrefetchingLayers

    x = torch.randn(3, 6)
    wanted = run(blocks_of(), x)
    streams = Streams()
    copy = torch.Tensor.copy_

    def noted(self: Any, source: Any, non_blocking: bool = False) -> Any:
        streams.order.append(f"copy on {streams._current}")
        return copy(self, source, non_blocking=non_blocking)

    blocks = blocks_of()
    with Patched(torch, cuda=streams):
        layers = PrefetchingLayers(blocks, torch.device("cpu"), pin_memory=False)
        events = [layers._prefetch_done[0].number]
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, i=index: streams.order.append(f"layer {i} runs"))
        streams.order.clear()
        with Patched(torch.Tensor, copy_=noted):
            made = run_within(blocks, x)
    assert torch.allclose(made, wanted, atol=1e-6)
    assert {line for line in streams.order if line.startswith("copy on")} == {"copy on copy"}
    for index in range(4):
        events.append(events[-1] + 1)
        ran = streams.order.index(f"layer {index} runs")
        assert f"compute waits for event {events[index]}" in streams.order[:ran], (index, streams.order)


def check_streamed_layers_are_those_of_both_experts() -> None:
    import torch

    from framekeeper.engine.torch_241 import offload

    pipeline: Any = Pipeline()
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
    words = raises(
        RuntimeError,
        lambda: offload.stream_layers(pipeline, torch.device("cpu"), pin_memory=False, prefetch="sync"),
    )
    assert "does not say which" in words


def check_all_but_the_layers_goes_to_the_device() -> None:
    import torch

    from framekeeper.engine.torch_241 import offload

    expert = Pipeline().transformer
    offload._move_all_but(expert, "blocks", torch.device("meta"))
    where = {name: tensor.device.type for name, tensor in expert.named_parameters()}
    assert {where.pop("table"), where.pop("head.weight"), where.pop("head.bias")} == {"meta"}
    assert set(where.values()) == {"cpu"}


def check_models_take_turns_on_the_device() -> None:
    """What would be moved, in order; on a CPU upstream's own methods have nothing to move."""
    import torch
    from vllm_omni.diffusion import offload as upstream

    from framekeeper.engine.torch_241 import offload

    pipeline: Any = Pipeline()
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

    with Patched(upstream.SequentialOffloader, _to_cpu=to_cpu, _to_gpu=to_gpu):
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
    cuda = Cuda()
    with Patched(torch.Tensor, to=noted), Patched(groups[0], _torch_accelerator_module=cuda):
        groups[0].onload_()
    assert copies
    assert not any(copies)
    assert cuda.calls == []
