"""What a legal op is: a list of rules, run on every op that `build` makes and on every graph given to `prove`.

A rule returns what is wrong, or None. Shapes are logical (several segments count as one dimension).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from math import prod

from ..region import Axis, Box, Region
from ..types import ACCUMULATOR, TYPES
from . import ir
from .ir import Tensor

Tensors = Mapping[str, Tensor]


def _size(region: Region) -> str:
    return " × ".join(map(str, region.shape)) if region.shape else "one element"


def _overlap(a: Region, b: Region) -> bool:
    return (a.tensor, a.rank) == (b.tensor, b.rank) and all(map(_meet, a.axes, b.axes))


def _meet(a: Axis, b: Axis) -> bool:
    """Have two axes an element in common? A region is the product of its axes: it meets another if all do."""
    if len(a.segments) == len(b.segments) == 1:
        return a.segments[0].start < b.segments[0].stop and b.segments[0].start < a.segments[0].stop
    marks = [(s.start, True, side) for side, axis in enumerate((a, b)) for s in axis.segments]
    marks += [(s.stop, False, side) for side, axis in enumerate((a, b)) for s in axis.segments]
    inside = [0, 0]
    for _, opens, side in sorted(marks):  # at one place, ends come before starts
        inside[side] += 1 if opens else -1
        if opens and inside[1 - side]:
            return True
    return False


def contiguous(region: Region, shape: tuple[int, ...]) -> bool:
    """Is the region one run of memory in a row-major tensor of `shape`?"""
    if len(region.boxes) != 1:
        return False
    box: Box = region.boxes[0]
    cut = False
    for a, b, extent in zip(reversed(box.start), reversed(box.stop), reversed(shape), strict=True):
        if cut and b - a > 1:
            return False
        cut = cut or b - a < extent
    return True


def regions_lie_inside(op: ir.Op, tensors: Tensors) -> str | None:
    """Every region is inside its tensor."""
    for region in (*op.reads, *op.writes):
        shape = tensors[region.tensor].shapes[region.rank]
        for box in region.boxes:
            if any(a < 0 or b > extent for a, b, extent in zip(box.start, box.stop, shape, strict=True)):
                return f"{region} is outside {region.tensor}, which is {' × '.join(map(str, shape))}"
    return None


def indices_name_one(op: ir.Op, tensors: Tensors) -> str | None:
    """A dimension that an index fixes is absent from a region's shape, so it has one element there."""
    for region in (*op.reads, *op.writes):
        for d, axis in enumerate(region.axes):
            if axis.dropped and axis.size != 1:
                return f"{region}: an index of dimension {d} names {axis.size} elements"
    return None


def inputs_are_not_written(op: ir.Op, tensors: Tensors) -> str | None:
    """Inputs belong to the caller."""
    for region in op.writes:
        if tensors[region.tensor].kind == "input":
            return f"{region.tensor} is an input and is never written; copy it to a scratch tensor first"
    return None


def writes_are_single(op: ir.Op, tensors: Tensors) -> str | None:
    """A region that is written names every element once."""
    for region in op.writes:
        for axis in region.axes:
            if len(axis.segments) > 1:
                ordered = sorted(axis.segments)
                if any(b.start < a.stop for a, b in itertools.pairwise(ordered)):
                    return f"a part of {region.tensor} is named twice in what is written"
    return None


def copy_fits(op: ir.Op, tensors: Tensors) -> str | None:
    """A copy moves equal shapes of one type, between this rank and at most one other, without overlap."""
    if not isinstance(op, ir.Copy):
        return None
    if op.dst.shape != op.src.shape:
        return f"copy from {op.src.tensor}, {_size(op.src)}, to {op.dst.tensor}, {_size(op.dst)}: the sizes differ"
    a, b = tensors[op.src.tensor].dtype, tensors[op.dst.tensor].dtype
    if a != b:
        return f"copy from {op.src.tensor} ({a}) to {op.dst.tensor} ({b}): a copy does not change the type"
    if op.where.rank not in (op.dst.rank, op.src.rank):
        return f"rank {op.where.rank} copies between ranks {op.src.rank} and {op.dst.rank}; one of them must be its own"
    if _overlap(op.dst, op.src):
        return f"copy within {op.src.tensor}: source and destination overlap"
    return None


def gemm_fits(op: ir.Op, tensors: Tensors) -> str | None:
    """[m, k] · [k, n] = [m, n], one operand type, the result in it or in fp32, not over its own operands. The operands
    are the rank's own, the result may lie on a peer. Terms are those of a reduce, but of the result's type or fp32;
    `+=` has none, and adds on the own rank."""
    if not isinstance(op, ir.Gemm):
        return None
    for region in (op.out, op.left, op.right):
        if len(region.shape) != 2:
            dims = f"{len(region.shape)} dimension{'' if len(region.shape) == 1 else 's'}"
            return f"gemm takes matrices; {region.tensor} has {dims} here: {_size(region)}"
    m, k = op.left.shape[::-1] if op.left_transposed else op.left.shape
    k2, n = op.right.shape[::-1] if op.right_transposed else op.right.shape
    product = f"{op.left.tensor} is {m} × {k} and {op.right.tensor} is {k2} × {n}"
    if k != k2:
        return f"{product}: the inner sizes differ"
    if op.out.shape != (m, n):
        return f"{product}, so the product is {m} × {n}, but {op.out.tensor} is {_size(op.out)}"
    if k == 0 and m and n and not op.accumulate:
        return f"{product}: nothing to add up; the inner size is 0: leave such a piece out with 'if'"
    left, right, out = (tensors[r.tensor].dtype for r in (op.left, op.right, op.out))
    if left != right:
        return f"{op.left.tensor} is {left} and {op.right.tensor} is {right}; a gemm takes one type"
    if out not in (left, ACCUMULATOR):
        return f"a product of {left} goes to {left} or {ACCUMULATOR}; {op.out.tensor} is {out}"
    for operand in (op.left, op.right):
        if _overlap(op.out, operand):
            return f"gemm writes the part of {op.out.tensor} that it reads"
    if not op.where.rank == op.left.rank == op.right.rank:
        return "a gemm reads its operands in its own rank's memory"
    if op.accumulate and op.out.rank != op.where.rank:
        return (
            f"'+=' adds to {op.out.tensor} on rank {op.out.rank}; a gemm adds in its own rank's memory: store there "
            "with '=', each product in its own place, and sum those"
        )
    if op.accumulate and op.terms:
        return "'+=' takes no sum"
    for term in op.terms:
        message = _term_fits("gemm", op.out, term, tensors, (out, ACCUMULATOR))
        if message is not None:
            return message
    return None


def _term_fits(what: str, out: Region, term: Region, tensors: Tensors, types: tuple[str, ...]) -> str | None:
    if term.shape != out.shape:
        return f"{what}: {out.tensor} is {_size(out)}, the term {term.tensor} is {_size(term)}"
    own, other = tensors[out.tensor].dtype, tensors[term.tensor].dtype
    if other not in types:
        wanted = " or ".join(dict.fromkeys(types))
        return f"{what}: {out.tensor} is {own}, the term {term.tensor} is {other}; a term is {wanted}"
    if _overlap(out, term) and out != term:
        return f"{what}: a term overlaps the part of {out.tensor} that is written"
    return None


def reduce_fits(op: ir.Op, tensors: Tensors) -> str | None:
    """All terms have the shape of the result; a term may be the result itself, not a shifted part of it."""
    if not isinstance(op, ir.Reduce):
        return None
    own = tensors[op.out.tensor].dtype
    types = tuple(TYPES) if own == ACCUMULATOR else (own, ACCUMULATOR)
    for term in op.terms:
        message = _term_fits("reduce", op.out, term, tensors, types)
        if message is not None:
            return message
    if not op.terms:
        return "reduce: there is no term to sum"
    if op.out.rank != op.where.rank:
        return "a reduce writes its own rank's memory"
    return None


def collective_fits(op: ir.Op, tensors: Tensors) -> str | None:
    """A vendor collective works on contiguous memory of one type."""
    if not isinstance(op, ir.Collective):
        return None
    for region in (op.dst, op.src):
        if not contiguous(region, tensors[region.tensor].shapes[region.rank]):
            return f"{op.kind}: {region.tensor} is not one run of memory here; take whole rows"
    a, b = tensors[op.src.tensor].dtype, tensors[op.dst.tensor].dtype
    if a != b:
        return f"{op.kind} from {op.src.tensor} ({a}) to {op.dst.tensor} ({b}): a collective does not change the type"
    if _overlap(op.dst, op.src) and not (op.kind == "all_reduce" and op.dst == op.src):
        return f"{op.kind}: source and destination overlap"
    ranks = len(tensors[op.src.tensor].shapes)
    src, dst = op.src.shape, op.dst.shape
    if not src or not dst:
        return f"{op.kind} takes tensors with at least one dimension"
    wanted = {
        "all_reduce": src,
        "all_gather": (src[0] * ranks, *src[1:]),
        "reduce_scatter": (src[0] // ranks, *src[1:]),
        "all_to_all": src,
    }[op.kind]
    if op.kind in ("reduce_scatter", "all_to_all") and src[0] % ranks:
        return f"{op.kind}: the {src[0]} rows of {op.src.tensor} do not divide among {ranks} ranks"
    if dst != wanted:
        size = " × ".join(map(str, wanted))
        return f"{op.kind} of {op.src.tensor}, {_size(op.src)}, gives {size}, but {op.dst.tensor} is {_size(op.dst)}"
    return None


def launch_fits(op: ir.Op, tensors: Tensors) -> str | None:
    """A user kernel works on its own rank, on distinct outputs, with a grid that exists."""
    if not isinstance(op, ir.Launch):
        return None
    if any(r.rank != op.where.rank for r in (*op.reads, *op.writes)):
        return f"launch {op.kernel}: a kernel works on its own rank's memory"
    for i, a in enumerate(op.writes):
        if any(_overlap(a, b) for b in op.writes[i + 1 :]):
            return f"launch {op.kernel}: two of the regions that it writes overlap"
    if any(not 1 <= g < 2**31 for g in op.grid):
        return f"launch {op.kernel}: grid = {list(op.grid)}; every number of it is 1 to 2147483647"
    if any(b < 1 for b in op.block) or prod(op.block) > 1024:
        return f"launch {op.kernel}: block = {list(op.block)} has {prod(op.block)} threads; a block has 1 to 1024"
    return None


# In this order: a later rule may rely on the earlier ones.
RULES: tuple[Callable[[ir.Op, Tensors], str | None], ...] = (
    inputs_are_not_written,
    writes_are_single,
    copy_fits,
    gemm_fits,
    reduce_fits,
    collective_fits,
    launch_fits,
    regions_lie_inside,
    indices_name_one,
)


def broken(op: ir.Op, tensors: Tensors) -> str | None:
    """The first broken rule's message, or None."""
    for rule in RULES:
        message = rule(op, tensors)
        if message is not None:
            return message
    return None


_ENGINES: dict[type, tuple[ir.Engine, ...]] = {
    ir.Copy: ("copy", "sm"),
    ir.Gemm: ("sm",),
    ir.Reduce: ("sm",),
    ir.Launch: ("sm",),
    ir.Collective: ("nccl",),
}


def misplaced(graph: ir.Graph) -> Iterator[tuple[ir.Op, str]]:
    """Ops stand stage by stage and phase by phase, on an engine that can do them; a streamed stage is one launch a
    rank, of our kernels."""
    engines = [graph.queue(s.queue).engine for s in graph.stages]
    last = (0, 0)
    for op in graph.ops:
        stage = graph.stages[op.where.stage]
        engine, what = engines[op.where.stage], type(op).__name__.lower()
        if engine not in _ENGINES[type(op)]:
            yield op, f"a {what} does not run on queue '{stage.queue}', whose engine is {engine}"
        elif stage.streamed and not isinstance(op, ir.Gemm | ir.Reduce | ir.Copy):
            yield op, f"stage '{stage.label}' is streamed: it takes gemm, reduce and copy, not {what}"
        elif (op.where.stage, op.where.phase) < last:
            yield op, f"the op stands behind a later phase of stage '{stage.label}'"
        last = (op.where.stage, op.where.phase)
