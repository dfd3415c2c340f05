"""What the table has a row for: a schedule at a size. Rows of one operation and size follow one another, so that they
can share data."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ficco_dsl.nodes import Schedule
from ficco_rt import compiler
from ficco_rt.files import shipped
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan

Sizes = Literal["small", "real"]
SCENARIOS = Path(__file__).parents[2] / "tools" / "bench" / "scenarios.json"
SMALL = (  # label, M, N and K for each rank, T
    ("small fp32", 16, 8, 16, "fp32"),
    ("uneven fp32", 5, 3, 7, "fp32"),
    ("uneven bf16", 37, 29, 43, "bf16"),
    ("middle fp16", 256, 96, 192, "fp16"),
    ("large bf16", 512, 256, 512, "bf16"),
)


SET = {"deep": [2, 1, 1], "iters": 3}  # not left as the texts have it: so that tiles wait along K


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule at a size; `params` are those that the schedule has."""

    sizes: Sizes
    label: str
    name: str
    schedule: Schedule
    params: dict[str, object]

    @property
    def group(self) -> tuple[str, str, str]:
        """What rows that may share data have in common: sizes, label and operation."""
        return self.sizes, self.label, self.name.split("/")[0]

    def plan(self, ranks: int, machine: Machine) -> Plan:
        """Raises what compiling does."""
        return compiler.plan_of(compiler.build(self.schedule, ranks, self.params), machine)


def rows(sizes: str, ranks: int, only: str = "") -> list[Row]:
    """The rows of `sizes` (small, real, all) whose schedules' names contain `only`, group by group."""
    schedules = {e.name: compiler.load(e.path) for e in shipped.entries() if only in e.name}
    found = [
        row
        for kind, make in (("small", _small), ("real", _real))
        if sizes in ("all", kind)
        for name, schedule in schedules.items()
        for row in make(name, schedule, ranks)
    ]
    order = {group: n for n, group in enumerate(dict.fromkeys(row.group for row in found))}
    return sorted(found, key=lambda row: order[row.group])


def _small(name: str, schedule: Schedule, ranks: int) -> Iterator[Row]:
    """Sizes of the tests, that divide among ranks and chunks and that do not, in all types."""
    for label, m, n, k, dtype in SMALL:
        params: dict[str, object] = {"M": m * ranks, "N": n * ranks, "K": k * ranks, "T": dtype, **SET}
        params["transb"] = int(label == "large bf16")  # as nn.Linear stores weights
        params["counts"] = [[m // 4 + (s + 2 * e) % 4 for e in range(ranks)] for s in range(ranks)]
        yield Row("small", label, name, schedule, _declared(schedule, params))


def _real(name: str, schedule: Schedule, ranks: int) -> Iterator[Row]:
    """The layers of the schedule's operation."""
    layers: dict[str, list[dict[str, Any]]] = json.loads(SCENARIOS.read_text(encoding="utf-8"))
    layers["gemm_ar"] = layers["gemm_rs"]
    layers["a2a_gemm"] = layers["ag_gemm"]
    for layer in layers.get(name.split("/")[0], ()):
        params: dict[str, object] = {p: layer[p] for p in "MNK"} | SET
        if "counts" in {p.name for p in schedule.params}:  # experts: uneven loads
            even = layer["M"] // ranks**2
            params["counts"] = [[even + 16 * ((s + 2 * e) % 4) for e in range(ranks)] for s in range(ranks)]
            params["N"] = layer["N"] // ranks
        yield Row("real", layer["name"], name, schedule, _declared(schedule, params))


def _declared(schedule: Schedule, params: dict[str, object]) -> dict[str, object]:
    known = {p.name for p in schedule.params} | {"T"}
    return {p: v for p, v in params.items() if p in known}


def likeness(plan: Plan) -> Hashable:
    """Plans that agree in this can be given the same inputs, and have the same reference: names, types and shapes of
    inputs and outputs, what is claimed of them, and the types that exact values must fit."""
    return (
        tuple((t.name, t.kind, t.dtype, t.shapes) for t in plan.tensors if t.kind != "scratch"),
        tuple((claim.targets, claim.value) for claim in plan.claims),
        frozenset(t.dtype for t in plan.tensors if t.kind != "input"),
    )
