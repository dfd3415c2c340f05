"""The GPU: calls of its driver, and what it has."""

from __future__ import annotations

from typing import Any

import torch
from cuda.bindings import driver as cu

SMEM = 232448 - 1024  # what a block may ask for beside the Hopper kernel's static barriers


def call(name: str, *args: Any) -> Any:
    code, *values = getattr(cu, name)(*args)
    if code != cu.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{name}: {code.name}")
    return values[0] if len(values) == 1 else values


def arch() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def sms() -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def shared(blocks: int) -> int:
    """The most shared memory of each of `blocks` blocks on a multiprocessor."""
    properties = torch.cuda.get_device_properties(0)
    share = properties.shared_memory_per_multiprocessor // blocks - 1024
    return int(min(share, properties.shared_memory_per_block_optin))
