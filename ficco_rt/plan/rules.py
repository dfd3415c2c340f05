"""What a well-formed plan is: rules that hold before ordering is even looked at. Run on every plan, also stored ones.

A rule gives the mistakes it finds, with the line of the schedule that the command comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from ficco_dsl.diagnostics import Diagnostic, Span

from ..graph import ir as graph_ir
from ..graph.rules import broken
from ..region import Region
from .ir import (
    VERSION,
    CollectiveCall,
    CopyAsync,
    GemmWork,
    Launch,
    Plan,
    Record,
    ReduceWork,
    SignalFlag,
    WaitEvent,
    WaitFlag,
)

PLACELESS = Span("plan", 1, 1, 1, 1)
MOST_DIMENSIONS = 8
MOST_EXTENT = 2**31 - 1


def version_is_known(plan: Plan) -> Iterator[Diagnostic]:
    """This code reads one version of plans."""
    if plan.version != VERSION:
        yield Diagnostic(PLACELESS, f"the plan has version {plan.version}; this ficco reads version {VERSION}")


def streams_belong_to_ranks(plan: Plan) -> Iterator[Diagnostic]:
    """Stream i has id i and runs on a rank of the plan."""
    for i, stream in enumerate(plan.streams):
        if stream.id != i or not 0 <= stream.rank < plan.ranks:
            yield Diagnostic(PLACELESS, f"stream {stream.id} (rank {stream.rank}) stands at place {i}")
    for home in plan.flag_homes:
        if not 0 <= home < plan.ranks:
            yield Diagnostic(PLACELESS, f"a flag lives on rank {home}; the plan has {plan.ranks}")


def tensors_have_sizes(plan: Plan) -> Iterator[Diagnostic]:
    """Every tensor is declared once, with a shape on every rank, of as many dimensions and no dimension empty."""
    for name, times in Counter(t.name for t in plan.tensors).items():
        if times > 1:
            yield Diagnostic(PLACELESS, f"{name} is declared {times} times")
    for tensor in plan.tensors:
        if len(tensor.shapes) != plan.ranks or not tensor.shapes:
            yield Diagnostic(tensor.origin, f"{tensor.name} has {len(tensor.shapes)} shapes for {plan.ranks} ranks")
        elif len(set(map(len, tensor.shapes))) > 1 or not 1 <= len(tensor.shapes[0]) <= MOST_DIMENSIONS:
            yield Diagnostic(
                tensor.origin, f"{tensor.name} has shapes of {sorted(set(map(len, tensor.shapes)))} dimensions"
            )
        elif any(not 1 <= extent <= MOST_EXTENT for shape in tensor.shapes for extent in shape):
            yield Diagnostic(tensor.origin, f"{tensor.name} has a dimension that is no size")


def names_exist(plan: Plan) -> Iterator[Diagnostic]:
    """Every region lies inside a tensor of the plan; every user kernel is declared; a claim has a target a rank."""
    shapes = {t.name: t.shapes for t in plan.tensors}
    seen: set[Region] = set()
    for claim in plan.claims:
        if [t.rank for t in claim.targets] != list(range(plan.ranks)):
            yield Diagnostic(
                claim.origin, f"{claim.text}: the claim has {len(claim.targets)} targets; it needs one a rank"
            )
    claimed = ((False, region, claim.origin) for claim in plan.claims for region in claim.targets)
    for _, region, origin in chain(accesses(plan), claimed):
        if region in seen:
            continue
        seen.add(region)
        if region.tensor not in shapes or not 0 <= region.rank < plan.ranks:
            yield Diagnostic(origin, f"{region} is in no tensor of the plan")
            continue
        shape = shapes[region.tensor][region.rank]
        if len(shape) != len(region.axes):
            yield Diagnostic(origin, f"{region} has {len(region.axes)} dimensions; the tensor has {len(shape)}")
        elif any(
            a < 0 or b > n or a >= b for box in region.boxes for a, b, n in zip(box.start, box.stop, shape, strict=True)
        ):
            yield Diagnostic(origin, f"{region} is outside its tensor, {' × '.join(map(str, shape))}")


def engines_fit(plan: Plan) -> Iterator[Diagnostic]:
    """Copies run on copy engines or multiprocessors, launches on multiprocessors, collectives on NCCL's streams."""
    fits: dict[type, tuple[str, ...]] = {CopyAsync: ("copy", "sm"), Launch: ("sm",), CollectiveCall: ("nccl",)}
    for stream in plan.streams:
        for command in stream.commands:
            allowed = fits.get(type(command))
            if allowed is not None and stream.engine not in allowed:
                yield Diagnostic(
                    command.origin, f"{type(command).__name__} on stream {stream.name}, whose engine is {stream.engine}"
                )


def transfers_are_flat(plan: Plan) -> Iterator[Diagnostic]:
    """A transfer moves one box to one box of as many elements and the same type, from or to its rank."""
    dtypes = {t.name: t.dtype for t in plan.tensors}
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CopyAsync):
                if not command.transfers:
                    yield Diagnostic(PLACELESS, f"an empty copy on stream {stream.name} of rank {stream.rank}")
                for t in command.transfers:
                    if len(t.dst.boxes) != 1 or len(t.src.boxes) != 1 or t.dst.elements != t.src.elements:
                        yield Diagnostic(t.origin, f"transfer {t.src} → {t.dst}: not one box to one of equal size")
                    elif dtypes[t.dst.tensor] != dtypes[t.src.tensor]:
                        yield Diagnostic(t.origin, f"transfer {t.src} → {t.dst}: the types differ")
                    elif stream.rank not in (t.dst.rank, t.src.rank):
                        yield Diagnostic(
                            t.origin, f"transfer {t.src} → {t.dst} on rank {stream.rank}, which has neither"
                        )


def launches_are_whole(plan: Plan) -> Iterator[Diagnostic]:
    """A plain launch is one work without flags; works fit their operands; works stay on their rank."""
    kernels = {k.name for k in plan.kernels}
    dtypes = {t.name: t.dtype for t in plan.tensors}
    for stream in plan.streams:
        for command in stream.commands:
            if not isinstance(command, Launch):
                continue
            if not command.works:
                yield Diagnostic(PLACELESS, f"an empty launch on stream {stream.name} of rank {stream.rank}")
            if not command.streamed and (len(command.works) > 1 or any(w.waits or w.signals for w in command.works)):
                yield Diagnostic(command.origin, "a launch that is not streamed has one work and no flags")
            for work in command.works:
                if any(r.rank != stream.rank for r in work.writes):
                    yield Diagnostic(work.origin, f"a work on rank {stream.rank} writes another rank's memory")
                if isinstance(work, GemmWork):
                    if not _multiplies(work, dtypes):
                        yield Diagnostic(work.origin, f"gemm {work.left} · {work.right} does not give {work.out}")
                    if any(r.rank != stream.rank for r in work.reads):
                        yield Diagnostic(work.origin, f"a gemm on rank {stream.rank} reads another rank's memory")
                elif isinstance(work, ReduceWork):
                    if not work.terms or any(t.shape != work.out.shape for t in work.terms):
                        yield Diagnostic(work.origin, f"reduce {work.out}: a term has another shape, or there is none")
                elif work.kernel not in kernels:
                    yield Diagnostic(work.origin, f"kernel '{work.kernel}' is not declared in the plan")
                elif not (1 <= len(work.grid) <= 3 and 1 <= len(work.block) <= 3 and min(*work.grid, *work.block) > 0):
                    yield Diagnostic(work.origin, f"kernel '{work.kernel}' has no grid or block of one to three sizes")


def _multiplies(work: GemmWork, dtypes: Mapping[str, str]) -> bool:
    if any(len(r.shape) != 2 for r in (work.left, work.right, work.out)):
        return False
    m, k = work.left.shape[::-1] if work.left_transposed else work.left.shape
    k2, n = work.right.shape[::-1] if work.right_transposed else work.right.shape
    left, right, out = (dtypes[r.tensor] for r in (work.left, work.right, work.out))
    return k == k2 and work.out.shape == (m, n) and left == right and out in (left, "fp32")


def signals_are_single(plan: Plan) -> Iterator[Diagnostic]:
    """An event is recorded once, a flag raised once, and nothing waits for one that nobody gives."""
    records: Counter[int] = Counter()
    raised: Counter[int] = Counter()
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, Record):
                records[command.event] += 1
            elif isinstance(command, SignalFlag):
                raised[command.flag] += 1
            elif isinstance(command, Launch):
                raised.update(f for work in command.works for f in work.signals)
    for what, counts, size in (("event", records, plan.events), ("flag", raised, len(plan.flag_homes))):
        for i, n in counts.items():
            if n > 1:
                yield Diagnostic(PLACELESS, f"{what} {i} is given {n} times")
            if not 0 <= i < size:
                yield Diagnostic(PLACELESS, f"{what} {i} is not in the plan's table of {size}")
    for stream in plan.streams:
        for command in stream.commands:
            missing: list[tuple[str, int, Span]] = []
            if isinstance(command, WaitEvent) and command.event not in records:
                missing.append(("event", command.event, command.origin))
            elif isinstance(command, WaitFlag) and command.flag not in raised:
                missing.append(("flag", command.flag, command.origin))
            elif isinstance(command, Launch):
                missing.extend(("flag", f, w.origin) for w in command.works for f in w.waits if f not in raised)
            for what, i, origin in missing:
                yield Diagnostic(
                    origin, f"rank {stream.rank} stream {stream.name} waits for {what} {i}, which nothing gives"
                )


def collectives_are_complete(plan: Plan) -> Iterator[Diagnostic]:
    """Every rank calls a collective once, with the same kind, on regions that fit it."""
    tensors = {t.name: t for t in plan.tensors}
    groups: dict[int, list[tuple[int, CollectiveCall]]] = {}
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CollectiveCall):
                groups.setdefault(command.group, []).append((stream.rank, command))
                where = graph_ir.Where(stream.rank, 0, 0, graph_ir.Resources(), command.origin)
                op = graph_ir.Collective(where, command.kind, command.group, command.dst, command.src)
                message = broken(op, tensors)
                if message is not None:
                    yield Diagnostic(command.origin, message)
    for calls in groups.values():
        ranks = sorted(rank for rank, _ in calls)
        if ranks != list(range(plan.ranks)) or len({c.kind for _, c in calls}) > 1:
            yield Diagnostic(calls[0][1].origin, f"{calls[0][1].kind} is called by ranks {ranks}; all take part once")


RULES: tuple[Callable[[Plan], Iterator[Diagnostic]], ...] = (
    version_is_known,
    streams_belong_to_ranks,
    tensors_have_sizes,
    names_exist,
    engines_fit,
    transfers_are_flat,
    launches_are_whole,
    signals_are_single,
    collectives_are_complete,
)


def accesses(plan: Plan) -> Iterator[tuple[bool, Region, Span]]:
    """Every region that the plan touches: (is it written, region, place)."""
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CopyAsync):
                for t in command.transfers:
                    yield False, t.src, t.origin
                    yield True, t.dst, t.origin
            elif isinstance(command, Launch):
                for work in command.works:
                    for region in work.reads:
                        yield False, region, work.origin
                    for region in work.writes:
                        yield True, region, work.origin
            elif isinstance(command, CollectiveCall):
                yield False, command.src, command.origin
                yield True, command.dst, command.origin
