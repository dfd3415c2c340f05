"""How many GPUs a measurement takes, or why it cannot begin."""

from __future__ import annotations

from importlib.util import find_spec

from ficco_rt.driver.registry import device_count
from ficco_rt.errors import DeviceError


def find_gpus(wanted: int | None) -> int:
    """How many GPUs to take: `wanted`, or all, two at least. Raises DeviceError: no PyTorch, too few GPUs."""
    if find_spec("torch") is None:
        raise DeviceError("PyTorch is not installed, and the clock is PyTorch's: pip install torch")
    there = device_count("cuda")
    need = wanted or max(2, there)
    if there < need:
        have = f"{there} NVIDIA GPU{'' if there == 1 else 's'}" if there else "no NVIDIA GPU, driver or cuda-bindings"
        raise DeviceError(f"{need} GPU{'s are' if need > 1 else ' is'} needed; this machine has {have}")
    return need
