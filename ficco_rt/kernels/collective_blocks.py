"""The resources of a multiprocessor that blocks of the vendor's collectives take, by version of the library.

NCCL. Registers and static shared memory were read from the binaries of 2.28.9 and 2.32.3 for sm_90; versions between
them are assumed to equal the later one. The rest is from NCCL's source. Dynamic shared memory is that of 20 warps,
however many a block has (ncclShmemDynamicSize, src/include/device.h). Threads are NCCL_NTHREADS with the simple
protocol, one warp more by rings and four more by trees (src/enqueue.cc), and 640 (NCCL_MAX_NTHREADS) with the protocol
LL128 and for sends. NOTE the library chooses the protocol for each call: large messages use the simple protocol.

RCCL. Nothing was measured. Threads and scratch for four waves are from RCCL's source; static memory is taken from NCCL;
the number of vector registers is the most that a wave without accumulators may have.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

from .block_fit import Footprint
from .target import compute_capability

Version: TypeAlias = tuple[int, int]
ASSUMED: Version = (2, 28)  # where no library has told its version: PyTorch's
EXCHANGE = "all_to_all"  # made of sends

_USUAL_THREADS, _MOST_THREADS, _WARP = 512, 640, 32
_REGISTERS, _DYNAMIC = 96, 82240
_CLUSTER = 4  # since Hopper, where it divides the grid (NCCL_CGA_CLUSTER_SIZE)
_SYMMETRIC_THREADS, _SYMMETRIC_REGISTERS = 512, 72
_RCCL = Footprint("RCCL", 256, 256, 22592, 16448)


@dataclass(frozen=True, slots=True)
class _Release:
    """What changed with a version."""

    since: Version
    static_smem: int
    read: str  # the version whose binary the figure is of


_RELEASES = (_Release((2, 0), 22592, "2.28.9"), _Release((2, 29), 37824, "2.32.3"))


@dataclass(frozen=True, slots=True)
class CollectiveBlock:
    """A block of the library, when the library takes it, and where the figures come from."""

    footprint: Footprint
    when: str
    source: str
    measured: bool


def blocks_of(
    kinds: Collection[str], threads: int | None, arch: str, version: Version = ASSUMED
) -> tuple[CollectiveBlock, ...]:
    """All blocks that collectives of these kinds may have, those of the largest messages first. `threads`: as the queue
    says."""
    if not kinds:
        return ()
    if compute_capability(arch) is None:
        block = replace(_RCCL, threads=min(threads or _RCCL.threads, _RCCL.threads))
        return (CollectiveBlock(block, "any", "RCCL's source, and bounds; not measured", measured=False),)
    release = max((r for r in _RELEASES if r.since <= version), key=lambda r: r.since)
    measured = compute_capability(arch) == 90
    source = f"NCCL {release.read}: its binary for sm_90, its source" + ("" if measured else "; not measured here")
    simple = threads or _USUAL_THREADS
    cluster = _CLUSTER if (compute_capability(arch) or 0) >= 90 else 1
    by = {
        "rings, simple protocol": simple + _WARP if set(kinds) - {EXCHANGE} else 0,
        "trees, simple protocol": simple + 4 * _WARP if "all_reduce" in kinds else 0,
        "protocol LL128": _MOST_THREADS if set(kinds) - {EXCHANGE} else 0,
        "sends": _MOST_THREADS if EXCHANGE in kinds else 0,
    }
    return tuple(
        CollectiveBlock(
            Footprint("NCCL", n, _REGISTERS, release.static_smem, _DYNAMIC, cluster), when, source, measured
        )
        for when, n in by.items()
        if n
    )


def planned(
    kinds: Collection[str], threads: int | None, arch: str, version: Version = ASSUMED
) -> tuple[Footprint, ...]:
    """The blocks for which `leave = nccl` leaves room: the largest; or, if the queue says `threads`, those of rings
    with the simple protocol, and of sends, which no setting makes smaller."""
    found = blocks_of(kinds, threads, arch, version)
    if threads is None:
        return tuple(sorted({b.footprint for b in found}, key=lambda f: f.threads)[-1:])
    chosen = (b.footprint for b in found if b.when in ("rings, simple protocol", "sends", "any"))
    return tuple(dict.fromkeys(chosen))


def symmetric(version: Version = ASSUMED) -> Footprint:
    """A block of NCCL's kernels on registered symmetric memory, which our tensors are not: for comparison."""
    return Footprint("NCCL, symmetric memory", _SYMMETRIC_THREADS, _SYMMETRIC_REGISTERS, 0, _DYNAMIC)
