"""Prints a device plan as stable text, for reading, golden tests and diffs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..kernels.family import Operand
from ..plan.text import flags_text, settings_words, work_text
from . import ir
from .sharing import all_sets


def to_text(plan: ir.DevicePlan) -> str:
    """Streams, semaphores and launches as tables; then each stream's actions in order; then how a run begins and
    ends."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: ir.DevicePlan) -> Iterator[str]:
    devices, f = plan.placement.devices, plan.features
    yield f"device plan of {plan.schedule} version {plan.version}, mode {plan.mode}"
    yield f"  {len(devices)} ranks on {plan.device.name}"
    yield f"  plan {plan.plan_hash}"
    if plan.sets > 1:
        more = all_sets(plan.sets, plan.features) - plan.sets
        embedded = f", and {more} more in callers' graphs" if more else ""
        yield f"  {plan.sets} sets of semaphores and scratch, which runs use alternately{embedded}"
    yield f"  ranks on devices {' '.join(map(str, devices))}"
    if plan.placement.processes:
        yield f"  ranks in processes {' '.join(map(str, plan.placement.processes))}"
    if plan.placement.nodes:
        yield f"  ranks on nodes {' '.join(map(str, plan.placement.nodes))}"
    if plan.placement.gpus:
        yield f"  ranks on GPUs {' '.join(map(str, plan.placement.gpus))}"
    has = {
        "copy batches": f.copy_batches,
        "batched memory operations": f.batched_mem_ops,
        "side waits": f.side_waits,
        "early starts": f.early_starts,
        "embedded graphs": f.embeds,
        "the vendor's GEMMs": f.vendor_gemms,
    }
    yield f"  {', '.join(name for name, there in has.items() if there) or 'no batches'}"
    for i, communicator in enumerate(plan.communicators):
        asked = ", ".join(settings_words(communicator.settings)) or "its own choice of blocks"
        yield f"  communicator {i} of {f.collectives} on each device, queue {communicator.queue}: {asked}"
    if f.collectives and not plan.communicators:
        yield f"  {f.collectives} is there, and makes none of the collectives"
    for device, count in plan.queues.items():
        crowded = ", crowded" if device in plan.crowded else ""
        yield f"  device {device}: {count} streams, {f.queues} hardware queues{crowded}"
    yield ""
    yield from (
        f"semaphore {i} of device {w.device} at {w.index}: {w.purpose}, {_RESETS[w.reset]}{_USES[w.used]}"
        for i, w in enumerate(plan.semaphores)
    )
    yield ""
    for i, launch in enumerate(plan.launches):
        yield from _launch(plan, i, launch)
    for stream in plan.streams:
        mine = [a for a in plan.body if a.stream == stream.name]
        if mine:
            yield ""
            label = f" of rank {stream.rank} {stream.label}" if stream.label else ""
            inline = ", inline among callers' streams" if stream.inline else ""
            yield f"{stream.name}{label} on device {stream.device} ({stream.priority}){inline}"
            yield from _actions(plan, mine)
    for name, run_ends in (("alone", plan.own), ("among callers' streams", plan.called)):
        yield ""
        yield f"a run {name} begins"
        yield from _run_ends(plan, run_ends.prologue)
        yield f"a run {name} ends"
        yield from _run_ends(plan, run_ends.epilogue)


_RESETS = {
    "kernel": "reset by the kernel that waits",
    "behind": "reset behind the kernel that waits",
    "completion": "reset at completion",
    "acquired": "reset by the stream that waits",
    "never": "never reset",
}
_DOES = {"signal": "signal", "wait": "wait for", "reset": "reset", "count": "count the run in"}
_USES = {
    "always": "",
    "graph": ", in graphs",
    "embedded": ", in callers' graphs",
    "traced": ", in traced runs",
    "embedded or traced": ", in callers' graphs and traced runs",
    "gated": ", in traced and gated runs",
}


def _launch(plan: ir.DevicePlan, number: int, launch: ir.DeviceLaunch) -> Iterator[str]:
    c = launch.config
    if c.matmuls:
        calls = f"{len(c.matmuls)} call{'s' if len(c.matmuls) > 1 else ''}"
        yield (
            f"launch {number} {c.entry}: {calls} of the vendor's library, workspace {c.workspace}; may hold "
            f"{c.blocks} multiprocessors, begins where {c.together} are free  :{launch.origin.line}"
        )
        for m in c.matmuls:
            sides = ", ".join(f"{name} {_operand(operand)}" for name, operand in m.named)
            sides += f"; scaled {' and '.join(m.scaling)}" if m.scaling else ""
            sides += "; the tensor cores alone add up" * m.fast
            sides += f"; {m.function} of the sum" if m.function else ""
            beta = int(m.accumulate or m.residual is not None)
            factors = f"alpha 1, beta {beta}{f', for {m.sms} multiprocessors' if m.sms else ''}"
            types = f"{m.dtype}{f' by {m.right_dtype}' if m.right_dtype else ''} to {m.out_dtype}"
            yield f"  matmul {m.m} × {m.n} × {m.k} {types}, {factors}: {sides}"
        yield f"  {work_text(launch.works[0])}"
        return
    yield (
        f"launch {number} {c.entry}: {c.blocks} × {c.threads} threads"
        f"{f' in clusters of {c.cluster}' if c.cluster > 1 else ''}, {c.resident} a multiprocessor; "
        f"registers {c.registers}, shared memory {c.smem} + {c.static_smem}; share {launch.sms}"
        f"{' spins' if launch.spins else ''}{', marks' if plan.marks(launch) else ''}"
        f"{', early' if launch.early else ''}"
        f"{f', priority {launch.priority}' if launch.priority is not None else ''}"
        f"{f', leaves {launch.leave}' if launch.leave is not None else ''}  :{launch.origin.line}"
    )
    unwritten = [name for name, read_only in zip(("left", "right"), c.read_only, strict=True) if read_only]
    level = [name for name, overlap in zip(("rows", "columns"), c.level, strict=True) if overlap]
    facts = {
        f"{c.stages} stages": c.stages,
        f"{c.tiles} tiles{f' in bands of {c.band}' if c.band else ''}": c.tiles,
        f"last tiles of {' and '.join(level)} overlap the ones before": level,
        "clusters in lockstep": c.lockstep,
        f"read-only {' and '.join(unwritten)}": unwritten,
        f"resets flags {' '.join(map(str, c.resets))}": c.resets,
        f"K of the last wave's tiles in {c.split_k.tail} parts": c.split_k.tail > 1,
        f"K of the works in {' '.join(map(str, c.split_k.works))} parts": any(n > 1 for n in c.split_k.works),
    }
    yield f"  {', '.join(fact for fact, holds in facts.items() if holds)}"
    for group in launch.made_as_one:
        for place, i in enumerate(group):
            work = launch.works[i]
            yield f"  {'+ ' if place else ''}{work_text(work)}{flags_text(work)}"


def _operand(operand: Operand) -> str:
    return f"at {operand.offset} pitch {operand.pitch}{' transposed' if operand.transposed else ''}"


def _run_ends(plan: ir.DevicePlan, actions: Sequence[ir.Action]) -> Iterator[str]:
    for action in actions:
        (line, *_) = _actions(plan, [action])
        yield f"  {action.stream}: {line.strip()}{f' (if {action.when})' if action.when != 'always' else ''}"


def _actions(plan: ir.DevicePlan, actions: Sequence[ir.Action]) -> Iterator[str]:
    for a in actions:
        match a:
            case ir.RecordEvent():
                yield f"  record {a.event}"
            case ir.AwaitEvent():
                yield f"  wait for {a.event}"
            case ir.StreamMemOps():
                yield f"  {', '.join(map(str, a.changes))}"
            case ir.CopyMemory():
                members = [f"signal semaphore {semaphore} by a copy" for semaphore in a.semaphores]
                members += [f"{m.dst} <- {m.src}{' in rows' if m.pitched else ''}  :{m.origin.line}" for m in a.moves]
                for i, member in enumerate(members):
                    first = "batch " if a.batch else "copy by a kernel " if a.by_kernel else "copy "
                    yield f"  {first if i == 0 else '    + '}{member}"
            case ir.LaunchKernel():
                yield f"  launch {a.launch} ({plan.launches[a.launch].config.entry})"
            case ir.ResetSemaphores():
                last = f" to {a.first + a.count - 1}" if a.count > 1 else ""
                yield f"  reset the semaphores at {a.first}{last}"
            case ir.Barrier():
                steps = [
                    f"{_DOES[s.does]} semaphore {s.first}" + (f" to {s.first + s.count - 1}" if s.count > 1 else "")
                    for s in a.steps
                ]
                yield f"  barrier: {', '.join(steps)}"
            case ir.CallCollective():
                line = f"{a.kind} {a.group} by communicator {a.communicator}"
                does = f"{a.dst} <- {a.src}"
                if a.kind == "send_recv":
                    does = f"{a.src} to {a.to}, {a.dst} from {a.by}"
                yield f"  {line}: {does}  :{a.cause.origin.line if a.cause.origin is not None else 0}"
            case ir.LaunchGraph():
                yield f"  launch the graph of device {a.device}"
