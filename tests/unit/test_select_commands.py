"""The commands that rules count are those of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from ficco_rt import compiler
from ficco_rt.files import shipped
from ficco_rt.files.arguments import plain
from ficco_rt.graph.bind import bind_params
from ficco_rt.machine.profiles import scaled
from ficco_rt.select.candidates import open_params, text_of
from ficco_rt.select.choose import choose, question
from ficco_rt.select.commands import COMMANDS, commands
from ficco_rt.select.estimates import ESTIMATES

pytestmark = pytest.mark.usefixtures("own_choices")

# Values of what schedules leave open; `zip` of them, so that each value is in a plan.
OPEN: dict[str, tuple[object, ...]] = {
    "chunks": (1, 3),
    "deep": ((1,), (1, 1)),
    "taper": ((3, 1), (4, 2, 1, 1)),
    "first": ((1, 1, 2), (1,)),
    "middle": ((1,), (1, 1)),
    "last": ((1, 1), (2, 1, 1)),
    "node": (1, 2),
}
PLACES = [
    ("h200-switch", 1),
    ("h200-switch", 2),
    ("h200-switch", 6),
    ("mi300x-mesh", 4),
    ("h200-ring", 4),
    ("h200-nodes", 8),
]


def test_each_schedule_with_an_estimate_has_its_commands_counted() -> None:
    assert set(COMMANDS) == set(ESTIMATES)


def _sizes(operation: str, ranks: int, rows: int) -> dict[str, object]:
    if operation == "a2a_gemm":
        return {"counts": [[rows + s + e for e in range(ranks)] for s in range(ranks)], "N": 64, "K": 128}
    return {"M": ranks * rows, "N": 64 * ranks, "K": 128 * ranks}


def _cases(machine: str, ranks: int) -> Iterator[tuple[str, str, dict[str, object]]]:
    for (operation, names), (i, rows) in product(shipped.operations().items(), enumerate((48, 200))):
        for name in names:
            values = {p: OPEN[p][i] for p in open_params(name) if p in OPEN}
            if "node" in values:
                if machine == "h200-ring":
                    continue  # no schedule for nodes is taken inside a ring, where ways differ from rank to rank
                values["node"] = 1 if ranks % 2 else values["node"]
            if i == 0 or values:
                yield operation, name, {**_sizes(operation, ranks, rows), **values}


@pytest.mark.parametrize(("machine", "ranks"), PLACES)
def test_commands_are_counted_as_the_plan_has_them(machine: str, ranks: int) -> None:
    target = scaled(machine, ranks)
    wrong = []
    for operation, name, values in _cases(machine, ranks):
        asked = {n: plain(v) for n, v in values.items()}
        f = question(operation, ranks, target, sizes={n: v for n, v in asked.items() if n not in OPEN}).facts
        assert f is not None
        counted = commands(f, name, bind_params(text_of(name), ranks, asked)[0])
        graph = compiler.build(text_of(name), ranks, asked)
        built = sum(1 for _ in compiler.plan_of(graph, target, trusted=True).commands())
        if counted != built:
            wrong.append((name, values, counted, built))
    assert not wrong


LAYER = {"M": 8192, "N": 10240, "K": 8192}


def test_rules_and_model_count_the_same_commands_of_a_plan() -> None:
    by_rules = choose("ag_gemm", 8, by="rules", sizes=LAYER)
    assert by_rules.params["deep"] == (1, 1)  # pieces of the last piece alone
    number = sum(1 for _ in by_rules.plan.commands())
    assert f"some {2.75 * number:.0f} µs" in by_rules.why[-1]
