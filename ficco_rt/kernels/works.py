"""The works of a launch on tensors in memory: the input of the kernels of all families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar, cast

from ..geometry.cells import strides
from ..geometry.region import Axis, Interval, Region
from ..geometry.rows import Block, Rows, fewer
from ..graph.ir import Body, Gemm, Reduce, Tensor
from ..graph.ops.reduce import is_row
from ..types import TYPES, Dtype, Scaling

B = TypeVar("B", bound=Body)
B_co = TypeVar("B_co", bound=Body, covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class View:
    """A region of a dense row-major tensor. Before memory exists addresses are symbolic: apart, and aligned as
    allocations are. With a `block` the region is the plan's, and the tensor has fewer rows (`geometry.rows`)."""

    region: Region
    address: int  # of the tensor's first element
    shape: tuple[int, ...]  # of the tensor
    dtype: Dtype
    written: bool = True  # by the plan's commands; inputs never are: outputs share no memory with them (exec/bindings)
    block: Block | None = None
    repeated: bool = False  # one row of a tensor as a matrix, whose first dimensions the tensor has not
    scaling: Scaling | None = None  # of the tensor; None on memory, where it is known what a kernel reads

    @property
    def steps(self) -> tuple[int, ...]:
        """Elements from one index to the next, by dimension."""
        if not self.repeated:
            return strides(self.shape)
        above = len(self.region.kept) - 1
        return (*(0,) * above, *strides(self.shape[above:]))

    @property
    def base(self) -> int:
        """The address of element [0, …] of what the fixed dimensions leave of the tensor."""
        if len(self.region.kept) == len(self.region.axes):
            return self.address
        fixed = zip(self.region.axes, self.steps, strict=True)
        return self.address + sum(a.segments[0].start * s for a, s in fixed if a.dropped) * TYPES[self.dtype].bytes

    @property
    def first(self) -> int:
        """The address of the region's first element."""
        offset = sum(at * step for at, step in zip(self.region.boxes[0].start, self.steps, strict=True))
        return self.address + offset * TYPES[self.dtype].bytes


Look: TypeAlias = Callable[[Region], View]


@dataclass(frozen=True, slots=True)
class WorkOf(Generic[B_co]):
    """What one op does, on tensors. `views` are those of the regions that the body writes, then of those that it reads.

    `waits` must be up before it reads, `signals` are raised when all is written: numbers of flags, or their addresses
    once there is memory.
    """

    body: B_co
    views: tuple[View, ...]
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()


Work: TypeAlias = WorkOf[Body]


def kernel_work(
    body: B, look: Look, waits: tuple[int, ...] = (), signals: tuple[int, ...] = (), rows: Rows | None = None
) -> WorkOf[B]:
    """The work of a body, whose regions `look` finds in memory. `rows`: those of the run, if they are fewer."""
    views = tuple(map(look, (*body.writes, *body.reads)))
    if rows is not None:
        alike = with_rows(body, views)
        blocks = dict(zip(map(id, alike), rows.of([view.region for view in alike]), strict=True))
        views = tuple(replace(view, block=blocks.get(id(view))) for view in views)
    if isinstance(body, Gemm | Reduce):
        views = tuple(_repeated(view, body.out.shape) if is_row(view.region, body.out) else view for view in views)
    return WorkOf(body, views, waits, signals)


def _repeated(view: View, shape: tuple[int, ...]) -> View:
    """One row of a tensor, or a matrix made of one, as an array of the shape."""
    tensor, rank, axes = view.region.tensor, view.region.rank, view.region.axes
    above = len(shape) - 1
    own, columns = (axes[above:], view.shape[above:]) if view.repeated else (axes, view.shape)
    region = Region(tensor, rank, (*(Axis((Interval(0, n),)) for n in shape[:-1]), *own))
    return replace(view, region=region, shape=(*shape[:-1], *columns), repeated=True)


def scales_of(work: WorkOf[Gemm]) -> tuple[View, ...]:
    """The scales of the left and of the right operand of a product, if they are scaled."""
    return work.views[len(work.views) - len(work.body.scales) :]


def scaling_of(scales: View, operand: View) -> Scaling:
    """How an operand is scaled that has such scales. Those of blocks have four columns at least."""
    if scales.shape[-1] == 1:
        return "row"
    return "1x128" if scales.shape[-2] == operand.shape[-2] else "128x128"


def with_rows(body: Body, sides: Sequence[T]) -> Sequence[T]:
    """Of a body's `sides`, its writes and then its reads, those of which it takes the same rows: those that have the
    result's, or of a product over rows its operands."""
    if over_rows(body):
        return sides[1:3]
    if not isinstance(body, Gemm | Reduce):
        return sides
    rows = [not is_row(region, body.out) for region in (*body.writes, *body.reads)]
    if isinstance(body, Gemm):
        rows[2] = False
        if body.scales:
            rows[-1] = False
    return tuple(side for side, has_rows in zip(sides, rows, strict=True) if has_rows)


def over_rows(body: Body) -> bool:
    """Whether it is a product over the rows of both operands, as a weight's gradient is."""
    return isinstance(body, Gemm) and body.transposed == (True, False)


def given(work: WorkOf[B]) -> WorkOf[B]:
    """The work on the rows that are there."""
    if not any(view.block for view in work.views):
        return work
    alike = with_rows(work.body, work.views)
    regions = fewer([view.region for view in alike], [view.block for view in alike])
    made = {id(view): replace(view, region=r, block=None) for view, r in zip(alike, regions, strict=True)}
    out = work.views[0]
    shape = made.get(id(out), out).region.shape
    made |= {id(view): _repeated(view, shape) for view in work.views if view.repeated}
    return replace(work, views=tuple(made.get(id(view), view) for view in work.views))


def only(works: Iterable[Work], kind: type[B]) -> list[WorkOf[B]]:
    """The works whose bodies are of this kind."""
    return [cast("WorkOf[B]", work) for work in works if isinstance(work.body, kind)]


def symbolic(tensors: Iterable[Tensor]) -> Look:
    """Views for use before memory exists: tensors have assumed addresses, far apart, aligned as allocations are."""
    places = {t.name: ((i + 1) << 60, t) for i, t in enumerate(tensors)}

    def look(region: Region) -> View:
        address, tensor = places[region.tensor]
        # NOTE regions of one launch may lie on several ranks, each in a place of its own
        address += region.rank << 48
        written = tensor.kind != "input"
        return View(region, address, tensor.shapes[region.rank], tensor.dtype, written, scaling=tensor.scaling)

    return look
