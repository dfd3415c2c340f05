"""Every shipped schedule runs right on the host, whatever the order in which its streams go forward."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TypeVar

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph.claim_values import functions
from ficco_rt.machine.profiles import profile
from tests import cases

_A, _B = TypeVar("_A"), TypeVar("_B")
SEEDS = 200 if cases.ALL else 16


def drawn(kinds: Sequence[tuple[_A, _B]], count: int) -> list[tuple[str, _A, _B]]:
    """So many of the kinds for each schedule, others for the next one."""
    return [(n, *kind) for turn, n in enumerate(cases.SCHEDULES) for kind in cases.few(kinds, count, turn)]


@pytest.mark.parametrize(("name", "ranks", "sizes"), drawn(list(product(cases.RANKS, ("even", "uneven"))), 4))
def test_exact_in_every_order(name: str, ranks: int, sizes: str) -> None:
    """Integers in fp32: nothing but a function rounds, so the result is exactly the reference's. Fresh inputs for every
    order."""
    chosen = cases.sizes(name, ranks, sizes == "even")
    plan = plan_of(build(cases.schedule(name), ranks, chosen), profile("h200-switch", ranks))
    with Executor(plan) as executor:
        for order in ("fifo", "adversarial", *(f"random({seed})" for seed in range(SEEDS))):
            executor.order = order
            result = verified_run(executor, seed=hash_of(order), values="exact")
            assert result.ok, f"{name} on {ranks} ranks in order {order}: {result.worst}"
            assert result.rel_err == 0.0 or any(functions(claim.value) for claim in plan.claims)
            assert not result.unproven


def hash_of(order: str) -> int:
    """A seed for the inputs that differs from order to order and never from run to run."""
    return int.from_bytes(order.encode(), "big") % 2**31


@pytest.mark.parametrize(("name", "ranks", "machine"), drawn(list(product((4, 7), ("mi300x-mesh", "h200-ring"))), 2))
def test_other_topologies(name: str, ranks: int, machine: str) -> None:
    sizes = cases.sizes(name, ranks, even=False) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), ranks, sizes), profile(machine, ranks))
    with Executor(plan) as executor:
        for order in ("fifo", "adversarial", *(f"random({seed})" for seed in range(20))):
            executor.order = order
            assert verified_run(executor, seed=3, values="exact").ok, order


@pytest.mark.parametrize("dtype", cases.FLOATS)
@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_real_numbers_stay_within_the_tolerance(name: str, dtype: str) -> None:
    sizes = cases.sizes(name, 4, even=True) | {"T": dtype}
    plan = plan_of(build(cases.schedule(name), 4, sizes), profile("h200-switch", 4))
    with Executor(plan, order="random(1)") as executor:
        result = verified_run(executor, seed=5)
        assert result.ok, result
        assert result.rel_err is not None
        assert result.rel_err < result.tolerance < result.useful
