"""The multiprocess executor's output thread, without an accelerator stream.

`WorkerProc._async_output_loop` (vllm_omni/diffusion/worker/diffusion_worker.py, 0.30.0) copies finished
outputs to shared memory on a side stream of `torch.accelerator.current_accelerator()`, which is None on a
CPU: the thread dies at its first line and every request waits for ever. Nothing else in that executor
needs a stream.
"""

from __future__ import annotations

from typing import Any

from vllm_omni.diffusion.data import AsyncDiffusionOutput, AsyncOutputKind
from vllm_omni.diffusion.ipc import pack_diffusion_output_shm
from vllm_omni.diffusion.worker.diffusion_worker import WorkerProc, logger


def drain_outputs(process: Any) -> None:
    """Pack each finished output into shared memory and announce it, until the queue says None.

    The same messages in the same order as upstream's loop; `process` is the WorkerProc.
    """
    while (item := process._async_output_queue.get()) is not None:
        output, output_id, _event = item
        ready = {"kind": AsyncOutputKind.OUTPUT_READY, "async_output_id": output_id}
        try:
            pack_diffusion_output_shm(output)
            process._enqueue_result(AsyncDiffusionOutput(**ready, output=output))
        except Exception:
            logger.exception("output %s could not be packed into shared memory", output_id)
            process._enqueue_result(AsyncDiffusionOutput(**ready, error="packing into shared memory failed"))
        finally:
            with process._async_output_done:
                process._async_output_pending = max(0, process._async_output_pending - 1)
                process._async_output_done.notify_all()


def install() -> None:
    """Replace the method in this process; it runs before the thread is started, and repeats harmlessly."""
    WorkerProc._async_output_loop = drain_outputs
