"""Records which accesses touched which elements, and checks whether each new access knows that the conflicting earlier
ones have ended."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ficco_dsl.diagnostics import Span

from ..errors import PlanError
from ..geometry.region import Box, BoxMap, Region
from ..graph.budget import CHECKED, Budget
from .clock import Clock


@dataclass(slots=True, eq=False)  # NOTE not frozen: a check makes hundreds of thousands
class Toucher:
    """An accessor of elements, and how others know that its access has ended: they know `position` entries of `stream`,
    or, for works without order among themselves, the bit `bit`."""

    stream: int
    position: int
    bit: int  # -1: none
    origin: Span
    what: str  # for people
    run: int = 0
    # where it stands in the meaning: of conflicting accesses of a run the earlier first
    order: tuple[int, int] = (0, 0)

    def known(self, clock: Clock, by: Toucher) -> bool:
        """Whether `by`, an accessor that knows `clock`, begins after this access has ended."""
        if self.stream == by.stream:
            done = self.position < by.position
        else:
            done = bool(clock.done[self.stream] >= self.position)
        return done or (self.bit >= 0 and clock.works >> self.bit & 1 == 1)


@dataclass(slots=True, eq=False)
class _Cell:
    writer: Toucher | None
    readers: tuple[Toucher, ...]


_FRESH = _Cell(None, ())
POINT = Box((0,), (1,))


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to the same elements, at least one of which writes, that nothing orders (`race`), or that come in
    another order than the meaning has them (`order`)."""

    kind: Literal["race", "order"]
    region: Region
    box: Box
    earlier: Toucher
    did: str  # "reads" or "writes"
    later: Toucher
    does: str


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A read of elements that nothing has written in the run."""

    region: Region
    box: Box
    reader: Toucher


class Ledger:
    """The last writer and the readers since of every element of tensors that are written. `shapes` are those of the
    tensors by name and rank; `told` is called with each mistake that is found. What is read of `made` tensors must have
    been written in the same run. Raises PlanError where the accesses meet in too many pieces (`graph.budget`)."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[tuple[int, ...], ...]],
        written: Iterable[Region],
        told: Callable[[Race | Unwritten], None],
        made: Container[str] = (),
    ) -> None:
        self._told = told
        self._made = made
        self._cells: dict[tuple[str, int], BoxMap[_Cell]] = {}
        self._points: dict[tuple[str, int], _Cell] = {}  # of tensors of one element
        for region in written:
            key = (region.tensor, region.rank)
            if key not in self._cells:
                self._cells[key] = BoxMap(shapes[region.tensor][region.rank], _FRESH)
        self._left = Budget(CHECKED, PlanError)

    def read(self, region: Region, clock: Clock, me: Toucher) -> None:
        cells = self._cells.get((region.tensor, region.rank))
        if cells is not None:
            made = region.tensor in self._made
            self._renew(cells, region, me, lambda cell, box: self._read(cell, region, box, clock, me, made))

    def _renew(self, cells: BoxMap[_Cell], region: Region, me: Toucher, new: Callable[[_Cell, Box], _Cell]) -> None:
        """One new cell for each old one, so that equal neighbours stay joined."""
        for box in region.boxes:
            renewed: dict[_Cell, _Cell] = {}

            def renew(cell: _Cell, box: Box = box, renewed: dict[_Cell, _Cell] = renewed) -> _Cell:
                made = renewed.get(cell)
                if made is None:
                    made = renewed[cell] = new(cell, box)
                return made

            self._left.spend(cells.update(box, renew), me.origin)

    def _read(self, cell: _Cell, region: Region, box: Box, clock: Clock, me: Toucher, made: bool) -> _Cell:
        if cell.writer is not None:
            self._compare(region, box, cell.writer, "writes", me, "reads", clock)
        if made and (cell.writer is None or cell.writer.run != me.run):
            self._told(Unwritten(region, box, me))
        if me.bit < 0 and any(r.stream == me.stream and r.position == me.position for r in cell.readers):
            return cell  # another copy of the batch: they end together, so one speaks for all
        # an earlier reader on this stream is over when this one is
        rest = tuple(r for r in cell.readers if r.stream != me.stream or (r.position == me.position and r is not me))
        self._left.spend(len(rest) // 8, me.origin)
        return _Cell(cell.writer, (*rest, me))

    def write(self, region: Region, clock: Clock, me: Toucher) -> None:
        cells = self._cells[region.tensor, region.rank]
        mine = _Cell(me, ())
        for box in region.boxes:

            def write(cell: _Cell, box: Box = box) -> _Cell:
                self._over(cell, region, box, clock, me)
                return mine

            self._left.spend(cells.update(box, write), me.origin)

    def _over(self, cell: _Cell, region: Region, box: Box, clock: Clock, me: Toucher) -> None:
        """Whether all that has touched the elements is over."""
        if cell.writer is not None:
            self._compare(region, box, cell.writer, "writes", me, "writes", clock)
        self._left.spend(len(cell.readers) // 4, me.origin)
        for reader in cell.readers:
            self._compare(region, box, reader, "reads", me, "writes", clock)

    def touch(self, region: Region, clock: Clock, me: Toucher, *, last: bool = False) -> None:
        """What may read and write the elements, beside others that touch them in the same run. They count as touched,
        not as written; the `last` ones leave no trace."""
        cells = self._cells.get((region.tensor, region.rank))
        if cells is not None:
            self._renew(cells, region, me, lambda cell, box: self._touch(cell, region, box, clock, me, last))

    def _touch(self, cell: _Cell, region: Region, box: Box, clock: Clock, me: Toucher, last: bool) -> _Cell:
        if cell.writer is not None and cell.writer.run != me.run:
            self._compare(region, box, cell.writer, "writes", me, "touches", clock)
        for reader in cell.readers:
            if reader.run != me.run:
                self._compare(region, box, reader, "reads", me, "touches", clock)
        # NOTE what is older is kept: others that touch them beside it may not know it
        rest = tuple(r for r in cell.readers if r.stream != me.stream or r.run == me.run)
        return cell if last else _Cell(cell.writer, (*rest, me))

    # ---- single elements: the same without boxes

    def read_point(self, point: Region, clock: Clock, me: Toucher) -> None:
        key = (point.tensor, point.rank)
        made = self._read(self._points.get(key, _FRESH), point, POINT, clock, me, False)
        self._points[key] = made

    def write_point(self, point: Region, clock: Clock, me: Toucher) -> None:
        key = (point.tensor, point.rank)
        self._over(self._points.get(key, _FRESH), point, POINT, clock, me)
        self._points[key] = _Cell(me, ())

    def touch_point(self, point: Region, clock: Clock, me: Toucher, *, last: bool = False) -> None:
        key = (point.tensor, point.rank)
        self._points[key] = self._touch(self._points.get(key, _FRESH), point, POINT, clock, me, last)

    def _compare(
        self, region: Region, box: Box, earlier: Toucher, did: str, me: Toucher, does: str, clock: Clock
    ) -> None:
        if earlier is me:
            return
        if not earlier.known(clock, me):
            self._told(Race("race", region, box, earlier, did, me, does))
        elif earlier.run == me.run and earlier.order > me.order:
            self._told(Race("order", region, box, earlier, did, me, does))
