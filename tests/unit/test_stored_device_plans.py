"""`ficco check` of a stored device plan: checked by itself, and compared with what the plan in the file gives."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ficco_rt.cli.main import ficco
from ficco_rt.compiler import build, plan_of
from ficco_rt.device import codec
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.features import usual
from ficco_rt.device.ir import CopyMemory, DevicePlan, Move, Placement
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.codec import content_hash
from ficco_rt.plan.ir import Plan
from tests import cases


@pytest.fixture(scope="module")
def pair() -> tuple[Plan, DevicePlan]:
    machine = profile("h200-switch", 2)
    sizes = {"M": 256, "N": 128, "K": 128, "T": "bf16", "chunks": 2}
    plan = plan_of(build(cases.schedule("ag_gemm/streamed"), 2, sizes), machine)
    features = usual(machine.device.arch)
    layout = layout_of(plan, machine.device, Placement((0, 1)), features, content_hash(plan))
    return plan, device_plan(layout, "streams")


def checked(text: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    path = folder / "stored.json"
    path.write_text(text)
    monkeypatch.setattr("sys.argv", ["ficco", "check", str(path)])
    with suppress(SystemExit):
        ficco()
    said = capsys.readouterr()
    return said.out + said.err


def test_what_its_plan_gives(
    pair: tuple[Plan, DevicePlan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, made = pair
    text = codec.to_json(made, plan)
    assert codec.from_json(text) == made
    said = checked(text, tmp_path, capsys, monkeypatch)
    assert "no race, no deadlock, runs stay apart, as its plan has it" in said
    said = checked(codec.to_json(made), tmp_path, capsys, monkeypatch)
    assert "runs stay apart, not compared with its plan, which the file does not hold" in said


def test_the_first_action_that_differs_is_named(
    pair: tuple[Plan, DevicePlan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy of other rows of the same shape: no race, and wrong numbers."""
    plan, made = pair
    place, copy = next((i, a) for i, a in enumerate(made.body) if isinstance(a, CopyMemory) and a.moves)
    move = copy.moves[0]
    other = replace(move, src=next(m.src for m in copy.moves[1:] or _moves(made) if m.src != move.src))
    changed = replace(copy, moves=(other, *copy.moves[1:]))
    damaged = replace(made, body=(*made.body[:place], changed, *made.body[place + 1 :]))
    said = checked(codec.to_json(damaged, plan), tmp_path, capsys, monkeypatch)
    assert f"body {place} is not what its plan gives: CopyMemory on stream 0" in said
    assert "compile the schedule again (ficco-run --emit device-plan-json)" in said
    assert json.loads(codec.to_json(damaged, plan))["source"]["ficco_plan"]


def _moves(plan: DevicePlan) -> list[Move]:
    return [m for a in plan.body if isinstance(a, CopyMemory) and a.stream == plan.body[0].stream for m in a.moves]
