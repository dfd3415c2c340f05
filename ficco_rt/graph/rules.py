"""What a legal op is: a list of rules, run on every op that `build` makes and on every graph given to `prove`.
Plans are held to the same ones (`plan/rules.py`).

A rule takes what is done, and the rank that does it. It returns what is wrong, or None. Shapes are logical (several
segments count as one dimension).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from ..geometry.region import Axis, Box, Region
from ..types import ACCUMULATOR, TYPES
from . import ir
from .ir import Tensor

Tensors = Mapping[str, Tensor]

# What a library of collectives takes (NCCL 2.28: MAXCHANNELS and NCCL_SIMPLE_MAX_NTHREADS of src/include/device.h).
MOST_CTAS, MOST_THREADS, WARP = 64, 512, 32


def _size(region: Region) -> str:
    return " × ".join(map(str, region.shape)) if region.shape else "one element"


def _overlap(a: Region, b: Region) -> bool:
    return (a.tensor, a.rank) == (b.tensor, b.rank) and all(map(_meet, a.axes, b.axes))


def _meet(a: Axis, b: Axis) -> bool:
    """Whether two axes have an element in common. A region is the product of its axes, so two regions overlap if all
    axes do."""
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
    """Whether the region is one contiguous run of memory in a row-major tensor of `shape`."""
    if len(region.boxes) != 1:
        return False
    box: Box = region.boxes[0]
    cut = False
    for a, b, extent in zip(reversed(box.start), reversed(box.stop), reversed(shape), strict=True):
        if cut and b - a > 1:
            return False
        cut = cut or b - a < extent
    return True


def regions_lie_inside(body: ir.Body, rank: int, tensors: Tensors) -> str | None:
    """Every region is inside its tensor."""
    for region in (*body.reads, *body.writes):
        shape = tensors[region.tensor].shapes[region.rank]
        for box in region.boxes:
            if any(a < 0 or b > extent for a, b, extent in zip(box.start, box.stop, shape, strict=True)):
                return f"{region} is outside {region.tensor}, which is {' × '.join(map(str, shape))}"
    return None


def indices_name_one(body: ir.Body, rank: int, tensors: Tensors) -> str | None:
    """A dimension that an index fixes is absent from a region's shape, so it has one element there."""
    for region in (*body.reads, *body.writes):
        for d, axis in enumerate(region.axes):
            if axis.dropped and axis.size != 1:
                return f"{region}: an index of dimension {d} names {axis.size} elements"
    return None


def inputs_are_not_written(body: ir.Body, rank: int, tensors: Tensors) -> str | None:
    """Inputs belong to the caller."""
    for region in body.writes:
        if tensors[region.tensor].kind == "input":
            return f"{region.tensor} is an input and is never written; copy it to a scratch tensor first"
    return None


def writes_are_single(body: ir.Body, rank: int, tensors: Tensors) -> str | None:
    """A region that is written names every element once."""
    for region in body.writes:
        for axis in region.axes:
            if len(axis.segments) > 1:
                ordered = sorted(axis.segments)
                if any(b.start < a.stop for a, b in itertools.pairwise(ordered)):
                    return f"a part of {region.tensor} is named twice in what is written"
    return None


def copy_fits(copy: ir.Copy, rank: int, tensors: Tensors) -> str | None:
    """A copy moves equal shapes of one type, between this rank and at most one other, without overlap."""
    dst, src = copy.dst, copy.src
    if dst.shape != src.shape:
        return f"copy from {src.tensor}, {_size(src)}, to {dst.tensor}, {_size(dst)}: the sizes differ"
    a, b = tensors[src.tensor].dtype, tensors[dst.tensor].dtype
    if a != b:
        return f"copy from {src.tensor} ({a}) to {dst.tensor} ({b}): a copy does not change the type"
    if rank not in (dst.rank, src.rank):
        return f"rank {rank} copies between ranks {src.rank} and {dst.rank}; one of them must be its own"
    if _overlap(dst, src):
        return f"copy within {src.tensor}: source and destination overlap"
    return None


def gemm_fits(gemm: ir.Gemm, rank: int, tensors: Tensors) -> str | None:
    """[m, k] · [k, n] = [m, n], one operand type, the result in it or in fp32, not over its own operands. The operands
    are the rank's own, the result may lie on a peer. Terms are those of a reduce, but of the result's type or fp32;
    `+=` has none, and adds on the own rank."""
    out, left, right = gemm.out, gemm.left, gemm.right
    for region in (out, left, right):
        if len(region.shape) != 2:
            dims = f"{len(region.shape)} dimension{'' if len(region.shape) == 1 else 's'}"
            return f"gemm takes matrices; {region.tensor} has {dims} here: {_size(region)}"
    m, k = left.shape[::-1] if gemm.left_transposed else left.shape
    k2, n = right.shape[::-1] if gemm.right_transposed else right.shape
    product = f"{left.tensor} is {m} × {k} and {right.tensor} is {k2} × {n}"
    if k != k2:
        return f"{product}: the inner sizes differ"
    if out.shape != (m, n):
        return f"{product}, so the product is {m} × {n}, but {out.tensor} is {_size(out)}"
    if k == 0 and m and n and not gemm.accumulate:
        return f"{product}: nothing to add up; the inner size is 0: leave such a piece out with 'if'"
    a, b, c = (tensors[r.tensor].dtype for r in (left, right, out))
    if a != b:
        return f"{left.tensor} is {a} and {right.tensor} is {b}; a gemm takes one type"
    if c not in (a, ACCUMULATOR):
        return f"a product of {a} goes to {a} or {ACCUMULATOR}; {out.tensor} is {c}"
    for operand in (left, right):
        if _overlap(out, operand):
            return f"gemm writes the part of {out.tensor} that it reads"
    if not rank == left.rank == right.rank:
        return "a gemm reads its operands in its own rank's memory"
    if gemm.accumulate and out.rank != rank:
        return (
            f"'+=' adds to {out.tensor} on rank {out.rank}; a gemm adds in its own rank's memory: store there "
            "with '=', each product in its own place, and sum those"
        )
    if gemm.accumulate and gemm.addends:
        return "'+=' takes no sum"
    for addend in gemm.addends:
        message = _term_fits("gemm", out, addend, tensors, (c, ACCUMULATOR))
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


def reduce_fits(total: ir.Reduce, rank: int, tensors: Tensors) -> str | None:
    """All terms have the shape of the result; a term may be the result itself, not a shifted part of it."""
    own = tensors[total.out.tensor].dtype
    types = tuple(TYPES) if own == ACCUMULATOR else (own, ACCUMULATOR)
    for term in total.terms:
        message = _term_fits("reduce", total.out, term, tensors, types)
        if message is not None:
            return message
    if not total.terms:
        return "reduce: there is no term to sum"
    if total.out.rank != rank:
        return "a reduce writes its own rank's memory"
    return None


def settings_fit(asked: ir.CollectiveSettings) -> str | None:
    """What a library of collectives can be asked for."""
    if asked.ctas is not None and not 0 <= asked.ctas <= MOST_CTAS:
        return f"ctas = {asked.ctas}; it is 0 to {MOST_CTAS}"
    if asked.threads is not None and (not 2 * WARP <= asked.threads <= MOST_THREADS or asked.threads % WARP):
        return f"threads = {asked.threads}; it is a multiple of {WARP} from {2 * WARP} to {MOST_THREADS}"
    return None


def collective_fits(call: ir.Collective, tensors: Tensors) -> str | None:
    """A vendor collective works on contiguous memory of one type."""
    dst, src = call.dst, call.src
    for region in (*call.reads, *call.writes):
        if not contiguous(region, tensors[region.tensor].shapes[region.rank]):
            return f"{call.kind}: {region.tensor} is not one run of memory here; take whole rows"
    a, b = tensors[src.tensor].dtype, tensors[dst.tensor].dtype
    if a != b and call.kind != "send_recv":
        return f"{call.kind} from {src.tensor} ({a}) to {dst.tensor} ({b}): a collective does not change the type"
    if _overlap(dst, src) and not (call.kind == "all_reduce" and dst == src):
        return f"{call.kind}: source and destination overlap"
    ranks = len(tensors[src.tensor].shapes)
    if call.kind == "send_recv":
        return None  # what it receives is another rank's `src` (`pairs_fit`)
    if not src.shape or not dst.shape:
        return f"{call.kind} takes tensors with at least one dimension"
    rows, *columns = src.shape
    wanted = {
        "all_reduce": src.shape,
        "all_gather": (rows * ranks, *columns),
        "reduce_scatter": (rows // ranks, *columns),
        "all_to_all": src.shape,
    }[call.kind]
    if call.kind in ("reduce_scatter", "all_to_all") and rows % ranks:
        return f"{call.kind}: the {rows} rows of {src.tensor} do not divide among {ranks} ranks"
    if dst.shape != wanted:
        size = " × ".join(map(str, wanted))
        return f"{call.kind} of {src.tensor}, {_size(src)}, gives {size}, but {dst.tensor} is {_size(dst)}"
    return None


def pairs_fit(calls: Sequence[ir.Collective], tensors: Tensors) -> str | None:
    """What each rank sends in a send_recv, one other receives: as much, of one type. `calls` are those of all ranks, in
    order."""
    for rank, call in enumerate(calls):
        if not (0 <= call.to < len(calls) and calls[call.to].by == rank and 0 <= call.by < len(calls)):
            return f"rank {rank} sends to rank {call.to}, which does not receive from it"
        other = calls[call.to].dst
        a, b = (tensors[region.tensor].dtype for region in (call.src, other))
        if call.src.shape != other.shape or a != b:
            return f"rank {rank} sends {_size(call.src)} of {a}; rank {call.to} receives {_size(other)} of {b}"
        if call.dst.rank != rank or call.src.rank != rank:
            return f"the call of rank {rank} works on another rank's memory"
    return None


def call_fits(call: ir.KernelCall, rank: int, tensors: Tensors) -> str | None:
    """A user kernel works on its own rank, on single pieces, on distinct outputs, with a grid that exists."""
    if any(r.rank != rank for r in (*call.reads, *call.writes)):
        return f"launch {call.kernel}: a kernel works on its own rank's memory"
    for i, a in enumerate(call.writes):
        if any(_overlap(a, b) for b in call.writes[i + 1 :]):
            return f"launch {call.kernel}: two of the regions that it writes overlap"
    for argument in call.arguments:
        region = argument.value
        if isinstance(region, Region) and len(region.boxes) != 1:
            return (
                f"launch {call.kernel}: {argument.name} is a set of {len(region.boxes)} pieces of {region.tensor}; a "
                "kernel gets the address of one piece: launch it for each, or copy them together first"
            )
    if any(not 1 <= g < 2**31 for g in call.grid):
        return f"launch {call.kernel}: grid = {list(call.grid)}; every number of it is 1 to 2147483647"
    if any(b < 1 for b in call.block) or prod(call.block) > 1024:
        return f"launch {call.kernel}: block = {list(call.block)} has {prod(call.block)} threads; a block has 1 to 1024"
    return None


def fits(body: ir.Body, rank: int, tensors: Tensors) -> str | None:
    """What holds for each kind of op."""
    match body:
        case ir.Copy():
            return copy_fits(body, rank, tensors)
        case ir.Gemm():
            return gemm_fits(body, rank, tensors)
        case ir.Reduce():
            return reduce_fits(body, rank, tensors)
        case ir.Collective():
            return collective_fits(body, tensors)
        case ir.KernelCall():
            return call_fits(body, rank, tensors)


# In this order: a later rule may rely on the earlier ones.
RULES: tuple[Callable[[ir.Body, int, Tensors], str | None], ...] = (
    inputs_are_not_written,
    writes_are_single,
    fits,
    regions_lie_inside,
    indices_name_one,
)


def broken(op: ir.Op, tensors: Tensors) -> str | None:
    """The first broken rule's message, or None."""
    for rule in RULES:
        message = rule(op.body, op.where.rank, tensors)
        if message is not None:
            return message
    return None


_ENGINES: dict[type[ir.Body], tuple[ir.Engine, ...]] = {
    ir.Copy: ("copy", "sm"),  # on nccl it is a call
    ir.Gemm: ("sm",),
    ir.Reduce: ("sm",),
    ir.KernelCall: ("sm",),
    ir.Collective: ("nccl",),
}


def misplaced(graph: ir.Graph) -> Iterator[tuple[ir.Op, str]]:
    """Ops stand stage by stage and phase by phase, on an engine that can do them; a streamed stage is one launch a
    rank, of our kernels."""
    engines = [graph.queue(s.queue).engine for s in graph.stages]
    last = (0, 0)
    for op in graph.ops:
        stage = graph.stages[op.where.stage]
        engine, what = engines[op.where.stage], ir.WORDS[type(op.body)]
        if engine not in _ENGINES[type(op.body)]:
            yield op, f"a {what} does not run on queue '{stage.queue}', whose engine is {engine}"
        elif stage.streamed and not isinstance(op.body, ir.Gemm | ir.Reduce | ir.Copy):
            yield op, f"stage '{stage.label}' is streamed: it takes gemm, reduce and copy, not {what}"
        elif (op.where.stage, op.where.phase) < last:
            yield op, f"the op stands behind a later phase of stage '{stage.label}'"
        last = (op.where.stage, op.where.phase)
