"""Schedules, struck by a sample of the fault campaign's faults (`python -m tests.mock.campaign --full`: all)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import VENDORS, discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from tests import cases
from tests.mock import campaign
from tests.mock.standin import StandIn

SHARES: dict[campaign.Kind, float] = dict.fromkeys(campaign.ALL, 0.01)


@pytest.mark.parametrize(
    ("library", "name"),
    [(face, name) for turn, face in enumerate(sorted(VENDORS)) for name in cases.few(cases.SCHEDULES, 4, 2 + 6 * turn)],
    indirect=["library"],
)
def test_faults_are_told_and_leave_nothing(library: StandIn, name: str) -> None:
    scores = campaign.run(library, name, SHARES)
    wrong = [text for score in scores.values() for text in score.wrong]
    assert not wrong, "\n".join(wrong)
    assert scores["call"].ends.total() >= 30, "every function that is called fails at least once"
    assert all(score.ends for kind, score in scores.items() if kind not in ("corrupt", "delay"))


def test_faults_with_the_vendors_collectives(library: StandIn) -> None:
    scores = campaign.run(library, "gemm_ar/serial", SHARES, by_library=True)
    wrong = [text for score in scores.values() for text in score.wrong]
    assert not wrong, "\n".join(wrong)
    assert scores["call"].ends.total() >= 35, "every function that is called fails at least once"


@pytest.mark.parametrize("graph", [False, True], ids=["streams", "graph"])
@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/streamed", "gemm_ar/overlapped"])
def test_an_executor_goes_on_after_a_call_that_failed(library: StandIn, name: str, graph: bool) -> None:
    """Whatever was left half issued: later runs are right, or say that they cannot be."""
    ranks, ends = 2, Counter[str]()
    library.reset(f"devices {ranks}")
    machine = discover(library.face, ranks)
    sizes = cases.sizes(name, ranks, True) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), ranks, sizes), machine)
    for trial in range(60 if cases.ALL else 25):
        library.reset(f"devices {ranks}; query_steps 3000; seed {trial}")
        with Executor(plan, library.face, machine=machine, timeout=30) as executor:
            executor.graph = graph
            before = library.calls()
            assert verified_run(executor, values="exact").ok
            library.set(f"fail * {random.Random(trial).randint(1, library.calls() - before)} {campaign.UNKNOWN}")
            for seed in range(4):
                try:
                    result = verified_run(executor, seed=seed, values="exact")
                    assert result.ok, f"trial {trial}, {library.fired()} failed: {result.worst}"
                    ends["right" if library.fired() else "before"] += 1
                except DeviceError:
                    ends["error"] += 1
            library.calm()
        assert not library.live()
        assert not library.violations()
    assert ends["error"]
    assert ends["right"] > 8
