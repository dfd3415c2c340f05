"""What a well-formed plan is: rules that hold before ordering is even looked at. Run on every plan, also stored ones.

A rule gives the mistakes it finds, with the line of the schedule that the command comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ficco_dsl.diagnostics import Diagnostic, Span

from ..region import Region
from .ir import (
    VERSION,
    CollectiveCall,
    CopyAsync,
    GemmWork,
    Launch,
    Plan,
    Record,
    SignalFlag,
    WaitEvent,
    WaitFlag,
)

PLACELESS = Span("plan", 1, 1, 1, 1)


def version_is_known(plan: Plan) -> Iterator[Diagnostic]:
    """This code reads one version of plans."""
    if plan.version != VERSION:
        yield Diagnostic(PLACELESS, f"the plan has version {plan.version}; this ficco reads version {VERSION}")


def streams_belong_to_ranks(plan: Plan) -> Iterator[Diagnostic]:
    """Stream i has id i and runs on a rank of the plan; every tensor has a shape on every rank."""
    for i, stream in enumerate(plan.streams):
        if stream.id != i or not 0 <= stream.rank < plan.ranks:
            yield Diagnostic(PLACELESS, f"stream {stream.id} (rank {stream.rank}) stands at place {i}")
    for tensor in plan.tensors:
        if len(tensor.shapes) != plan.ranks:
            yield Diagnostic(tensor.origin, f"{tensor.name} has {len(tensor.shapes)} shapes for {plan.ranks} ranks")


def names_exist(plan: Plan) -> Iterator[Diagnostic]:
    """Every region lies inside a tensor of the plan; every user kernel is declared."""
    shapes = {t.name: t.shapes for t in plan.tensors}
    seen: set[Region] = set()
    for _, region, origin in accesses(plan):
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
    """A transfer moves one box to one box of as many elements."""
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CopyAsync):
                if not command.transfers:
                    yield Diagnostic(PLACELESS, f"an empty copy on stream {stream.name} of rank {stream.rank}")
                for t in command.transfers:
                    if len(t.dst.boxes) != 1 or len(t.src.boxes) != 1 or t.dst.elements != t.src.elements:
                        yield Diagnostic(t.origin, f"transfer {t.src} → {t.dst}: not one box to one of equal size")


def launches_are_whole(plan: Plan) -> Iterator[Diagnostic]:
    """A plain launch is one work without flags; works fit their operands; works stay on their rank."""
    kernels = {k.name for k in plan.kernels}
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
                    m, k = work.left.shape[::-1] if work.left_transposed else work.left.shape
                    k2, n = work.right.shape[::-1] if work.right_transposed else work.right.shape
                    if k != k2 or work.out.shape != (m, n):
                        yield Diagnostic(work.origin, f"gemm {work.left} · {work.right} does not give {work.out}")
                elif hasattr(work, "kernel") and work.kernel not in kernels:
                    yield Diagnostic(work.origin, f"kernel '{work.kernel}' is not declared in the plan")


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
    """Every rank calls a collective once, with the same kind."""
    groups: dict[int, list[tuple[int, CollectiveCall]]] = {}
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CollectiveCall):
                groups.setdefault(command.group, []).append((stream.rank, command))
    for calls in groups.values():
        ranks = sorted(rank for rank, _ in calls)
        if ranks != list(range(plan.ranks)) or len({c.kind for _, c in calls}) > 1:
            yield Diagnostic(calls[0][1].origin, f"{calls[0][1].kind} is called by ranks {ranks}; all take part once")


RULES: tuple[Callable[[Plan], Iterator[Diagnostic]], ...] = (
    version_is_known,
    streams_belong_to_ranks,
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
