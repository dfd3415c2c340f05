"""A traced or latched run begins when all of it is issued, where that cannot block the host."""

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


def latched(plan: DevicePlan) -> bool:
    words = [word for word in plan.words if word.used == "latched"]
    streams = [stream for stream in plan.streams if stream.name.kind == "latch"]
    assert len(words) == len(streams) <= 1
    return bool(words)


def test_traced_and_latched_runs_have_a_latch_and_no_others() -> None:
    assert {mode: latched(made(mode)) for mode in get_args(Mode)} == {
        "streams": False,
        "graph": False,
        "embedded": False,
        "traced": True,
        "latched": True,
    }


def test_a_latched_run_does_what_one_on_streams_does() -> None:
    plain, behind = made("streams"), made("latched")
    assert behind.body == plain.body
    assert behind.has_latch
    assert not plain.has_latch


def test_the_text_tells_of_it() -> None:
    text = to_text(made())
    assert ": latch, reset at completion, in traced and latched runs\n" in text
    number = len(made().words) - 1
    assert text.count(f"  control 0: wait for word {number}\n  control 0: record start of the run\n") == 2
    assert text.count(f"  latch 0: raise word {number}\n") == 2
    assert text.endswith(f"  latch 0: raise word {number}\n")


def test_none_where_the_host_could_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that is crowded or would be with its stream, for devices without common events, in a long run."""
    plan = made()
    needed = plan.queues[0] + 1  # with the caller's
    assert latched(made(queues=needed))
    assert not latched(made(queues=needed - 1))
    assert not made(queues=needed - 1).crowded
    assert not latched(made(queues=1))
    assert not latched(made(processes=(0, 1)))
    most = max(sum(a.stream == s.name for a in plan.body) for s in plan.streams)
    monkeypatch.setattr(start_gate, "MOST", most)
    assert latched(made())
    monkeypatch.setattr(start_gate, "MOST", most - 1)
    assert not latched(made())
