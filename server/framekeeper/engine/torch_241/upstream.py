"""Makes vllm 0.14.0 and vllm-omni 0.14.0 importable on torch 2.4.1, on our platform."""

# ruff: noqa: PLC0415  The order of these imports is what the function is for.

from __future__ import annotations

import importlib.util
import sys

from framekeeper.engine.backends.device import Device, open_device
from framekeeper.engine.torch_241 import missing_apis, versions


def prepare(device: Device) -> dict[str, str]:
    """Prepare this process; returns the versions. Harmless when repeated with the same device.

    Call it before anything else imports vllm or vllm-omni. Raises WrongVersion before it changes anything.
    """
    found = versions.require(versions.OMNI_014)
    missing_apis.install()
    _keep_triton_from_vllm()
    _enter_omni_without_its_server()
    from framekeeper.engine.torch_241 import platform

    platform.install(device)
    return found


def prepare_for_cpu() -> None:
    """`prepare` on a CPU, for the check at the end of an installation."""
    prepare(open_device("cpu"))


def _keep_triton_from_vllm() -> None:
    """Have vllm take its own stand-ins for Triton, also where Triton is installed.

    torch 2.4.1 comes with Triton 3.0, and vllm 0.14 has kernels for newer ones, which it defines at import.
    Ours are torch's operators. vllm looks for Triton once (vllm/triton_utils/importing.py), and for the
    kernel collection that it carries whenever it is asked (vllm/utils/import_utils.py).
    """
    import vllm.utils.import_utils

    vllm.utils.import_utils.has_triton_kernels = lambda: False
    if "vllm.triton_utils" in sys.modules:
        return
    found = sys.modules.get("triton")
    # How Python notes that there is no such module.
    sys.modules["triton"] = None  # type: ignore[assignment]
    try:
        import vllm.triton_utils
    finally:
        if found is None:
            del sys.modules["triton"]
        else:
            sys.modules["triton"] = found


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
