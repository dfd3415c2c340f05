"""Ranks that share a GPU with few multiprocessors: blocks that wait leave room for what they wait for."""

from __future__ import annotations

from itertools import product

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device.launches import LaunchPlanner
from ficco_rt.driver.gpu import binding, runs
from ficco_rt.driver.registry import VENDORS, discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from tests import cases
from tests.mock.standin import StandIn

RANKS = 4


def shared(library: StandIn, name: str, ranks_per_gpu: int, sms: int, timeout: float) -> None:
    library.reset(f"devices {RANKS // ranks_per_gpu}; sms {sms}")
    machine = discover(library.face, RANKS, ranks_per_gpu)
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), RANKS, sizes), machine)
    with Executor(plan, library.face, machine=machine, ranks_per_gpu=ranks_per_gpu, timeout=timeout) as executor:
        for executor.graph in (False, True):
            for seed in range(20 if cases.ALL else 8):
                library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
                result = verified_run(executor, seed=seed, values="exact")
                assert result.ok, f"seed {seed}: {result.worst}"


@pytest.mark.parametrize(
    ("library", "name", "ranks_per_gpu", "sms"),
    [
        (face, name, *room)
        for turn, name in enumerate(cases.SCHEDULES)
        for room, face in cases.few(list(product(((4, 5), (2, 3)), sorted(VENDORS))), 1, turn)
    ],
    indirect=["library"],
)
def test_right_in_every_order(library: StandIn, name: str, ranks_per_gpu: int, sms: int) -> None:
    shared(library, name, ranks_per_gpu, sms, timeout=30)
    assert not library.violations()
    assert not library.live()


def test_without_that_room_nothing_goes_on(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the stand-in's multiprocessors are held as a GPU's are."""
    monkeypatch.setattr(runs, "DRAIN", 0.1)
    monkeypatch.setattr(binding, "checked", lambda plan: plan)  # it would say so
    monkeypatch.setattr(LaunchPlanner, "_share", lambda self, device, sms: sms)
    with pytest.raises(DeviceError, match=r"whose works wait for flags"):
        shared(cuda, "ag_gemm/streamed", 4, 1, timeout=1)
