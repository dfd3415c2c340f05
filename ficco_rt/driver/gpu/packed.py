"""A launch of one of our kernels as plain data: what is compiled, what lies in memory, what is launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...plan.ir import Launch


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a tuned kernel is asked for: a launch of the plan on `sms` multiprocessors at most, that takes down the
    flags at `lowers` if it can."""

    launch: Launch
    sms: int
    lowers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Packed:
    """Before it is launched, `constants` are put into device memory, and zeroed scratch beside them.

    `grid` blocks at `cluster` a cluster; None: as many as fit on the device, and no more than `tiles`. The kernel
    leaves the first `counters` words of the scratch as it found them, 0, unless a run is given up.
    `chained`: it may begin while the launch before it on its stream ends, for which it waits itself.
    `lowered`: it takes down the flags that it is asked to.
    `arguments` of the addresses of constants and scratch are the kernel's parameters.
    """

    source: str  # a file of kernels/src
    entry: str
    options: tuple[str, ...]
    threads: int
    smem: int  # dynamic, bytes; the least that it needs
    tiles: int
    constants: bytes
    scratch: int  # bytes
    counters: int  # words
    arguments: Callable[[int, int], list[bytes]]
    grid: int | None = None
    cluster: int = 1
    chained: bool = False
    lowered: bool = False
