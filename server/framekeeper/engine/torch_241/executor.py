"""An executor of vllm-omni 0.14 that runs the pipeline in the process that asks: no second process, no port.

0.14 has only `mp` (vllm_omni/diffusion/executor/multiproc_executor.py). Its worker module imports cache-dit,
LoRA kernels and transfer connectors, none of which is in this runtime; what it does for one device is here.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed
from vllm.config import LoadConfig, VllmConfig
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.distributed import parallel_state
from vllm_omni.diffusion.executor.abstract import DiffusionExecutor
from vllm_omni.diffusion.forward_context import set_forward_context
from vllm_omni.diffusion.model_loader.diffusers_loader import DiffusersPipelineLoader
from vllm_omni.platforms import current_omni_platform

from framekeeper.engine.torch_241 import offload


class InProcessExecutor(DiffusionExecutor):  # type: ignore[misc]
    """Loads the pipeline when it is made; `add_req` runs one request and raises what it raises.

    `prefetch` is `sync` or `async`, see `offload`.
    """

    uses_multiproc = False
    prefetch = "async"
    pipeline: Any = None

    def _init_executor(self) -> None:
        """Called by upstream's constructor."""
        config = self.od_config
        self._device = current_omni_platform.get_torch_device()
        _join_a_group_of_one()
        self._vllm_config = VllmConfig()
        offloaded = config.enable_cpu_offload or config.enable_layerwise_offload
        with self._context():
            self.pipeline = DiffusersPipelineLoader(LoadConfig(use_tqdm_on_load=False)).load_model(
                od_config=config, load_device="cpu" if offloaded else str(self._device)
            )
        if config.enable_layerwise_offload:
            offload.stream_layers(
                self.pipeline, self._device, pin_memory=config.pin_cpu_memory, prefetch=self.prefetch
            )
        elif config.enable_cpu_offload:
            offload.swap_models(self.pipeline, self._device, pin_memory=config.pin_cpu_memory)

    def _context(self) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = set_forward_context(
            vllm_config=self._vllm_config, omni_diffusion_config=self.od_config
        )
        return context

    def add_req(self, requests: Any) -> DiffusionOutput:
        """Run one request to its end, as upstream's `DiffusionModelRunner.execute_model` does."""
        params = requests.sampling_params
        if params.generator is None and params.seed is not None:
            params.generator = torch.Generator(device=self._device).manual_seed(params.seed)
        with self._context(), torch.inference_mode():
            return self.pipeline.forward(requests)

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ARG002
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        unique_reply_rank: int | None = None,
    ) -> Any:
        """Call a method of the pipeline: the one worker that there is."""
        answer = getattr(self.pipeline, method)(*args, **(kwargs or {}))
        return answer if unique_reply_rank is not None else [answer]

    def check_health(self) -> None:
        """Raises when the device does not finish its work, or when it was shut down."""
        if self.pipeline is None:
            raise RuntimeError("the executor was shut down")
        current_omni_platform.synchronize()

    def shutdown(self) -> None:
        """Let go of the weights and of the process group; harmless when repeated."""
        self.pipeline = None
        current_omni_platform.empty_cache()
        if torch.distributed.is_initialized():
            parallel_state.destroy_distributed_env()


def _join_a_group_of_one() -> None:
    """Make the process groups that upstream's layers ask for, with this process as their only member.

    A store in memory instead of a port: nothing to collide on, nothing for a firewall to forbid.
    """
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            current_omni_platform.dist_backend, store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    parallel_state.init_distributed_environment(world_size=1, rank=0, local_rank=0)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel()
