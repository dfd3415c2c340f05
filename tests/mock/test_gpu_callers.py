"""`tests/gpu/callers` on the stand-in: executors in threads; and processes of `tests/gpu` that fail or hang."""

from __future__ import annotations

import time

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Launch, Plan
from tests import cases
from tests.gpu import apart, callers
from tests.mock.standin import StandIn


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes, and the one default stream that the stand-in has."""

    def plan_for(name: str, machine: Machine, ranks: int) -> Plan:
        sizes = cases.sizes(name, ranks, True) | cases.few_chunks(name)
        return plan_of(build(cases.schedule(name), ranks, sizes), machine)

    monkeypatch.setattr(callers, "plan_for", plan_for)
    monkeypatch.setattr(callers, "OWN_STREAM", 0)
    monkeypatch.setattr(callers, "BURST", 4)


@pytest.mark.usefixtures("small")
def test_threads(library: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    library.reset("devices 2; sms 4; query_steps 2000")
    assert callers.threads(library.face, 2, 1, number=1, count=3, executors=2, runs=20, limit=60)
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sorted(line[0] for line in said) == sorted(callers.NAMES[6:12])
    assert {line[-1] for line in said} == {"right"}
    assert not library.live()
    assert not library.violations()


@pytest.mark.usefixtures("small")
def test_wrong_numbers_are_told(cuda: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    cuda.reset("devices 2; query_steps 2000; corrupt 1")
    assert not callers.threads("cuda", 2, 1, number=0, count=1, executors=1, runs=20, limit=60)
    assert "wrong numbers: " in capsys.readouterr().out


@pytest.mark.parametrize(("room", "sms"), [(0, None), (32, 100)])
def test_streamed_stages_leave_room(room: int, sms: int | None) -> None:
    plan = callers.plan_for("gemm_rs/streamed", profile("h200-switch", 2), 2, room)
    launches = [command for _, command in plan.commands() if isinstance(command, Launch)]
    assert {launch.attributes.sms for launch in launches if launch.streamed} == {sms}


def hangs() -> bool:
    time.sleep(60)
    return True


def answers(good: bool) -> bool:
    print("what it says")
    return good


def test_a_process_that_hangs_is_ended_with_where_it_hangs(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "DUMP", 60)  # a busy machine takes long to import
    with pytest.raises(AssertionError, match="hangs: an error, or its time was over; its limit is 1 s"):
        apart.apart(hangs, limit=1)
    assert "in hangs" in capfd.readouterr().err  # the stack


def test_a_process_that_says_no_fails(capfd: pytest.CaptureFixture[str]) -> None:
    apart.apart(answers, True, limit=60)
    assert capfd.readouterr().out == "what it says\n"
    with pytest.raises(AssertionError, match="answers: it returned False"):
        apart.apart(answers, False, limit=60)
    with pytest.raises(AssertionError, match="answers: an error, or"):
        apart.apart(answers, True, 2, limit=60)
    assert "TypeError: " in capfd.readouterr().err
