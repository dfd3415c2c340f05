"""Dependencies between ops, from the regions that they touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ficco_dsl.diagnostics import Diagnostic, Note, ScheduleError, Span

from ..region import Box, BoxMap, describe
from . import ir

MOST_MISTAKES = 20


@dataclass(frozen=True, slots=True)
class _Cell:
    """Who wrote these elements last, and who has read them since. -1: nobody."""

    writer: int
    readers: tuple[int, ...]


_FRESH = _Cell(-1, ())


def link(
    ops: Sequence[ir.Op], tensors: Mapping[str, ir.Tensor], stages: Sequence[ir.Stage]
) -> tuple[tuple[ir.Dep, ...], ...]:
    """For each op the earlier ops that it must follow: read after write, write after read, write after write.

    A write after a write is left out where readers stand between the two. Raises ScheduleError where two
    ranks touch the same bytes in one phase of a stage and one of them writes: nothing orders those.
    """
    written = {(r.tensor, r.rank) for op in ops for r in op.writes}
    state: dict[tuple[str, int], BoxMap[_Cell]] = {}
    for tensor, rank in written:
        state[tensor, rank] = BoxMap(tensors[tensor].shapes[rank], _FRESH)
    conflicts: dict[tuple[Span, Span], Diagnostic] = {}
    deps: list[tuple[ir.Dep, ...]] = []
    found: dict[int, ir.Dep] = {}

    for i, op in enumerate(ops):
        found = {}
        for region in op.reads:
            cells = state.get((region.tensor, region.rank))
            if cells is None:  # an input: nobody writes it
                continue
            for box in region.boxes:
                # one new cell for each old one, so that equal neighbours stay joined
                renewed: dict[_Cell, _Cell] = {}

                def read(cell: _Cell, tensor: str = region.tensor, rank: int = region.rank) -> _Cell:
                    if cell.writer >= 0 and cell.writer not in found:
                        found[cell.writer] = ir.Dep(cell.writer, "read after write", tensor, rank)
                    if cell.readers and cell.readers[-1] == i:
                        return cell
                    if cell not in renewed:
                        renewed[cell] = _Cell(cell.writer, (*cell.readers, i))
                    return renewed[cell]

                cells.update(box, read)
        for region in op.writes:
            mine = _Cell(i, ())

            def write(cell: _Cell, tensor: str = region.tensor, rank: int = region.rank, mine: _Cell = mine) -> _Cell:
                for reader in cell.readers:
                    if reader != i and reader not in found:
                        found[reader] = ir.Dep(reader, "write after read", tensor, rank)
                if cell.writer >= 0 and (not cell.readers or cell.readers == (i,)) and cell.writer not in found:
                    found[cell.writer] = ir.Dep(cell.writer, "write after write", tensor, rank)
                return mine

            for box in region.boxes:
                state[region.tensor, region.rank].update(box, write)
        for dep in found.values():
            _refuse_within_phase(ops, stages, i, dep, conflicts)
        deps.append(tuple(sorted(found.values(), key=lambda d: d.before)))
    if conflicts:
        raise ScheduleError(tuple(list(conflicts.values())[:MOST_MISTAKES]))
    return tuple(deps)


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
    first, second = dep.hazard.split(" after ")[::-1]
    box = _common(ops[dep.before], ops[i], dep)
    conflicts[a.origin, b.origin] = Diagnostic(
        b.origin,
        f"in stage '{stages[b.stage].label}' rank {b.rank} {second}s {dep.tensor}@{dep.rank} {describe(box)} "
        f"while rank {a.rank} {first}s them: nothing orders ranks within a stage",
        (Note(f"rank {a.rank} {first}s here", a.origin),),
        "give each its own place, split the stage in two, or put the loop into 'step'",
    )


def _common(a: ir.Op, b: ir.Op, dep: ir.Dep) -> Box:
    """The first elements that both touch, the way the dependency says."""
    before = a.reads if dep.hazard == "write after read" else a.writes
    after = b.reads if dep.hazard == "read after write" else b.writes
    for x in before:
        for y in after:
            if (x.tensor, x.rank) == (y.tensor, y.rank) == (dep.tensor, dep.rank):
                for box in x.boxes:
                    for other in y.boxes:
                        met = box.meet(other)
                        if met is not None:
                            return met
    raise AssertionError("a dependency without a common part")
