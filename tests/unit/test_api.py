"""The public names: what they take, what they give, how they refuse."""

from __future__ import annotations

import inspect
import json
import os
import pydoc
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from types import MemberDescriptorType
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ficco_rt as ficco
from ficco_rt import env
from ficco_rt.errors import PlanError, UsageError
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan

NAME = "ag_gemm/serial"
SIZES: dict[str, Any] = {"M": 32, "N": 32, "K": 32}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return ficco.compile(NAME, 2, **SIZES)


def test_all_public_names_are_there_and_told_of() -> None:
    assert set(ficco.__all__) <= set(dir(ficco))
    assert ficco.errors.UsageError is UsageError
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ficco.nothing


def told_of(value: object) -> str:
    return inspect.getdoc(value) or ""


@pytest.mark.parametrize("name", [name for name in ficco.__all__ if name != "errors"])
def test_every_public_name_says_what_it_raises(name: str) -> None:
    value = getattr(ficco, name)
    errors = "|".join(name for name in ficco.errors.__all__ if name.endswith("Error"))
    says = re.compile(rf"(Raises|raises) (nothing|({errors})\b)")
    assert says.search(told_of(value)), f"{name} does not say what it raises"
    if not inspect.isclass(value):
        assert "Example: `" in told_of(value), name
        return
    members = [
        m for m, made in vars(value).items() if not m.startswith("_") and not isinstance(made, MemberDescriptorType)
    ]
    for member in members:
        text = told_of(getattr(value, member))
        assert text, f"{name}.{member}"
        assert value in (ficco.Machine, ficco.Device, ficco.Links) or says.search(text), f"{name}.{member}"


def test_the_tour_of_the_package_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAGER", "cat")
    lines = [line.removeprefix("    ") for line in told_of(ficco).splitlines() if line.startswith("    ")]
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    assert all((c == 64).all() for c in names["C"])
    assert names["same"] is True
    assert {name for name in ficco.__all__ if name not in told_of(ficco)} == set()
    tour = pydoc.plain(pydoc.render_doc(ficco))
    assert all(f"class {name}" in tour or f"{name}(" in tour for name in ficco.__all__ if name != "errors")


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array])
def test_whole_numbers_of_any_type(plan: Plan, kind: Any) -> None:
    made = ficco.compile(NAME, kind(2), **{name: kind(size) for name, size in SIZES.items()})
    assert made == plan
    assert all(type(value) is int for _, value in made.params if not isinstance(value, str))


def test_lists_of_whole_numbers(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "schedules/ag_gemm/serial.ficco").read_text()
    (tmp_path / "s.ficco").write_text(text.replace("param M", "param L = [1, [2]]\nparam M", 1))
    made = ficco.compile(tmp_path / "s.ficco", 2, L=[np.int64(3), (np.int8(4), 5)], **SIZES)
    assert dict(made.params)["L"] == (3, (4, 5))


@pytest.mark.parametrize("ranks", ["4", 4.0, True, np.True_, None, [4], np.array([2, 2])])
def test_what_is_no_number_of_ranks(ranks: Any) -> None:
    with pytest.raises(UsageError) as caught:
        ficco.compile(NAME, ranks)
    assert str(caught.value).startswith("ranks is a whole number, such as 4; given ")
    assert str(caught.value).endswith(f"({type(ranks).__name__})")


def test_other_numbers_of_ranks_and_params() -> None:
    with pytest.raises(UsageError, match=r"^0 ranks; a schedule runs on 1 to "):
        ficco.compile(NAME, np.int64(0))
    for value in (True, 4.0, "4", None):
        with pytest.raises(UsageError, match=r"^param M: a whole number or a list of them is needed"):
            ficco.compile(NAME, 2, M=value)


# ---------------------------------------------------------------- machines and executors


def test_machines_by_name_or_value(plan: Plan) -> None:
    mesh = profile("mi300x-mesh", 2)
    for machine in ("mi300x-mesh", mesh):
        assert ficco.compile(NAME, 2, machine, **SIZES).machine == "mi300x-mesh"
        with ficco.Executor(plan, machine=machine) as executor:
            assert executor.machine == mesh
    for other in ("h100-switch", profile("h100-switch", 2)):
        assert ficco.simulate(plan, other).machine == "h100-switch"
    assert ficco.simulate(plan).machine == plan.machine


def test_a_plan_keeps_the_machine_that_it_was_made_for(plan: Plan, tmp_path: Path) -> None:
    """Whole: whatever becomes of a file or a stored machine, the plan's own stays."""
    switch = profile("h200-switch", 2)
    assert plan.made_for == plan.target == switch
    mine = replace(
        switch, name="mine", links=replace(switch.links, rate=1000, copy_time=1000.5)
    )  # a rate that is whole
    for machine in (mine, replace(mine, name="h200-switch")):
        made = ficco.compile(NAME, 2, machine, **SIZES)
        ficco.save_plan(made, tmp_path / "plan.json")
        read = ficco.load_plan(tmp_path / "plan.json")
        assert read == made
        assert read.made_for == machine
        assert read.target.sources == machine.sources
        assert ficco.plan_hash(read) == ficco.plan_hash(made) != ficco.plan_hash(plan)
        assert ficco.simulate(read).duration == ficco.simulate(made, machine).duration > ficco.simulate(plan).duration
        with ficco.Executor(read) as executor:
            assert executor.machine == machine


def test_a_machine_of_fewer_ranks_is_refused(plan: Plan) -> None:
    small = replace(profile("h200-switch", 1), name="small")
    for refused in (
        lambda: ficco.compile(NAME, 2, small, **SIZES),
        lambda: ficco.Executor(plan, machine=small),
        lambda: ficco.simulate(plan, small),
    ):
        with pytest.raises(UsageError) as caught:
            refused()
        assert str(caught.value) == (
            "machine 'small' has 1 ranks and 2 are needed; dataclasses.replace(machine, ranks=2) is such a machine of 2"
        )


def test_values_are_shown_in_a_line(plan: Plan) -> None:
    assert repr(plan) == "<Plan of ag_gemm_serial: 2 ranks on h200-switch, 4 streams, 14 commands>"
    assert repr(ficco.simulate(plan)).startswith("<Trace of ag_gemm_serial on h200-switch: ")
    with ficco.Executor(plan) as executor:
        assert repr(executor) == "<Executor of ag_gemm_serial: 2 ranks by the host driver>"
    assert repr(executor) == "<Executor of ag_gemm_serial: 2 ranks by the host driver, closed>"


def test_a_refused_run_leaves_the_run_before_as_the_last(plan: Plan) -> None:
    tensors = {t.name: [np.ones(s, bfloat16) for s in t.shapes] for t in plan.tensors if t.kind != "scratch"}
    with ficco.Executor(plan) as executor:
        executor.run(**tensors)
        took = executor.duration
        for refused in ({"A": tensors["A"]}, {**tensors, "A": tensors["B"]}):
            with pytest.raises(UsageError):
                executor.run(**refused)
            assert executor.duration == took
            assert np.array_equal(executor.read("C", 1), tensors["C"][1])
        for streams, given in (([], "0"), (0, "one int"), (True, "one bool")):
            with pytest.raises(UsageError, match=f"streams: wanted one a rank, 2; given {given}"):
                executor.run(**tensors, streams=streams)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="the host driver has no streams of the caller's"):
            executor.run(**tensors, streams=[1, 2, 3])
        for wrong in (lambda: executor.run(5), lambda: executor.release(5)):  # type: ignore[arg-type]
            with pytest.raises(UsageError, match=r"what bind\(\) made"):
                wrong()
        assert executor.duration == took
    with pytest.raises(UsageError, match="is closed"):
        _ = executor.duration


@pytest.mark.parametrize("machine", [3, ["h200-switch"], "abacus"])
def test_what_is_no_machine(plan: Plan, machine: Any) -> None:
    for use in (
        lambda: ficco.compile(NAME, 2, machine),
        lambda: ficco.Executor(plan, machine=machine),
        lambda: ficco.simulate(plan, machine),
    ):
        with pytest.raises(UsageError, match="h200-switch"):
            use()


def test_what_is_no_plan(tmp_path: Path) -> None:
    wrong: Any = "ag_gemm/serial"
    for use in (
        lambda: ficco.Executor(wrong),
        lambda: ficco.simulate(wrong),
        lambda: ficco.plan_hash(wrong),
        lambda: ficco.save_plan(wrong, tmp_path / "p.json"),
    ):
        with pytest.raises(UsageError, match=r"as compile\(\) or load_plan\(\) gives it; given 'ag_gemm/serial' "):
            use()
    assert not list(tmp_path.iterdir())


def test_a_plan_is_modelled_on_gpus_of_its_architecture(plan: Plan) -> None:
    with pytest.raises(UsageError, match="plan has kernels for sm_90a, and mi300x-mesh has GPUs of gfx942; compile"):
        ficco.simulate(plan, "mi300x-mesh")


def test_what_is_no_workspace(plan: Plan) -> None:
    wrong: Any = 5
    for use in (lambda: ficco.Executor(plan, workspace=wrong), lambda: ficco.Operation(wrong, "ag_gemm", max_m=8)):
        with pytest.raises(UsageError, match=r"ficco.Workspace; given 5 \(int\)"):
            use()


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("FICCO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert env.cache_folder() == tmp_path / f"ficco_rt-{os.getuid()}"


@pytest.mark.parametrize(
    ("text", "form"),
    [("random:7", "random(7)"), ("random(7)", "random(7)"), ("lazy:1", "lazy(1)"), ("lazy(1)", "lazy(1)"),
     (" fifo ", "fifo"), ("adversarial", "adversarial")],
)  # fmt: skip
def test_orders_as_the_command_line_has_them(plan: Plan, text: str, form: str) -> None:
    with ficco.Executor(plan, order=text) as executor:
        assert executor.order == form
        executor.order = "fifo"
        executor.order = text
        assert executor.order == form


@pytest.mark.parametrize("text", ["random(7", "random:7)", "lazy", "lazy:-1", "lifo", 7])
def test_what_is_no_order(plan: Plan, text: Any) -> None:
    with pytest.raises(UsageError, match=r"there are fifo, random:SEED, adversarial and lazy:STREAM"):
        ficco.Executor(plan, order=text)


def test_an_order_of_no_stream(plan: Plan) -> None:
    with ficco.Executor(plan) as executor, pytest.raises(UsageError) as caught:
        executor.order = "lazy(4)"
    assert str(caught.value) == (
        "order lazy(4): the plan has no stream 4; "
        "it has 0 (dma of rank 0), 1 (compute of rank 0), 2 (dma of rank 1), 3 (compute of rank 1)"
    )


def test_write_takes_inputs_alone(plan: Plan) -> None:
    with ficco.Executor(plan) as executor:
        for name in ("C", "G"):
            tensor = plan.tensor(name)
            array = executor.read(name, 0)
            with pytest.raises(UsageError) as caught:
                executor.write(name, 0, array)
            assert str(caught.value) == f"{name} is {tensor.kind}, which a run writes; the inputs to write are A, B"
        executor.write("A", np.int64(1), executor.read("A", np.int64(1)))  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="rank is a whole number"):
            executor.read("A", "0")  # type: ignore[arg-type]


# ---------------------------------------------------------------- stored plans


def test_a_stored_plan_comes_back(plan: Plan, tmp_path: Path) -> None:
    for path in (tmp_path / "plan.json", str(tmp_path / "other.json")):
        ficco.save_plan(plan, path)
        again = ficco.load_plan(path)
        assert again == plan
        assert ficco.plan_hash(again) == ficco.plan_hash(plan)
    assert len(ficco.plan_hash(plan)) == 64
    assert ficco.plan_hash(ficco.compile(NAME, 2, **{**SIZES, "K": 64})) != ficco.plan_hash(plan)


def test_plans_are_stored_whole_or_not_at_all(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        ficco.save_plan(plan, path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old"


def test_plans_that_cannot_be_read_or_written(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(UsageError, match="there is no such file"):
        ficco.load_plan(path)
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(mark + b"{\xff")
        with pytest.raises(UsageError, match=rf"is not UTF-8 text \(byte {len(mark) + 1}\)"):
            ficco.load_plan(path)
    path.write_text("{}")
    with pytest.raises(PlanError, match="this JSON is no plan"):
        ficco.load_plan(path)
    with pytest.raises(UsageError, match="there is no directory"):
        ficco.save_plan(plan, tmp_path / "no" / "plan.json")


def test_simulate_gives_the_time_of_a_run(plan: Plan) -> None:
    trace = ficco.simulate(plan)
    tensors = {
        t.name: [np.ones(s, "float32").astype(_dtype(t.dtype)) for s in t.shapes]
        for t in plan.tensors
        if t.kind != "scratch"
    }
    with ficco.Executor(plan) as executor:
        executor.run(**tensors)
        assert executor.trace == trace
    assert trace.duration > 0


def _dtype(name: str) -> Any:
    from ficco_rt.types import numpy_dtype

    return numpy_dtype(name)


@pytest.mark.parametrize("version", [99, True, 1.0, "1", None])
def test_a_plan_of_another_version_says_how_to_make_one(tmp_path: Path, version: object) -> None:
    """`true` equals 1 in Python, and is no version."""
    path = tmp_path / "plan.json"
    ficco.save_plan(ficco.compile("ag_gemm/serial", 2, M=128, N=64, K=64), path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"ficco_plan": version}))
    with pytest.raises(PlanError) as caught:
        ficco.load_plan(path)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == f"the plan has version {json.dumps(version)}; this ficco reads version 1"
    assert diagnostic.help == (
        "write the plan again from schedules/ag_gemm/serial.ficco, with `ficco compile`, or take the ficco that wrote "
        "this one"
    )


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1"])
def test_a_time_limit_is_a_number_above_zero(timeout: Any) -> None:
    said = "timeout is a number of seconds above 0, or None; given "
    with pytest.raises(UsageError, match=said):
        ficco.Executor(ficco.compile("ag_gemm/serial", 2, M=64, N=64, K=64), timeout=timeout)
    with pytest.raises(UsageError, match=said):
        ficco.Workspace(2, "host", timeout=timeout)
