"""How many GPUs a measurement takes, or why it cannot begin; and how a command ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec

from ficco_rt.driver.registry import device_count
from ficco_rt.errors import DeviceError, UsageError, exit_code


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


def ended(program: str, measured: Callable[[], int]) -> int:
    """The exit code of a command; an error, or an interrupt, is told in a line."""
    try:
        return measured()
    except (UsageError, DeviceError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
