"""The contract between runs: how each plan keeps it, and that the check refuses what breaks it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import get_args

import pytest

import ficco_dsl
from ficco_rt.compiler import build, compile_schedule, plan_of
from ficco_rt.device import ir, sharing
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.codec import from_json, to_json
from ficco_rt.device.features import usual
from ficco_rt.device.ir import (
    AwaitEvent,
    Barrier,
    DevicePlan,
    EventName,
    LaunchKernel,
    Mode,
    Placement,
    StreamMemOps,
)
from ficco_rt.device.layout import Layout
from ficco_rt.device.run_ends import known_ends
from ficco_rt.device.sharing import Sharing
from ficco_rt.device.text import to_text
from ficco_rt.errors import PlanError
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from tests import cases

RANKS = 3
MACHINE = profile("h200-switch", RANKS)
FEATURES = usual(MACHINE.device.arch)
APART = Placement(tuple(range(RANKS)), tuple(range(RANKS)))  # a process and a device a rank
PAIRS = Placement(tuple(range(RANKS)), tuple(rank // 2 for rank in range(RANKS)))  # two devices a process
TOGETHER = Placement(tuple(range(RANKS)))  # one process
SMALL = ("ag_gemm/oneshot", "gemm_rs/oneshot", "gemm_ar/oneshot", "ag_gemm/streamed")
MODES: tuple[Mode, ...] = get_args(Mode)

TEXT = """schedule sent
input   A[64, 64] : fp32
input   B[64, 64] : fp32
{tensors}queue dma  {{ engine = copy }}
queue compute {{ engine = sm }}
{moves}
"""
FIRST, SECOND = (f"(rank + {i}) % ranks" for i in (1, 2))
OWN = "stage own on compute { gemm C = A * B }"
PUSHED = f"stage move on dma {{ copy G @ {FIRST} <- A }}\nstage use on compute {{ gemm D = G * B }}"
TO_ALL = (
    f"stage move on dma {{ copy G @ {FIRST} <- A\n copy H @ {SECOND} <- A }}\n"
    "stage use on compute { gemm D = G * B\n gemm E = H * B }"
)
PULLED = (
    "stage make on compute { gemm G = A * B }\n"
    f"stage take on dma {{ copy D <- G @ {FIRST}\n copy E <- G @ {SECOND} }}"
)
SENT = (  # by kernels of a low priority, whose stream is inline, and by copies
    f"queue low {{ engine = sm, priority = low }}\nstage give on low {{ gemm G @ {FIRST} = A * B }}\n"
    f"stage move on dma {{ copy H @ {SECOND} <- A }}\n{OWN}\nstage use on compute {{ gemm D = G * B\n gemm E = H * B }}"
)
OF_CALLERS = f"{OWN}\nstage take on dma {{ copy D <- A @ {FIRST} }}"


@cache
def plan_text(moves: str) -> Plan:
    """Of the tensors that the moves name: scratch G, H and L, and outputs."""
    scratch = "".join(f"scratch {name}[64, 64] : fp32\n" for name in "GHL" if name in ("L", *moves.split()))
    outputs = "".join(f"output {name}[64, 64] : fp32 unproven\n" for name in "CDE" if name in moves.split())
    return plan_of(
        build(ficco_dsl.parse(TEXT.format(tensors=scratch + outputs, moves=moves), "s.ficco"), RANKS, {}), MACHINE
    )


@cache
def shipped(name: str, **sizes: int) -> Plan:
    return compile_schedule(name, RANKS, sizes, MACHINE)


def layout(plan: Plan, placement: Placement = APART) -> Layout:
    return layout_of(plan, MACHINE.device, placement, FEATURES)


def made(plan: Plan, mode: Mode = "streams", placement: Placement = APART) -> DevicePlan:
    return device_plan(layout(plan, placement), mode)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scratch is small enough for two sets."""
    monkeypatch.setattr(sharing, "LARGEST", -1)


@pytest.mark.parametrize(
    ("moves", "wanted"),
    [
        (TO_ALL, Sharing(frozenset("L"), 2, "replays")),
        (PULLED, Sharing(frozenset("L"), 2, "replays")),
        (PUSHED, Sharing(frozenset(), 1, "always")),  # a device hears of one other
        (OWN, Sharing(frozenset(), 1, "always")),  # of none: others count on it all the same
        (OF_CALLERS, Sharing(frozenset(), 1, "always")),
        (f"{TO_ALL}\nstage far on dma {{ copy C @ {FIRST} <- A }}", Sharing(frozenset(), 1, "always")),
    ],
    ids=["pushed to all", "pulled", "pushed to one", "nothing shared", "callers'", "callers' of all"],
)
def test_what_plans_share(moves: str, wanted: Sharing) -> None:
    assert layout(plan_text(moves)).sharing == wanted


@pytest.mark.usefixtures("large")
def test_local_streams() -> None:
    """Those that multiply what their own rank has; not those that write what others read, or signal these."""
    plan = plan_text(f"{OWN}\n{TO_ALL}")
    found = layout(plan).sharing
    assert (found.sets, found.entry) == (1, "always")
    assert {plan.streams[s].queue for s in found.local_streams} == {"compute"}
    assert len(found.local_streams) == RANKS
    assert layout(plan_text(PULLED)).sharing.local_streams == frozenset()
    again = f"stage again on dma {{ copy G @ {FIRST} <- B }}\nstage more on compute {{ gemm C = G * B }}"
    assert layout(plan_text(f"{TO_ALL}\n{again}")).sharing.local_streams == frozenset()  # G is free when they say so
    makes = next(stream for stream in plan_text(PULLED).streams if stream.queue == "compute")
    assert sharing._is_local(makes, plan_text(PULLED), set())
    assert not sharing._is_local(makes, plan_text(PULLED), {"G"})
    without = layout_of(plan, MACHINE.device, APART, replace(FEATURES, batched_mem_ops=False)).sharing
    assert without == replace(found, local_streams=frozenset())  # an entry would need a multiprocessor


def test_large_scratch_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others touch counts, on the device that has most."""
    plan = shipped("ag_gemm/oneshot", M=48, K=512)
    for bytes_, sets in ((48 * 512 * 2, 2), (48 * 512 * 2 - 1, 1)):
        monkeypatch.setattr(sharing, "LARGEST", bytes_)
        assert layout(plan).sharing.sets == sets


def test_one_process_has_one_set() -> None:
    """It knows all ends by events; graphs in callers' graphs have an entry."""
    plan = shipped("ag_gemm/oneshot", M=48)
    for placement in (TOGETHER, replace(TOGETHER, processes=(0,) * RANKS)):
        assert layout(plan, placement).sharing == Sharing(frozenset(), 1, "always")
        for mode in MODES:
            barriers = [a for a in made(plan, mode, placement).actions if isinstance(a, Barrier)]
            assert bool(barriers) == (mode == "embedded")
    alone = layout_of(plan, MACHINE.device, TOGETHER, replace(FEATURES, embeds=False)).sharing
    assert alone.entry == "never"


def test_in_one_process_no_scratch_is_private() -> None:
    """It would be kept beside that of other plans."""
    for name, local in (("ag_gemm/streamed", RANKS), ("gemm_rs/streamed", 0)):
        found = layout(shipped(name, M=48), TOGETHER).sharing
        assert (found.private, len(found.local_streams)) == (frozenset(), local)


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "ag_gemm/hetero_unfused_1d"])
def test_in_one_process_local_streams_wait_for_no_other_device(name: str) -> None:
    """Products begin when their own device has ended the run before, unless that was of other callers, which may have
    the same tensors; all other streams when all have."""
    found = made(shipped(name, M=48), placement=TOGETHER)
    check(found)
    local = {ir.StreamName("plan", n) for n in layout(shipped(name, M=48), TOGETHER).sharing.local_streams}
    assert {s.name for s in found.streams if s.inline} <= local
    ends = {device: EventName("completion", device) for device in TOGETHER.ordinals}
    for others in (False, True):
        known: dict[object, set[EventName]] = {}  # by stream, and by event when it is recorded
        for action in ir.Manner(True, behind=True, timed=False, others=others).of(found.called.prologue):
            if isinstance(action, AwaitEvent):
                known.setdefault(action.stream, set()).update({action.event}, known.get(action.event, ()))
            elif isinstance(action, ir.RecordEvent):
                known[action.event] = set(known.get(action.stream, ()))
        for stream in (s for s in found.streams if s.name.kind == "plan"):
            issued = ir.StreamName("caller", stream.device) if stream.inline else stream.name
            later = {end for device, end in ends.items() if device != stream.device} & known.get(issued, set())
            assert len(later) == (0 if stream.name in local and not others else RANKS - 1)
    kept = tuple(
        a
        for a in found.called.prologue
        if not (isinstance(a, AwaitEvent) and a.event in ends.values() and a.when == "behind")
    )
    with pytest.raises(PlanError, match=r"race on|deadlock"):
        check(replace(found, called=replace(found.called, prologue=kept)))
    waits, _ = known_ends(found)
    assert not any(f"caller {a}, {ends[b]}" in waits for a in ends for b in ends if a != b)


def test_an_inline_stream_that_sends_waits_for_all_devices() -> None:
    found = made(plan_text(SENT), placement=TOGETHER)
    check(found)
    local = layout(plan_text(SENT), TOGETHER).sharing.local_streams
    inline = {s.name.number for s in found.streams if s.inline}
    assert len(inline) == len(local) == RANKS
    assert not inline & local


def test_the_library_lets_all_hear_of_all() -> None:
    """Its collectives share no memory: nothing has to wait for the others."""
    features = replace(FEATURES, collectives="NCCL")
    found = layout_of(shipped("gemm_ar/serial", M=48), MACHINE.device, APART, features)
    assert (found.own_way, found.sharing.sets, found.sharing.entry) == ("", 1, "never")
    assert layout(shipped("gemm_ar/serial", M=48)).sharing.entry == "always"  # as copies and sums


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SMALL)
def test_small_plans_have_no_barrier(name: str, mode: Mode) -> None:
    """But at the begin of callers' graphs; traced runs begin together."""
    for placement in (APART, PAIRS):
        found = made(shipped(name, M=48), mode, placement)
        check(found)
        assert from_json(to_json(found)) == found
        assert "2 sets of semaphores and scratch" in to_text(found)
        barriers = [action for action in found.actions if isinstance(action, Barrier)]
        wanted = {"traced": {"always"}, "embedded": {"behind replays"}}.get(mode, set())
        assert {action.when for action in barriers} == wanted
        assert not any(isinstance(action, Barrier) for action in (*found.body, *found.called.epilogue))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/streamed", "gemm_rs/ring", "gemm_rs/direct"])
def test_large_plans_enter(name: str, mode: Mode) -> None:
    """Each run has one entry: by streams where local ones begin before it, by a kernel elsewhere."""
    plan = shipped(name, M=48)
    for placement in (APART, PAIRS):
        found = made(plan, mode, placement)
        check(found)
        early = bool(layout(plan, placement).sharing.local_streams)
        assert early == (name in ("ag_gemm/streamed", "gemm_rs/streamed"))
        entered = found.body if mode in ("graph", "embedded") else found.called.prologue
        kernels = [a for a in entered if isinstance(a, Barrier)]
        streams = [a for a in entered if isinstance(a, StreamMemOps) and any(c.acquires for c in a.changes)]
        assert len(streams) == (len(placement.ordinals) if early else 0)
        assert len(kernels) == (len(placement.ordinals) if not early or mode == "traced" else 0)


@pytest.mark.usefixtures("large")
def test_local_streams_wait_for_nobody() -> None:
    """In a device's graph the multiplication stands behind the graph's begin, the copy behind the entry."""
    found = made(plan_text(f"{OWN}\n{TO_ALL}"), "graph")
    first: dict[int, EventName] = {}
    for action in found.body:
        if isinstance(action, AwaitEvent) and action.stream.kind == "plan":
            first.setdefault(action.stream.number, action.event)
    launches = {a.stream.number for a in found.body if isinstance(a, LaunchKernel)}
    for number, event in first.items():
        device = next(s.device for s in found.streams if s.name.number == number)
        assert event == EventName("captured" if number in launches else "open", device)
    assert len(first) == 2 * RANKS


# ---------------------------------------------------------------- what breaks the contract


@pytest.mark.parametrize(
    ("name", "mode", "less"),
    [
        ("ag_gemm/oneshot", "streams", {"sets": 1}),
        ("gemm_rs/oneshot", "graph", {"sets": 1}),
        ("gemm_ar/oneshot", "embedded", {"sets": 1}),
        ("gemm_ar/oneshot", "embedded", {"entry": "never"}),
        ("gemm_rs/ring", "streams", {"entry": "never"}),
        ("gemm_rs/ring", "graph", {"entry": "never"}),
        ("gemm_rs/ring", "streams", {"entry": "replays"}),
        ("pushed to one", "embedded", {"sets": 2, "entry": "replays"}),
        ("pushed to one", "streams", {"sets": 2, "entry": "replays"}),
    ],
)
def test_what_breaks_the_contract(
    name: str, mode: Mode, less: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_text(PUSHED) if name == "pushed to one" else shipped(name, M=48)
    check(made(plan, mode))
    broken = replace(layout(plan).sharing, local_streams=frozenset(), **less)
    monkeypatch.setattr("ficco_rt.device.build.sharing_of", lambda *given, **named: broken)
    with pytest.raises(PlanError, match=r"race on|deadlock"):
        check(made(plan, mode))


@pytest.mark.parametrize("mode", ["streams", "graph", "embedded"])
def test_others_count_on_a_plan_that_shares_nothing(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of it may end on a device before it has begun on all."""
    check(made(plan_text(OWN), mode))
    monkeypatch.setattr("ficco_rt.device.build.sharing_of", lambda *given, **named: Sharing(frozenset("L")))
    with pytest.raises(PlanError, match="race on what other runs share"):
        check(made(plan_text(OWN), mode))


def test_the_end_of_a_run_is_that_of_all_it_raises() -> None:
    """Side streams signal flags behind copies. Nobody tells that these have come, so the end waits for them."""
    name = "ag_gemm/streamed"
    sizes = cases.sizes(name, RANKS, even=True) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), RANKS, sizes), MACHINE)
    features = replace(FEATURES, batched_mem_ops=False, copy_batches=False)
    found = device_plan(layout_of(plan, MACHINE.device, APART, features), "streams")
    sides = {stream.name for stream in found.streams if stream.name.kind == "signal"}
    tails = {action.event for action in found.own.epilogue if action.stream in sides}  # type: ignore[union-attr]
    awaited = {action.event for action in found.own.epilogue if action.stream.kind == "control"}  # type: ignore[union-attr]
    assert sides
    assert len(tails) == len(sides)
    assert tails <= awaited
