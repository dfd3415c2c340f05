"""The kernel family for any GPU: products, and the sums and copies, which no other family provides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...machine.model import Device
from ...types import TYPES
from .. import target
from ..block_fit import Footprint, resident
from ..family import Chosen, Family, GemmRequest, KernelConfig, LaunchRequest, Tables
from ..leaving import NO_ROOM, shapes
from ..occupancy import Limits, Window, at_once, window
from ..pace import Pace
from ..works import Copy, Product, Sum, Work
from . import tables
from .cost import pace, reached

GEMM, REDUCE, COPY = "naive_gemm", "naive_reduce", "naive_copy"
_STAGES = (1, 4)  # fewest and most: the kernel uses one; memory for more is asked for and not used
_COPY_TILE = (16 << 10, 128 << 10)  # bytes: the least that are worth a block, the most before its flags go up


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """What a block of a kernel takes, as its compilers say (tests/unit/test_gpu_parts.py, test_naive_amd.py)."""

    threads: int
    registers: int  # of a thread, at most: NVIDIA's compiler
    vector_registers: int  # AMD's
    static_smem: int  # bytes


BLOCKS = {
    GEMM: BlockNeeds(tables.THREADS, 128, 168, 2064),
    REDUCE: BlockNeeds(tables.THREADS, 128, 112, 4),
    COPY: BlockNeeds(tables.COPY_THREADS, 128, 80, 4),
}


def block_of(kernel: str, limits: Limits, dynamic_smem: int = 0) -> Footprint:
    """A block of one of the kernels."""
    needs, nvidia = BLOCKS[kernel], target.compute_capability(limits.arch) is not None
    registers = needs.registers if nvidia else needs.vector_registers
    return Footprint(kernel, needs.threads, registers, needs.static_smem, dynamic_smem)


@dataclass(frozen=True, slots=True)
class Plain:
    """The product's kernel. Its tile is that of the tuned kernels, so that tiles can be counted without them."""

    name: str = GEMM
    tile: tuple[int, int] = (tables.TILE, tables.TILE)
    cluster: int = 1

    def smem(self, stages: int, dtype: str) -> int:
        """Dynamic shared memory of a block, bytes."""
        return stages * sum(self.tile) * tables.DEPTH * TYPES[dtype].bytes


PLAIN = Plain()


def _kind(work: Work) -> tuple[str, ...]:
    """The kernel that makes it, and the types of operands and result, which copies do not have."""
    if isinstance(work, Product):
        return GEMM, work.left.dtype, work.out.dtype
    return (REDUCE, work.out.dtype) if isinstance(work, Sum) else (COPY,)


class Naive(Family[Plain]):
    name = "naive"
    source = "naive.cu"
    variants = (PLAIN,)

    def reached(self, device: Device, dtype: str) -> float:
        return reached(device, dtype)

    def footprints(self, limits: Limits) -> Sequence[Footprint]:
        return [block_of(GEMM, limits, PLAIN.smem(_STAGES[0], "bf16"))]

    def fits(self, request: GemmRequest) -> str | None:
        return None

    def choose(self, request: GemmRequest, limits: Limits) -> Chosen | str:
        """Chooses shared memory for the deepest pipeline that the resources allow."""
        threads = BLOCKS[GEMM].threads
        if (request.residency or 1) * threads > limits.max_threads:
            return (
                f"residency = {request.residency}, but a multiprocessor holds at most "
                f"{limits.max_threads // threads} blocks of {threads} threads"
            )
        left = window(request.residency, request.smem, limits)
        if isinstance(left, str):
            return left
        if request.leave:
            found = self.leaving(GEMM, request, limits)
            if isinstance(found, str):
                return found
            left = Window(found.least, found.most if request.smem is None else request.smem)
        dtype = next(w.left.dtype for w in request.works if isinstance(w, Product))
        fewest, most = _STAGES
        needed = PLAIN.smem(fewest, dtype)
        if needed > left.most:
            return f"{GEMM} needs {needed} bytes of shared memory a block; {left.most} are left to it"
        stages = max(s for s in range(fewest, most + 1) if PLAIN.smem(s, dtype) <= left.most)
        # a block that asks for more leaves less for others
        smem = request.smem if request.smem is not None else max(PLAIN.smem(stages, dtype), left.least)
        tile = (*PLAIN.tile, tables.DEPTH)
        return Chosen(self.name, GEMM, tile, stages, smem, request.residency, request.sms)

    def leaving(self, kernel: str, request: GemmRequest, limits: Limits) -> Window | str:
        """The shared memory, static and dynamic, of as many blocks of a kernel as leave what the request says."""
        dtype = next((w.left.dtype for w in request.works if isinstance(w, Product)), "bf16")
        block = block_of(kernel, limits, PLAIN.smem(_STAGES[0], dtype) if kernel == GEMM else 0)
        ways = [s for _, s in shapes([block], request, limits)]
        if not ways:
            return NO_ROOM
        found = ways[-1]  # of most blocks
        return Window(found.least + block.static_smem, found.most + block.static_smem)

    def configure(self, request: LaunchRequest, limits: Limits) -> tuple[KernelConfig, ...]:
        """A launch for each run of works that one kernel makes. A work waits only for what stands before it in the
        text, so that launches one after another keep a streamed launch's order as well. The last one resets flags."""
        return tuple(self._configs(request, limits))

    def _configs(self, request: LaunchRequest, limits: Limits) -> Iterator[KernelConfig]:
        first = 0
        for kind, group in groupby(request.works, _kind):
            (kernel, *types), works = kind, list(group)
            block = block_of(kernel, limits)
            needed = PLAIN.smem(1, types[0]) if kernel == GEMM else 0
            # the plan's figure counts all shared memory of a block
            smem = max(needed, request.smem - block.static_smem)
            fitting = resident(block.threads, block.registers, smem + block.static_smem, limits)
            tile = _tile(works, request.sms)
            tiles = sum(_tiles(w, tile) for w in works)
            alone = request.streamed or kernel == COPY  # one block a multiprocessor
            blocks = min(request.sms if alone else at_once(request.sms, fitting, limits), tiles)
            # NOTE where launches in clusters may run too: one block here and one there would leave multiprocessors that
            # no cluster can use, and the last cluster would start when others have ended
            cluster = request.cluster if request.streamed and blocks >= request.cluster else 1
            entry = "_".join(kind)
            defines = [f"-D{kernel.removeprefix('naive_').upper()}={entry}"]
            if types:
                defines += (f"-DIN={TYPES[types[0]].number}", f"-DOUT={TYPES[types[-1]].number}")
            yield KernelConfig(
                family=self.name,
                kernel=kernel,
                entry=entry,
                source=self.source,
                options=(*target.options(limits.arch), *defines),
                threads=block.threads,
                registers=block.registers,
                smem=smem,
                static_smem=block.static_smem,
                blocks=blocks // cluster * cluster,
                cluster=cluster,
                resident=fitting,
                tiles=tiles,
                works=(first, len(works)),
                chained=target.chains(limits.arch),
                resets=request.resets if first + len(works) == len(request.works) else (),
                tile=tile,
                wave=max(1, blocks),
            )
            first += len(works)

    def pace(self, config: KernelConfig, device: Device, dtype: str) -> Pace:
        return pace(PLAIN.tile, config.blocks, device)

    def tables(self, config: KernelConfig, works: Sequence[Work], resets: Sequence[int] = ()) -> Tables:
        first, count = config.works
        mine = works[first : first + count]
        if config.kernel == GEMM:
            packed = tables.products([w for w in mine if isinstance(w, Product)])
        elif config.kernel == REDUCE:
            packed = tables.sums([w for w in mine if isinstance(w, Sum)])
        else:
            packed = tables.copies([w for w in mine if isinstance(w, Copy)], config.tile[1])
        packed.reset(resets)
        image, offsets = packed.image
        counters, works_of_tiles = packed.counters, packed.tile_works
        return Tables(
            image, 4 * counters, counters, lambda at, zeros, encode: [packed.table(offsets, at, zeros)], works_of_tiles
        )


def _tile(works: Sequence[Work], sms: int) -> tuple[int, int]:
    """Rows and columns; of copies bytes: a block fences its stores after every tile, so rather one tile each."""
    copies = [w for w in works if isinstance(w, Copy)]
    if copies:
        least, most = _COPY_TILE
        return 1, max(least, min(sum(map(tables.size_of_copy, copies)) // sms, most))
    return PLAIN.tile if isinstance(works[0], Product) else (1, tables.SUM_TILE)


def _tiles(work: Work, tile: tuple[int, int]) -> int:
    if isinstance(work, Product):
        return tables.tiles_of_product(work)
    if isinstance(work, Sum):
        return tables.tiles_of_sum(work)
    assert isinstance(work, Copy)
    return tables.tiles_of_copy(work, tile[1])


NAIVE = Naive()
