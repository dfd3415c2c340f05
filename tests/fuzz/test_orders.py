"""Whatever compiles means one thing: every order of stepping gives the bits of `fifo`, and these are the numbers of
a plain interpreter of the graph. Seeded; FICCO_FUZZ=100 takes a hundred times as many schedules."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.driver.api import Array
from ficco_rt.errors import PlanError, ScheduleError
from ficco_rt.exec.executor import Executor
from ficco_rt.machine.profiles import NAMES, profile
from ficco_rt.plan.ir import Launch, Plan
from ficco_rt.types import TYPES
from tests.fuzz.schedules import Chains, Memory, N, Orders, interpreted
from tests.fuzz.test_fuzz import limited, seeds


def inputs(plan: Plan, seed: int) -> dict[str, list[Array]]:
    """Few ones and minus ones: sums of many products stay exact."""
    rng = np.random.default_rng(seed)
    names = [t.name for t in plan.tensors if t.kind == "input"]
    return {n: [rng.choice([-1, 0, 0, 0, 1], (N, N)).astype(np.float32) for _ in range(plan.ranks)] for n in names}


def result(executor: Executor, order: str, given: dict[str, list[Array]]) -> Memory:
    executor.order = order
    for name, arrays in given.items():
        for rank, array in enumerate(arrays):
            executor.write(name, rank, array)
    executor.poison()
    executor.run()
    plan = executor.plan
    return {(t.name, r): executor.read(t.name, r) for t in plan.tensors for r in range(plan.ranks)}


def same(a: Memory, b: Memory) -> bool:
    return all(np.array_equal(a[key], b[key], equal_nan=True) for key in a)


def one_meaning(program: Orders | Chains, seed: int, outcomes: Counter[str]) -> None:
    graph = compiler.build(ficco_dsl.parse(program.text, "orders.ficco"), program.ranks)
    plan = compiler.plan_of(graph, profile(NAMES[seed % len(NAMES)], program.ranks))
    outcomes["compiled"] += 1
    outcomes["joined"] += any(isinstance(c, Launch) and bool(c.joined) for s in plan.streams for c in s.commands)
    given = inputs(plan, seed)
    lazy = random.Random(seed).choices(range(len(plan.streams)), k=3)
    with Executor(plan, "host") as executor:
        first = result(executor, "fifo", given)
        for order in ("adversarial", f"random({seed})", f"random({seed + 1})", *(f"lazy({s})" for s in lazy)):
            assert same(result(executor, order, given), first), order
        assert executor.trace.spans
    wanted, largest = interpreted(graph, given)
    if largest <= TYPES["fp32"].exact:
        outcomes["exact"] += 1
        assert same(first, wanted), "fifo is not what the ops say"


def spins(program: Orders | Chains) -> bool:
    """May a launch hold all processors while it waits? Then, and only then, may what was compiled deadlock."""
    return re.search(r"streamed( after \w+)? {", program.text) is not None


def test_every_order_of_streamed_products_in_a_row_gives_the_same() -> None:
    assert many({seed: Chains(random.Random(f"{seed} chains")) for seed in seeds(80)})["joined"] > 10


@pytest.mark.parametrize("bounded", [True, False])
def test_every_order_of_a_random_schedule_gives_the_same(bounded: bool) -> None:
    many({seed: Orders(random.Random(f"{seed} {bounded}"), bounded=bounded) for seed in seeds(120)})


def many(programs: Mapping[int, Orders | Chains]) -> Counter[str]:
    """What became of them."""
    outcomes: Counter[str] = Counter()
    for seed, program in programs.items():
        what = f"seed {seed}, {program.ranks} ranks, {NAMES[seed % len(NAMES)]}\n{program.text}"
        try:
            with limited(what):
                one_meaning(program, seed, outcomes)
        except ScheduleError as error:
            outcomes[type(error).__name__] += 1
            complaint = f"{error}\n{what}"
            fits = isinstance(error, PlanError) <= (spins(program) and "deadlock" in str(error))
            if not fits or any(d.span.path != "orders.ficco" for d in error.diagnostics):
                pytest.fail(complaint)
    assert outcomes["compiled"] > 20, outcomes
    assert outcomes["exact"] * 2 > outcomes["compiled"], outcomes
    return outcomes
