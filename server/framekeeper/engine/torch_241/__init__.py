"""What vllm 0.14.0, vllm-omni 0.14.0 and diffusers 0.36.0 need to run on torch 2.4.1, on a CPU and on CUDA.

vllm-omni 0.14.0 is pure Python, but asks for vllm 0.14.0 and with it for torch 2.9.1. On torch 2.4.1
some functions and modules are missing (`missing_apis`), and vllm's compiled extension does not load. So
nothing here or above it imports that extension: `platform` is an out-of-tree platform, for which vllm chooses
torch's own operators everywhere, `executor` runs the pipeline in this process, `offload` moves its weights.

CPU and CUDA take the same path; they differ in `engine/backends/device.py` and in nothing else but the copies
of `offload`. Verified: cpu only. With torch 2.11.0 in place of 2.4.1 and without the shims the same code ran
on an H200: both backends, every offload, the same frames with each.
"""

from __future__ import annotations
