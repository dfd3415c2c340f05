"""Products in the form that tensor-core GEMMs take: matrices in memory, and pieces of their rows and columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace

from ..geometry.cells import common
from ..geometry.region import Interval
from ..geometry.rows import Block
from ..graph.ir import Gemm
from ..types import TYPES
from .works import View, WorkOf, scales_of

DEPTH = 64  # elements of K in a step of the pipeline: 128 bytes, one row of shared memory; of fp8 twice as many


@dataclass(frozen=True, slots=True)
class Scales:
    """Of an fp8 matrix, fp32 in device memory; `pitch`: elements from a row of scales to the next."""

    address: int
    pitch: int = 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """A row-major matrix in device memory, as it is stored; `pitch` in elements. With a `block` works tell the plan's
    rows, and the matrix has fewer (`geometry.rows`)."""

    address: int
    rows: int
    columns: int
    pitch: int
    block: Block | None = field(default=None, compare=False)
    scales: Scales | None = None


@dataclass(frozen=True, slots=True)
class MatrixOperand:
    """A matrix, and the pieces of its rows and columns that a work takes, in their logical order."""

    matrix: Matrix
    rows: tuple[Interval, ...]
    columns: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class Addend:
    """What is added to a product: an operand of the output's shape. The last may be a factor of the function of the
    sum (`Signature.factor`)."""

    operand: MatrixOperand
    dtype: str

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return TYPES[self.dtype].bytes


@dataclass(frozen=True, slots=True)
class MatrixWork:
    """out (+)= left · right over pieces, or out = left · right + addends, in the coordinates of the stored matrices;
    pieces of one axis follow each other in the logical operand. A transposed left is stored [K, M], a transposed right
    [N, K].

    `waits`, `addend_waits` and `signals` are flags, or addresses of 32-bit ones: up before the work reads, before it
    reads addends and writes, raised when all is written. `depth_waits` are more of the first, of pieces of K: where one
    starts, in elements of the logical K, and its flags.
    """

    left: Matrix
    right: Matrix
    out: Matrix
    left_rows: tuple[Interval, ...]
    left_columns: tuple[Interval, ...]
    right_rows: tuple[Interval, ...]
    right_columns: tuple[Interval, ...]
    out_rows: tuple[Interval, ...]
    out_columns: tuple[Interval, ...]
    accumulate: bool = False
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    addends: tuple[Addend, ...] = ()
    addend_waits: tuple[int, ...] = ()
    depth_waits: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def flags(self) -> tuple[int, ...]:
        """All flags that it waits for."""
        return (*self.waits, *self.addend_waits, *(flag for _, flags in self.depth_waits for flag in flags))


def operand(view: View) -> MatrixOperand | None:
    """A view as a matrix and its pieces; None if its second dimension is not the tensor's last: then columns are not
    side by side."""
    region, shape = view.region, view.shape
    kept = region.kept
    if len(kept) != 2 or kept[1] != len(shape) - 1:
        return None
    row, column = kept
    matrix = Matrix(view.base, shape[row], shape[column], view.steps[row], view.block)
    return MatrixOperand(matrix, region.axes[row].segments, region.axes[column].segments)


def work_of(product: WorkOf[Gemm]) -> MatrixWork | None:
    """The product on matrices; None if an operand's columns are not side by side."""
    operands, scales = [], [operand(view) for view in scales_of(product)]
    views = product.views[: 3 if product.body.accumulate else len(product.views) - len(scales_of(product))]
    for view in views:
        found = operand(view)
        if found is None:
            return None
        operands.append(found)
    out, left, right, *others = operands
    if scales:
        if None in scales:
            return None
        left, right = (_scaled(o, s) for o, s in zip((left, right), scales, strict=True))
    addends = tuple(Addend(o, v.dtype) for o, v in zip(others, views[3:], strict=True))
    # a product of what nothing writes need not wait for what comes to its addends, or for who still reads its output
    late = bool(addends) and not any(view.written for view in views[1:3])
    waits, addend_waits = ((), product.waits) if late else (product.waits, ())
    return MatrixWork(
        left.matrix, right.matrix, out.matrix,
        left.rows, left.columns, right.rows, right.columns, out.rows, out.columns,
        product.body.accumulate, waits, product.signals, addends, addend_waits,
    )  # fmt: skip


def _scaled(operand: MatrixOperand, scales: MatrixOperand | None) -> MatrixOperand:
    """With where its scales lie, whose rows and columns are those of its blocks."""
    assert scales is not None
    of = Scales(scales.matrix.address, scales.matrix.pitch)
    return replace(operand, matrix=replace(operand.matrix, scales=of))


def depths_of(
    work: MatrixWork, left_transposed: bool, right_transposed: bool
) -> tuple[tuple[Interval, ...], tuple[Interval, ...]]:
    return (
        work.left_rows if left_transposed else work.left_columns,
        work.right_columns if right_transposed else work.right_rows,
    )


def outer_axes(work: MatrixWork, transposed: tuple[bool, bool]) -> tuple[tuple[Interval, ...], tuple[Interval, ...]]:
    """Rows of the left operand and columns of the right one, as they are stored."""
    return (
        work.left_columns if transposed[0] else work.left_rows,
        work.right_rows if transposed[1] else work.right_columns,
    )


def depth_of(works: Sequence[MatrixWork], transposed: tuple[bool, bool]) -> int:
    """Elements of K, the most of these works; `transposed`: the left and the right operand are stored transposed."""
    return max(sum(s.size for s in depths_of(w, *transposed)[0]) for w in works)


@dataclass(frozen=True, slots=True)
class Merged:
    """Works of which some stand for several: `groups` are the indices of the works that each is made of."""

    works: tuple[MatrixWork, ...]
    groups: tuple[tuple[int, ...], ...]


def in_registers(
    works: Sequence[MatrixWork], transposed: tuple[bool, bool], private: Container[int] = (), step: int = DEPTH
) -> Merged:
    """Works that add pieces of K to one product, one after another, as one work: its sums stay in registers, and each
    piece waits for its own flags.

    `transposed`: the left and the right operand are stored transposed; `private`: flags that nothing outside these
    works waits for; `step`: elements of K in a step of the pipeline.
    """
    inside = Counter(flag for w in works for flag in set(w.flags))

    def goes_on(last: MatrixWork, index: int) -> bool:
        w = works[index]
        unseen = all(f in private and inside[f] == (f in w.waits) for f in last.signals)
        return unseen and _goes_on(last, w, transposed, step)

    return _merged(works, transposed, goes_on)


def merged(
    works: Sequence[MatrixWork], transposed: tuple[bool, bool], groups: Sequence[Sequence[int]]
) -> tuple[MatrixWork, ...]:
    """Works merged as `in_registers` has said."""
    firsts = {group[0] for group in groups}
    return _merged(works, transposed, lambda last, index: index not in firsts).works


def _merged(
    works: Sequence[MatrixWork], transposed: tuple[bool, bool], goes_on: Callable[[MatrixWork, int], bool]
) -> Merged:
    made: list[MatrixWork] = []
    groups: list[tuple[int, ...]] = []
    for i, w in enumerate(works):
        if made and goes_on(made[-1], i):
            made[-1], groups[-1] = _added(made[-1], w, transposed), (*groups[-1], i)
        else:
            made.append(w)
            groups.append((i,))
    return Merged(tuple(made), tuple(groups))


def _added(a: MatrixWork, b: MatrixWork, transposed: tuple[bool, bool]) -> MatrixWork:
    """Both as one work, b's K behind a's."""
    waits = tuple(f for f in b.waits if f not in a.signals)
    return replace(
        a,
        left_rows=a.left_rows + (b.left_rows if transposed[0] else ()),
        left_columns=a.left_columns + (() if transposed[0] else b.left_columns),
        right_rows=a.right_rows + (() if transposed[1] else b.right_rows),
        right_columns=a.right_columns + (b.right_columns if transposed[1] else ()),
        signals=b.signals,
        depth_waits=a.depth_waits + (((depth_of([a], transposed), waits),) if waits else ()),
    )


def _goes_on(a: MatrixWork, b: MatrixWork, transposed: tuple[bool, bool], step: int) -> bool:
    """Whether b adds more of K to the product that a makes. A tile that waits between its steps also waits before the
    first one, because storing warps look at that wait alone."""
    if not b.accumulate or a.addends or b.addends:
        return False
    if (a.left, a.right, a.out, a.out_rows, a.out_columns) != (b.left, b.right, b.out, b.out_rows, b.out_columns):
        return False
    whole = all(n % step == 0 for w in (a, b) for *_, n in common(*depths_of(w, *transposed)))
    waits = a.waits or not b.waits or b.waits == a.signals
    return bool(outer_axes(a, transposed) == outer_axes(b, transposed) and whole and waits)


def pieces_of(w: MatrixWork, transposed: tuple[bool, bool]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Pieces of rows and of columns of all operands, cut by all."""
    left, right = outer_axes(w, transposed)
    return (
        common(left, w.out_rows, *(a.operand.rows for a in w.addends)),
        common(right, w.out_columns, *(a.operand.columns for a in w.addends)),
    )
