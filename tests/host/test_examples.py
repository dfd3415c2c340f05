"""The schedules of the examples are proven and run right, as the shipped ones are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ficco_rt.compiler import compile_schedule
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run

TEXTS = sorted((Path(__file__).parents[2] / "examples").rglob("*.ficco"))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.stem)
def test_an_example_runs_right(path: Path, ranks: int) -> None:
    plan = compile_schedule(path, ranks, {"M": 16 * ranks, "N": 8 * ranks, "K": 12 * ranks, "T": "fp32"})
    with Executor(plan) as executor:
        for order in ("fifo", "adversarial", *(f"random({seed})" for seed in range(20))):
            executor.order = order
            result = verified_run(executor, seed=len(order), values="exact")
            assert result.ok, f"{order}: {result.worst}"
            assert not result.unproven


def test_there_are_examples() -> None:
    assert {p.name for p in TEXTS} >= {"up.ficco", "down.ficco"}
