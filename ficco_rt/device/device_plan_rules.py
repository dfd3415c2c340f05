"""Rules of a well-formed device plan that do not depend on order. Each rule yields the mistakes that it finds.

A driver can issue any device plan that passes all rules and then `check`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeGuard

from ficco_dsl.diagnostics import Diagnostic

from ..graph.ir import Gemm
from . import ir
from .collectives import collectives_are_called_together
from .contents import all_is_there, launches_are_asked_for, regions_lie_inside, works_fit
from .multi_node import nodes_share_messages_alone
from .start_gate import start_gates_open_last

MOST_THREADS = 1024  # of a block
_OF_DEVICES: tuple[ir.EventKind, ...] = ("start", "begin", "end", "completion", "embedded", "begun", "replayed")


def version_is_known(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """This code reads one version of device plans."""
    if plan.version != ir.VERSION:
        yield Diagnostic(
            ir.PLACELESS, f"the device plan has version {plan.version}; this ficco reads version {ir.VERSION}"
        )


def processes_have_devices(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """Every rank is in a process, and a device belongs to one; if GPUs are given, every rank is on one."""
    placement = plan.placement
    if placement.gpus and len(placement.gpus) != len(placement.devices):
        yield Diagnostic(ir.PLACELESS, f"{len(placement.devices)} ranks, and the GPUs of {len(placement.gpus)} of them")
    if not placement.processes:
        return
    if len(placement.processes) != len(placement.devices):
        yield Diagnostic(
            ir.PLACELESS, f"{len(placement.devices)} ranks, and the processes of {len(placement.processes)} of them"
        )
        return
    for device in placement.ordinals:
        found = sorted({placement.processes[rank] for rank in placement.ranks(device)})
        if len(found) > 1:
            yield Diagnostic(ir.PLACELESS, f"device {device} is in the processes {' and '.join(map(str, found))}")


def streams_are_known(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """Every stream stands once, on a device of the placement, and every action is on one of them."""
    names = Counter(s.name for s in plan.streams)
    for stream in plan.streams:
        if names[stream.name] > 1:
            yield Diagnostic(ir.PLACELESS, f"{stream.name} stands {names[stream.name]} times")
        if stream.device not in plan.placement.ordinals:
            yield Diagnostic(ir.PLACELESS, f"{stream.name} is on device {stream.device}, which has no rank")
        if stream.rank is not None and plan.placement.devices[stream.rank] != stream.device:
            yield Diagnostic(ir.PLACELESS, f"{stream.name} of rank {stream.rank} is on device {stream.device}")
    for action in plan.actions:
        if action.stream not in names:
            yield action.mistake(f"there is no {action.stream}")
    for action in plan.body:
        if action.stream.kind == "caller" or action.when != "always":
            yield action.mistake(
                f"{action.stream}, {action.when}: the body of a run knows neither callers nor conditions"
            )


def inline_streams_are_few(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A device has at most one inline stream, one of the plan's, where runs are issued as streams."""
    found = Counter(stream.device for stream in plan.streams if stream.inline)
    for stream in plan.streams:
        wrong = stream.name.kind != "plan" or plan.mode != "streams" or found[stream.device] > 1
        if stream.inline and wrong:
            yield Diagnostic(ir.PLACELESS, f"{stream.name} may not be inline")


def semaphores_lie_apart(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """The semaphores of a device have distinct indices from 0 on, and every action changes existing semaphores."""
    devices = plan.device_of
    places = Counter((w.device, w.index) for w in plan.semaphores)
    sizes = Counter(w.device for w in plan.semaphores)
    for semaphore in plan.semaphores:
        if places[semaphore.device, semaphore.index] > 1 or not 0 <= semaphore.index < sizes[semaphore.device]:
            yield Diagnostic(
                ir.PLACELESS,
                f"the place {semaphore.index} of a semaphore on device {semaphore.device} is taken or no place",
            )
    for action in plan.actions:
        for number in (*action.signals, *action.awaits):
            if not 0 <= number < len(plan.semaphores):
                yield action.mistake(f"there is no semaphore {number}")
        device = devices[action.stream]
        if isinstance(action, ir.StreamMemOps):
            for change in action.changes:
                number = change.semaphore
                if change.signals and change.acquires:
                    yield action.mistake(f"semaphore {number} is signalled, and acquired by the stream that signals it")
                apart = 0 <= number < len(plan.semaphores) and plan.semaphores[number].device != device
                if apart and not change.signals:
                    text = f"{action.stream} of device {device} waits for semaphore {number} of another device"
                    yield action.mistake(text)
        if isinstance(action, ir.ResetSemaphores):
            size, end = sizes[device], action.first + action.count
            if action.count < 1 or not 0 <= action.first <= end <= size:
                yield action.mistake(f"semaphores {action.first} to {end - 1} of {size} are reset")
        for step in action.steps if isinstance(action, ir.Barrier) else ():
            end = step.first + step.count
            several = f"semaphores {step.first} to {end - 1}"
            if step.count < 1 or not 0 <= step.first <= end <= len(plan.semaphores):
                yield action.mistake(f"a barrier over {several}")
                continue
            found = [plan.semaphores[i] for i in step.semaphores]
            if any(b.device != a.device or b.index != a.index + 1 for a, b in pairwise(found)):
                yield action.mistake(f"{several} do not lie side by side")
            if step.does != "signal" and found[0].device != device:
                yield action.mistake(f"{action.stream} does not own semaphore {step.first}, which it does not signal")


def events_are_recorded(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A wait for an event is issued after the event's record, in every run in which the wait takes part; of the
    previous run only completions can be awaited, in a capture not even these. A graph's events stay inside it."""
    graph = plan.mode in ir.GRAPHS
    completions = {ir.EventName("completion", device) for device in plan.placement.ordinals}
    replayed = {ir.EventName("replayed", device) for device in plan.placement.ordinals}
    made = {action.event for action in plan.body if isinstance(action, ir.RecordEvent)}
    needs = list(_unrecorded(plan.body, set()))  # of what stands before the body
    if graph:
        yield from map(_before_it, needs)
    for manner in ir.manners(plan):
        run_ends = plan.run_ends(manner)
        recorded = (completions if manner.behind else set()) | (replayed if manner.replays else set())
        if plan.mode == "embedded":
            recorded = set()
        yield from map(_before_it, _unrecorded(run_ends.prologue, recorded))
        recorded |= {action.event for action in run_ends.prologue if isinstance(action, ir.RecordEvent)}
        if not graph:
            yield from (_before_it(action) for action in needs if action.event not in recorded)
            recorded |= made
        yield from map(_before_it, _unrecorded(run_ends.epilogue, recorded))


def _before_it(action: ir.AwaitEvent) -> Diagnostic:
    return action.mistake(f"{action.stream} waits for {action.event}, which nothing records before it")


def _unrecorded(actions: Iterable[ir.Action], recorded: Collection[ir.EventName]) -> Iterator[ir.AwaitEvent]:
    recorded = set(recorded)
    for action in actions:
        if isinstance(action, ir.RecordEvent):
            recorded.add(action.event)
        elif isinstance(action, ir.AwaitEvent) and action.event not in recorded:
            yield action


def run_ends_know_their_streams(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A run without callers' streams uses no caller's stream. The completion of a run is recorded by a stream of its
    device."""
    devices = plan.device_of
    for action in (*plan.own.prologue, *plan.own.epilogue):
        if action.stream.kind == "caller":
            yield action.mistake(f"{action.stream} in a run that nobody calls")
    for action in (*plan.called.prologue, *plan.called.epilogue) if plan.mode == "embedded" else ():
        if action.stream.kind != "caller":
            yield action.mistake(f"{action.stream} in a capture of callers' streams")
    for action in plan.actions:
        if not isinstance(action, ir.RecordEvent) or action.event.kind not in _OF_DEVICES:
            continue
        if devices[action.stream] != action.event.number:
            yield action.mistake(f"{action.event} is recorded by {action.stream}, of another device")
    kind: ir.EventKind = "replayed" if plan.mode == "embedded" else "completion"
    for run_ends in [*([plan.own] if plan.mode != "embedded" else []), plan.called]:
        found = Counter(
            (a.event.number, a.when if a in run_ends.epilogue else "too early")
            for a in (*run_ends.prologue, *plan.body, *run_ends.epilogue)
            if isinstance(a, ir.RecordEvent) and a.event.kind == kind
        )
        if found != Counter((device, "always") for device in plan.placement.ordinals):
            yield Diagnostic(ir.PLACELESS, f"a run records the event '{kind}' of each device once, at its end")


def ends_are_alike(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A run ends in one way, however it is made. What is there for some runs alone waits for nothing but what replays
    need, or takes a time that nobody waits for. So what holds behind one run holds behind all."""
    for action in (*plan.own.epilogue, *plan.called.epilogue):
        timed = action.when == "timed" and isinstance(action, ir.RecordEvent) and action.event.kind in ("begin", "end")
        replays = action.when == "behind replays" and isinstance(action, ir.AwaitEvent)
        if action.when != "always" and not timed and not replays:
            yield action.mistake(f"{action.stream}, {action.when}: a run ends in one way, however it is made")


def runs_tell_their_times(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A timed run records when each device begins, once, where and before its streams start, and when it ends, once,
    behind all that the recording stream waits for. Other runs record neither, but what streams wait for."""
    each = Counter(plan.placement.ordinals)
    for manner in ir.manners(plan) if plan.mode != "embedded" else ():
        run_ends = plan.run_ends(manner)
        begin, end = run_ends.prologue, run_ends.epilogue
        awaited = {action.event for action in begin if isinstance(action, ir.AwaitEvent)}
        for kind, actions, others in (("begin", begin, end), ("end", end, begin)):
            told = [a for a in actions if _records(a, kind) and (manner.timed or a.event not in awaited)]
            once = Counter(a.event.number for a in told) == (each if manner.timed else Counter())
            if not once or any(_records(a, kind) for a in others):
                yield Diagnostic(ir.PLACELESS, f"a run, {manner}: it tells the {kind} of each device once, if timed")
    for action in plan.body:
        if isinstance(action, ir.RecordEvent) and action.event.kind in ("begin", "end"):
            yield action.mistake(f"{action.event} is told inside a run")
    for run_ends in (plan.own, plan.called) if plan.mode != "embedded" else ():
        awaited = {action.event for action in run_ends.prologue if isinstance(action, ir.AwaitEvent)}
        starts = {a.event.number: (i, a.stream) for i, a in enumerate(run_ends.prologue) if _records(a, "start")}
        starts |= {a.device: (i, a.stream) for i, a in enumerate(run_ends.prologue) if isinstance(a, ir.LaunchGraph)}
        for i, a in enumerate(run_ends.prologue):
            if _records(a, "begin"):
                start, stream = starts.get(a.event.number, (i, a.stream))
                if stream != a.stream or (start < i and a.event not in awaited) or _waits(run_ends.prologue[i:], a):
                    yield a.mistake(f"{a.event} is not told where its streams start")
        for i, a in enumerate(run_ends.epilogue):
            if _records(a, "end") and _waits(run_ends.epilogue[i:], a, "tail"):
                yield a.mistake(f"{a.event} is told before all has been waited for")


def _records(action: ir.Action, kind: str) -> TypeGuard[ir.RecordEvent]:
    return isinstance(action, ir.RecordEvent) and action.event.kind == kind


def _waits(later: Iterable[ir.Action], behind: ir.Action, *kinds: str) -> bool:
    """Whether the stream of an action then waits for events, of these kinds."""
    awaits = (a for a in later if isinstance(a, ir.AwaitEvent) and a.stream == behind.stream)
    return any(not kinds or a.event.kind in kinds for a in awaits)


def processes_share_no_events(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """What waits for an event is on a device of the process that records it."""
    by: dict[ir.EventName, set[int]] = defaultdict(set)
    devices = plan.device_of
    for action in plan.actions:
        if isinstance(action, ir.RecordEvent):
            by[action.event].add(devices[action.stream])
    for action in (*plan.called.prologue, *plan.called.epilogue) if plan.mode == "embedded" else ():
        if isinstance(action, ir.AwaitEvent) and by[action.event] - {devices[action.stream]}:
            yield action.mistake(
                f"{action.stream} waits for {action.event} of another device, whose graph is another one"
            )
    for action in plan.actions:
        if isinstance(action, ir.AwaitEvent):
            waiter = plan.placement.process(devices[action.stream])
            for recorder in sorted({plan.placement.process(device) for device in by[action.event]} - {waiter}):
                yield action.mistake(
                    f"{action.stream} of process {waiter} waits for {action.event} of process {recorder}"
                )


def ops_stand_once(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """Every op of the plan writes as much as it should, all of it on one stream."""
    written: Counter[int] = Counter()
    places: dict[int, set[str]] = defaultdict(set)
    for stream, part in plan.parts:
        written[part.op] += sum(region.elements for region in part.writes)
        places[part.op].add(str(stream))
    for op, where in places.items():
        if len(where) > 1:
            yield Diagnostic(ir.PLACELESS, f"op {op} stands in {' and '.join(sorted(where))}")
    for op in sorted({*written, *range(len(plan.written))}):
        wanted = plan.written[op] if 0 <= op < len(plan.written) else 0
        if written[op] != wanted:
            yield Diagnostic(ir.PLACELESS, f"op {op} writes {written[op]} elements; it should write {wanted}")


def launches_stand_once(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """Every launch of the table is issued once, on the stream of the plan that it is for."""
    found = Counter(a.launch for a in plan.body if isinstance(a, ir.LaunchKernel))
    for action in plan.body:
        if isinstance(action, ir.LaunchKernel):
            if not 0 <= action.launch < len(plan.launches):
                yield action.mistake(f"there is no launch {action.launch}")
            elif action.stream != ir.StreamName("plan", plan.launches[action.launch].stream):
                yield action.mistake(f"launch {action.launch} is issued to {action.stream}")
    for i, launch in enumerate(plan.launches):
        if found[i] != 1:
            yield Diagnostic(launch.origin, f"launch {i} is issued {found[i]} times")


def launches_fit(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A block fits a multiprocessor of the device; blocks come in whole clusters; launches that spin stay within their
    share."""
    device = plan.device
    for launch in plan.launches:
        c = launch.config
        if c.blocks < 1 or c.cluster < 1 or c.blocks % c.cluster:
            yield launch.mistake(f"{c.blocks} blocks in clusters of {c.cluster}")
        if c.smem < 0 or c.smem + c.static_smem > device.smem_per_block:
            acquires = f"{c.smem} + {c.static_smem} bytes of shared memory"
            yield launch.mistake(f"a block takes {acquires}, and has at most {device.smem_per_block}")
        if not 1 <= c.threads <= MOST_THREADS or c.resident < 1:
            yield launch.mistake(f"a block of {c.threads} threads does not fit {device.name}")
        if not 1 <= launch.sms <= device.sms:
            yield launch.mistake(f"a share of {launch.sms} of {device.sms} multiprocessors")
        if not launch.spins and any(flag not in c.unraised for work in launch.works for flag in work.waits):
            yield Diagnostic(launch.origin, f"{c.entry} waits for flags, and is not said to hold its share meanwhile")
        if launch.spins and c.blocks > launch.sms and any(work.waits for work in launch.works):
            yield launch.mistake(f"{c.blocks} blocks wait while they hold a share of {launch.sms} multiprocessors")


def library_calls_know_no_flags(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """Kernels of the vendor's library know no flags, have their stream's priority, and begin behind what stands before
    them. Taken on trust: they write nothing but the output and their workspace, and begin where MOST_CLUSTER
    multiprocessors are free, as of a user's kernel one."""
    for launch in plan.launches:
        knows = launch.early or launch.priority is not None or any(w.waits or w.signals for w in launch.works)
        if launch.config.matmuls and knows:
            text = f"{launch.config.entry} knows no flags, no early start and no priority of its own"
            yield Diagnostic(launch.origin, text)


def early_starts_are_safe(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A launch may begin while the one before it ends only right behind that one, with a kernel that waits itself; and
    what it reads before it waits, nothing of the run writes."""
    written = {(r.tensor, r.rank) for _, part in plan.parts for r in part.writes}
    last: dict[ir.StreamName, ir.Action] = {}
    for action in plan.body:
        if isinstance(action, ir.LaunchKernel):
            launch = plan.launches[action.launch]
            if launch.early:
                before = last.get(action.stream)
                if not launch.config.chained or not plan.features.early_starts:
                    yield action.mistake(
                        f"{launch.config.entry} may not begin early: it does not wait for the kernel before"
                    )
                elif not isinstance(before, ir.LaunchKernel):
                    yield action.mistake(f"{launch.config.entry} may begin early, and no kernel stands right before it")
        if not (isinstance(action, ir.RecordEvent) and action.event.kind == "timestamp"):
            last[action.stream] = action
    for launch in plan.launches:
        if any(launch.config.read_only) and not all(isinstance(work.body, Gemm) for work in launch.works):
            yield Diagnostic(launch.origin, f"{launch.config.entry} has no operands that are read-only")
        for region in (region for work in launch.works for region in launch.early_reads(work)):
            if (region.tensor, region.rank) in written:
                yield Diagnostic(
                    launch.origin,
                    f"{launch.config.entry} takes {region.tensor}@{region.rank} for read-only, and it is written",
                )


def batches_fit(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """Batches of copies, and copies by kernels, occur only where the driver has them. That no member of a batch touches
    what another one writes, the walk sees."""
    for action in plan.body:
        if not isinstance(action, ir.CopyMemory):
            continue
        if action.batch and (plan.mode not in ir.PLAIN or not plan.features.copy_batches):
            yield action.mistake("a batch of copies where there are none")
        if not action.batch and len(action.moves) + len(action.semaphores) != 1:
            yield action.mistake(
                f"{len(action.moves)} copies and {len(action.semaphores)} semaphores that are no batch"
            )
        homes = {plan.placement.devices[region.rank] for move in action.moves for region in (move.dst, move.src)}
        if action.by_kernel and (len(homes) != 1 or action.semaphores or plan.mode not in ir.GRAPHS):
            yield action.mistake("a kernel copies inside a device alone, and in a graph")
        if action.batch and any(move.pitched for move in action.moves):
            yield action.mistake("a copy of rows in a batch")


def copied_semaphores_are_for_kernels_elsewhere(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A semaphore that a copy signals is one of another GPU, since a copy inside a GPU may need a multiprocessor; and
    kernels wait for it, since a stream's wait might be issued before the copy."""
    devices, placement = plan.device_of, plan.placement
    first = {device: placement.ranks(device)[0] for device in placement.ordinals}
    awaited = {semaphore for action in plan.body for semaphore in action.awaits}
    for action in plan.body:
        for semaphore in action.semaphores if isinstance(action, ir.CopyMemory) else ():
            if placement.share_gpu(first[plan.semaphores[semaphore].device], first[devices[action.stream]]):
                yield action.mistake(f"semaphore {semaphore} of the same GPU is signalled by a copy")
            if semaphore in awaited:
                yield action.mistake(f"semaphore {semaphore}, for which a stream waits, is signalled by a copy")


def semaphores_are_given_once(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A semaphore that is awaited is signalled once and reset once in a run. No other semaphore is signalled or
    reset."""
    signalled: Counter[int] = Counter()
    awaited: set[int] = set()
    resets: Counter[int] = Counter()
    flags = plan.semaphore_of
    waits: dict[tuple[int, int], set[int]] = defaultdict(set)  # of the kernels that do a command's works
    for launch in plan.launches:
        waits[launch.stream, launch.command].update(flag for work in launch.works for flag in work.waits)
    for launch in plan.launches:
        inside = launch.config.unraised
        for work in launch.works:
            signalled.update(flags[f] for f in work.signals if f in flags and f not in inside)
            awaited.update(flags[f] for f in work.waits if f in flags and f not in inside)
            for flag in (*work.waits, *work.signals):
                if flag not in flags and flag not in inside:
                    yield Diagnostic(work.origin, f"flag {flag} has no semaphore")
        for flag in launch.config.resets:
            if flag in flags:
                resets[flags[flag]] += 1
            if flag not in waits[launch.stream, launch.command]:
                yield Diagnostic(launch.origin, f"{launch.config.entry} resets flag {flag}, for which it does not wait")
    places, devices = semaphores_in_order(plan), plan.device_of
    signalled.update(semaphore for action in plan.body for semaphore in action.signals)
    awaited.update(semaphore for action in plan.body for semaphore in action.awaits)
    resets.update(semaphore for action in plan.body for semaphore in _reset(action, places, devices))
    wrong: set[tuple[int, str]] = set()  # each is told of one manner
    looked_at: set[tuple[int, ...]] = set()  # by what a manner does with semaphores: most do the same
    for manner in ir.manners(plan):
        run_ends = plan.run_ends(manner)
        actions = [
            a
            for a in (*run_ends.prologue, *run_ends.epilogue)
            if isinstance(a, ir.StreamMemOps | ir.CopyMemory | ir.ResetSemaphores | ir.Barrier)
        ]
        key = tuple(map(id, actions))
        if key in looked_at:
            continue
        looked_at.add(key)
        ups = signalled + Counter(semaphore for action in actions for semaphore in action.signals)
        waiters = awaited | {semaphore for action in actions for semaphore in action.awaits}
        downs = resets + Counter(semaphore for action in actions for semaphore in _reset(action, places, devices))
        for i, semaphore in enumerate(plan.semaphores):
            if semaphore.counts_runs:
                continue
            used, said = semaphore.used_in(plan.mode), f"semaphore {i} ({semaphore.purpose})"
            if semaphore.tells_runs and plan.mode == "embedded" and not manner.replays:
                used = used and ups[i] > 0  # only the first run of a graph may have an entry barrier
            if (ups[i] != used or (i in waiters) != used) and (i, "signalled") not in wrong:
                wrong.add((i, "signalled"))
                yield Diagnostic(ir.PLACELESS, f"{said} is signalled {ups[i]} times in a run ({manner})")
            if downs[i] != (used and not semaphore.tells_runs) and (i, "reset") not in wrong:
                wrong.add((i, "reset"))
                yield Diagnostic(ir.PLACELESS, f"{said} is reset {downs[i]} times in a run ({manner})")


def runs_are_counted(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A device that has barriers with others counts each run once, in its own semaphore, before it signals or awaits
    anything of the run. Only barriers signal, await or count in semaphores that tell of runs, and barriers do so in no
    other semaphores."""
    devices = plan.device_of
    body = [action for action in plan.body if isinstance(action, ir.Barrier)]
    telling = {w.device for w in plan.semaphores if w.tells_runs and not w.counts_runs and w.used_in(plan.mode)}
    for action in plan.actions:
        for number in (*action.signals, *action.awaits) if not isinstance(action, ir.Barrier) else ():
            if plan.semaphores[number].tells_runs:
                yield action.mistake(f"semaphore {number} ({plan.semaphores[number].purpose}) outside of a barrier")
    for manner in ir.manners(plan):
        run_ends = plan.run_ends(manner)
        counted: Counter[int] = Counter()
        told = telling if manner.replays or plan.mode != "embedded" else ()
        for action in (a for a in (*run_ends.prologue, *body, *run_ends.epilogue) if isinstance(a, ir.Barrier)):
            mine = {i for i in (action.runs,) if 0 <= i < len(plan.semaphores) and plan.semaphores[i].counts_runs}
            if {plan.semaphores[i].device for i in mine} != {devices[action.stream]}:
                yield action.mistake(
                    f"{action.stream} joins a barrier by semaphore {action.runs}, not by its own count of runs"
                )
            for step in action.steps:
                counts = step.does == "count"
                for number in step.semaphores:
                    semaphore = plan.semaphores[number]
                    if semaphore.counts_runs != counts or semaphore.tells_runs != (step.does != "reset"):
                        yield action.mistake(f"a barrier cannot {step.does} semaphore {number} ({semaphore.purpose})")
                counted.update(step.semaphores if counts else ())
                if counted[action.runs] != 1:
                    yield action.mistake(
                        f"{action.stream} joins a barrier before it has counted the run, or counts it twice"
                    )
        for i, semaphore in enumerate(plan.semaphores):
            used = semaphore.used_in(plan.mode) and (semaphore.device in told or counted[i] > 0)
            if semaphore.counts_runs and counted[i] != used:
                yield Diagnostic(
                    ir.PLACELESS, f"semaphore {i} ({semaphore.purpose}) counts {counted[i]} times in a run ({manner})"
                )


def graphs_are_launched(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """With graphs each run launches every device's graph once, all before the end; else there are none. Embedded
    graphs are replayed by callers alone."""
    devices = plan.device_of
    if plan.mode == "embedded" and not plan.features.embeds:
        yield Diagnostic(ir.PLACELESS, "graphs in callers' graphs, and the driver has no such")
    if plan.mode == "embedded" and (plan.own.prologue or plan.own.epilogue):
        yield Diagnostic(ir.PLACELESS, "a run on nobody's streams in the mode 'embedded'")
    if any(isinstance(a, ir.LaunchGraph) for a in (*plan.body, *plan.own.epilogue, *plan.called.epilogue)):
        yield Diagnostic(ir.PLACELESS, "a graph is launched behind the begin of a run")
    wanted = Counter(plan.placement.ordinals) if plan.mode in ir.GRAPHS else Counter[int]()
    for manner in ir.manners(plan):
        launches = [a for a in plan.run_ends(manner).prologue if isinstance(a, ir.LaunchGraph)]
        if Counter(a.device for a in launches) != wanted:
            text = "a run launches each device's graph once, and only in modes with graphs"
            yield Diagnostic(ir.PLACELESS, f"{text} ({manner})")
            return
        for action in launches:
            if devices[action.stream] != action.device:
                yield action.mistake(f"the graph of device {action.device} on a stream of another one")


def graphs_are_whole(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """A graph begins on its device's control stream: every other stream joins it by waiting for an event of a stream
    that is in it. It ends there too: the control stream waits for the last record of each."""
    if plan.mode not in ir.GRAPHS:
        return
    joined = {ir.StreamName("control", device) for device in plan.placement.ordinals}
    by: dict[ir.EventName, ir.StreamName] = {}
    last: dict[ir.StreamName, ir.Action] = {}
    awaited: dict[ir.StreamName, set[ir.Action]] = defaultdict(set)  # by control streams: records
    records: dict[ir.EventName, ir.Action] = {}
    devices = plan.device_of
    for action in plan.body:
        if isinstance(action, ir.AwaitEvent) and action.event in by:
            other = by[action.event]
            if other in joined and devices[other] == devices[action.stream]:
                joined.add(action.stream)
            elif devices[other] != devices[action.stream]:
                yield action.mistake(f"{action.stream} waits for {action.event} of another device's graph")
            awaited[action.stream].add(records[action.event])
        if action.stream not in joined:
            yield action.mistake(f"{action.stream} does something before it has joined its device's graph")
        if isinstance(action, ir.RecordEvent):
            by[action.event], records[action.event] = action.stream, action
        last[action.stream] = action
    for stream, action in last.items():
        control = ir.StreamName("control", devices[stream])
        if stream != control and action not in awaited[control]:
            yield action.mistake(f"{control} does not wait for the end of {stream}")


def crowded_graphs_are_chains(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """In the graph of a device with fewer hardware queues than streams every node waits for the one before it, on its
    stream or by an event: what a graph leaves open the driver orders as it likes."""
    crowded = plan.crowded
    if plan.mode not in ir.GRAPHS or not crowded:
        return
    devices = plan.device_of
    last: dict[int, ir.StreamName] = {}
    points: dict[int, set[ir.EventName]] = defaultdict(set)  # recorded behind the last node of a device
    behind: dict[int, set[ir.StreamName]] = defaultdict(set)  # streams that wait for one of these
    for action in plan.body:
        device = devices[action.stream]
        if isinstance(action, ir.RecordEvent):
            points[device].discard(action.event)
            if action.stream in behind[device]:
                points[device].add(action.event)
        elif isinstance(action, ir.AwaitEvent):
            if action.event in points[device]:
                behind[device].add(action.stream)
        else:
            if device in crowded and device in last and action.stream not in behind[device]:
                yield action.mistake(
                    f"{action.stream} does not wait for {last[device]}, and device {device} has "
                    f"{plan.features.queues} hardware queues for {crowded[device]} streams",
                )
            last[device] = action.stream
            points[device], behind[device] = set(), {action.stream}


def _reset(
    action: ir.Action, places: Mapping[int, Sequence[int]], devices: Mapping[ir.StreamName, int]
) -> Iterator[int]:
    match action:
        case ir.StreamMemOps(changes=changes):
            yield from (c.semaphore for c in changes if c.acquires)
        case ir.ResetSemaphores(first=first, count=count):
            yield from places[devices[action.stream]][first : first + count]
        case ir.Barrier():
            yield from action.semaphores("reset")


def semaphores_in_order(plan: ir.DevicePlan) -> dict[int, list[int]]:
    """The semaphores of each device as they lie."""
    found: dict[int, list[int]] = defaultdict(list)
    for i in sorted(range(len(plan.semaphores)), key=lambda i: plan.semaphores[i].index):
        found[plan.semaphores[i].device].append(i)
    return found


RULES: tuple[Callable[[ir.DevicePlan], Iterator[Diagnostic]], ...] = (  # a later one may rely on the earlier
    version_is_known,
    all_is_there,
    processes_have_devices,
    streams_are_known,
    inline_streams_are_few,
    regions_lie_inside,
    works_fit,
    semaphores_lie_apart,
    nodes_share_messages_alone,
    events_are_recorded,
    ops_stand_once,
    run_ends_know_their_streams,
    ends_are_alike,
    runs_tell_their_times,
    processes_share_no_events,
    launches_stand_once,
    launches_fit,
    library_calls_know_no_flags,
    launches_are_asked_for,
    early_starts_are_safe,
    batches_fit,
    copied_semaphores_are_for_kernels_elsewhere,
    semaphores_are_given_once,
    runs_are_counted,
    collectives_are_called_together,
    graphs_are_launched,
    graphs_are_whole,
    crowded_graphs_are_chains,
    start_gates_open_last,
)
