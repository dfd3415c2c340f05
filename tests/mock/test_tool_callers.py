"""`tools/callers` on the stand-in: executors in threads, processes that fail or hang."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Launch, Plan
from tests import cases
from tests.mock.standin import StandIn
from tools.callers import child, cli, subject, threads


def options(library: StandIn, **more: object) -> argparse.Namespace:
    given = {
        "backend": library.face,
        "ranks": 2,
        "ranks_per_gpu": 1,
        "runs": 20,
        "threads": 3,
        "executors": 2,
        "limit": 60,
    }
    return argparse.Namespace(**(given | more))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes, and the one default stream that the stand-in has."""

    def plan_for(name: str, machine: Machine, ranks: int) -> Plan:
        sizes = cases.sizes(name, ranks, True) | cases.few_chunks(name)
        return plan_of(build(cases.schedule(name), ranks, sizes), machine)

    monkeypatch.setattr(threads, "plan_for", plan_for)
    monkeypatch.setattr(threads, "OWN_STREAM", 0)
    monkeypatch.setattr(threads, "BURST", 4)


@pytest.mark.usefixtures("small")
def test_threads(library: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    library.reset("devices 2; sms 4; query_steps 2000")
    assert threads.child(options(library), 1) == 0
    said = [child.Told(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert sorted(one.name for one in said) == sorted(subject.NAMES[6:12])
    assert not [one.error for one in said if one.error]
    assert not library.live()
    assert not library.violations()


@pytest.mark.usefixtures("small")
def test_wrong_numbers_are_told(cuda: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    cuda.reset("devices 2; query_steps 2000; corrupt 1")
    threads.child(options(cuda, threads=1, executors=1), 0)
    assert "wrong numbers: " in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(("room", "sms"), [(0, None), (32, 100)])
def test_streamed_stages_leave_room(room: int, sms: int | None) -> None:
    plan = subject.plan_for("gemm_rs/streamed", profile("h200-switch", 2), 2, room)
    launches = [command for _, command in plan.commands() if isinstance(command, Launch)]
    assert {launch.attributes.sms for launch in launches if launch.streamed} == {sms}


def test_a_process_that_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With where it hangs; the rest goes on, and the exit code says it."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport sys, time\nfrom tools.callers import child\n"
        'if "--child=1" in sys.argv: sys.exit(1)\nchild.limited(0.2)\ntime.sleep(60)\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    monkeypatch.setattr(child.sys, "executable", str(script))
    monkeypatch.setattr(cli, "device_count", lambda backend: 2)
    monkeypatch.setenv("PYTHONPATH", f"{child.ROOT}:{child.ROOT / 'dsl'}")
    assert cli.main(["threads", "--processes", "2"]) == 4
    out = capsys.readouterr().out
    assert "HANG: not over after 120 s" in out
    assert "line 6 in <module>" in out  # the stack
    assert "exit code 1" in out
    assert out.splitlines()[-1].startswith("0 of 2 processes right")


def test_too_few_gpus(cuda: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    cuda.reset("devices 1")
    assert cli.main(["threads"]) == 3
    assert capsys.readouterr().err == "callers: 2 GPUs are needed, one a rank (--ranks); here are 1\n"
