"""Every rule of device plans refuses what breaks it, with its message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.device import device_plan_rules as rules
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.features import usual
from ficco_rt.device.ir import (
    AwaitEvent,
    Barrier,
    BarrierStep,
    CopyMemory,
    DevicePlan,
    EventName,
    LaunchGraph,
    LaunchKernel,
    Library,
    Mode,
    Placement,
    RecordEvent,
    ResetSemaphores,
    SemaphoreOp,
    StreamMemOps,
    StreamName,
)
from ficco_rt.device.run_ends import BEGIN
from ficco_rt.errors import PlanError
from ficco_rt.geometry.region import Axis, Interval
from ficco_rt.machine.profiles import profile
from tests import cases
from tests.unit.device_plan_damage import (
    Damage,
    at_the_end,
    batched,
    changed,
    dropped,
    end_behind,
    launched,
    moved,
    multiplied,
    openings,
    start_first,
    streamed,
    unchained,
    waiting_for,
    with_semaphores,
    without,
    worded,
    works_of,
)

PULL = """schedule pull
input X[64, 64] : fp32
output Y[64, 64] : fp32 unproven
queue dma { engine = copy }
stage s on dma { copy Y <- X @ (rank + 1) % ranks }"""
PULLING = ficco_dsl.parse(PULL, "pull.ficco")
PLANS: dict[str, tuple[str, Mode, dict[str, object]]] = {  # of two ranks
    "embedded": ("gemm_rs/serial", "embedded", {}),
    "entries": ("pull", "embedded", {}),
    "processes": ("gemm_rs/serial", "streams", {"M": 1 << 17}),
    "early begin": ("ag_gemm/streamed", "graph", {"chunks": 2, "M": 1 << 17}),
    "gather": ("ag_gemm/streamed", "streams", {"chunks": 2}),
    "relay": ("gemm_rs/relay", "streams", {"first": [1, 1], "middle": [1, 1], "last": [1, 1]}),
    "graph": ("gemm_rs/serial", "graph", {}),
    "shared": ("ag_gemm/streamed", "streams", {"chunks": 2}),
    "one queue": ("gemm_rs/streamed", "streams", {"chunks": 2}),
    "chain": ("gemm_rs/serial", "graph", {}),
    "traced": ("gemm_rs/serial", "traced", {}),
    "library": ("gemm_rs/serial", "streams", {}),
    "collectives": ("gemm_ar/serial", "streams", {}),
}
REPLAYED = AwaitEvent(StreamName("caller", 0), EventName("replayed", 0), BEGIN)  # awaited nowhere in a capture
ENDED = RecordEvent(StreamName("caller", 0), EventName("replayed", 0), BEGIN, "behind replays")
QUEUES = {"one queue": 1, "chain": 2}  # hardware queues of a device, where there are few


@cache
def made(plan: str) -> DevicePlan:
    """Each rank has a device; in `shared` they share one, in `processes` and `early_begin` each has a process of its
    own. In `processes` streams change one semaphore a call, and the scratch is too large for two sets, so that kernels
    tell the entry."""
    name, mode, more = PLANS[plan]
    machine = profile("h200-switch", 2)
    sizes = {"M": 256, "N": 128, "K": 128, "T": "bf16", **more}
    schedule = cases.by_library(name) if plan == "library" else cases.schedule(name) if name != "pull" else PULLING
    lowered = plan_of(build(schedule, 2, sizes if schedule.params else {}), machine)
    apart = Placement((0, 1), (0, 1))
    placements = {"shared": Placement((0, 0)), "processes": apart, "early begin": apart}
    placement = placements.get(plan, Placement((0, 1)))
    features = usual(machine.device.arch)
    library: Library = "NCCL" if plan == "collectives" else ""
    features = replace(
        features,
        queues=QUEUES.get(plan, features.queues),
        collectives=library,
        batched_mem_ops=plan != "processes",
    )
    return device_plan(layout_of(lowered, machine.device, placement, features), mode)


def test_a_launch_begins_not_early_behind_flags_that_its_stream_resets() -> None:
    """Of many ranks a product waits for more flags than its kernel resets."""
    machine = profile("h200-switch", 16)
    plan = plan_of(build(cases.schedule("ag_gemm/stationary_a"), 16, {"chunks": 1}), machine)
    placement = Placement(tuple(range(16)))
    found = device_plan(layout_of(plan, machine.device, placement, usual(machine.device.arch)), "streams")
    reset = [a.stream for a in found.body if isinstance(a, ResetSemaphores)]
    assert reset
    assert not list(rules.early_starts_are_safe(found))


@pytest.mark.parametrize("mode", ["streams", "graph"])
def test_launches_leave_a_multiprocessor_to_copies_inside_a_gpu_of_two_processes(mode: Mode) -> None:
    """On an H200 that two processes shared, runs hung whose kernels had all multiprocessors."""
    machine = profile("h200-switch", 2)
    sizes = {"M": 1024, "N": 512, "K": 512, "iters": 8}
    plan = plan_of(build(cases.schedule("concurrent/ar_streamed"), 2, sizes), machine)
    apart, together = Placement((0, 1), (0, 1)), Placement((0, 1), (0, 1), gpus=(0, 0))
    layouts = [layout_of(plan, machine.device, where, usual(machine.device.arch)) for where in (apart, together)]
    alone, sharing = (device_plan(layout, mode) for layout in layouts)
    assert {launch.sms for launch in alone.launches} == {machine.device.sms}
    assert {launch.sms for launch in sharing.launches} == {machine.device.sms - 1}
    check(alone)
    check(sharing)
    with pytest.raises(PlanError) as error:
        check(replace(alone, placement=together))
    assert "deadlock: stream 1 waits for the multiprocessors of device 0" in str(error.value)


KERNEL = "sm90_gemm_64x64_c1_bf16_bf16_nn"
AGAIN = "compile the schedule again (ficco-run --emit device-plan-json)"
OTHER = f"{KERNEL}: its works on NVIDIA H200 ask for another launch; {AGAIN}"
LAUNCH, COPY = "Launch on rank 0 stream compute", "CopyAsync on rank 0 stream dma"
RULES: list[tuple[str, Callable[..., Any], str, Damage, str]] = [
    (
        "version",
        rules.version_is_known,
        "gather",
        lambda p: replace(p, version=11),
        "the device plan has version 11; this ficco reads version 10",
    ),
    (
        "no processes of some ranks",
        rules.processes_have_devices,
        "processes",
        lambda p: replace(p, placement=Placement((0, 1), (0,))),
        "2 ranks, and the processes of 1 of them",
    ),
    (
        "no GPUs of some ranks",
        rules.processes_have_devices,
        "processes",
        lambda p: replace(p, placement=replace(p.placement, gpus=(0,))),
        "2 ranks, and the GPUs of 1 of them",
    ),
    (
        "a device of two processes",
        rules.processes_have_devices,
        "shared",
        lambda p: replace(p, placement=Placement((0, 0), (0, 1))),
        "device 0 is in the processes 0 and 1",
    ),
    (
        "what leads to another node",
        rules.nodes_share_messages_alone,
        "processes",
        lambda p: replace(p, placement=replace(p.placement, nodes=(0, 1))),
        "CopyAsync on rank 0 stream dma: it touches S@1 on another node",
    ),
    (
        "event of another process",
        rules.processes_share_no_events,
        "gather",
        lambda p: replace(p, placement=Placement((0, 1), (3, 1))),
        "the begin of a run: control 1 of process 1 waits for start of device 0 of process 3",
    ),
    (
        "stream twice",
        rules.streams_are_known,
        "gather",
        lambda p: replace(p, streams=(p.streams[0], *p.streams)),
        "stream 0 stands 2 times",
    ),
    (
        "stream on no device",
        rules.streams_are_known,
        "gather",
        streamed(4, device=5),
        "control 0 is on device 5, which has no rank",
    ),
    ("stream elsewhere", rules.streams_are_known, "gather", streamed(0, device=1), "stream 0 of rank 0 is on device 1"),
    (
        "no stream",
        rules.streams_are_known,
        "gather",
        changed(LaunchKernel, stream=StreamName("plan", 9)),
        f"{LAUNCH}: there is no stream 9",
    ),
    ("two inline", rules.inline_streams_are_few, "gather", streamed(0, inline=True), "stream 0 may not be inline"),
    (
        "callers in the body",
        rules.streams_are_known,
        "gather",
        changed(LaunchKernel, when="behind"),
        f"{LAUNCH}: stream 1, behind: the body of a run knows neither callers nor conditions",
    ),
    (
        "place taken",
        rules.semaphores_lie_apart,
        "gather",
        worded(1, index=0),
        "the place 0 of a semaphore on device 0 is taken or no place",
    ),
    ("no semaphore", rules.semaphores_lie_apart, "gather", with_semaphores(8), f"{COPY}: there is no semaphore 8"),
    (
        "wait elsewhere",
        rules.semaphores_lie_apart,
        "relay",
        waiting_for(0, 6),
        "WaitFlag on rank 0 stream dma: stream 1 of device 0 waits for semaphore 6 of another device",
    ),
    (
        "reset behind the end",
        rules.semaphores_lie_apart,
        "graph",
        changed(ResetSemaphores, count=4),
        "the end of a run: semaphores 0 to 3 of 3 are reset",
    ),
    (
        "a barrier over other devices' semaphores",
        rules.semaphores_lie_apart,
        "embedded",
        changed(Barrier, steps=(BarrierStep("wait", 4),)),
        "the begin of a run: control 0 does not own semaphore 4, which it does not signal",
    ),
    (
        "a barrier over too many semaphores",
        rules.semaphores_lie_apart,
        "embedded",
        changed(Barrier, steps=(BarrierStep("reset", 0, 9),)),
        "the begin of a run: a barrier over semaphores 0 to 8",
    ),
    (
        "a barrier over semaphores of two devices",
        rules.semaphores_lie_apart,
        "embedded",
        changed(Barrier, steps=(BarrierStep("reset", 0, 4),)),
        "the begin of a run: semaphores 0 to 3 do not lie side by side",
    ),
    (
        "not recorded",
        rules.events_are_recorded,
        "graph",
        dropped(RecordEvent, 2),
        "WaitEvent on rank 0 stream dma: stream 1 waits for event 0, which nothing records before it",
    ),
    (
        "of no capture",
        rules.events_are_recorded,
        "embedded",
        lambda p: replace(p, called=replace(p.called, prologue=(REPLAYED, *p.called.prologue))),
        "the begin of a run: caller 0 waits for replayed of device 0, which nothing records before it",
    ),
    (
        "other graph",
        rules.graphs_are_whole,
        "graph",
        changed(AwaitEvent, 5, event=EventName("plan", 0)),
        "WaitEvent on rank 1 stream dma: stream 3 waits for event 0 of another device's graph",
    ),
    (
        "not joined",
        rules.graphs_are_whole,
        "graph",
        dropped(AwaitEvent, 0),
        f"{LAUNCH}: stream 0 does something before it has joined its device's graph",
    ),
    (
        "callers in a run of nobody's",
        rules.run_ends_know_their_streams,
        "gather",
        lambda p: replace(p, own=p.called),
        "the begin of a run: caller 0 in a run that nobody calls",
    ),
    (
        "no completion recorded",
        rules.run_ends_know_their_streams,
        "gather",
        without(RecordEvent, "epilogue"),
        "a run records the event 'completion' of each device once, at its end",
    ),
    (
        "an end for some runs",
        rules.ends_are_alike,
        "gather",
        end_behind,
        "the end of a run: control 1, behind: a run ends in one way, however it is made",
    ),
    (
        "no begin told",
        rules.runs_tell_their_times,
        "gather",
        without(RecordEvent, "prologue"),
        "a run, on its own streams, alone, timed: it tells the begin of each device once, if timed",
    ),
    (
        "op twice",
        rules.ops_stand_once,
        "gather",
        dropped(CopyMemory, 0, 2),
        "op 0 writes 16384 elements; it should write 8192",
    ),
    (
        "op nowhere",
        rules.ops_stand_once,
        "gather",
        works_of(0, slice(1, None)),
        "op 4 writes 0 elements; it should write 8192",
    ),
    (
        "no launch",
        rules.launches_stand_once,
        "gather",
        changed(LaunchKernel, launch=4),
        f"{LAUNCH}: there is no launch 4",
    ),
    (
        "launch elsewhere",
        rules.launches_stand_once,
        "gather",
        changed(LaunchKernel, launch=1),
        f"{LAUNCH}: launch 1 is issued to stream 1",
    ),
    ("launch dropped", rules.launches_stand_once, "gather", dropped(LaunchKernel), "launch 0 is issued 0 times"),
    (
        "half a cluster",
        rules.launches_fit,
        "gather",
        launched(0, {"cluster": 3}),
        f"{KERNEL}: 4 blocks in clusters of 3",
    ),
    (
        "shared memory",
        rules.launches_fit,
        "gather",
        launched(0, {"smem": 232448}),
        f"{KERNEL}: a block takes 232448 + 272 bytes of shared memory, and has at most 232448",
    ),
    (
        "not resident",
        rules.launches_fit,
        "gather",
        launched(0, {"resident": 0}),
        f"{KERNEL}: a block of 256 threads does not fit NVIDIA H200",
    ),
    ("share", rules.launches_fit, "gather", launched(0, sms=133), f"{KERNEL}: a share of 133 of 132 multiprocessors"),
    (
        "share exceeded",
        rules.launches_fit,
        "gather",
        launched(0, sms=3),
        f"{KERNEL}: 4 blocks wait while they hold a share of 3 multiprocessors",
    ),
    (
        "wait unsaid",
        rules.launches_fit,
        "gather",
        launched(0, spins=False),
        f"{KERNEL} waits for flags, and is not said to hold its share meanwhile",
    ),
    (
        "early alone",
        rules.early_starts_are_safe,
        "gather",
        launched(0, early=True),
        f"{LAUNCH}: {KERNEL} may begin early, and no kernel stands right before it",
    ),
    (
        "early unchained",
        rules.early_starts_are_safe,
        "gather",
        launched(0, {"chained": False}, early=True),
        f"{LAUNCH}: {KERNEL} may not begin early: it does not wait for the kernel before",
    ),
    (
        "read-only",
        rules.early_starts_are_safe,
        "gather",
        launched(0, {"read_only": (True, True)}),
        f"{KERNEL} takes G@0 for read-only, and it is written",
    ),
    (
        "batch in a graph",
        rules.batches_fit,
        "graph",
        changed(CopyMemory, batch=True),
        f"{COPY}: a batch of copies where there are none",
    ),
    (
        "no batch",
        rules.batches_fit,
        "gather",
        batched(lambda batch: replace(batch, batch=False)),
        f"{COPY}: 1 copies and 1 semaphores that are no batch",
    ),
    (
        "copied semaphore here",
        rules.copied_semaphores_are_for_kernels_elsewhere,
        "gather",
        with_semaphores(0),
        f"{COPY}: semaphore 0 of the same GPU is signalled by a copy",
    ),
    (
        "copied semaphore awaited",
        rules.copied_semaphores_are_for_kernels_elsewhere,
        "relay",
        changed(CopyMemory, 0, semaphores=(6,)),
        f"{COPY}: semaphore 6, for which a stream waits, is signalled by a copy",
    ),
    (
        "signalled twice",
        rules.semaphores_are_given_once,
        "gather",
        dropped(StreamMemOps, 0, 2),
        "semaphore 5 (flag 1) is signalled 2 times in a run (on its own streams, alone, timed)",
    ),
    (
        "never signalled",
        rules.semaphores_are_given_once,
        "gather",
        dropped(StreamMemOps),
        "semaphore 5 (flag 1) is signalled 0 times in a run (on its own streams, alone, timed)",
    ),
    ("no semaphore of a flag", rules.semaphores_are_given_once, "gather", worded(0, flag=9), "flag 2 has no semaphore"),
    (
        "not reset by its kernel",
        rules.semaphores_are_given_once,
        "gather",
        launched(0, {"resets": (2,)}),
        "semaphore 1 (flag 3) is reset 0 times in a run (on its own streams, alone, timed)",
    ),
    (
        "reset by who does not wait",
        rules.semaphores_are_given_once,
        "gather",
        launched(0, {"resets": (2, 3, 0)}),
        f"{KERNEL} resets flag 0, for which it does not wait",
    ),
    (
        "never reset",
        rules.semaphores_are_given_once,
        "graph",
        dropped(ResetSemaphores),
        "semaphore 0 (event 3) is reset 0 times in a run (on its own streams, alone, timed)",
    ),
    (
        "a semaphore that is taken by who signals it",
        rules.semaphores_lie_apart,
        "early begin",
        openings(lambda change: replace(change, acquires=True)),
        "the begin of a run: semaphore 7 is signalled, and acquired by the stream that signals it",
    ),
    (
        "a semaphore that is not taken down",
        rules.semaphores_are_given_once,
        "early begin",
        openings(lambda change: replace(change, acquires=False)),
        "semaphore 2 (ready of device 1) is reset 0 times in a run (on its own streams, alone, timed)",
    ),
    (
        "a run that is not counted",
        rules.runs_are_counted,
        "embedded",
        changed(Barrier, steps=(BarrierStep("reset", 0), BarrierStep("signal", 4), BarrierStep("wait", 1))),
        "the begin of a run: control 0 joins a barrier before it has counted the run, or counts it twice",
    ),
    (
        "a run that is counted twice",
        rules.runs_are_counted,
        "entries",
        changed(
            Barrier,
            steps=(BarrierStep("count", 2), BarrierStep("count", 2), BarrierStep("signal", 3), BarrierStep("wait", 0)),
        ),
        "the begin of a run: control 0 joins a barrier before it has counted the run, or counts it twice",
    ),
    (
        "the count of another device",
        rules.runs_are_counted,
        "embedded",
        changed(Barrier, runs=5),
        "the begin of a run: control 0 joins a barrier by semaphore 5, not by its own count of runs",
    ),
    (
        "a stream waits for an entry",
        rules.runs_are_counted,
        "embedded",
        changed(StreamMemOps, changes=(SemaphoreOp(1, False),)),
        "WaitEvent on rank 0 stream compute: semaphore 1 (entry of device 1) outside of a barrier",
    ),
    (
        "an entry is reset",
        rules.runs_are_counted,
        "embedded",
        changed(
            Barrier,
            steps=(
                BarrierStep("count", 2),
                BarrierStep("reset", 0, 2),
                BarrierStep("signal", 4),
                BarrierStep("wait", 1),
            ),
        ),
        "the begin of a run: a barrier cannot reset semaphore 1 (entry of device 1)",
    ),
    (
        "replayed by nobody's streams",
        rules.graphs_are_launched,
        "embedded",
        lambda p: replace(p, own=p.called),
        "a run on nobody's streams in the mode 'embedded'",
    ),
    (
        "embedded nowhere",
        rules.graphs_are_launched,
        "embedded",
        lambda p: replace(p, features=replace(p.features, embeds=False)),
        "graphs in callers' graphs, and the driver has no such",
    ),
    (
        "no replay recorded",
        rules.run_ends_know_their_streams,
        "embedded",
        lambda p: replace(p, called=replace(p.called, epilogue=p.called.epilogue[:-1])),
        "a run records the event 'replayed' of each device once, at its end",
    ),
    (
        "a replay that is over at its begin",
        rules.run_ends_know_their_streams,
        "embedded",
        lambda p: replace(p, called=replace(p.called, prologue=(*p.called.prologue, ENDED))),
        "a run records the event 'replayed' of each device once, at its end",
    ),
    (
        "no communicator",
        rules.collectives_are_called_together,
        "collectives",
        lambda p: replace(p, communicators=()),
        "all_reduce on rank 0 stream vendor: there is no communicator 0",
    ),
    (
        "no graph",
        rules.graphs_are_launched,
        "graph",
        without(LaunchGraph, "prologue"),
        "a run launches each device's graph once, and only in modes with graphs (on its own streams, alone, timed)",
    ),
    (
        "chain cut",
        rules.crowded_graphs_are_chains,
        "chain",
        unchained,
        "WaitEvent on rank 0 stream compute: stream 0 does not wait for stream 1, and device 0 has 2 hardware queues "
        "for 4 streams",
    ),
    (
        "start gate open too early",
        rules.start_gates_open_last,
        "traced",
        at_the_end("prologue", 0),
        "the end of a run: the last action of the run does not open the start gate",
    ),
    (
        "start gate never open",
        rules.start_gates_open_last,
        "traced",
        at_the_end("", 0),
        "the end of a run: the last action of the run does not open the start gate",
    ),
    (
        "start before the start gate",
        rules.start_gates_open_last,
        "traced",
        start_first,
        "the begin of a run: the start is recorded, and not right behind the wait for the start gate",
    ),
    (
        "a priority of its own",
        rules.library_calls_know_no_flags,
        "library",
        lambda p: replace(p, launches=(replace(p.launches[0], priority="high"), *p.launches[1:])),
        "vendor_gemm knows no flags, no early start and no priority of its own",
    ),
    (
        "work on the start gate's stream",
        rules.start_gates_open_last,
        "traced",
        changed(RecordEvent, 0, stream=StreamName("gate", 0)),
        f"{LAUNCH}: start gate 0 does something else than to open the start gate",
    ),
    (
        "no sets",
        rules.all_is_there,
        "gather",
        lambda p: replace(p, sets=0),
        f"0 sets of semaphores and scratch; there are one or two; {AGAIN}",
    ),
    (
        "a stream of no rank",
        rules.all_is_there,
        "gather",
        streamed(0, rank=77),
        f"stream 0 is of rank 77; there are 2 ranks; {AGAIN}",
    ),
    (
        "a work of no number",
        rules.all_is_there,
        "gather",
        launched(0, config={"merged": ((0, 99),)}),
        "launch 0 merges its works 0, 99; it has 3, counted from 0",
    ),
    (
        "no works",
        rules.all_is_there,
        "gather",
        works_of(0, slice(0)),
        "launch 0 has 0 works, for stream 1; a launch has works, and a stream that there is",
    ),
    (
        "a product of an unknown tensor",
        rules.regions_lie_inside,
        "gather",
        multiplied(0, out=lambda r: replace(r, tensor="Z")),
        f"Z@0[0:128, 0:64] is in no tensor of the device plan; {AGAIN}",
    ),
    (
        "a copy from outside",
        rules.regions_lie_inside,
        "gather",
        moved(src=lambda r: replace(r, axes=(Axis((Interval(96, 160),)), r.axes[1]))),
        f"A@0[96:160, 0:128] is outside its tensor, 128 × 128; {AGAIN}",
    ),
    (
        "a copy of another size",
        rules.works_fit,
        "gather",
        moved(src=lambda r: replace(r, axes=(Axis((Interval(0, 32),)), r.axes[1]))),
        "copy from A, 32 × 128, to G, 64 × 128: the sizes differ",
    ),
    (
        "a copy of rows that is said to be one run",
        rules.works_fit,
        "gather",
        moved(pitched=lambda _: True),
        f"the copy G@1[0:64, 0:128] <- A@0[0:64, 0:128] is not rows; {AGAIN}",
    ),
    ("one thread", rules.launches_are_asked_for, "gather", launched(0, config={"threads": 1}), OTHER),
    ("no shared memory", rules.launches_are_asked_for, "gather", launched(0, config={"smem": 0}), OTHER),
    ("other registers", rules.launches_are_asked_for, "gather", launched(0, config={"registers": 1}), OTHER),
    (
        "another kernel",
        rules.launches_are_asked_for,
        "gather",
        launched(0, config={"entry": "other"}),
        OTHER.replace(KERNEL, "other"),
    ),
    ("negative works", rules.launches_are_asked_for, "gather", launched(0, config={"works": (-1, -3)}), OTHER),
    ("no tiles", rules.launches_are_asked_for, "gather", launched(0, config={"tiles": 0}), OTHER),
    (
        "start gate of a crowded device",
        rules.start_gates_open_last,
        "traced",
        lambda p: replace(p, features=replace(p.features, queues=4)),
        "the start gate of a run: a start gate, and a device is crowded",
    ),
]


@pytest.mark.parametrize(("rule", "plan", "damage", "message"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_rules(rule: Callable[..., Any], plan: str, damage: Damage, message: str) -> None:
    check(made(plan))
    damaged = damage(made(plan))
    assert message in [found.message for found in rule(damaged)]
    with pytest.raises(PlanError):
        check(damaged)


def test_every_rule_is_broken_once() -> None:
    assert {rule for _, rule, *_ in RULES} == set(rules.RULES)
