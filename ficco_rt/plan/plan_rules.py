"""Rules of a well-formed plan that do not depend on order. They run on every plan, stored ones included.

Each rule yields the mistakes that it finds, with the line of the schedule that the command comes from. Every driver can
run a plan that passes all rules and then the check of the order. The rules in `graph/ops` for a single copy, GEMM,
reduce, collective or user kernel apply here, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import get_args

from ficco_dsl.diagnostics import Diagnostic, Span

from ..geometry.region import Box, Region
from ..graph import ir as graph_ir
from ..graph import op_rules as graph_rules
from ..graph.claim_values import misfit, regions_of
from ..graph.scales import tensor_of
from ..kernels.catalogue import TILES, VENDOR_GEMM
from ..kernels.family import GemmRequest
from ..kernels.naive.family import kernel_of
from ..kernels.vendor_gemm import VENDOR
from ..kernels.works import kernel_work, symbolic
from ..machine.machine_rules import mistakes
from ..types import TYPES
from . import ir
from .reach import beyond

PLACELESS = Span("plan", 1, 1, 1, 1)
MOST_DIMENSIONS = 8
MOST_EXTENT = 2**31 - 1
MOST_RANKS = 1024
MOST_OPS = 2**24  # tables have an entry for each


def version_is_known(plan: ir.Plan) -> Iterator[Diagnostic]:
    """The plan has the version that this code reads, and no more ranks than a schedule may have."""
    if plan.version != ir.VERSION:
        yield Diagnostic(PLACELESS, f"the plan has version {plan.version}; this ficco reads version {ir.VERSION}")
    if not 1 <= plan.ranks <= MOST_RANKS:
        yield Diagnostic(PLACELESS, f"the plan is for {str(plan.ranks)[:40]} ranks; a plan is for 1 to {MOST_RANKS}")


def machine_is_whole(plan: ir.Plan) -> Iterator[Diagnostic]:
    """A plan holds the machine that it was made for, with the plan's name for it, ranks enough, and numbers that a
    machine may have."""
    machine = plan.made_for
    if machine is None:
        yield Diagnostic(PLACELESS, f"the plan is for {plan.machine}, and does not hold that machine")
        return
    if machine.name != plan.machine or machine.ranks < plan.ranks:
        yield Diagnostic(
            PLACELESS,
            f"the plan is for {plan.ranks} ranks on {plan.machine}, and holds {machine.name} of {machine.ranks} ranks",
        )
    for mistake in mistakes(machine):
        yield Diagnostic(PLACELESS, f"the machine {machine.name} of the plan: {mistake}")


def streams_belong_to_ranks(plan: ir.Plan) -> Iterator[Diagnostic]:
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


def tensors_have_sizes(plan: ir.Plan) -> Iterator[Diagnostic]:
    """Every tensor is declared once, of a known type, with a shape on every rank, of as many dimensions and no
    dimension empty on all ranks."""
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
        elif any(not 0 <= extent <= MOST_EXTENT for shape in tensor.shapes for extent in shape) or not all(
            any(shape[d] for shape in tensor.shapes) for d in range(len(tensor.shapes[0]))
        ):
            yield Diagnostic(tensor.origin, f"{tensor.name} has a dimension that is no size")


def scales_are_there(plan: ir.Plan) -> Iterator[Diagnostic]:
    """A scaled tensor is a matrix, or several, of fp8, and the tensor of its scales is in the plan."""
    for tensor in plan.tensors:
        if tensor.scaling is None:
            continue
        of = f"{tensor.name} is scaled {tensor.scaling}"
        if len(tensor.shapes[0]) < 2 or not TYPES[tensor.dtype].quantised:
            yield Diagnostic(tensor.origin, f"{of}, and is no matrix of fp8")
        elif tensor_of(tensor) not in plan.tensors:
            yield Diagnostic(tensor.origin, f"{of}, and its scales are not in the plan")


def tf32_is_claimed(plan: ir.Plan) -> Iterator[Diagnostic]:
    """Products whose operands are rounded to TF32 are admitted by all claims."""
    if not plan.claims or not all(claim.tf32 for claim in plan.claims):
        for _, launch in plan.launches():
            for work in launch.works:
                if isinstance(work.body, graph_ir.Gemm) and work.body.tf32:
                    yield Diagnostic(work.origin, "a product is rounded to TF32, which a claim does not admit")


def regions_lie_inside(plan: ir.Plan) -> Iterator[Diagnostic]:
    """Every region, of commands and claims, lies inside a tensor of the plan. What a command touches is not empty."""
    shapes = {t.name: t.shapes for t in plan.tensors}
    seen: set[int] = set()  # by identity: the plan keeps them, and a region's hash takes longer than its check
    touched = ((region, part.origin, True) for part in plan.parts() for region in (*part.reads, *part.writes))
    claimed = ((region, c.origin, False) for c in plan.claims for region in regions_of(c))
    for region, origin, does in chain(touched, claimed):
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
        if not inside(region, shape) or (does and not region.boxes):
            yield Diagnostic(origin, f"{region} is outside its tensor, {' × '.join(map(str, shape))}")


def inside(region: Region, shape: tuple[int, ...]) -> bool:
    for axis, extent in zip(region.axes, shape, strict=True):
        for start, stop in axis.segments:
            if not 0 <= start < stop <= extent:
                return False
    return True


def writes_are_single(plan: ir.Plan) -> Iterator[Diagnostic]:
    """No input is written, and what is written names every element once."""
    inputs = {t.name for t in plan.tensors if t.kind == "input"}
    for part in plan.parts():
        for region in part.writes:
            if region.tensor in inputs:
                yield Diagnostic(part.origin, f"{region} is written; {region.tensor} is an input")
            elif len(region.boxes) > 1 and any(
                b.start < a.stop for axis in region.axes for a, b in pairwise(sorted(axis.segments))
            ):
                yield Diagnostic(part.origin, f"{region} is written; it names an element twice")


def claims_fit(plan: ir.Plan) -> Iterator[Diagnostic]:
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


def engines_fit(plan: ir.Plan) -> Iterator[Diagnostic]:
    """Transfers run on copy engines, launches on multiprocessors, collectives on NCCL's streams."""
    fits: dict[type, graph_ir.Engine] = {ir.CopyAsync: "copy", ir.Launch: "sm", ir.CollectiveCall: "nccl"}
    for stream, command in plan.commands():
        if fits.get(type(command), stream.engine) != stream.engine:
            yield Diagnostic(
                command.origin, f"{type(command).__name__} on stream {stream.name}, whose engine is {stream.engine}"
            )


def settings_fit(plan: ir.Plan) -> Iterator[Diagnostic]:
    """Streams of collectives alone ask something of the vendor's library, a queue's streams all the same, within what
    a library can take."""
    asked: dict[str, graph_ir.CollectiveSettings | None] = {}
    for stream in plan.streams:
        found = stream.collectives
        if asked.setdefault(stream.queue, found) != found:
            yield Diagnostic(PLACELESS, f"queue {stream.queue}: rank {stream.rank} asks other ctas or threads")
        if found is None:
            continue
        if stream.engine != "nccl":
            yield Diagnostic(
                PLACELESS, f"stream {stream.name} has engine {stream.engine}; ctas and threads are for nccl"
            )
        message = graph_rules.settings_fit(found)
        if message is not None:
            yield Diagnostic(PLACELESS, f"stream {stream.name} of rank {stream.rank}: {message}")


def commands_do_something(plan: ir.Plan) -> Iterator[Diagnostic]:
    """A copy has transfers and a launch has works."""
    for stream, command in plan.commands():
        if isinstance(command, ir.CopyAsync | ir.Launch) and not command.parts:
            what = "copy" if isinstance(command, ir.CopyAsync) else "launch"
            yield Diagnostic(PLACELESS, f"an empty {what} on stream {stream.name} of rank {stream.rank}")


def transfers_are_flat(plan: ir.Plan) -> Iterator[Diagnostic]:
    """A transfer is of one box to one box, either of them contiguous or with one pitch."""
    tensors = {t.name: t for t in plan.tensors}
    for transfer in _transfers(plan):
        dst, src = transfer.dst, transfer.src
        if len(dst.boxes) != 1 or len(src.boxes) != 1:
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


def launches_are_whole(plan: ir.Plan) -> Iterator[Diagnostic]:
    """A plain launch is one work, or several copies, without flags; a streamed one has no user kernel; attributes are
    sizes."""
    for stream, launch in plan.launches():
        several = len(launch.works) > 1 and not all(isinstance(w.body, graph_ir.Copy) for w in launch.works)
        if not launch.streamed and (several or any(w.waits or w.signals for w in launch.works)):
            yield Diagnostic(
                launch.origin, "a launch that is not streamed has one work, or several copies, and no flags"
            )
        if launch.streamed and any(isinstance(w.body, graph_ir.KernelCall) for w in launch.works):
            yield Diagnostic(
                launch.origin, "a streamed launch has GEMMs, reduces, quantizations and copies, no user kernel"
            )
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


def parts_fit(plan: ir.Plan) -> Iterator[Diagnostic]:
    """A transfer, a work or a call is a legal copy, GEMM, reduce, user kernel or collective of its rank: only terms of
    sums, what a GEMM adds and writes, and one side of a copy lie on peers."""
    tensors = {t.name: t for t in plan.tensors}
    for stream, command in plan.commands():
        for part in command.parts:
            message = graph_rules.fits(part.body if isinstance(part, ir.Work) else part, stream.rank, tensors)
            if message is not None:
                yield Diagnostic(part.origin, message)


def kernels_exist(plan: ir.Plan) -> Iterator[Diagnostic]:
    """A launch names a kernel that does its works: a declared one, or the catalogue's; GEMM tiles are the kernel's."""
    declared = Counter(k.name for k in plan.kernels)
    for kernel in plan.kernels:
        if declared[kernel.name] > 1:
            yield Diagnostic(kernel.origin, f"kernel '{kernel.name}' is declared {declared[kernel.name]} times")
    for _, launch in plan.launches():
        bodies = [work.body for work in launch.works]
        calls = any(isinstance(body, graph_ir.KernelCall) for body in bodies)
        if not takes(launch.kernel, bodies) or (calls and launch.kernel not in declared):
            yield Diagnostic(launch.origin, f"there is no kernel '{launch.kernel}' for the works of the launch")
            continue
        for work in launch.works:
            if not isinstance(gemm := work.body, graph_ir.Gemm):
                continue
            made = tiles(gemm.out, TILES[launch.kernel])
            if work.tiles != made:
                said = " × ".join(map(str, work.tiles or ())) or "no"
                yield Diagnostic(
                    work.origin,
                    f"gemm {gemm.out} has {said} tiles; {launch.kernel} makes {made[0]} × {made[1]}",
                )


def takes(kernel: str, bodies: Sequence[graph_ir.Body]) -> bool:
    """Whether the kernel of this name does the works of a launch: the user's that they call, or the catalogue's."""
    kinds = set(map(type, bodies))
    if graph_ir.KernelCall in kinds:
        return all(isinstance(body, graph_ir.KernelCall) and body.kernel == kernel for body in bodies)
    # only a plain kernel's launch may hold works of several kinds
    return kernel == kernel_of(bodies).name or (kernel in TILES and kinds == {graph_ir.Gemm})


def library_calls_fit(plan: ir.Plan) -> Iterator[Diagnostic]:
    """A launch by the vendor's library is a product that it makes, and asks for nothing that it has not."""
    look = symbolic(plan.tensors)
    for _, launch in plan.launches():
        if launch.kernel != VENDOR_GEMM:
            continue
        a = launch.attributes
        if a.smem or (a.residency, a.priority) != (None,) * 2:
            yield Diagnostic(launch.origin, f"{VENDOR_GEMM} has no smem, residency or priority of its own")
        works = tuple(kernel_work(work.body, look, work.waits, work.signals) for work in launch.works)
        reason = VENDOR.fits(GemmRequest(works, streamed=launch.streamed))
        if reason is not None:
            yield Diagnostic(launch.origin, f"{VENDOR_GEMM} does not do this: {reason}")


def tiles(out: Region, tile: tuple[int, int]) -> tuple[int, int]:
    """The grid of output tiles of a kernel on a matrix: no tile crosses the end of a segment."""
    if len(out.boxes) == 1:
        return -(-out.shape[0] // tile[0]), -(-out.shape[1] // tile[1])
    rows, columns = (out.axes[d].segments for d in out.kept)
    return sum(-(-s.size // tile[0]) for s in rows), sum(-(-s.size // tile[1]) for s in columns)


def memory_is_in_reach(plan: ir.Plan) -> Iterator[Diagnostic]:
    """On a machine of several nodes a command touches the memory of its rank's node alone, and nothing waits for a
    signal of another node."""
    machine = plan.made_for
    if machine is None or machine.node >= plan.ranks:
        return
    raisers: dict[ir.Signal, int] = {}
    for stream, command in plan.commands():
        raisers.update((signal, stream.rank) for signal in command.signals)
        for part in command.parts:
            message = beyond(machine, stream.rank, part.reads, part.writes)
            if message is not None:
                yield Diagnostic(part.origin, message)
    for stream, signal, origin in _waits(plan):
        if raisers[signal] // machine.node != stream.rank // machine.node:
            yield Diagnostic(
                origin, f"rank {stream.rank} waits for {signal} of rank {raisers[signal]}, in another node"
            )


def ops_stand_once(plan: ir.Plan) -> Iterator[Diagnostic]:
    """An op of the schedule is one work, one call, or transfers of one copy; `after` orders ops of the plan."""
    places: dict[int, object] = {}
    for _, command in plan.commands():
        for part in command.parts:
            place = command if isinstance(part, ir.Transfer) else part
            if not 0 <= part.op < MOST_OPS:
                yield Diagnostic(part.origin, f"there is no op {part.op}")
            elif places.setdefault(part.op, place) is not place:
                yield Diagnostic(part.origin, f"op {part.op} stands in two places")
    for order in plan.orders:
        for op in (order.before, order.after):
            if op not in places:
                yield Diagnostic(order.origin, f"'after' speaks of op {op}, which is not in the plan")


def signals_are_single(plan: ir.Plan) -> Iterator[Diagnostic]:
    """Every event of the plan is recorded once, every flag raised once, and nothing waits for any other."""
    raised = Counter(signal for _, command in plan.commands() for signal in command.signals)
    sizes = {"event": plan.events, "flag": len(plan.flag_homes)}
    for kind, size in sizes.items():
        given = {signal.number: times for signal, times in raised.items() if signal.kind == kind}
        for i, times in given.items():
            if times > 1:
                yield Diagnostic(PLACELESS, f"{kind} {i} is given {times} times")
            if not 0 <= i < size:
                yield Diagnostic(PLACELESS, f"{kind} {i} is not in the plan's table of {size}")
        if len(given) < size:
            yield Diagnostic(PLACELESS, f"the plan's table has {size} {kind}s, of which {len(given)} are given")
    for stream, signal, origin in _waits(plan):
        if signal not in raised:
            yield Diagnostic(origin, f"rank {stream.rank} stream {stream.name} waits for {signal}, which nothing gives")


def flags_are_awaited_at_home(plan: ir.Plan) -> Iterator[Diagnostic]:
    """A flag is located on the rank that waits for it."""
    homes = plan.flag_homes
    for flag, home in enumerate(homes):
        if not 0 <= home < plan.ranks:
            yield Diagnostic(PLACELESS, f"flag {flag} lives on rank {home}; the plan has {plan.ranks} ranks")
    for stream, signal, origin in _waits(plan):
        if signal.kind == "flag" and homes[signal.number] != stream.rank:
            yield Diagnostic(
                origin, f"rank {stream.rank} waits for {signal}, which lives on rank {homes[signal.number]}"
            )


def _waits(plan: ir.Plan) -> Iterator[tuple[ir.Stream, ir.Signal, Span]]:
    """Every wait of the plan, of a stream or of a work, and its place."""
    for stream, command in plan.commands():
        if isinstance(command, ir.Launch):
            for work in command.works:
                for flag in work.waits:
                    yield stream, ir.Signal("flag", flag), work.origin
        else:
            for signal in command.waits:
                yield stream, signal, command.origin


def collectives_are_complete(plan: ir.Plan) -> Iterator[Diagnostic]:
    """Every rank calls a collective once, with the same kind, on as much of its own memory, of one type."""
    tensors = {t.name: t for t in plan.tensors}
    groups: dict[int, list[tuple[int, ir.CollectiveCall]]] = {}
    for stream, command in plan.commands():
        if isinstance(command, ir.CollectiveCall):
            groups.setdefault(command.group, []).append((stream.rank, command))
            if not stream.rank == command.dst.rank == command.src.rank:
                yield Diagnostic(command.origin, f"{command.kind} of rank {stream.rank} works on another rank's memory")
    for calls in groups.values():
        ranks, kind, origin = sorted(rank for rank, _ in calls), calls[0][1].kind, calls[0][1].origin
        if ranks != list(range(plan.ranks)) or len({c.kind for _, c in calls}) > 1:
            yield Diagnostic(origin, f"{kind} is called by ranks {ranks}; all take part once")
        elif kind == "send_recv":
            ordered = [c for _, c in sorted(calls, key=lambda call: call[0])]
            message = graph_rules.pairs_fit(ordered, tensors)
            if message is not None:
                yield Diagnostic(origin, f"send_recv: {message}")
        elif len({(c.src.shape, tensors[c.src.tensor].dtype) for _, c in calls}) > 1:
            yield Diagnostic(origin, f"{kind}: the sources of the ranks differ in shape or type")


RULES: tuple[Callable[[ir.Plan], Iterator[Diagnostic]], ...] = (  # in this order: a later one may rely on the earlier
    version_is_known,
    machine_is_whole,
    streams_belong_to_ranks,
    tensors_have_sizes,
    scales_are_there,
    tf32_is_claimed,
    commands_do_something,
    regions_lie_inside,
    writes_are_single,
    claims_fit,
    engines_fit,
    settings_fit,
    parts_fit,
    transfers_are_flat,
    launches_are_whole,
    kernels_exist,
    library_calls_fit,
    ops_stand_once,
    signals_are_single,
    flags_are_awaited_at_home,
    memory_is_in_reach,
    collectives_are_complete,
)


def _transfers(plan: ir.Plan) -> Iterator[ir.Transfer]:
    return (part for part in plan.parts() if isinstance(part, ir.Transfer))
