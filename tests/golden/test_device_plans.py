"""Golden device plans of all shipped schedules at 4 ranks, a device each, on streams and as graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device import codec
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.features import usual
from ficco_rt.device.ir import AwaitEvent, Barrier, Library, Mode, Placement, RecordEvent
from ficco_rt.device.layout import Layout
from ficco_rt.device.text import to_text
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.codec import content_hash
from ficco_rt.plan.ir import Plan
from tests import cases

HERE = Path(__file__).parent / "device_plans"
GOLDEN: tuple[Mode, ...] = ("streams", "graph")


NCCL = "gemm_ar/serial"  # what a machine with NCCL makes of it, too


@cache
def plan_for(name: str) -> tuple[Plan, str]:
    """A schedule's plan, and its hash."""
    sizes = cases.sizes(name, 4, even=True) | {"T": "bf16"} | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), 4, sizes), profile("h200-switch", 4))
    return plan, content_hash(plan)


@cache
def layout(
    name: str, devices: tuple[int, ...] = (0, 1, 2, 3), processes: tuple[int, ...] = (), library: Library = ""
) -> Layout:
    plan, digest = plan_for(name)
    device = profile("h200-switch", 4).device
    features = replace(usual(device.arch), collectives=library)
    return layout_of(plan, device, Placement(devices, processes), features, digest)


@pytest.mark.parametrize("mode", GOLDEN)
@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_device_plan_text(name: str, mode: Mode, golden: Callable[[Path, str], None]) -> None:
    """The tests of every mode hold it to the check."""
    made = device_plan(layout(name), mode)
    golden(HERE / f"{_file(name)}.{mode}.txt", f"{to_text(made)}\nhash {codec.content_hash(made)}\n")


@pytest.mark.parametrize("mode", GOLDEN)
def test_device_plan_text_where_nccl_is_there(mode: Mode, golden: Callable[[Path, str], None]) -> None:
    made = device_plan(layout(NCCL, library="NCCL"), mode)
    check(made)
    golden(HERE / f"{_file(NCCL)}.nccl.{mode}.txt", f"{to_text(made)}\nhash {codec.content_hash(made)}\n")
    assert codec.from_json(codec.to_json(made)) == made


def _file(name: str) -> str:
    return name.replace("/", "_")


SHARED = ((0, 0, 1, 1), (0, 0, 0, 0))  # ranks that share devices


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        (name, devices)
        for turn, name in enumerate(cases.SCHEDULES)
        for devices in cases.few(((0, 1, 2, 3), *SHARED), 1, turn)
    ],
)
def test_every_mode_passes_the_check_and_reads_back(name: str, devices: tuple[int, ...]) -> None:
    modes, apart = get_args(Mode), devices == (0, 1, 2, 3)
    some = cases.few(modes, 2, cases.SCHEDULES.index(name))
    for mode in modes if apart else some:
        made = device_plan(layout(name, devices), mode)
        check(made)
        if mode in some:
            assert device_plan(layout(name, devices), mode) == made
            assert not apart or codec.from_json(codec.to_json(made)) == made


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/relay", "gemm_ar/serial", "a2a_gemm/overlapped"])
@pytest.mark.parametrize(
    ("devices", "processes"),
    [((0, 1, 2, 3), (0, 1, 2, 3)), ((0, 1, 2, 3), (0, 1, 0, 1)), ((0, 0, 1, 1), (0, 0, 1, 1))],
)
def test_processes_share_semaphores_alone(name: str, devices: tuple[int, ...], processes: tuple[int, ...]) -> None:
    """In every mode what orders two processes is a semaphore; inside a process all is as without others."""
    for mode in get_args(Mode):
        made = device_plan(layout(name, devices, processes), mode)
        check(made)
        assert codec.from_json(codec.to_json(made)) == made
        device = {stream.name: stream.device for stream in made.streams}
        by = {a.event: device[a.stream] for a in made.actions if isinstance(a, RecordEvent)}
        issued = (*made.called.prologue, *made.called.epilogue, *made.own.prologue, *made.own.epilogue, *made.body)
        waits = [(by[a.event], device[a.stream]) for a in issued if isinstance(a, AwaitEvent) and a.event in by]
        assert all(made.placement.process(a) == made.placement.process(b) for a, b in waits)
        assert any(a != b for a, b in waits) == (mode != "embedded" and processes == (0, 1, 0, 1))
        if mode == "traced":  # all begin together
            begin = [a.when for a in made.own.prologue if isinstance(a, Barrier)]
            assert begin == ["always"] * len(set(devices))


def test_no_golden_file_is_left_of_a_schedule_that_is_gone() -> None:
    wanted = {f"{_file(name)}.{mode}" for name in (*cases.SCHEDULES, f"{NCCL}.nccl") for mode in GOLDEN}
    assert {p.stem for p in HERE.iterdir()} == wanted
