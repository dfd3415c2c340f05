"""The walks behind the rules of device plans refuse what breaks order, with their messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device import device_plan_rules as rules
from ficco_rt.device import sharing
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.features import usual
from ficco_rt.device.ir import (
    AwaitEvent,
    DevicePlan,
    EventName,
    LaunchGraph,
    LaunchKernel,
    Mode,
    Placement,
    RecordEvent,
    ResetSemaphores,
    StreamName,
)
from ficco_rt.device.run_ends import RunEndsBuilder
from ficco_rt.errors import PlanError
from ficco_rt.machine.profiles import profile
from tests import cases
from tests.unit.device_plan_damage import (
    Damage,
    batched,
    begun_at_once,
    callers_go_on,
    circle,
    completionless,
    crowded,
    dropped,
    late_entries,
    overlapping,
    taken_first,
    waited_too_early,
    waits_first,
    without,
    without_points,
)
from tests.unit.test_device_check import COPY, LAUNCH, made

WALKS: list[tuple[str, str, Damage, str]] = [
    (
        "no event of the side stream",
        "relay",
        dropped(AwaitEvent, 0),
        "deadlock: stream 2 waits for semaphore 8 (flag 4)",
    ),
    (
        "side stream not behind the run before",
        "relay",
        without(AwaitEvent, "prologue", "called"),
        "deadlock: caller 1 waits for semaphore 8 (flag 4)",
    ),
    (
        "members of a batch that need an order",
        "gather",
        batched(overlapping),
        f"race on G@1 rows 64–95, columns 0–127: {COPY} (stream 0) writes it, {COPY} (stream 0) writes it, "
        "and nothing orders the two",
    ),
    (
        "callers do not wait",
        "relay",
        callers_go_on,
        "race on semaphore 0 (flag 0): a replay of a caller's graph on device 0 touches it, the end of a run (control "
        "0) writes it, and nothing orders the two",
    ),
    (
        "no semaphore",
        "graph",
        without_points,
        "race on S@0 rows 128–255, columns 0–127: CopyAsync on rank 1 stream dma (stream 3) writes it, "
        f"{LAUNCH} (stream 0) reads it, and nothing orders the two",
    ),
    (
        "no completion",
        "gather",
        completionless,
        f"race on G@1 rows 0–63, columns 0–127: {COPY} (stream 0) writes it, "
        "Launch on rank 1 stream compute (caller 1) reads it, and nothing orders the two",
    ),
    (
        "an entry awaited behind what it is for",
        "entries",
        late_entries,
        "race on X@1 rows 0–63, columns 0–63: CopyAsync on rank 0 stream dma (stream 0) reads it, the caller of rank 1 "
        "writes it, and nothing orders the two",
    ),
    (
        "a copy that does not wait until the other device is ready",
        "early begin",
        begun_at_once,
        "race on G@0 rows 65536–98303, columns 0–127: CopyAsync on rank 1 stream dma (stream 2) writes it, "
        "Launch on rank 0 stream compute (stream 1) reads it, and nothing orders the two",
    ),
    (
        "devices that wait before they say that they are ready",
        "early begin",
        taken_first,
        "deadlock: control 0 waits for semaphore 2 (ready of device 1)",
    ),
    (
        "an entry awaited before it is told",
        "entries",
        waited_too_early,
        "deadlock: control 0 waits for semaphore 0 (entry of device 1)",
    ),
    ("a circle", "relay", circle, "deadlock: stream 0 waits for semaphore 0 (flag 0)"),
    ("waits in front", "one queue", waits_first, "deadlock: stream 0 waits for a hardware queue of device 0"),
    ("no room", "shared", crowded, "deadlock: stream 1 waits for the multiprocessors of device 0"),
]


@pytest.mark.parametrize(("plan", "damage", "message"), [w[1:] for w in WALKS], ids=[w[0] for w in WALKS])
def test_walks(plan: str, damage: Damage, message: str) -> None:
    """What keeps all rules, and deadlocks or races."""
    damaged = damage(made(plan))
    assert not [found for rule in rules.RULES for found in rule(damaged)]
    with pytest.raises(PlanError) as refused:
        check(damaged)
    assert message in [found.message for found in refused.value.diagnostics]


HOLES: list[tuple[str, Mode]] = [
    (name, mode)
    for name in ("gemm_ar/streamed", "ag_gemm/streamed", "gemm_rs/oneshot")
    for mode in ("streams", "graph")
]


@pytest.mark.parametrize("apart", [False, True], ids=["one process", "a process each"])
@pytest.mark.parametrize(("name", "mode"), HOLES)
def test_what_stands_between_runs_is_refused(
    name: str, mode: Mode, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that do not stand behind replays."""
    check(small(name, mode, apart))
    monkeypatch.setattr(RunEndsBuilder, "_replays", lambda self, device: [])
    with pytest.raises(PlanError, match=r"nothing orders the two|deadlock"):
        check(small(name, mode, apart))


@pytest.mark.parametrize("mode", ["streams", "graph", "embedded"])
def test_runs_in_callers_graphs_have_sets_of_their_own(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run behind a replay has no entry barrier: what the replay uses may still be in use on the other device."""
    plan = small("gemm_rs/oneshot", mode, apart=True)
    assert (plan.sets, sharing.all_sets(plan.sets, plan.features)) == (2, 4)
    check(plan)
    monkeypatch.setattr(sharing, "buffer_set", lambda sets, run, *, embedded: run % sets)
    with pytest.raises(PlanError, match="nothing orders the two"):
        check(plan)


def small(name: str, mode: Mode, apart: bool = False, ranks: int = 2, each: int = 1) -> DevicePlan:
    machine = profile("h200-switch", ranks)
    plan = plan_of(build(cases.schedule(name), ranks, cases.sizes(name, ranks, True)), machine)
    processes = tuple(rank // each for rank in range(ranks)) if apart else ()
    placement = Placement(tuple(range(ranks)), processes)
    return device_plan(layout_of(plan, machine.device, placement, usual(machine.device.arch)), mode)


@pytest.mark.parametrize("mode", ["streams", "traced", "gated"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_replay_stands_behind_the_run_on_its_device(mode: Mode, rank: int) -> None:
    """Each caller's own wait counts: what one device's replay may touch, the other's touches do not hide."""
    plan = small("gemm_ar/streamed", mode)
    wait = StreamName("caller", rank), EventName("completion", rank), "behind replays"
    less = [a for a in plan.called.epilogue if not (isinstance(a, AwaitEvent) and (a.stream, a.event, a.when) == wait)]
    assert len(less) == len(plan.called.epilogue) - 1
    with pytest.raises(PlanError, match=f"a replay of a caller's graph on device {rank} touches it"):
        check(replace(plan, called=replace(plan.called, epilogue=tuple(less))))


def test_one_process_that_is_named_counts_no_runs() -> None:
    for mode in get_args(Mode):
        check(small("ag_gemm/serial", mode, apart=True, each=2))


@pytest.mark.parametrize("name", ["gemm_rs/direct", "ag_gemm/streamed", "gemm_rs/chunked"])
def test_an_end_that_is_told_before_the_work_is_done(name: str) -> None:
    """The host uses the tensors as soon as it has seen the end of a run on nobody's streams."""
    plan = small(name, "streams")
    kernels = {a.stream for a in plan.body if isinstance(a, LaunchKernel)}
    tails = {a.event for a in plan.own.epilogue if isinstance(a, RecordEvent) and a.stream in kernels}
    refused = 0
    for i, action in enumerate(plan.own.epilogue):
        if isinstance(action, AwaitEvent) and action.event in tails:
            less = (*plan.own.epilogue[:i], *plan.own.epilogue[i + 1 :])
            with pytest.raises(PlanError):
                check(replace(plan, own=replace(plan.own, epilogue=less)))
            refused += 1
    assert refused == len(tails) > 1


@pytest.mark.parametrize(
    ("name", "mode", "kind"),
    [
        ("gemm_rs/streamed", "graph", LaunchGraph),
        ("gemm_rs/streamed", "streams", ResetSemaphores),
        ("gemm_ar/streamed", "streams", ResetSemaphores),
    ],
)
def test_a_condition_under_which_a_run_is_not_whole(name: str, mode: Mode, kind: type[Any]) -> None:
    plan = small(name, mode)
    tried = 0
    for side in ("prologue", "epilogue"):
        actions = getattr(plan.own, side)
        for i, action in enumerate(actions):
            if isinstance(action, kind):
                less = (*actions[:i], replace(action, when="behind"), *actions[i + 1 :])
                with pytest.raises(PlanError):
                    check(replace(plan, own=replace(plan.own, **{side: less})))
                tried += 1
    assert tried
