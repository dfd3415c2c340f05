"""A wait that is taken out of a plan shows on devices that go any way they may, and not only in the plan check."""

from __future__ import annotations

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.gpu import binding
from ficco_rt.driver.registry import VENDORS, discover
from ficco_rt.errors import PlanError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.check import check
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.mock.standin import StandIn
from tests.unit import plan_damage as damage

RANKS = 3
SEEDS = 400  # 160 were enough


def first_wrong_seed(library: StandIn, plan: Plan) -> int | None:
    with Executor(plan, library.face, timeout=30) as executor:
        for seed in range(SEEDS):
            library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
            if not verified_run(executor, seed=seed, values="exact").ok:
                return seed
    return None


# its tiles are stored on the peers, and each buffer is made once: it waits for nothing
WAITING = [name for name in cases.SCHEDULES if name != "concurrent/a2a_streamed"]


@pytest.mark.parametrize(
    ("library", "name"),
    [
        (face, n)
        for turn, n in enumerate(cases.few(WAITING, len(WAITING) // 2, 0))
        for face in cases.few(sorted(VENDORS), 1, turn)
    ],
    indirect=["library"],
)
def test_each_wait_taken_out_gives_wrong_numbers_and_a_report(
    library: StandIn, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "checked", lambda plan: plan)  # the driver would refuse the device plan
    library.reset(f"devices {RANKS}")
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name) | cases.once(name)
    plan = plan_of(build(cases.schedule(name), RANKS, sizes), discover(library.face, RANKS))
    damages = list(damage.without_one_wait(plan))
    assert damages
    for damaged in damages:
        with pytest.raises(PlanError, match="race on"):
            check(damaged.plan)
        assert first_wrong_seed(library, damaged.plan) is not None, f"{name}, {damaged.what}: right in {SEEDS} orders"
    assert not library.violations()
    assert not library.live()
