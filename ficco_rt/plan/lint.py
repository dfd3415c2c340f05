"""Warnings on schedules that are legal but probably slow or imprecise, with the reason and a way to fix it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from ficco_dsl.diagnostics import Diagnostic, Span

from ..graph import ir
from ..graph.kinds import likeness
from ..graph.noise import coarse
from ..graph.prove import meaning
from ..graph.scales import is_scales
from ..kernels.families import choose, family_of, tensor_core_families, tuned
from ..kernels.family import GemmRequest
from ..kernels.occupancy import Limits
from ..kernels.target import compute_capability
from ..kernels.vendor_gemm import VENDOR
from ..kernels.works import kernel_work, symbolic
from ..machine.durations import behind_another
from ..machine.model import Device, Machine
from ..machine.units import figure
from ..types import ELEMENT_TYPES, TYPES
from .leave import Leaving, resolve_leave
from .transfers import phases

_MADE_FOR = "take a machine whose GPUs have one: sm_80, sm_90, gfx90a, gfx942"
_THEN = "the vendor's library then takes such products"
_NVIDIA = f'pip install "nvmath-python>=1.0" "nvidia-cublas>=13.0" where it runs: {_THEN}'
_AMD = f'pip install "hip-python[libraries]>=10" where it runs: {_THEN}'
_LARGE = 1 << 30  # operations of products whose kernel matters


def lint(graph: ir.Graph, machine: Machine) -> tuple[Diagnostic, ...]:
    """All warnings, in the order of the text, one a statement and cause."""
    graph = resolve_leave(graph, machine)
    found: dict[tuple[Span, str], Diagnostic] = {}
    for check in CHECKS:
        for d in check(graph, machine):
            found.setdefault((d.span, check.__name__), d)
    return tuple(sorted(found.values(), key=lambda d: (d.span.line, d.span.column)))


def incast(graph: ir.Graph, machine: Machine) -> Iterator[Diagnostic]:
    """Two ranks send to one rank at the same time. On a switch they share its port, while other ports idle."""
    if all(links.kind != "switch" for links in machine.tiers):
        return
    for block in phases(graph):
        sends = [
            (op, *way)
            for i in block
            if (way := _sends(op := graph.ops[i])) is not None and machine.between(*way).kind == "switch"
        ]
        if not sends or sends[0][0].where.resources.order == "auto":
            continue
        turn: Counter[int] = Counter()
        rounds: dict[int, list[tuple[ir.Op, int, int]]] = {}
        for send in sends:
            rank = send[0].where.rank
            rounds.setdefault(turn[rank], []).append(send)
            turn[rank] += 1
        crowded = [r for r, some in rounds.items() if max(Counter(dst for _, _, dst in some).values()) > 1]
        if 4 * len(crowded) <= len(rounds):
            continue
        some = rounds[crowded[0]]
        rank, _ = Counter(dst for _, _, dst in some).most_common(1)[0]
        senders = sorted({src for _, src, dst in some if dst == rank})
        first = next(op for op, _, dst in some if dst == rank)
        copies = all(isinstance(op.body, ir.Copy) for op, _, _ in some)
        yield Diagnostic(
            first.where.origin,
            f"ranks {', '.join(map(str, senders))} all send to rank {rank} in round {crowded[0] + 1} of "
            f"{len(rounds)}: they share its port, which can halve the bandwidth ({len(crowded)} such rounds)",
            help="send in the order of 'peers' (rank+1, rank+2, …)" + ", or set order = auto on the queue" * copies,
        )


def _sends(op: ir.Op) -> tuple[int, int] | None:
    """From which rank to which other an op moves its result."""
    source = op.body.src.rank if isinstance(op.body, ir.Copy) else op.where.rank
    return next(((source, region.rank) for region in op.writes if region.rank != source), None)


def small_copies(graph: ir.Graph, machine: Machine) -> Iterator[Diagnostic]:
    """A copy whose bytes take less time than the fixed cost of a copy that follows another copy."""
    dtypes = {t.name: t.dtype for t in graph.tensors}
    queues = {s.queue for s in graph.stages if graph.queue(s.queue).engine == "copy"}
    for op in graph.ops:
        copy = op.body
        if (
            not isinstance(copy, ir.Copy)
            or is_scales(copy.src.tensor)
            or graph.stages[op.where.stage].queue not in queues
        ):
            continue
        size = copy.src.elements * TYPES[dtypes[copy.src.tensor]].bytes
        links = machine.between(copy.src.rank, copy.dst.rank)
        besides = behind_another(machine.device, links)
        if size / links.rate < besides and copy.src.rank != copy.dst.rank:
            yield Diagnostic(
                op.where.origin,
                f"copies of {figure(size / 1024, 4)} KiB take {figure(size / links.rate, 2)} µs for their bytes and "
                f"{figure(besides, 2)} µs besides, where one follows another ({machine.name})",
                help="take fewer, larger pieces, or copy in a streamed stage on multiprocessors",
            )


def long_way_on_a_ring(graph: ir.Graph, machine: Machine) -> Iterator[Diagnostic]:
    """On a ring a copy to a distant rank occupies every link on its path."""
    for op in graph.ops:
        if isinstance(op.body, ir.Copy):
            src, dst = op.body.src.rank, op.body.dst.rank
            hops = machine.hops(src, dst)
            if hops <= 1:
                continue
            yield Diagnostic(
                op.where.origin,
                f"copy from rank {src} to rank {dst} crosses {hops} links of a ring ({machine.name})",
                help="pass pieces on from neighbour to neighbour, as in the ring schedules",
            )


def crowded_processors(graph: ir.Graph, machine: Machine) -> Iterator[Diagnostic]:
    """Streamed stages of several queues request more multiprocessors than the device has: if they run at the same time,
    each gets a share of its request."""
    total = machine.device.sms
    # by rank and queue: the most that a streamed stage says, and where
    most: dict[int, dict[str, tuple[int, ir.Op]]] = {}
    begun: set[tuple[int, int]] = set()
    for op in graph.ops:
        rank, stage, sms = op.where.rank, graph.stages[op.where.stage], op.where.resources.sms
        if not stage.streamed or (op.where.stage, rank) in begun:
            continue
        begun.add((op.where.stage, rank))  # its first statement says for all
        if sms is not None and sms > most.setdefault(rank, {}).get(stage.queue, (0, op))[0]:
            most[rank][stage.queue] = (sms, op)
    for queues in most.values():
        wanted = sum(sms for sms, _ in queues.values())
        if len(queues) > 1 and wanted > total:
            said = " + ".join(f"{sms} of queue '{queue}'" for queue, (sms, _) in queues.items())
            yield Diagnostic(
                list(queues.values())[-1][1].where.origin,
                f"streamed stages beside one another ask for {said} = {wanted} multiprocessors; there are {total} "
                f"({machine.device.name}), and each gets its share",
                help=f"let them add up to {total}, or leave out the 'sms' of one: it gets the rest",
            )


def slow_products(graph: ir.Graph, machine: Machine) -> Iterator[Diagnostic]:
    """A product that does not get the kernel made for the device, and so its whole launch does not: it gets a plain
    kernel, which uses no tensor core, or one for older devices. There is one warning for each stage and reason."""
    limits = Limits.of(machine.device)
    shapes = {t.name: t.shapes for t in graph.tensors}
    dtypes = {t.name: t.dtype for t in graph.tensors}
    look, sizes = symbolic(graph.tensors), _launch_sizes(graph)
    leaving = Leaving(graph, limits)
    known: dict[tuple[object, ...], _Slow | None] = {}  # of equal parts of the same tensors, as ranks have them
    told: set[tuple[str, str]] = set()
    for op in graph.ops:
        g = op.body
        if not isinstance(g, ir.Gemm) or op.where.resources.kernel == "vendor":
            continue
        stage, asked = graph.stages[op.where.stage], op.where.resources
        key = (asked, stage.streamed, *likeness(g, op.where.rank, shapes))
        size = sizes[op.where.rank, op.where.stage] if stage.streamed else g.flops
        if size >= _LARGE and key not in known:
            works = (kernel_work(g, look),)
            leave = leaving.footprints(asked.leave)
            request = GemmRequest(works, asked.smem, asked.residency, asked.sms, stage.streamed, leave=leave)
            known[key] = _slow(request, limits, machine.device, dtypes[g.left.tensor])
        found = known.get(key)
        if found is None or (stage.name, found.reason) in told:
            continue
        told.add((stage.name, found.reason))
        yield Diagnostic(
            op.where.origin,
            f"{found.kernel} multiplies here, at {found.share:.2g} of the rate of large GEMMs: {found.reason} "
            f"({machine.device.name})",
            help=found.way_out,
        )


@dataclass(frozen=True, slots=True)
class _Slow:
    """A kernel that is slower than expected, and why it was taken."""

    kernel: str
    share: float  # of the rate of large GEMMs on the device
    reason: str
    way_out: str


def _slow(request: GemmRequest, limits: Limits, device: Device, dtype: str) -> _Slow | None:
    """Nothing if the first family made for the device takes the works. Nothing either if no family does: that is an
    error."""
    chosen = choose(request, limits)
    made_for = tensor_core_families(limits.arch)
    ours = tuned(limits.arch)
    if isinstance(chosen, str) or (ours and chosen.family == made_for[0].name):
        return None
    share = family_of(chosen.kernel).reached(device, dtype)
    plain = f"a plain kernel ({chosen.kernel})" if chosen.family == "naive" else chosen.kernel
    if not ours:
        reason = f"no GEMM of ours is made for the tensor cores of {limits.arch}"
        refused_too = VENDOR.refuses(request, limits.arch)
        if refused_too is not None:
            obstacle, _, change = refused_too.partition("; ")
            reason = f"{reason}, and the vendor's library does not do this: {obstacle}"
            return _Slow(plain, share, reason, f"{change}: {_THEN}" if change else _MADE_FOR)
        install = _NVIDIA if compute_capability(limits.arch) is not None else _AMD
        return _Slow(f"without the vendor's library {plain}", share, reason, install)
    refused = {r.family: r.reason for r in chosen.refused}
    fp8 = TYPES[dtype].quantised  # which the first family alone multiplies
    reason = refused[made_for[0].name] if fp8 or chosen.family != "naive" else refused[made_for[-1].name]
    if any(family.fits(request) is None for family in made_for[:1]):  # but not with these resources
        asked = {"residency": request.residency, "smem": request.smem, "sms": request.sms}
        said = " and ".join(f"{name} = {value}" for name, value in asked.items() if value is not None)
        said = said or "the attribute leave" * bool(request.leave)
        return _Slow(plain, share, reason, f"leave out {said}" if said else "give the launch more multiprocessors")
    reason, _, change = reason.partition("; ")
    way_out = change or "let pieces of K and of columns start at multiples of 8, better of 64"
    if TYPES[dtype].half is None and not (fp8 and change):
        if any(isinstance(w.body, ir.Gemm) and w.body.tf32 for w in request.works):
            return None  # as fast as fp32 goes
        taken = " or ".join(t.name for t in ELEMENT_TYPES if t.half is not None)
        admit = "write within tf32 behind all claims, or " if dtype == "fp32" and chosen.family != "naive" else ""
        way_out = f"{admit}take {taken} operands: kernels for tensor cores multiply these"
    return _Slow(plain, share, reason, way_out)


def _launch_sizes(graph: ir.Graph) -> Mapping[tuple[int, int], int]:
    """Operations of the products of a rank and stage, which go out together if the stage is streamed."""
    sizes: dict[tuple[int, int], int] = defaultdict(int)
    for op in graph.ops:
        if isinstance(op.body, ir.Gemm):
            sizes[op.where.rank, op.where.stage] += op.body.flops
    return sizes


def partial_sums(graph: ir.Graph, machine: Machine) -> Iterator[Diagnostic]:
    """Partial sums in types that are too narrow for them."""
    yield from coarse(graph.tensors, graph.claims, meaning(graph))


def too_large(graph: ir.Graph, machine: Machine) -> Iterator[Diagnostic]:
    """Tensors of a rank that its device does not hold."""
    sizes = [[prod(shape) * TYPES[t.dtype].bytes for shape in t.shapes] for t in graph.tensors]
    totals = [sum(of_rank) for of_rank in zip(*sizes, strict=True)]
    most = max(totals, default=0)
    if most > machine.device.memory:
        rank = totals.index(most)
        largest = max(range(len(sizes)), key=lambda i: sizes[i][rank])
        yield Diagnostic(
            graph.tensors[largest].origin,
            f"the tensors of rank {rank} take {figure(most / 2**30, 3)} GiB, and a device of {machine.name} has "
            f"{figure(machine.device.memory / 2**30, 3)} GiB: only virtual devices can run this",
            help="take smaller sizes, or more ranks",
        )


CHECKS: tuple[Callable[[ir.Graph, Machine], Iterator[Diagnostic]], ...] = (
    incast,
    small_copies,
    long_way_on_a_ring,
    crowded_processors,
    slow_products,
    partial_sums,
    too_large,
)
