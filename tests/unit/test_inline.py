"""Inline streams: which are, and what runs on callers' streams no longer wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.features import usual
from ficco_rt.device.inline import inlined, issued_to
from ficco_rt.device.ir import (
    AwaitEvent,
    DevicePlan,
    DeviceStream,
    EventName,
    Manner,
    Mode,
    Placement,
    RecordEvent,
    StreamMemOps,
    StreamName,
)
from ficco_rt.device.layout import Layout
from ficco_rt.device.run_plan import expected
from ficco_rt.device.run_residency import waiting_streams
from ficco_rt.driver.cuda.vendor import Cuda
from ficco_rt.errors import PlanError
from ficco_rt.machine.profiles import profile
from tests import cases
from tests.mock.test_hardware_queues import BEHIND

RANKS = 2
APART, PROCESSES = Placement((0, 1)), Placement((0, 1), (0, 1))
TWO = """schedule two
input  A[64, 64] : fp32
input  B[64, 64] : fp32
output C[64, 64] : fp32
output D[64, 64] : fp32
computes C = A * B
computes D = A * B
queue first  {{ engine = sm  {first} }}
queue second {{ engine = sm  {second} }}
stage one on first  {{ gemm C = A * B }}
stage two on second {{ gemm D = A * B }}
"""

SENT = """schedule sent
input  A[64, 64] : fp32
input  B[64, 64] : fp32
output G[128, 64] : fp32
output C[64, 64] : fp32
computes C = A * B
computes G = all_gather(A, rows)
queue both    { engine = nccl  priority = low }
queue compute { engine = sm  priority = low }
stage share on both { all_gather G <- A }
stage mm on compute { gemm C = A * B }
"""


def made(
    name: str = "ag_gemm/streamed",
    mode: Mode = "streams",
    placement: Placement = APART,
    machine: str = "h200-switch",
    library: bool = False,
    queues: int = 0,
    **sizes: int,
) -> DevicePlan:
    on = profile(machine, RANKS)
    schedule = ficco_dsl.parse(name, "two.ficco") if "\n" in name else cases.schedule(name)
    plan = plan_of(build(schedule, RANKS, {"M": 256, "N": 128, "K": 128, **sizes} if schedule.params else {}), on)
    features = usual(on.device.arch)
    features = replace(features, collectives="NCCL" if library else "", queues=queues or features.queues)
    found = device_plan(layout_of(plan, on.device, placement, features), mode)
    check(found)
    return found


def inline(plan: DevicePlan) -> list[str]:
    return [f"{stream.rank} {stream.label}" for stream in plan.streams if stream.inline]


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("", "", None),
        ("", "priority = high", "first"),
        ("", "priority = low", "second"),
        ("priority = high", "", "second"),
        ("priority = low", "priority = low", "first"),
        ("priority = high", "priority = high", None),
    ],
)
def test_it_is_one_of_the_least_priority(first: str, second: str, found: str | None) -> None:
    plan = made(TWO.format(first=first, second=second))
    assert inline(plan) == ([f"{rank} {found}" for rank in range(RANKS)] if found else [])


def test_it_is_the_first_ranks_on_a_device() -> None:
    assert inline(made(placement=Placement((0, 0)))) == ["0 compute"]
    assert inline(made(placement=PROCESSES)) == inline(made()) == ["0 compute", "1 compute"]


def test_none_is_where_that_does_not_hold() -> None:
    """In other modes, on AMD's streams, whose least priority is not the usual one, and where streams share hardware
    queues."""
    others: tuple[Mode, ...] = ("apart", "graph", "traced", "gated")
    assert not any(inline(made(mode=mode)) for mode in others)
    assert inline(made("ag_gemm/oneshot"))
    assert not inline(made("ag_gemm/oneshot", machine="mi300x-mesh"))
    assert not inline(made("gemm_rs/serial", queues=3))
    assert inline(made("gemm_rs/serial", queues=4))
    assert not inline(made(BEHIND))  # a launch stands behind one that waits, and before what that waits for


def test_the_check_knows_that_callers_streams_may_share_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ficco_rt.device.build.shares_queues", lambda plan: True)
    with pytest.raises(PlanError, match=r"deadlock: .* waits for a hardware queue of device"):
        made(BEHIND)


@pytest.mark.parametrize("library", [False, True])
def test_it_has_kernels(library: bool) -> None:
    """Copies and the library's collectives stay apart, where they come first, too; theirs may be the lower priority."""
    assert inline(made(SENT, library=library)) == ["0 compute", "1 compute"]
    normal = SENT.replace("engine = sm  priority = low", "engine = sm")
    assert normal != SENT
    assert not inline(made(normal, library=library))
    assert inline(made(normal.replace("priority = low", "priority = high"), library=library))


@pytest.mark.parametrize(
    ("stream", "priority", "context", "usual"),
    [
        (77, (0, 0), (0, 5), True),
        (77, (0, -1), (0, 5), False),
        (77, (0, 0), (0, 6), False),  # a green context's
        (77, (1, None), (0, 5), False),
        (77, (0, 0), (1, None), False),
        (0, (1, None), (1, None), True),  # a default stream, which belongs to no context
    ],
)
def test_a_callers_stream_is_usual(
    stream: int, priority: tuple[int, int | None], context: tuple[int, int | None], usual: bool
) -> None:
    vendor = Cuda.__new__(Cuda)
    vendor.cu = SimpleNamespace(cuStreamGetPriority=lambda of: priority, cuStreamGetCtx=lambda of: context)
    assert vendor.is_usual(stream, 5) == usual


def test_no_event_leads_to_it_or_back() -> None:
    plan = made()
    (first, of), *rest = issued_to(plan, called=True).items()
    assert [(first, of), *rest] == [(StreamName("plan", 2 * i + 1), StreamName("caller", i)) for i in range(RANKS)]
    assert not issued_to(plan, called=False)
    begins = [a for a in plan.called.prologue if isinstance(a, AwaitEvent)]
    ends = [a for a in plan.called.epilogue if isinstance(a, AwaitEvent)]
    assert first not in {a.stream for a in begins}
    assert (of, EventName("tail", first.number)) not in {(a.stream, a.event) for a in ends}
    assert EventName("tail", first.number) in {a.event for a in plan.called.epilogue if isinstance(a, RecordEvent)}
    own = [a for a in (*plan.own.prologue, *plan.own.epilogue) if isinstance(a, AwaitEvent)]
    assert first in {a.stream for a in own}
    assert EventName("tail", first.number) in {a.event for a in own}
    assert first not in waiting_streams(plan, called=True)[0]
    assert first in waiting_streams(plan, called=False)[0]


def test_run_plans_tell_it() -> None:
    manners = [Manner(called, behind=True, timed=not called) for called in (True, False)]
    called, own = (str(expected(made(placement=PROCESSES), 1, 0, manner, process=1)) for manner in manners)
    assert "  stream 3 on device 1: inline on caller 1\n" in called
    assert "  stream 1 on device 0" not in called
    assert "  stream 3 on device 1: priority low\n" in own


@pytest.mark.parametrize("placement", [APART, PROCESSES])
@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/shard"])
def test_runs_that_are_not_timed_tell_no_times(name: str, placement: Placement) -> None:
    """An event of which times are taken delays the kernel behind it."""
    plan = made(name, placement=placement)
    recorded = [a for a in (*plan.called.prologue, *plan.called.epilogue) if isinstance(a, RecordEvent)]
    assert {a.when for a in recorded if a.event.timing} == {"timed"}
    assert {a.event.kind for a in recorded if a.when == "always"} >= {"start", "completion"}


@pytest.mark.parametrize("mode", ["streams", "apart", "graph"])
@pytest.mark.parametrize(
    ("side", "kind", "damage"),
    [
        ("prologue", "begin", lambda told, others: [*others, *told]),
        ("prologue", "begin", lambda told, others: [*told, *others]),
        ("prologue", "begin", lambda told, others: [*others, *(replace(a, when="behind") for a in told)]),
        ("prologue", "begin", lambda told, others: [replace(told[0], stream=StreamName("control", 0)), *told, *others]),
        ("epilogue", "end", lambda told, others: others),
        ("epilogue", "end", lambda told, others: [*others, *told, *told]),
        ("epilogue", "end", lambda told, others: [*(replace(a, when="always") for a in told), *others]),
    ],
)
def test_times_are_told_where_runs_begin_and_end(side: str, kind: str, damage: Any, mode: Mode) -> None:
    plan = made(mode=mode)
    actions = getattr(plan.called, side)
    told = [a for a in actions if isinstance(a, RecordEvent) and a.event.kind == kind]
    damaged = replace(plan.called, **{side: tuple(damage(told, [a for a in actions if a not in told]))})
    with pytest.raises(PlanError, match=f"tells the {kind} of each device once|{kind} of device . is not told where"):
        check(replace(plan, called=damaged))


def test_what_is_local_does_not_wait_for_other_processes() -> None:
    """The streams that send do, one for all of a device."""
    plan = made(placement=PROCESSES, M=1 << 17)
    taking = [a for a in plan.called.prologue if isinstance(a, StreamMemOps) and any(c.acquires for c in a.changes)]
    assert [a.stream for a in taking] == [StreamName("plan", 0), StreamName("plan", 2)]
    for rank, action in enumerate(taking):
        place = plan.called.prologue.index(action)
        before = [a for a in plan.called.prologue[:place] if isinstance(a, AwaitEvent) and a.stream == action.stream]
        assert [a.event for a in before] == [EventName("start", rank)]


@pytest.mark.parametrize("device", range(RANKS))
@pytest.mark.parametrize("rows", [256, 1 << 17])
@pytest.mark.parametrize("name", ["ag_gemm/streamed", "ag_gemm/oneshot", "gemm_rs/oneshot", "gemm_ar/streamed"])
def test_processes_may_differ(name: str, rows: int, device: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the callers' streams of one are usual, and those of another are not. `made` holds it to the check."""

    def there(layout: Layout, streams: Sequence[DeviceStream]) -> Iterator[DeviceStream]:
        return (replace(s, inline=s.inline and s.device == device) for s in inlined(layout, streams))

    assert inline(made(name, placement=PROCESSES, M=rows)) == ["0 compute", "1 compute"]
    monkeypatch.setattr("ficco_rt.device.build.inlined", there)
    assert inline(made(name, placement=PROCESSES, M=rows)) == [f"{device} compute"]
