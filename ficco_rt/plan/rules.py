"""What a well-formed plan is: rules that hold before ordering is even looked at. Run on every plan, also stored ones.

A rule gives the mistakes it finds, with the line of the schedule that the command comes from. What passes them
all, and then the check of the order, every driver can run. What a single copy, GEMM, reduce, collective or user
kernel may be stands in `graph/rules.py` and holds here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, pairwise
from typing import get_args

from ficco_dsl.diagnostics import Diagnostic, Span

from ..graph import ir as graph_ir
from ..graph import rules as graph_rules
from ..kernels.catalogue import COPY, GEMM, REDUCE, TILES
from ..region import Box, Region
from ..types import TYPES
from .claims import misfit, operands
from .ir import (
    VERSION,
    CollectiveCall,
    Command,
    CopyAsync,
    CopyWork,
    GemmWork,
    KernelWork,
    Launch,
    Plan,
    Record,
    ReduceWork,
    SignalFlag,
    Stream,
    Transfer,
    WaitEvent,
    WaitFlag,
    Work,
)

PLACELESS = Span("plan", 1, 1, 1, 1)
NOTHING = graph_ir.Resources()
MOST_DIMENSIONS = 8
MOST_EXTENT = 2**31 - 1


def version_is_known(plan: Plan) -> Iterator[Diagnostic]:
    """This code reads one version of plans, for at least one rank."""
    if plan.version != VERSION:
        yield Diagnostic(PLACELESS, f"the plan has version {plan.version}; this ficco reads version {VERSION}")
    if plan.ranks < 1:
        yield Diagnostic(PLACELESS, f"the plan is for {plan.ranks} ranks")


def streams_belong_to_ranks(plan: Plan) -> Iterator[Diagnostic]:
    """Stream i has id i, runs on a rank of the plan with a known engine and priority; only a copy engine's stream
    has a link, which leads to a rank of the plan."""
    for i, stream in enumerate(plan.streams):
        if stream.id != i or not 0 <= stream.rank < plan.ranks:
            yield Diagnostic(PLACELESS, f"stream {stream.id} (rank {stream.rank}) stands at place {i}")
        elif stream.engine not in get_args(graph_ir.Engine) or stream.priority not in get_args(graph_ir.Priority):
            yield Diagnostic(
                PLACELESS, f"stream {i} has engine '{stream.engine}' and priority '{stream.priority}', not both known"
            )
        elif stream.link is not None and (stream.engine != "copy" or not 0 <= stream.link < plan.ranks):
            yield Diagnostic(
                PLACELESS, f"stream {i}, engine {stream.engine}, has link {stream.link} in a plan of {plan.ranks} ranks"
            )


def tensors_have_sizes(plan: Plan) -> Iterator[Diagnostic]:
    """Every tensor is declared once, of a known type, with a shape on every rank, of as many dimensions and no
    dimension empty."""
    for name, times in Counter(t.name for t in plan.tensors).items():
        if times > 1:
            yield Diagnostic(PLACELESS, f"{name} is declared {times} times")
    for tensor in plan.tensors:
        if tensor.dtype not in TYPES:
            yield Diagnostic(tensor.origin, f"{tensor.name} has type '{tensor.dtype}', which is unknown")
        if len(tensor.shapes) != plan.ranks or not tensor.shapes:
            yield Diagnostic(tensor.origin, f"{tensor.name} has {len(tensor.shapes)} shapes for {plan.ranks} ranks")
        elif len(set(map(len, tensor.shapes))) > 1 or not 1 <= len(tensor.shapes[0]) <= MOST_DIMENSIONS:
            yield Diagnostic(
                tensor.origin, f"{tensor.name} has shapes of {sorted(set(map(len, tensor.shapes)))} dimensions"
            )
        elif any(not 1 <= extent <= MOST_EXTENT for shape in tensor.shapes for extent in shape):
            yield Diagnostic(tensor.origin, f"{tensor.name} has a dimension that is no size")


def regions_lie_inside(plan: Plan) -> Iterator[Diagnostic]:
    """Every region, of commands and of claims, lies inside a tensor of the plan and is not empty."""
    shapes = {t.name: t.shapes for t in plan.tensors}
    seen: set[int] = set()  # by identity: the plan keeps them, and a region's hash takes longer than its check
    claimed = ((False, r, c.origin) for c in plan.claims for r in chain(c.targets, operands(c.value)))
    for _, region, origin in chain(accesses(plan), claimed):
        if id(region) in seen:
            continue
        seen.add(id(region))
        of_ranks = shapes.get(region.tensor)
        if of_ranks is None or not 0 <= region.rank < plan.ranks:
            yield Diagnostic(origin, f"{region} is in no tensor of the plan")
            continue
        shape = of_ranks[region.rank]
        if len(shape) != len(region.axes):
            yield Diagnostic(origin, f"{region} has {len(region.axes)} dimensions; the tensor has {len(shape)}")
            continue
        if not _inside(region, shape):
            yield Diagnostic(origin, f"{region} is outside its tensor, {' × '.join(map(str, shape))}")


def _inside(region: Region, shape: tuple[int, ...]) -> bool:
    for axis, extent in zip(region.axes, shape, strict=True):
        for start, stop in axis.segments:
            if not 0 <= start < stop <= extent:
                return False
    return bool(region.boxes)


def writes_are_single(plan: Plan) -> Iterator[Diagnostic]:
    """No input is written, and what is written names every element once."""
    inputs = {t.name for t in plan.tensors if t.kind == "input"}
    for written, region, origin in accesses(plan):
        if written:
            if region.tensor in inputs:
                yield Diagnostic(origin, f"{region} is written; {region.tensor} is an input")
            elif len(region.boxes) > 1 and any(
                b.start < a.stop for axis in region.axes for a, b in pairwise(sorted(axis.segments))
            ):
                yield Diagnostic(origin, f"{region} is written; it names an element twice")


def claims_fit(plan: Plan) -> Iterator[Diagnostic]:
    """A claim has one target a rank, in one output, of the shape of the value, which is made of inputs."""
    kinds = {t.name: t.kind for t in plan.tensors}
    for claim in plan.claims:
        if [t.rank for t in claim.targets] != list(range(min(plan.ranks, len(claim.targets) + 1))):
            message = f"the claim has {len(claim.targets)} targets; it needs one a rank, in order"
        elif any(kinds[t.tensor] != "output" for t in claim.targets) or len({t.tensor for t in claim.targets}) > 1:
            message = "the claim's targets are not of one output"
        else:
            message = misfit(claim, kinds) or ""
        if message:
            yield Diagnostic(claim.origin, f"{claim.text}: {message}")


def engines_fit(plan: Plan) -> Iterator[Diagnostic]:
    """Transfers run on copy engines, launches on multiprocessors, collectives on NCCL's streams."""
    fits: dict[type, graph_ir.Engine] = {CopyAsync: "copy", Launch: "sm", CollectiveCall: "nccl"}
    for stream in plan.streams:
        for command in stream.commands:
            if fits.get(type(command), stream.engine) != stream.engine:
                yield Diagnostic(
                    command.origin, f"{type(command).__name__} on stream {stream.name}, whose engine is {stream.engine}"
                )


def commands_do_something(plan: Plan) -> Iterator[Diagnostic]:
    """A copy has transfers and a launch has works."""
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CopyAsync) and not command.transfers:
                yield Diagnostic(PLACELESS, f"an empty copy on stream {stream.name} of rank {stream.rank}")
            elif isinstance(command, Launch) and not command.works:
                yield Diagnostic(PLACELESS, f"an empty launch on stream {stream.name} of rank {stream.rank}")


def transfers_are_flat(plan: Plan) -> Iterator[Diagnostic]:
    """A transfer is a legal copy, of one box to one box, either of them contiguous or with one pitch."""
    tensors = {t.name: t for t in plan.tensors}
    for stream, transfer in _transfers(plan):
        dst, src = transfer.dst, transfer.src
        where = graph_ir.Where(stream.rank, 0, 0, NOTHING, transfer.origin)
        message = graph_rules.copy_fits(graph_ir.Copy(where, dst, src), tensors)
        if message is not None:
            yield Diagnostic(transfer.origin, message)
        elif len(dst.boxes) != 1 or len(src.boxes) != 1:
            yield Diagnostic(transfer.origin, f"transfer {src} → {dst}: not one box to one box")
        elif not all(len(r.axes) <= 2 or pitched(r.boxes[0], tensors[r.tensor].shapes[r.rank]) for r in (dst, src)):
            yield Diagnostic(transfer.origin, f"transfer {src} → {dst}: more than one pitch")


def pitched(box: Box, shape: tuple[int, ...]) -> bool:
    """At most one dimension of runs outside a contiguous run."""
    runs, inside = 0, True  # inside: everything further in is taken whole
    for n, extent in zip(reversed(box.shape), reversed(shape), strict=True):
        if n > 1 and not inside:
            runs += 1
            inside = n == extent
        elif n != extent:
            inside = False
    return runs <= 1


def launches_are_whole(plan: Plan) -> Iterator[Diagnostic]:
    """A plain launch is one work, or several copies, without flags; a streamed one has no user kernel; attributes are
    sizes."""
    for stream, launch in _launches(plan):
        several = len(launch.works) > 1 and not all(isinstance(w, CopyWork) for w in launch.works)
        if not launch.streamed and (several or any(w.waits or w.signals for w in launch.works)):
            yield Diagnostic(
                launch.origin, "a launch that is not streamed has one work, or several copies, and no flags"
            )
        if launch.streamed and any(isinstance(w, KernelWork) for w in launch.works):
            yield Diagnostic(launch.origin, "a streamed launch has GEMMs, reduces and copies, no user kernel")
        begins = [0, *(first for first, _ in launch.joined), len(launch.works)]
        if launch.joined and not (launch.streamed and all(a < b for a, b in pairwise(begins))):
            yield Diagnostic(launch.origin, "stages that join a streamed launch each have works of their own, in order")
        a = launch.attributes
        if a.smem < 0 or (a.residency is not None and a.residency < 1) or (a.sms is not None and a.sms < 1):
            yield Diagnostic(
                launch.origin,
                f"launch on stream {stream.name} of rank {stream.rank}: no sizes are smem = {a.smem}, "
                f"residency = {a.residency}, sms = {a.sms}",
            )


def works_fit(plan: Plan) -> Iterator[Diagnostic]:
    """A work is a legal GEMM, reduce, copy or user kernel of its rank: only terms of sums, what a GEMM writes and one
    side of a copy lie on peers."""
    tensors = {t.name: t for t in plan.tensors}
    for stream, launch in _launches(plan):
        for work in launch.works:
            message = _unfit(work, graph_ir.Where(stream.rank, 0, 0, NOTHING, work.origin), tensors)
            if message is not None:
                yield Diagnostic(work.origin, message)


def _unfit(work: Work, where: graph_ir.Where, tensors: Mapping[str, graph_ir.Tensor]) -> str | None:
    match work:
        case GemmWork():
            op = graph_ir.Gemm(
                where, work.out, work.left, work.right, work.left_transposed, work.right_transposed, work.accumulate,
                work.terms,
            )  # fmt: skip
            return graph_rules.gemm_fits(op, tensors)
        case ReduceWork():
            return graph_rules.reduce_fits(graph_ir.Reduce(where, work.out, work.terms), tensors)
        case CopyWork():
            return graph_rules.copy_fits(graph_ir.Copy(where, work.dst, work.src), tensors)
        case KernelWork():
            if not (1 <= len(work.grid) <= 3 and 1 <= len(work.block) <= 3):
                return f"kernel '{work.kernel}' has no grid or block of one to three sizes"
            if any((a.mode == "int") != isinstance(a.value, int) for a in work.arguments):
                return f"kernel '{work.kernel}' has an argument that is a number and a region"
            launch = graph_ir.Launch(where, work.kernel, work.arguments, work.grid, work.block, 0)
            return graph_rules.launch_fits(launch, tensors)


def kernels_exist(plan: Plan) -> Iterator[Diagnostic]:
    """A launch names a kernel that does its works: a declared one, or the catalogue's; GEMM tiles are the kernel's."""
    declared = Counter(k.name for k in plan.kernels)
    for kernel in plan.kernels:
        if declared[kernel.name] > 1:
            yield Diagnostic(kernel.origin, f"kernel '{kernel.name}' is declared {declared[kernel.name]} times")
    for _, launch in _launches(plan):
        user = [w for w in launch.works if isinstance(w, KernelWork)]
        gemms = [w for w in launch.works if isinstance(w, GemmWork)]
        if user:
            known = launch.kernel in declared and all(w.kernel == launch.kernel for w in user)
        elif gemms:  # only the plain kernel's launch may hold sums and copies as well
            alone = len(gemms) == len(launch.works)
            known = launch.kernel in TILES and (alone or launch.kernel == GEMM)
        else:
            known = launch.kernel == (COPY if all(isinstance(w, CopyWork) for w in launch.works) else REDUCE)
        if not known:
            yield Diagnostic(launch.origin, f"there is no kernel '{launch.kernel}' for the works of the launch")
            continue
        for work in gemms:
            rows, columns = tiles(work.out, TILES[launch.kernel])
            if work.tiles != (rows, columns):
                yield Diagnostic(
                    work.origin,
                    f"gemm {work.out} has {work.tiles[0]} × {work.tiles[1]} tiles; "
                    f"{launch.kernel} makes {rows} × {columns}",
                )


def tiles(out: Region, tile: tuple[int, int]) -> tuple[int, int]:
    """The grid of output tiles that a kernel makes of a matrix: no tile goes over the end of a segment."""
    if len(out.boxes) == 1:
        return -(-out.shape[0] // tile[0]), -(-out.shape[1] // tile[1])
    rows, columns = (out.axes[d].segments for d in out.kept)
    return sum(-(-s.size // tile[0]) for s in rows), sum(-(-s.size // tile[1]) for s in columns)


def ops_stand_once(plan: Plan) -> Iterator[Diagnostic]:
    """An op of the schedule is one work, one call, or transfers of one copy; `after` orders ops of the plan."""
    places: dict[int, object] = {}
    for stream in plan.streams:
        for command in stream.commands:
            for op, origin, place in _ops(command):
                if op < 0:
                    yield Diagnostic(origin, f"there is no op {op}")
                elif places.setdefault(op, place) is not place:
                    yield Diagnostic(origin, f"op {op} stands in two places")
    for order in plan.orders:
        for op in (order.before, order.after):
            if op not in places:
                yield Diagnostic(order.origin, f"'after' speaks of op {op}, which is not in the plan")


def signals_are_single(plan: Plan) -> Iterator[Diagnostic]:
    """Every event of the plan is recorded once, every flag raised once, and nothing waits for any other."""
    records: Counter[int] = Counter()
    raised: Counter[int] = Counter()
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, Record):
                records[command.event] += 1
            elif isinstance(command, SignalFlag):
                raised[command.flag] += 1
            elif isinstance(command, Launch):
                for work in command.works:
                    if work.signals:
                        raised.update(work.signals)
    for what, counts, size in (("event", records, plan.events), ("flag", raised, len(plan.flag_homes))):
        for i, n in counts.items():
            if n > 1:
                yield Diagnostic(PLACELESS, f"{what} {i} is given {n} times")
            if not 0 <= i < size:
                yield Diagnostic(PLACELESS, f"{what} {i} is not in the plan's table of {size}")
        if len(counts) < size:
            yield Diagnostic(PLACELESS, f"the plan's table has {size} {what}s, of which {len(counts)} are given")
    for stream in plan.streams:
        for command in stream.commands:
            missing: list[tuple[str, int, Span]] = []
            if isinstance(command, WaitEvent) and command.event not in records:
                missing.append(("event", command.event, command.origin))
            elif isinstance(command, WaitFlag) and command.flag not in raised:
                missing.append(("flag", command.flag, command.origin))
            elif isinstance(command, Launch):
                missing.extend(
                    ("flag", f, w.origin) for w in command.works if w.waits for f in w.waits if f not in raised
                )
            for what, i, origin in missing:
                yield Diagnostic(
                    origin, f"rank {stream.rank} stream {stream.name} waits for {what} {i}, which nothing gives"
                )


def flags_are_awaited_at_home(plan: Plan) -> Iterator[Diagnostic]:
    """A flag lives on the rank that waits for it."""
    homes = plan.flag_homes
    for flag, home in enumerate(homes):
        if not 0 <= home < plan.ranks:
            yield Diagnostic(PLACELESS, f"flag {flag} lives on rank {home}; the plan has {plan.ranks} ranks")
    for stream in plan.streams:
        for command in stream.commands:
            waits: tuple[tuple[int, Span], ...] = ()
            if isinstance(command, WaitFlag):
                waits = ((command.flag, command.origin),)
            elif isinstance(command, Launch) and command.streamed:
                waits = tuple((f, work.origin) for work in command.works for f in work.waits)
            for flag, origin in waits:
                if homes[flag] != stream.rank:
                    yield Diagnostic(
                        origin, f"rank {stream.rank} waits for flag {flag}, which lives on rank {homes[flag]}"
                    )


def collectives_are_complete(plan: Plan) -> Iterator[Diagnostic]:
    """Every rank calls a collective once, with the same kind, on as much of its own memory, of one type."""
    tensors = {t.name: t for t in plan.tensors}
    groups: dict[int, list[tuple[int, CollectiveCall]]] = {}
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CollectiveCall):
                groups.setdefault(command.group, []).append((stream.rank, command))
                where = graph_ir.Where(stream.rank, 0, 0, NOTHING, command.origin)
                op = graph_ir.Collective(where, command.kind, command.group, command.dst, command.src)
                message = graph_rules.collective_fits(op, tensors)
                if message is not None:
                    yield Diagnostic(command.origin, message)
                elif not stream.rank == command.dst.rank == command.src.rank:
                    yield Diagnostic(
                        command.origin, f"{command.kind} of rank {stream.rank} works on another rank's memory"
                    )
    for calls in groups.values():
        ranks, kind, origin = sorted(rank for rank, _ in calls), calls[0][1].kind, calls[0][1].origin
        if ranks != list(range(plan.ranks)) or len({c.kind for _, c in calls}) > 1:
            yield Diagnostic(origin, f"{kind} is called by ranks {ranks}; all take part once")
        elif len({(c.src.shape, tensors[c.src.tensor].dtype) for _, c in calls}) > 1:
            yield Diagnostic(origin, f"{kind}: the sources of the ranks differ in shape or type")


RULES: tuple[Callable[[Plan], Iterator[Diagnostic]], ...] = (  # in this order: a later one may rely on the earlier
    version_is_known,
    streams_belong_to_ranks,
    tensors_have_sizes,
    commands_do_something,
    regions_lie_inside,
    writes_are_single,
    claims_fit,
    engines_fit,
    transfers_are_flat,
    launches_are_whole,
    works_fit,
    kernels_exist,
    ops_stand_once,
    signals_are_single,
    flags_are_awaited_at_home,
    collectives_are_complete,
)


def _transfers(plan: Plan) -> Iterator[tuple[Stream, Transfer]]:
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CopyAsync):
                for transfer in command.transfers:
                    yield stream, transfer


def _launches(plan: Plan) -> Iterator[tuple[Stream, Launch]]:
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, Launch):
                yield stream, command


def _ops(command: Command) -> Iterator[tuple[int, Span, object]]:
    """A command's ops, each with what carries it out."""
    if isinstance(command, CopyAsync):
        for transfer in command.transfers:
            yield transfer.op, transfer.origin, command
    elif isinstance(command, Launch):
        for work in command.works:
            yield work.op, work.origin, work
    elif isinstance(command, CollectiveCall):
        yield command.op, command.origin, command


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
