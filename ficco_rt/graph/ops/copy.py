"""`copy`: copies a region bit by bit, within a rank or between two."""

from __future__ import annotations

from collections.abc import Iterable

from ficco_dsl import verbs
from ficco_dsl.diagnostics import Span

from ...errors import malformed
from ...geometry.region import overlap, shape_words, summary, way
from ...machine import durations
from ...machine.model import Machine
from ...types import TYPES
from .. import ir
from ..symbolic import Algebra, Pieces
from .kind import Named, Noises, OpKind, Read, Resolve, Size, Tensors, Twin


class CopyKind(OpKind[ir.Copy]):
    body, node = ir.Copy, verbs.Copy
    word = noun = span = "copy"
    side = "moves"
    stored = "CopyWork"

    def fits(self, copy: ir.Copy, rank: int, tensors: Tensors) -> str | None:
        """A copy moves equal shapes of one type, between this rank and at most one other, without overlap."""
        dst, src = copy.dst, copy.src
        if dst.shape != src.shape:
            of, to = (f"{r.tensor}, {shape_words(r.shape)}" for r in (src, dst))
            return f"copy from {of}, to {to}: the sizes differ"
        a, b = tensors[src.tensor].dtype, tensors[dst.tensor].dtype
        if a != b:
            rounds = f"; write quantize {dst.tensor} = {src.tensor}" if TYPES[b].quantised > TYPES[a].quantised else ""
            return f"copy from {src.tensor} ({a}) to {dst.tensor} ({b}): a copy does not change the type{rounds}"
        if rank not in (dst.rank, src.rank):
            return f"rank {rank} copies between ranks {src.rank} and {dst.rank}; one of them must be its own"
        if overlap(dst, src):
            return f"copy within {src.tensor}: source and destination overlap"
        return None

    def text(self, copy: ir.Copy) -> str:
        return f"copy {copy.dst} <- {copy.src}"

    def values(self, copy: ir.Copy, algebra: Algebra, read: Read) -> Iterable[Pieces]:
        return (read(copy.src),)

    def noise(self, copy: ir.Copy, noises: Noises, origin: Span) -> None:
        noises.write(copy.dst, noises.read(copy.src))

    def bind(self, copy: ir.Copy, place: Span, resolve: Resolve) -> Twin:
        """The numpy twin, which copies bits."""
        dst, src = resolve(copy.dst), resolve(copy.src)
        if dst.shape != src.shape or dst.dtype != src.dtype:
            raise malformed(place, f"{copy.src} {src.dtype} cannot be copied to {copy.dst} {dst.dtype}")
        return lambda: dst.store(src.load())

    def label(self, copy: ir.Copy, rank: int | None, part: Named = summary) -> str:
        return way(copy.dst, copy.src, rank, part)

    def moved(self, copy: ir.Copy, size: Size) -> int:
        return size(copy.src)

    def time(self, copy: ir.Copy, machine: Machine, rank: int, size: Size, sms: int | None) -> float:
        return durations.store_time(machine, copy.src.rank, copy.dst.rank, size(copy.src), sms)
