"""A traced or gated run begins when all of it is issued, where that cannot block the host."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device import start_gate
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.features import usual
from ficco_rt.device.ir import DevicePlan, Mode, Placement
from ficco_rt.device.text import to_text
from ficco_rt.machine.profiles import profile
from tests import cases


def made(mode: Mode = "traced", queues: int = 32, processes: tuple[int, ...] = ()) -> DevicePlan:
    machine = profile("h200-switch", 2)
    sizes = {"M": 256, "N": 128, "K": 128, "T": "bf16", "chunks": 2}
    plan = plan_of(build(cases.schedule("ag_gemm/streamed"), 2, sizes), machine)
    features = replace(usual(machine.device.arch), queues=queues)
    found = device_plan(layout_of(plan, machine.device, Placement((0, 1), processes), features), mode)
    check(found)
    return found


def gated(plan: DevicePlan) -> bool:
    semaphores = [semaphore for semaphore in plan.semaphores if semaphore.used == "gated"]
    streams = [stream for stream in plan.streams if stream.name.kind == "gate"]
    assert len(semaphores) == len(streams) <= 1
    return bool(semaphores)


def test_traced_and_gated_runs_have_a_start_gate_and_no_others() -> None:
    assert {mode: gated(made(mode)) for mode in get_args(Mode)} == {
        "streams": False,
        "apart": False,
        "graph": False,
        "embedded": False,
        "traced": True,
        "gated": True,
    }


def test_a_gated_run_does_what_one_on_streams_does() -> None:
    plain, behind = made("streams"), made("gated")
    assert behind.body == plain.body
    assert behind.has_start_gate
    assert not plain.has_start_gate


def test_the_text_tells_of_it() -> None:
    text = to_text(made())
    assert ": start gate, reset at completion, in traced and gated runs\n" in text
    number = len(made().semaphores) - 1
    assert text.count(f"  control 0: wait for semaphore {number}\n  control 0: record start of device 0\n") == 2
    assert text.count(f"  start gate 0: signal semaphore {number}\n") == 2
    behind = text.rpartition(f"  start gate 0: signal semaphore {number}\n")[2]
    assert all(line.startswith("  caller ") for line in behind.strip("\n").splitlines())


def test_none_where_the_host_could_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that is crowded or would be with its stream, for devices without common events, in a long run."""
    plan = made()
    needed = plan.queues[0] + 1  # with the caller's
    assert gated(made(queues=needed))
    assert not gated(made(queues=needed - 1))
    assert not made(queues=needed - 1).crowded
    assert not gated(made(queues=1))
    assert not gated(made(processes=(0, 1)))
    most = max(sum(a.stream == s.name for a in plan.body) for s in plan.streams)
    monkeypatch.setattr(start_gate, "MOST", most)
    assert gated(made())
    monkeypatch.setattr(start_gate, "MOST", most - 1)
    assert not gated(made())
