"""Makes vllm 0.14.0 and vllm-omni 0.14.0 importable on torch 2.4.1, on our platform."""

# ruff: noqa: PLC0415  The order of these imports is what the function is for.

from __future__ import annotations

import importlib.util
import sys

from framekeeper.engine.backends.device import Device
from framekeeper.engine.torch_241 import missing_apis, versions


def prepare(device: Device) -> dict[str, str]:
    """Prepare this process; returns the versions. Harmless when repeated with the same device.

    Call it before anything else imports vllm or vllm-omni. Raises WrongVersion before it changes anything.
    """
    found = versions.require(["torch", "vllm", "vllm-omni", "diffusers", "transformers"])
    missing_apis.install()
    _enter_omni_without_its_server()
    from framekeeper.engine.torch_241 import platform

    platform.install(device)
    return found


def _enter_omni_without_its_server() -> None:
    """Make `vllm_omni` a package whose `__init__` has not run.

    That file imports the servers, which import web frameworks, audio libraries and vllm's language-model
    engine; none of them is in this runtime, and the diffusion modules use nothing of it.
    """
    if "vllm_omni" in sys.modules:
        return
    spec = importlib.util.find_spec("vllm_omni")
    if spec is None:
        raise ModuleNotFoundError("vllm-omni is not installed", name="vllm_omni")
    sys.modules["vllm_omni"] = importlib.util.module_from_spec(spec)
