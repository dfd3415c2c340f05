"""The kernel family for any GPU: products, and all that no other family makes, such as sums and copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from ...graph.ir import Body, Gemm
from ...machine.model import Device
from ...types import TYPES
from .. import target
from ..block_fit import Footprint, resident
from ..family import Chosen, Encode, Family, GemmRequest, KernelConfig, LaunchRequest, Move, Tables
from ..leaving import NO_ROOM, shapes
from ..occupancy import Limits, Window, at_once, window
from ..pace import Pace
from ..signature import applied
from ..works import Work, only
from .cost import pace, reached
from .plain_kernels import DEPTH, KERNELS, PLAIN, NaiveCopy, NaiveGemm, NaiveKernel, NaiveReduce
from .tables import BASES, Packed

GEMM, REDUCE, COPY = NaiveGemm.name, NaiveReduce.name, NaiveCopy.name
_STAGES = (1, 4)  # fewest and most: the kernel uses one; memory for more is asked for and not used


def kernel_of(bodies: Iterable[Body]) -> NaiveKernel[Any]:
    """The kernel after which a launch of such works is named: the first of those that make them."""
    kinds = set(map(type, bodies))
    return next(kernel for kernel in KERNELS if kernel.body in kinds)


def block_of(kernel: NaiveKernel[Any], limits: Limits, dynamic_smem: int = 0) -> Footprint:
    """A block of one of the kernels."""
    needs, nvidia = kernel.needs, target.compute_capability(limits.arch) is not None
    registers = needs.registers if nvidia else needs.vector_registers
    return Footprint(kernel.name, needs.threads, registers, needs.static_smem, dynamic_smem)


def _entry(work: Work) -> str:
    """The name of the kernel that makes it, compiled for its types."""
    kernel = kernel_of([work.body])
    function = kernel.function(work)
    scaled = ("scaled",) if kernel.scaled(work) else ()
    return "_".join((kernel.name, *kernel.types(work), *scaled, *((function,) if function else ())))


class Naive(Family[NaiveGemm]):
    name = "naive"
    source = "naive.cu"
    variants = (PLAIN,)

    def reached(self, device: Device, dtype: str) -> float:
        return reached(device, dtype)

    def footprints(self, limits: Limits) -> Sequence[Footprint]:
        return [block_of(PLAIN, limits, PLAIN.smem(_STAGES[0]))]

    def fits(self, request: GemmRequest) -> str | None:
        return None

    def choose(self, request: GemmRequest, limits: Limits) -> Chosen | str:
        """Chooses shared memory for the deepest pipeline that the resources allow."""
        threads = PLAIN.needs.threads
        if (request.residency or 1) * threads > limits.max_threads:
            return (
                f"residency = {request.residency}, but a multiprocessor holds at most "
                f"{limits.max_threads // threads} blocks of {threads} threads"
            )
        left = window(request.residency, request.smem, limits)
        if isinstance(left, str):
            return left
        if request.leave:
            found = self.leaving(PLAIN, request, limits)
            if isinstance(found, str):
                return found
            left = Window(found.least, found.most if request.smem is None else request.smem)
        dtype = PLAIN.held(only(request.works, Gemm)[0])
        fewest, most = _STAGES
        needed = PLAIN.smem(fewest, dtype)
        if needed > left.most:
            return f"{GEMM} needs {needed} bytes of shared memory a block; {left.most} are left to it"
        stages = max(s for s in range(fewest, most + 1) if PLAIN.smem(s, dtype) <= left.most)
        # a block that asks for more leaves less for others
        smem = request.smem if request.smem is not None else max(PLAIN.smem(stages, dtype), left.least)
        return Chosen(self.name, GEMM, (*PLAIN.tile, DEPTH), stages, smem, request.residency, request.sms)

    def leaving(self, kernel: NaiveKernel[Any], request: GemmRequest, limits: Limits) -> Window | str:
        """The shared memory, static and dynamic, of as many blocks of a kernel as leave what the request says."""
        dtype = next(map(PLAIN.held, only(request.works, Gemm)), "bf16")
        block = block_of(kernel, limits, kernel.smem(_STAGES[0], dtype))
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
        first, waiting = 0, request.streamed and any(work.waits for work in request.works)
        for entry, group in groupby(request.works, _entry):
            works = list(group)
            kernel = kernel_of([works[0].body])
            types, block = kernel.types(works[0]), block_of(kernel, limits)
            # the plan's figure counts all shared memory of a block
            smem = max(kernel.smem(1, kernel.held(works[0])), request.smem - block.static_smem)
            fitting = resident(block.threads, block.registers, smem + block.static_smem, limits)
            tile = kernel.cut(works, request.sms)
            tiles = sum(kernel.tiles(w, tile) for w in works)
            alone = waiting or kernel.spread
            blocks = min(request.sms if alone else at_once(request.sms, fitting, limits), tiles)
            # NOTE where launches in clusters may run too: one block here and one there would leave multiprocessors that
            # no cluster can use, and the last cluster would start when others have ended
            cluster = request.cluster if request.streamed and blocks >= request.cluster else 1
            defines = [f"-D{kernel.name.removeprefix('naive_').upper()}={entry}"]
            if types:
                defines += (f"-DIN={TYPES[types[0]].number}", f"-DOUT={TYPES[types[-1]].number}")
            defines += [f"-DRIGHT={TYPES[t].number}" for t in types[1:-1]]
            defines += ["-DSCALED"] * kernel.scaled(works[0])
            defines += applied(kernel.function(works[0]))
            yield KernelConfig(
                family=self.name,
                kernel=kernel.name,
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
        kernel = kernel_of([works[first].body])
        packed = Packed(kernel.record)
        for work in works[first : first + count]:
            packed.close(kernel.pack(packed, work, config.tile))
        packed.reset(resets)
        return _tables(packed, *packed.image, int)

    def movable(self, bodies: Iterable[Body]) -> bool:
        return len({(region.tensor, region.rank) for b in bodies for region in (*b.reads, *b.writes)}) <= BASES


def _tables(packed: Packed, image: bytes, offsets: Sequence[int], move: Move) -> Tables:
    def arguments(constants: int, zeros: int, partials: int, encode: Encode) -> list[bytes]:
        return [packed.table(offsets, constants, zeros, move)]

    again = partial(_tables, packed, image, offsets)
    return Tables(image, packed.counters, 0, arguments, packed.tile_works, again)


NAIVE = Naive()
