"""Computes which blocks fit together on a multiprocessor, from the needs of the blocks and the limits of the device.

A block takes registers, shared memory, threads, and one of the multiprocessor's block slots. The register file has four
partitions. A block's warps are spread evenly over the partitions, and each warp's registers are in one partition. So
blocks of several kernels fit if each partition has room for its share of their warps. Sources: CUDA's occupancy
calculator; LLVM's AMDGPU usage guide, GPR allocation.

NOTE if the number of a block's warps is no multiple of four, any partitions may get the additional warps here. For
blocks of one kernel the result is that of the calculator and of the driver's query. `tests/gpu/test_block_fit.py`
measures what a GPU does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Literal, TypeAlias

from .occupancy import Limits
from .target import compute_capability

Resource: TypeAlias = Literal["registers", "shared memory", "threads", "blocks"]


@dataclass(frozen=True, slots=True)
class Footprint:
    """The resources of a block of a kernel; sizes in bytes."""

    kernel: str
    threads: int
    registers: int  # a thread's at the launch
    static_smem: int
    dynamic_smem: int
    cluster: int = 1  # blocks that start side by side

    @property
    def smem(self) -> int:
        return self.static_smem + self.dynamic_smem


@dataclass(frozen=True, slots=True)
class Several:
    """Blocks of one kernel on a multiprocessor."""

    block: Footprint
    count: int = 1


@dataclass(frozen=True, slots=True)
class Fit:
    """How many more blocks of a kernel a multiprocessor takes, and what keeps out the next one."""

    blocks: int
    limited_by: tuple[Resource, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """The free resources of a multiprocessor; `smem` is what one more block may request, static and dynamic."""

    registers: int
    smem: int
    threads: int
    blocks: int


@dataclass(frozen=True, slots=True)
class _Has:
    """What a multiprocessor has, as it is given out."""

    registers: int  # of 32 bits, of each part
    granule: int  # a thread's registers are rounded up to multiples of it
    parts: int  # that a multiprocessor's registers are in
    smem_granule: int  # bytes


@dataclass(frozen=True, slots=True)
class _Takes:
    """What a block takes, as it is given out."""

    warps: int
    of_warp: int  # registers of a warp
    smem: int  # bytes


_Parts: TypeAlias = tuple[tuple[int, int], ...]  # registers and warps that each part has left, in order


@lru_cache(maxsize=4096)
def resident(threads: int, registers: int, smem: int, limits: Limits) -> int:
    """Blocks of so many threads, registers a thread and bytes of shared memory (static and dynamic) that share a
    multiprocessor; 0: none fits."""
    return fit(Footprint("", threads, registers, 0, smem), (), limits).blocks


def fit(block: Footprint, beside: Sequence[Several], limits: Limits) -> Fit:
    """The blocks of a kernel that a multiprocessor takes beside others that are on it. 0 too if the others do not fit
    beside each other."""
    if block.smem > limits.smem_per_block:
        return Fit(0, ("shared memory",))
    count, over = 0, _over(beside, limits) or _over((*beside, Several(block)), limits)
    while not over:
        count += 1
        over = _over((*beside, Several(block, count + 1)), limits)
    return Fit(count, over)


def fits(blocks: Sequence[Several], limits: Limits) -> bool:
    """Whether a multiprocessor holds all these blocks at once."""
    return not _over(blocks, limits)


def left(blocks: Sequence[Several], limits: Limits) -> Left:
    """The resources that remain beside blocks that fit."""
    has, taken = _has(limits), [(_takes(s.block, limits), s.count) for s in blocks]
    smem = limits.smem_per_sm - sum(t.smem * n for t, n in taken)
    return Left(
        registers=has.registers * has.parts - sum(t.of_warp * t.warps * n for t, n in taken),
        smem=max(0, min(limits.smem_per_block, smem - limits.smem_reserved)),
        threads=limits.max_threads - sum(t.warps * n for t, n in taken) * limits.warp,
        blocks=limits.max_residency - sum(n for _, n in taken),
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """So many blocks of a kernel on each multiprocessor, with `least` to `most` bytes of dynamic shared memory: no more
    of them fit, and others fit beside them."""

    blocks: int
    least: int
    most: int


def shape(block: Footprint, blocks: int, leave: Sequence[Footprint], limits: Limits) -> Shape | None:
    """The dynamic shared memory with which so many blocks fit and leave room for a block of each footprint of `leave`.
    None: there is none.

    NOTE shared memory alone keeps out the next block, as registers are known by their bounds."""
    has, static = _has(limits), block.static_smem
    reserved = static + limits.smem_reserved
    taken = max((_takes(other, limits).smem for other in leave), default=0)
    most = (limits.smem_per_sm - taken) // blocks // has.smem_granule * has.smem_granule - reserved
    most = min(most, limits.smem_per_block - static)
    # more than a share of one block more, in whole granules
    least = max(0, (limits.smem_per_sm // (blocks + 1) // has.smem_granule + 1) * has.smem_granule - reserved)
    if most < max(least, block.dynamic_smem):
        return None
    shaped = Several(replace(block, dynamic_smem=most), blocks)
    if not all(fits((shaped, Several(other)), limits) for other in leave):
        return None
    return Shape(blocks, least, most)


def _over(blocks: Sequence[Several], limits: Limits) -> tuple[Resource, ...]:
    """What such blocks take too much of, together."""
    has, taken = _has(limits), [(_takes(s.block, limits), s.count) for s in blocks if s.count]
    found: list[Resource] = []
    if taken and not _find_places(has, limits.max_warps, taken):
        found.append("registers")
    if sum(t.smem * n for t, n in taken) > limits.smem_per_sm:
        found.append("shared memory")
    if sum(t.warps * n for t, n in taken) > limits.max_warps:
        found.append("threads")
    if sum(n for _, n in taken) > limits.max_residency:
        found.append("blocks")
    if not found and taken and not _find_places(has, limits.max_warps // has.parts, taken):
        found += ["registers", "threads"]
    return tuple(found)


# ---------------------------------------------------------------- how a device gives out what it has


def _has(limits: Limits) -> _Has:
    capability = compute_capability(limits.arch)
    if capability is not None:
        return _Has((1 << 16) // 4, 8, 4, 128 if capability >= 80 else 256)
    # accumulators are in the same file
    wide = limits.arch in ("gfx90a", "gfx950") or limits.arch.startswith("gfx94")
    return _Has((1 << (17 if wide else 16)) // 4, 8, 4, 512)


def _takes(block: Footprint, limits: Limits) -> _Takes:
    has = _has(limits)
    smem = -(-(block.smem + limits.smem_reserved) // has.smem_granule) * has.smem_granule
    of_warp = -(-block.registers // has.granule) * has.granule * limits.warp
    return _Takes(-(-block.threads // limits.warp), of_warp, smem)


def _find_places(has: _Has, slots: int, blocks: Sequence[tuple[_Takes, int]]) -> bool:
    """Whether the warps of so many blocks find places in the parts, each with room for `slots` warps."""
    if len(blocks) == 1:  # the first ones lie in any parts, so that only the sum counts
        ((takes, count),) = blocks
        return takes.warps * count <= has.parts * _in_part((has.registers, slots), takes.of_warp)
    start: _Parts = ((has.registers, slots),) * has.parts
    return bool(_after(start, tuple((t.of_warp, t.warps) for t, n in blocks for _ in range(n))))


@lru_cache(maxsize=4096)
def _after(start: _Parts, blocks: tuple[tuple[int, int], ...]) -> frozenset[_Parts]:
    """All that may be left of the parts when these blocks, one after another, are on the multiprocessor; empty: they
    find no place."""
    if not blocks:
        return frozenset({start})
    *before, (of_warp, warps) = blocks
    return frozenset(after for parts in _after(start, tuple(before)) for after in _placed(parts, of_warp, warps))


def _placed(parts: _Parts, of_warp: int, warps: int) -> Iterator[_Parts]:
    """What is left of the parts when the warps of one more block are spread evenly over them, in every such way."""
    each, more = divmod(warps, len(parts))
    for chosen in combinations(range(len(parts)), more):
        here = [each + (i in chosen) for i in range(len(parts))]
        if all(n <= _in_part(part, of_warp) for n, part in zip(here, parts, strict=True)):
            yield tuple(
                sorted((registers - n * of_warp, slots - n) for n, (registers, slots) in zip(here, parts, strict=True))
            )


def _in_part(part: tuple[int, int], of_warp: int) -> int:
    """Warps that a part takes."""
    registers, slots = part
    return min(slots, registers // of_warp) if of_warp else slots
