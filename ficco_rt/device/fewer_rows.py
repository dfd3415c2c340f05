"""Device plans that run with fewer rows than they have (`geometry.rows`): which of them can, and their actions then.

Signals, waits and launches stay as they are, with everything that orders them. Each op does a part of what it does with
all rows. Names of elements, (block, row, column), are a part of the plan's, and lie at addresses of their own: so what
was free from races and deadlocks still is.

Scratch has fewer rows, too, if each op that writes it takes the rows of a block to the same rows of a block. Other
scratch has all its rows, and those that depend on what is not there hold anything. By the plan's proof no row that is
there depends on them, unless an op sums over rows: a product over the rows of both operands takes those that are there,
and a plan that sums over others in another way has all its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..geometry.region import Axis, Interval, Region
from ..geometry.rows import Block, Rows, pieces, segments
from ..graph.ir import Body, Collective, Copy, Gemm, KernelCall, Reduce
from ..kernels.naive.family import NAIVE
from ..kernels.sm90.family import SM90
from ..kernels.sm90.tables import MAX_OPERANDS
from ..kernels.works import over_rows, with_rows
from .ir import Action, CallCollective, CopyMemory, DeviceLaunch, DevicePlan


def blocks_of(plan: DevicePlan, planned: int, blocks: Mapping[str, int]) -> Mapping[str, int] | None:
    """The blocks of all tensors that have fewer rows, where the caller's have these `blocks` of so many rows. None: the
    plan runs with all its rows only."""
    bodies = list(_bodies(plan))
    found = dict(blocks)
    for tensor in plan.tensors:
        high = {shape[0] for shape in tensor.shapes}
        if tensor.kind == "scratch" and len(high) == 1 and not min(high) % planned:
            found[tensor.name] = min(high) // planned
    while wrong := {r.tensor for body in bodies for r in body.writes if not _alike(body, planned, found)} - {*blocks}:
        found = {name: count for name, count in found.items() if name not in wrong}
    rows = Rows(planned, planned, found)
    launches = [(launch, work.body) for launch in plan.launches for work in launch.works]
    fit = all(_launches(launch, body, rows) for launch, body in launches)
    return found if fit and all(_takes(body, rows) for body in bodies) and not _sums_of_any(bodies, found) else None


def _sums_of_any(bodies: Sequence[Body], blocks: Mapping[str, int]) -> bool:
    """Whether an op sums over rows of scratch that may hold anything."""
    loose: set[str] = set()

    def bounded(body: Body) -> bool:
        return over_rows(body) and any(region.tensor in blocks for region in body.reads[:2])

    def reads_any(body: Body) -> bool:
        reads = body.reads[2:] if bounded(body) else body.reads
        return any(region.tensor in loose or region.tensor in blocks for region in reads)

    while more := {r.tensor for body in bodies if reads_any(body) for r in body.writes} - loose - {*blocks}:
        loose |= more
    return any(region.tensor in loose for body in bodies if not bounded(body) for region in _summed(body))


def _summed(body: Body) -> Sequence[Region]:
    """What an op may read to sum over its rows."""
    if isinstance(body, Gemm):
        return body.reads[0 if body.left_transposed else 1 : 2]
    return body.reads if isinstance(body, KernelCall) else ()


def _bodies(plan: DevicePlan) -> Iterator[Body]:
    for launch in plan.launches:
        yield from (work.body for work in launch.works)
    for action in plan.body:
        yield from action.moves if isinstance(action, CopyMemory) else ()
        if isinstance(action, CallCollective):
            yield action


def _sides(body: Body) -> Sequence[Region]:
    return with_rows(body, (*body.writes, *body.reads))


def _alike(body: Body, planned: int, blocks: Mapping[str, int]) -> bool:
    """Whether a body that writes tensors with rows takes each from a tensor with rows, from the same row of a block."""
    sides = _sides(body)
    if not any(region.tensor in blocks for region in body.writes):
        return True
    if not isinstance(body, Copy | Gemm | Reduce | Collective) or over_rows(body):
        return False
    if not all(region.tensor in blocks and region.kept[:1] == (0,) for region in sides):
        return False
    if isinstance(body, Collective):
        return all(_whole(region, planned) for region in sides)
    block = Block(planned, planned)
    cut = pieces(sides, [block] * len(sides))
    return all(len({start % planned for start in starts}) == 1 for starts, _, _ in cut)


def _takes(body: Body, rows: Rows) -> bool:
    """Whether a body can do a part of its rows."""
    held = [region for region in (*body.writes, *body.reads) if region.tensor in rows.blocks]
    if not held:
        return True
    sides = _sides(body)
    if isinstance(body, KernelCall) or any(region not in sides or region.kept[:1] != (0,) for region in held):
        return False
    if isinstance(body, Collective):  # NOTE the library knows no gaps between parts
        return len(held) == len(sides) and all(_whole(region, rows.planned) for region in sides)
    return not isinstance(body, Gemm) or not body.left_transposed or over_rows(body)


def _whole(region: Region, planned: int) -> bool:
    return all(edge % planned == 0 for segment in segments(region) for edge in segment)


def _launches(launch: DeviceLaunch, body: Body, rows: Rows) -> bool:
    """Whether no tile of a product lies in several blocks. Plain kernels find each row's place, and others each piece's
    of K; tensor maps end with a block of both operands."""
    if not isinstance(body, Gemm) or launch.config.family == NAIVE.name:
        return True
    sides = _sides(body)
    if over_rows(body) and launch.config.family == SM90.name:
        within = all(rows.of(sides)) and sum(1 for _ in pieces(sides, rows.of(sides))) == 1
        return within and len(launch.works) == len(launch.config.merged) <= MAX_OPERANDS
    if over_rows(body) and not launch.config.matmuls:
        return True
    if over_rows(body) and (body.function or body.addends):  # NOTE calls over no rows are left out, with what they add
        return False
    if any(call.blocks for call in launch.config.matmuls):  # NOTE cuBLASLt takes rows with such scales by fours
        return False
    blocks = rows.of(sides)
    step = None if launch.config.matmuls else launch.config.tile[0]
    for number, (starts, size, _) in enumerate(pieces(sides, [None] * len(sides))):
        # NOTE the library cannot be called for a product over no rows: the first piece, of a block's begin, has some
        if (
            over_rows(body)
            and not body.accumulate
            and not number
            and any(block is not None and at % block.planned for at, block in zip(starts, blocks, strict=True))
        ):
            return False
        for at, block in zip(starts, blocks, strict=True):
            crosses = block is not None and at % block.planned + size > block.planned
            if block is not None and crosses and (not step or at % block.planned % step or block.planned % step):
                return False
    return True


def given(action: Action, rows: Rows) -> Action:
    """An action of a plan that takes fewer rows, with those that are there."""
    match action:
        case CopyMemory(moves=moves):
            sides = (rows.fewer((move.dst, move.src)) for move in moves)
            made = (replace(move, dst=dst, src=src) for move, (dst, src) in zip(moves, sides, strict=True))
            return replace(action, moves=tuple(made))
        case CallCollective(dst=dst, src=src):
            return replace(action, dst=_blocks(dst, rows), src=_blocks(src, rows))
    return action


def _blocks(region: Region, rows: Rows) -> Region:
    """Whole blocks, of which some rows are there."""
    if region.tensor not in rows.blocks:
        return region
    rest, given = region.axes[1:], Block(rows.planned, rows.given)
    found = Axis(tuple(Interval(given.place(a), given.place(b)) for a, b in segments(region)))
    return Region(region.tensor, region.rank, (found, *rest))
