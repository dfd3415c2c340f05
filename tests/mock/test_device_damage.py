"""A damaged device plan is refused by its check, or runs right in whatever order streams and blocks go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.features import usual
from ficco_rt.device.ir import DevicePlan, Mode, Placement
from ficco_rt.device.layout import Layout
from ficco_rt.driver.gpu import binding, driver, runs
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, PlanError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from tests import cases
from tests.mock.device_damage import Damage, damaged
from tests.mock.standin import StandIn

RANKS = 2
SEEDS = int(os.environ.get("FICCO_DAMAGES", "30"))  # drawn for each schedule and mode; two of three make a damage
ORDERS = 12
TIMEOUT = 30  # seconds; no run takes so long, however busy the machine is


def made(library: StandIn, name: str) -> Layout:
    library.reset(f"devices {RANKS}")
    machine = discover(library.face, RANKS)
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), RANKS, sizes), machine)
    return layout_of(plan, machine.device, Placement((0, 1)), usual(machine.device.arch))


def damages(plan: DevicePlan) -> Iterator[tuple[Damage, bool]]:
    """Damaged plans of one mode, and whether the check accepts them."""
    for seed in range(SEEDS):
        found = damaged(plan, seed)
        if found is None:
            continue
        try:
            check(found.plan)
        except PlanError:
            yield found, False
        else:
            yield found, True


def runs_right(library: StandIn, layout: Layout, plan: DevicePlan, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What went wrong, in which order; None: all is right."""
    given = replace(layout, launches=plan.launches, semaphores=replace(layout.semaphores, table=plan.semaphores))
    monkeypatch.setattr(driver, "plans_of", lambda *_: binding.Plans(given))
    monkeypatch.setattr(
        binding, "device_plan", lambda of, mode: plan if mode == plan.mode else device_plan(layout, mode)
    )
    monkeypatch.setattr(binding, "checked", lambda plan: plan)
    library.reset(f"devices {RANKS}")
    try:
        with Executor(layout.plan, library.face, graph=plan.mode == "graph", timeout=TIMEOUT) as executor:
            for seed in range(ORDERS):
                # a query that drains the devices would hide an end that is told too early
                library.set(f"seed {seed}; call_steps {seed % 4}; query_steps {1 if seed % 2 else 5000}")
                result = verified_run(executor, seed=seed, values="exact")
                if not result.ok:
                    return f"order {seed}: {result.worst}"
    except DeviceError as error:
        return str(error).splitlines()[0]
    return library.violations() or None


@pytest.mark.parametrize(
    ("name", "mode"),
    [(n, mode) for turn, n in enumerate(cases.SCHEDULES) for mode in cases.few(("streams", "graph"), 1, turn)],
)
def test_what_the_check_accepts_runs_right(
    cuda: StandIn, name: str, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "DRAIN", 0.1)
    layout = made(cuda, name)
    plan = device_plan(layout, mode)
    for damage, accepted in damages(plan):
        wrong = runs_right(cuda, layout, damage.plan, monkeypatch) if accepted else None
        assert wrong is None, f"{name}, {mode}: {damage.what}: {wrong}"


def test_most_damages_are_refused(cuda: StandIn) -> None:
    """Two of three draws make a damage, and the check looks at more than semaphores."""
    accepted: list[bool] = []
    names = cases.few(cases.SCHEDULES, 12, 0)
    for name in names:
        layout = made(cuda, name)
        for plan in (device_plan(layout, "streams"), device_plan(layout, "graph")):
            accepted += [is_accepted for _, is_accepted in damages(plan)]
    assert len(accepted) > len(names) * SEEDS
    assert accepted.count(False) > 0.7 * len(accepted)


def test_the_same_seed_gives_the_same_damage(cuda: StandIn) -> None:
    plan = device_plan(made(cuda, "ag_gemm/streamed"), "streams")
    assert [damaged(plan, seed) for seed in range(20)] == [damaged(plan, seed) for seed in range(20)]
    assert np.all([d is None or d.plan != plan for d in (damaged(plan, seed) for seed in range(50))])
