"""Devices with fewer hardware queues than streams: every shipped schedule runs on streams, in an order in which no wait
stands before what ends it; graphs are chains."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from ficco_rt import env
from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.features import CONNECTIONS, HSA_QUEUES, usual
from ficco_rt.device.ir import GRAPHS, PLACELESS, Mode, Placement
from ficco_rt.device.layout import Layout
from ficco_rt.driver.gpu.binding import BoundPlan, PlanParts, Plans
from ficco_rt.driver.gpu.gpus import Gpus
from ficco_rt.driver.gpu.resources import RunResources
from ficco_rt.driver.gpu.runs import Runs
from ficco_rt.errors import DeviceError, Diagnostic, PlanError
from ficco_rt.files import shipped
from ficco_rt.machine.profiles import profile
from tests import cases

# With ranks that share a device: the kernel of each waits for what the kernel of the other pushes to it.
NO_CHAIN = ("gemm_rs/direct",)
# Kernels wait in these, for other ranks' kernels on the same device too.
STREAMED = tuple(name for name in cases.SCHEDULES if " streamed" in shipped.find(name).read_text(encoding="utf-8"))


@cache
def layout(name: str, devices: tuple[int, ...], queues: int) -> Layout:
    machine = profile("h200-switch", len(devices))
    sizes = cases.sizes(name, len(devices), even=True) | {"T": "bf16"} | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), len(devices), sizes), machine)
    features = replace(usual(machine.device.arch), queues=queues)
    return layout_of(plan, machine.device, Placement(devices), features)


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        *((name, (0, 1)) for name in cases.few(cases.SCHEDULES, len(cases.SCHEDULES) // 2, 1)),
        *((name, (0, 0, 1, 1)) for name in STREAMED),
    ],
)
def test_one_queue(name: str, devices: tuple[int, ...]) -> None:
    shape = layout(name, devices, 1)
    assert not any(launch.early or len(set(launch.stages)) > 1 for launch in shape.launches)
    modes: tuple[Mode, ...] = get_args(Mode) if devices == (0, 1) else ("streams", "traced", "gated", "graph")
    for mode in modes:
        made = device_plan(shape, mode)
        assert made.crowded
        assert not any(s.name.kind in ("signal", "wait") for s in made.streams)
        if mode in GRAPHS and name in NO_CHAIN and devices != (0, 1):
            with pytest.raises(PlanError, match="deadlock"):
                check(made)
        else:
            check(made)


def test_side_streams_go_first() -> None:
    """As many queues as the streams need without them: nothing else changes."""
    roomy = device_plan(layout("gemm_rs/relay", (0, 1), 32), "streams")
    needed = roomy.queues[0] + 1  # with the caller's
    sides = [s for s in roomy.streams if s.device == 0 and s.name.kind in ("signal", "wait")]
    assert sides
    assert not roomy.crowded
    narrow = device_plan(layout("gemm_rs/relay", (0, 1), needed - 1), "streams")
    assert not narrow.crowded
    assert len(narrow.streams) == len(roomy.streams) - 2 * len(sides)
    check(narrow)


def test_what_is_said(caplog: pytest.LogCaptureFixture) -> None:
    way_out = (
        "; set CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment before anything in this process uses a GPU, give each "
        "rank a GPU of its own, or run it on streams, not as a graph"
    )
    with pytest.raises(DeviceError) as refused:
        Plans(layout("gemm_rs/direct", (0, 0, 1, 1), 1)).of("graph")
    assert str(refused.value) == (
        "device 0 has 1 hardware queue, and the streams of this run need 5: its graph would have to run one action "
        "after another, and a kernel waits for what comes behind it" + way_out
    )
    plans = Plans(layout("gemm_rs/serial", (0, 1), 2))
    for _ in range(2):
        plans.of("graph")
    assert caplog.messages == [
        "device 0 has 2 hardware queues, and the streams of this run need 4: its graph runs one action after another"
        + way_out
    ]


def test_streams_that_no_order_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(made: object) -> None:
        raise PlanError((Diagnostic(PLACELESS, "deadlock"),))

    monkeypatch.setattr("ficco_rt.device.check.check", refuse)
    with pytest.raises(DeviceError, match="need 4: in no order of issue can every wait stand behind what ends it; set"):
        Plans(layout("gemm_rs/streamed", (0, 1), 1)).of("streams")
    with pytest.raises(PlanError):
        Plans(layout("gemm_rs/streamed", (0, 1), 32)).of("streams")


@pytest.mark.parametrize(
    ("switch", "text", "queues"),
    [
        (CONNECTIONS, None, 8),
        (CONNECTIONS, "1", 1),
        (CONNECTIONS, "0", 1),
        (CONNECTIONS, "64", 32),
        (CONNECTIONS, "many", 8),
        (HSA_QUEUES, None, 4),
        (HSA_QUEUES, "16", 16),
    ],
)
def test_the_number_of_queues(switch: Any, text: str | None, queues: int) -> None:
    assert switch.number(text) == queues


def test_asking_and_taking_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_SWITCH", raising=False)
    assert env.ask("SOME_SWITCH", "3")
    assert not env.ask("SOME_SWITCH", "4")
    assert env.others("SOME_SWITCH") == "3"
    env.withdraw("SOME_SWITCH")
    assert env.others("SOME_SWITCH") is None


def test_streams_of_plans_are_made_in_rows() -> None:
    """A plan takes a row that has its streams, if no two of the row share a queue, or it needs as many itself."""
    made = count()
    gpus = SimpleNamespace(devices={0: 0, 1: 1}, new_stream=lambda *given: next(made), issue_lock=nullcontext)
    streams = RunResources(cast("Gpus", gpus)).streams
    few, other = Counter({(0, "low"): 2, (1, "low"): 1}), Counter({(0, "low"): 1, (0, "high"): 1})
    assert streams(few, 4) == {(0, "low"): [0, 1], (1, "low"): [2]}
    assert streams(other, 4) == {(0, "low"): [3], (0, "high"): [4]}
    assert streams(Counter({(0, "low"): 1}), 4) == streams(few, 4)
    many = Counter({(0, "low"): 5})
    assert streams(many, 4) == {(0, "low"): [5, 6, 7, 8, 9]} == streams(many, 4)
    assert streams(Counter({(0, "low"): 3}), 4) == {(0, "low"): [10, 11, 12]}
    assert streams(Counter({(0, "low"): 3}), 8) == streams(many, 4)
    assert next(made) == 13


def test_a_run_on_plain_kernels_is_another_one() -> None:
    """The device plan for tensors that are not aligned may have other streams: nothing tells them of the run before."""
    runs = object.__new__(Runs)
    runs._last = runs._manner = runs._of = None
    runs._running, runs.replays, runs._looked_at, runs._threads_own = True, False, (), False
    parts, ends = object(), {"streams": (frozenset({"end"}), frozenset())}
    tuned, plain = (SimpleNamespace(of=parts, plans=SimpleNamespace(known_ends=ends.get)) for _ in range(2))
    found = []
    for binding in (tuned, tuned, plain, plain, tuned):
        made = runs._set(cast("BoundPlan", binding), "streams", (5,), timing=False)
        found.append(made.others)
        runs._last, runs._manner, runs._of = cast("BoundPlan", binding), made, cast("PlanParts", parts)
    assert found == [True, False, True, False, True]
