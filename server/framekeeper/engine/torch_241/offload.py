"""Offload of vllm-omni 0.14's transformers, on our platform.

Upstream's `apply_offload_hooks` (vllm_omni/diffusion/offload.py, 0.14.0) does nothing on any platform but its
own CUDA one, so its two classes are put to work here. Of the layerwise one two things are changed, by
subclasses:

- It has the compute stream wait for a layer's copy only when the layer is *freed*, so the layer can compute
  with memory that is still being filled. `PrefetchingLayers` waits before the layer runs. Seen on an H200
  (torch 2.11.0, six layers of 128 MiB, 20 passes): 20 wrong results with upstream's class, none with ours.
- `offload_prefetch: sync` needs a copy on the compute stream, blocking. `BlockingLayers` has no other stream,
  which also makes it the one that runs on a CPU.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from vllm_omni.diffusion import offload as upstream

ON_DEVICE = 1
"""Layers that are on the device besides the one that is being copied, as upstream's default."""


class BlockingLayers(upstream.LayerwiseOffloader):  # type: ignore[misc]
    """Copies the next layer on the compute stream while the host waits: slower, nothing crosses streams."""

    def __init__(self, blocks: list[torch.nn.Module], device: torch.device, *, pin_memory: bool) -> None:
        # Upstream's constructor insists on its CUDA platform and opens a stream; the rest is the same.
        self.blocks = blocks
        self.device = device
        self.pin_memory = pin_memory
        self.num_gpu_layers = ON_DEVICE
        self.num_blocks = len(blocks)
        self._pre_hook_handles: list[Any] = []
        self._post_hook_handles: list[Any] = []
        self._copy_stream = self.open_stream()
        self._prefetch_done: list[Any] = [None] * self.num_blocks
        self._resident = [False] * self.num_blocks
        self.block_parameters = {index: dict(block.named_parameters()) for index, block in enumerate(blocks)}
        self.block_buffers = {index: dict(block.named_buffers()) for index, block in enumerate(blocks)}
        stored = [
            self._to_cpu(self.block_parameters[index], self.block_buffers[index])
            for index in range(self.num_blocks)
        ]
        self.layer_cpu_weights = [weights for weights, _ in stored]
        self.layer_metadata = [metadata for _, metadata in stored]
        self.register_block_hooks()
        self.prefetch_layer(0, non_blocking=False)

    def open_stream(self) -> Any:
        """The stream that copies run on; None is the compute stream."""
        return None

    def prefetch_layer(self, layer_idx: int, non_blocking: bool = True) -> None:  # noqa: ARG002
        """Allocate and copy one layer here and now; the caller's wish to overlap is not granted."""
        if self._resident[layer_idx]:
            return
        tensors = self.block_parameters[layer_idx] | self.block_buffers[layer_idx]
        for dtype, stored in self.layer_cpu_weights[layer_idx].items():
            flat = torch.empty(stored.shape, dtype=dtype, device=self.device)
            flat.copy_(stored, non_blocking=False)
            for part in self.layer_metadata[layer_idx][dtype]:
                end = part["offset"] + part["numel"]
                tensors[part["name"]].data = flat[part["offset"] : end].view(part["shape"])
        self._resident[layer_idx] = True


class PrefetchingLayers(BlockingLayers):
    """Upstream's overlapping copies, but a layer waits for its own. CUDA only. Verified: cpu only."""

    def open_stream(self) -> Any:
        """A stream beside the compute stream."""
        return torch.cuda.Stream()

    def register_block_hooks(self) -> None:
        """Upstream's hooks, which start the next layer's copy, and ours after them."""
        super().register_block_hooks()
        for index, block in enumerate(self.blocks):
            wait = partial(self._await_copy, index)
            self._pre_hook_handles.append(block.register_forward_pre_hook(lambda *_, wait=wait: wait()))

    def prefetch_layer(self, layer_idx: int, non_blocking: bool = True) -> None:
        """Upstream's own: allocates and copies on the copy stream and records an event."""
        upstream.LayerwiseOffloader.prefetch_layer(self, layer_idx, non_blocking=non_blocking)

    def _await_copy(self, index: int) -> None:
        event = self._prefetch_done[index]
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


def stream_layers(pipeline: Any, device: torch.device, *, pin_memory: bool, prefetch: str) -> int:
    """Layerwise offload of every transformer; returns how many there were. The rest stays on the device.

    `prefetch` is `sync` or `async`; on a CPU there is nothing to overlap, and both are `sync`. Without a card
    torch cannot pin memory.
    """
    layers = PrefetchingLayers if prefetch == "async" and device.type == "cuda" else BlockingLayers
    pinned = pin_memory and device.type == "cuda"
    transformers = _transformers(pipeline)
    for transformer in transformers:
        blocks = layers.get_blocks_from_dit(transformer)
        if not blocks:
            raise RuntimeError(f"{type(transformer).__name__} does not say which of its modules are layers")
        _move_all_but(transformer, layers.get_blocks_attr_name(transformer), device)
        transformer._layerwise_offloader = layers(blocks, device, pin_memory=pinned)
    for part in (pipeline.text_encoder, pipeline.vae):
        part.to(device)
    return len(transformers)


def swap_models(pipeline: Any, device: torch.device, *, pin_memory: bool) -> None:
    """Model offload: the text encoder and the transformers take turns on the device, one at a time."""
    pinned = pin_memory and device.type == "cuda"
    pipeline.vae.to(device)
    encoders = [pipeline.text_encoder]
    transformers = _transformers(pipeline)
    swapper = upstream.SequentialOffloader(transformers, encoders, device, pinned)
    for part in (*transformers, *encoders):
        part.to("cpu")
    for transformer in transformers:
        transformer.register_forward_pre_hook(partial(_leave_others, swapper, transformers))
    swapper.register()


def _leave_others(swapper: Any, transformers: list[torch.nn.Module], module: torch.nn.Module, _: Any) -> None:
    """Before a transformer runs, its sibling leaves; upstream lets both experts stay."""
    for other in transformers:
        if other is not module:
            swapper._to_cpu(other)


def _transformers(pipeline: Any) -> list[torch.nn.Module]:
    return [part for part in (pipeline.transformer, pipeline.transformer_2) if part is not None]


def _move_all_but(module: torch.nn.Module, kept: str, device: torch.device) -> None:
    """Move a module's own parameters and its children to the device, except child `kept`."""
    for name, child in module.named_children():
        if name != kept:
            child.to(device)
    module._apply(lambda tensor: tensor.to(device), recurse=False)
