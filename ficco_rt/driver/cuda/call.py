"""Makes all calls of the CUDA driver API and checks them; no other module handles its error codes."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...errors import DeviceError
from ..gpu.checked import Checked


@cache
def api() -> Any:
    """cuda.bindings.driver, initialised. DeviceError: the package, the driver library or a GPU is missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            "the cuda backend needs the package cuda-bindings: "
            'pip install "cuda-bindings>=13.0" "nvidia-cuda-nvrtc>=13.0", or take --backend host'
        ) from error
    try:
        (code,) = driver.cuInit(0)
    except RuntimeError as error:  # the bindings load the library at the first call
        raise DeviceError(
            f"the CUDA driver library is not on this machine ({str(error).splitlines()[0]}); "
            "install NVIDIA's driver, or take --backend host"
        ) from error
    if int(code) == int(driver.CUresult.CUDA_ERROR_NO_DEVICE):
        raise DeviceError("cuInit: CUDA_ERROR_NO_DEVICE: this machine has no NVIDIA GPU; take --backend host")
    if code:
        raise DeviceError(f"cuInit: {code.name}; is the driver's kernel module loaded? --backend host needs none")
    return driver


call = Checked(
    {
        "CUDA_ERROR_OUT_OF_MEMORY": "the GPU's memory is full; take smaller sizes with --set",
        "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel touched memory that is not its own; this process must end",
        "CUDA_ERROR_LAUNCH_FAILED": "a kernel faulted; this process must end",
        "CUDA_ERROR_MISALIGNED_ADDRESS": "a kernel made a misaligned access; this process must end",
        "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernel's file holds no code for this GPU's architecture",
        "CUDA_ERROR_INVALID_IMAGE": "the kernel's file is not a cubin, fatbin or PTX",
        "CUDA_ERROR_NOT_FOUND": "no such entry in the module",
    }
)
