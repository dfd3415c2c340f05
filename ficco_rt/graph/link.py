"""Finds the dependencies between ops from the regions that they touch; refuses ranks that conflict within a phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ficco_dsl.diagnostics import Diagnostic, Note, ScheduleError, Span

from ..geometry.region import Box, BoxMap, Region, describe
from . import ir
from .budget import ACCESSES, Budget
from .evaluate import MOST_MISTAKES
from .scales import is_scales


def link(
    ops: Sequence[ir.Op], tensors: Mapping[str, ir.Tensor], stages: Sequence[ir.Stage]
) -> tuple[tuple[ir.Dep, ...], ...]:
    """For each op the earlier ops that it must follow: read after write, write after read, write after write.

    A write-after-write dependency is left out where reads lie between the two writes: they imply it. Raises
    ScheduleError where two ranks touch the same bytes in one phase of a stage and one of them writes: nothing orders
    those.
    """
    history = _History(ops, tensors)
    budget = Budget(ACCESSES)
    conflicts: dict[tuple[Span, Span], Diagnostic] = {}
    of_scales: dict[tuple[Span, Span], Diagnostic] = {}  # told of where nothing is wrong with the values
    deps: list[tuple[ir.Dep, ...]] = []
    for i, op in enumerate(ops):
        found, cost = history.follow(i, op)
        budget.spend(cost + 8 * len(found), op.where.origin)  # dependencies stay
        for dep in found.values():
            _refuse_within_phase(ops, stages, i, dep, of_scales if is_scales(dep.tensor) else conflicts)
        deps.append(tuple(sorted(found.values(), key=lambda d: d.before)) if len(found) > 1 else tuple(found.values()))
    if conflicts or of_scales:
        raise ScheduleError(tuple(list((of_scales | conflicts).values())[:MOST_MISTAKES]))
    return tuple(deps)


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """The last writer of these elements, and their readers since. -1: nobody."""

    writer: int
    readers: _Readers | None


@dataclass(frozen=True, slots=True, eq=False)
class _Readers:
    """The last reader, and those before: a list that grows without a copy."""

    op: int
    before: _Readers | None


class _History:
    """The last accesses of every element of every tensor that is ever written."""

    def __init__(self, ops: Sequence[ir.Op], tensors: Mapping[str, ir.Tensor]) -> None:
        fresh = _Cell(-1, None)
        self.cells: dict[tuple[str, int], BoxMap[_Cell]] = {
            (tensor, rank): BoxMap(tensors[tensor].shapes[rank], fresh)
            for tensor, rank in {(r.tensor, r.rank) for op in ops for r in op.writes}
        }
        self.op = -1
        self.region: Region
        self.found: dict[int, ir.Dep] = {}
        self.passed = 0  # readers that the op at hand writes after, once for each part that they read
        self.renewed: dict[_Cell, _Cell] = {}
        self.mine = fresh

    def follow(self, i: int, op: ir.Op) -> tuple[dict[int, ir.Dep], int]:
        """The ops that op i must follow, and what finding them cost. Afterwards the accesses of op i are the latest."""
        self.op, self.found, self.passed = i, {}, 0
        cost = 0
        for region in op.reads:
            cells = self.cells.get((region.tensor, region.rank))
            if cells is None:  # an input: nobody writes it
                continue
            self.region, self.renewed = region, {}
            for box in region.boxes:
                cost += cells.update(box, self._read)
        self.mine = _Cell(i, None)
        for region in op.writes:
            self.region = region
            cells = self.cells[region.tensor, region.rank]
            for box in region.boxes:
                cost += cells.update(box, self._write)
        return self.found, cost + self.passed // 4

    def _note(self, before: int, hazard: ir.Hazard) -> None:
        if before not in self.found:
            self.found[before] = ir.Dep(before, hazard, self.region.tensor, self.region.rank)

    def _read(self, cell: _Cell) -> _Cell:
        if cell.writer >= 0:
            self._note(cell.writer, "read after write")
        if cell.readers is not None and cell.readers.op == self.op:
            return cell
        # one new cell for each old one, so that equal neighbours stay joined
        new = self.renewed.get(cell)
        if new is None:
            new = self.renewed[cell] = _Cell(cell.writer, _Readers(self.op, cell.readers))
        return new

    def _write(self, cell: _Cell) -> _Cell:
        readers = cell.readers
        if readers is not None and readers.op == self.op:
            readers = readers.before
        if cell.writer >= 0 and readers is None:
            self._note(cell.writer, "write after write")
        while readers is not None:
            self._note(readers.op, "write after read")
            self.passed += 1
            readers = readers.before
        return self.mine


def _refuse_within_phase(
    ops: Sequence[ir.Op],
    stages: Sequence[ir.Stage],
    i: int,
    dep: ir.Dep,
    conflicts: dict[tuple[Span, Span], Diagnostic],
) -> None:
    a, b = ops[dep.before].where, ops[i].where
    if a.rank == b.rank or a.stage != b.stage or a.phase != b.phase or (a.origin, b.origin) in conflicts:
        return
    second, first = dep.hazard.split(" after ")
    box = _common(ops[dep.before], ops[i], dep)
    conflicts[a.origin, b.origin] = Diagnostic(
        b.origin,
        f"in stage '{stages[b.stage].label}' rank {b.rank} {second}s {dep.tensor}@{dep.rank} {describe(box)} "
        f"while rank {a.rank} {first}s them: nothing orders ranks within a stage",
        (Note(f"rank {a.rank} {first}s here", a.origin),),
        "give each its own place, split the stage in two, or put the loop into 'step'",
    )


def _common(a: ir.Op, b: ir.Op, dep: ir.Dep) -> Box:
    """The first elements that both ops touch in the way that the dependency says."""
    before = a.reads if dep.hazard == "write after read" else a.writes
    after = b.reads if dep.hazard == "read after write" else b.writes
    return next(
        met
        for x in before
        for y in after
        if (x.tensor, x.rank) == (y.tensor, y.rank) == (dep.tensor, dep.rank)
        for box in x.boxes
        for other in y.boxes
        if (met := box.meet(other)) is not None
    )
