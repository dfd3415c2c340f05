"""Makes all calls of the HIP runtime and checks them; no other module handles its error codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ...errors import DeviceError
from ..gpu.checked import Checked, DriverFunction


@cache
def api() -> Any:
    """hip.hip, initialised. DeviceError: the package, the runtime library or a GPU is missing."""
    try:
        from hip import hip as bindings
    except ImportError as error:
        raise DeviceError(
            'the hip backend needs the package hip-python: pip install "hip-python>=6.2", or take --backend host'
        ) from error
    hip: Any = bindings
    try:
        (code,) = hip.hipInit(0)
    except RuntimeError as error:  # the bindings load the library at the first call
        raise DeviceError(
            f"the HIP runtime library is not on this machine ({str(error).splitlines()[0]}); "
            "install ROCm, or take --backend host"
        ) from error
    if int(code) == int(hip.hipError_t.hipErrorNoDevice):
        raise DeviceError("hipInit: hipErrorNoDevice: this machine has no AMD GPU; take --backend host")
    if code:
        raise DeviceError(f"hipInit: {code.name}; is amdgpu loaded, and /dev/kfd yours? --backend host needs none")
    return hip


def filled(function: DriverFunction, make: Callable[[], Any], *arguments: Any, what: str = "") -> Any:
    """Make a call that fills a struct: bindings of ROCm 10 return it, earlier ones are given it first."""
    try:
        return call(function, *arguments, what=what)
    except TypeError:
        made = make()
        call(function, made, *arguments, what=what)
        return made


call = Checked(
    {
        "hipErrorOutOfMemory": "the GPU's memory is full; take smaller sizes with --set",
        "hipErrorIllegalAddress": "a kernel touched memory that is not its own; this process must end",
        "hipErrorLaunchFailure": "a kernel faulted; this process must end",
        "hipErrorNoBinaryForGpu": "the kernel's file holds no code for this GPU's architecture",
        "hipErrorInvalidImage": "the kernel's file is no code object",
        "hipErrorSharedObjectInitFailed": "the kernel's file is no code object",
        "hipErrorNotFound": "no such entry in the module",
        "hipErrorStreamCaptureUnsupported": "this ROCm cannot put the call into a graph; take --no-graph",
    }
)
