"""Which runs may be on a device at the same time, by their device plans."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.features import usual
from ficco_rt.device.ir import DevicePlan, LaunchKernel, Mode, Placement, ResetSemaphores, RunEnds, StreamName
from ficco_rt.device.run_residency import Held, Residency, either, fit, kept_back, residencies, waiting_streams
from ficco_rt.machine.profiles import profile
from tests import cases

RANKS, SMS = 2, 132  # of an H200
COMPUTE, COPIES = StreamName("plan", 0), StreamName("plan", 1)

NARROW = """schedule narrow
input   A[32768, 64] : fp32
input   B[64, 64] : fp32
scratch P[32768, 64] : fp32
output  C[32768, 64] : fp32
computes C = A * B
queue compute {{ engine = sm  sms = {sms} }}
queue dma     {{ engine = copy }}
stage mm on compute streamed {{ for c in 0..4 {{ gemm P.rows(c of 4) = A.rows(c of 4) * B }} }}
stage out on dma {{ for c in 0..4 {{ copy C.rows(c of 4) <- P.rows(c of 4) }} }}
"""


@cache
def device(name: str, mode: Mode = "streams", sms: int = 0) -> DevicePlan:
    machine = profile("h200-switch", RANKS)
    schedule = ficco_dsl.parse(NARROW.format(sms=sms), "narrow.ficco") if sms else cases.schedule(name)
    sizes = {} if sms else cases.sizes(name, RANKS, True)
    plan = plan_of(build(schedule, RANKS, sizes | {n: 4096 for n in ("M", "N") if n in sizes}), machine)
    placement = Placement(tuple(range(RANKS)))
    return device_plan(layout_of(plan, machine.device, placement, usual(machine.device.arch)), mode)


def residency(holds: int = 0, needs: int = 1, cluster: int = 1) -> Residency:
    return Residency({COMPUTE: frozenset({Held(holds, cluster)})} if holds else {}, needs, cluster)


def test_what_shipped_schedules_hold() -> None:
    """A streamed GEMM as large as the device holds all of it; a serial schedule holds nothing."""
    streamed, serial = residencies(device("gemm_rs/streamed")), residencies(device("gemm_rs/serial"))
    assert sorted(streamed) == [0, 1]
    for i in range(RANKS):
        assert 0 < streamed[i].held(1) <= SMS
        assert not serial[i].holds
        assert serial[i].needs >= 1


@pytest.mark.parametrize(("sms", "together"), [(65, True), (66, False), (100, False)])
def test_launches_that_leave_each_other_room_run_side_by_side(sms: int, together: bool) -> None:
    """Two shares and one block more: of a fill, or of a launch that does not wait."""
    (found, *_) = residencies(device("narrow", sms=sms)).values()
    assert (found.held(1), found.needs) == (sms, 1)
    assert kept_back(found, [found], SMS) == [not together]


def test_the_latest_runs_that_fit_go_on() -> None:
    assert kept_back(residency(60), [residency(60), residency(60), residency(10)], SMS) == [False, True, False]
    assert kept_back(residency(132), [residency(0)], SMS) == [True]  # its kernels would find no room
    assert kept_back(residency(132), [residency(0, needs=0)], 133) == [False]


def test_who_holds_nothing_waits_for_nobody() -> None:
    assert kept_back(residency(0), [residency(132), residency(0)], SMS) == [False, False]


def test_single_blocks_may_spoil_the_place_of_a_cluster_each() -> None:
    pairs, single = residency(64, 2, 2), residency(40)
    assert Held(40, 1).least(2) == 80
    assert Held(5, 2).least(1) == 6
    assert not fit([pairs, single], SMS)
    assert fit([pairs, residency(32)], SMS)


def test_launches_of_a_stream_hold_one_after_another() -> None:
    stream = Residency({COMPUTE: frozenset({Held(40, 1), Held(60, 1)}), COPIES: frozenset({Held(8, 1)})}, 1, 1)
    assert stream.held(1) == 68


def test_runs_of_one_executor_take_as_much_as_either() -> None:
    found = either({0: residency(40)}, {0: residency(20, 2, 2), 1: residency(8)})
    assert found[0].held(1) == 40
    assert (found[0].needs, found[0].cluster) == (2, 2)
    assert found[1] == residency(8)


@pytest.mark.parametrize("name", [name for name in cases.SCHEDULES if "streamed" in name or "oneshot" in name])
def test_one_run_alone_always_fits(name: str) -> None:
    """What it holds; the rest is for the check of the device plan. Where some launches of a stream have clusters and
    others have none, one follows the other."""
    for found in residencies(device(name)).values():
        mixed = any(len({held.cluster for held in stream}) > 1 for stream in found.holds.values())
        assert found.held(1 if mixed else found.cluster) <= SMS


@pytest.mark.parametrize("mode", ["streams", "traced"])
def test_all_streams_of_a_device_wait(mode: Mode) -> None:
    plan = device("gemm_rs/streamed", mode)
    for called in (False, True):
        for i, names in waiting_streams(plan, called=called).items():
            begins = StreamName("caller" if called and mode == "streams" else "control", i)
            begun = [s for s in plan.streams if s.device == i and s.name.kind in ("plan", "wait")]
            assert set(names) == {s.name for s in begun if not (called and s.inline)} | {begins}


def test_a_graph_waits_where_it_is_launched() -> None:
    plan = device("gemm_rs/streamed", "graph")
    assert waiting_streams(plan, called=False) == {i: (StreamName("control", i),) for i in range(RANKS)}
    assert waiting_streams(plan, called=True) == {i: (StreamName("caller", i),) for i in range(RANKS)}


def test_a_fill_and_a_copy_inside_a_device_need_a_place() -> None:
    """Without any other launch too."""
    plan = device("narrow", sms=8)
    body = tuple(action for action in plan.body if not isinstance(action, LaunchKernel))
    fills = RunEnds((), tuple(action for action in plan.own.epilogue if isinstance(action, ResetSemaphores)))
    none = RunEnds((), ())
    assert residencies(replace(plan, body=(), own=none, called=none))[0].needs == 0
    assert residencies(replace(plan, body=body, own=none, called=none))[0].needs == 1
    assert residencies(replace(plan, body=(), own=fills, called=none))[0].needs == 1
