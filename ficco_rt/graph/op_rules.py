"""Rules of a legal op, which run on every op that `build` makes and on every graph given to `prove`. Ops of plans must
follow the same rules (`plan/plan_rules.py`).

A rule takes the body of an op and the rank that runs it. It returns what is wrong, or None. Shapes are logical (several
segments count as one dimension).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from ..geometry.region import shape_words
from ..types import BLOCKS
from . import ir, scales
from .kinds import STREAMING, kind_of
from .ops.kind import Tensors

SUMS = ("all_reduce", "reduce_scatter")  # collectives that add up
# What a library of collectives takes (NCCL 2.28: MAXCHANNELS and NCCL_SIMPLE_MAX_NTHREADS of src/include/device.h).
MOST_CTAS, MOST_THREADS, WARP = 64, 512, 32


def regions_lie_inside(body: ir.Body, rank: int, tensors: Tensors) -> str | None:
    """Every region is inside its tensor."""
    for region in (*body.reads, *body.writes):
        shape = tensors[region.tensor].shapes[region.rank]
        for box in region.boxes:
            if any(a < 0 or b > extent for a, b, extent in zip(box.start, box.stop, shape, strict=True)):
                return f"{region} is outside {region.tensor}, which is {' × '.join(map(str, shape))}"
    return None


def indices_name_one(body: ir.Body, rank: int, tensors: Tensors) -> str | None:
    """A dimension that an index fixes is not part of a region's shape, so the region has one element there."""
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


def settings_fit(asked: ir.CollectiveSettings) -> str | None:
    """Settings of a library of collectives are ones that a library supports."""
    if asked.ctas is not None and not 0 <= asked.ctas <= MOST_CTAS:
        return f"ctas = {asked.ctas}; it is 0 to {MOST_CTAS}"
    if asked.threads is not None and (not 2 * WARP <= asked.threads <= MOST_THREADS or asked.threads % WARP):
        return f"threads = {asked.threads}; it is a multiple of {WARP} from {2 * WARP} to {MOST_THREADS}"
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
            sent, received = shape_words(call.src.shape), shape_words(other.shape)
            return f"rank {rank} sends {sent} of {a}; rank {call.to} receives {received} of {b}"
        if call.dst.rank != rank or call.src.rank != rank:
            return f"the call of rank {rank} works on another rank's memory"
    return None


def scales_go_along(body: ir.Body, rank: int, tensors: Tensors) -> str | None:
    """Copies, products and what moves by a collective take whole blocks of scaled tensors; nothing else reads these.
    Products write none. What a quantize takes it says itself."""
    if isinstance(body, ir.Quantize):
        return None
    for region in (*body.reads, *body.writes):
        tensor = tensors[region.tensor]
        if tensor.scaling is None:
            continue
        summed = isinstance(body, ir.Collective) and body.kind in SUMS
        if summed or not isinstance(body, ir.Copy | ir.Collective | ir.Gemm):
            word = body.kind if isinstance(body, ir.Collective) else kind_of(body).word
            way = "keep what is summed in bf16, fp16 or fp32" if summed else f"declare {tensor.name} without scales"
            return (
                f"{word}: {tensor.name} is scaled {tensor.scaling}; only copy, gemm, all_gather and all_to_all take "
                f"scaled tensors: {way}"
            )
        if isinstance(body, ir.Gemm) and region is body.out:
            way = f"declare {tensor.name} without scales, and quantize it"
            return f"gemm: {tensor.name} is scaled {tensor.scaling}, and a gemm computes no scales; {way}"
        if message := scales.cut(region, tensor):
            return f"{kind_of(body).word}: {message}"
    if isinstance(body, ir.Copy | ir.Collective):
        a, b = tensors[body.src.tensor], tensors[body.dst.tensor]
        words = [f"{t.name} ({f'scaled {t.scaling}' if t.scaling else 'without scales'})" for t in (a, b)]
        if a.scaling != b.scaling:
            return f"{kind_of(body).word} from {words[0]} to {words[1]}: scales go along with values; scale both alike"
        if isinstance(body, ir.Collective) and a.scaling and body.kind != "send_recv":
            down = BLOCKS[a.scaling][0]
            rows = body.src.shape[0] // (len(a.shapes) if body.kind == "all_to_all" else 1)
            if rows % down:
                return f"{body.kind}: pieces of {rows} rows cut blocks of {a.name}, which is scaled {a.scaling}"
    return None


def fits(body: ir.Body, rank: int, tensors: Tensors) -> str | None:
    """What holds for each kind of op."""
    return kind_of(body).fits(body, rank, tensors)


# In this order: a later rule may rely on the earlier ones.
RULES: tuple[Callable[[ir.Body, int, Tensors], str | None], ...] = (
    inputs_are_not_written,
    writes_are_single,
    fits,
    regions_lie_inside,
    indices_name_one,
    scales_go_along,
)


def broken(op: ir.Op, tensors: Tensors) -> str | None:
    """The first broken rule's message, or None."""
    for rule in RULES:
        message = rule(op.body, op.where.rank, tensors)
        if message is not None:
            return message
    return None


def misplaced(graph: ir.Graph) -> Iterator[tuple[ir.Op, str]]:
    """Ops stand stage by stage and phase by phase, on an engine that can do them; a streamed stage is one launch a
    rank, of our kernels."""
    engines = [graph.queue(s.queue).engine for s in graph.stages]
    streaming = f"{', '.join(STREAMING[:-1])} and {STREAMING[-1]}"
    last = (0, 0)
    for op in graph.ops:
        stage = graph.stages[op.where.stage]
        engine, kind = engines[op.where.stage], kind_of(op.body)
        called = engine == "nccl" and not isinstance(op.body, ir.Collective)  # there a copy is a call
        if called or engine not in kind.verb.engines:
            yield op, f"a {kind.word} does not run on queue '{stage.queue}', whose engine is {engine}"
        elif stage.streamed and not kind.verb.streams:
            yield op, f"stage '{stage.label}' is streamed: it takes {streaming}, not {kind.word}"
        elif (op.where.stage, op.where.phase) < last:
            yield op, f"the op stands behind a later phase of stage '{stage.label}'"
        last = (op.where.stage, op.where.phase)
