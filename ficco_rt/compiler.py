"""The stages in one place: text → Schedule → Graph → proof → Plan → check."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ficco_dsl
from ficco_dsl.diagnostics import Diagnostic
from ficco_dsl.nodes import Schedule

from . import library
from .errors import UsageError
from .graph import ir as graph_ir
from .graph.build import build as build_graph
from .graph.prove import prove
from .machine.model import Machine
from .machine.profiles import DEFAULT, profile
from .plan import ir as plan_ir
from .plan import lint as plan_lint
from .plan.check import check
from .plan.lower import lower


def load(name_or_path: str | Path) -> Schedule:
    """Read and parse a schedule: a path, or a name in the library such as `ag_gemm/serial`."""
    path = library.find(str(name_or_path))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return ficco_dsl.parse_bytes(data, library.shown(path))


def build(schedule: Schedule, ranks: int, params: Mapping[str, object] | None = None) -> graph_ir.Graph:
    """The graph of a schedule; see `ficco_rt.graph.build`."""
    with no_collection():
        return build_graph(schedule, ranks, params)


def plan_of(graph: graph_ir.Graph, machine: Machine) -> plan_ir.Plan:
    """Proof, lowering and check of a built graph."""
    with no_collection():
        prove(graph)
        plan = lower(graph, machine)
        check(plan)
    return plan


@contextmanager
def no_collection() -> Iterator[None]:
    """The stages make many small values and no cycles; searching them for cycles takes a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def lint(graph: graph_ir.Graph, machine: Machine) -> tuple[Diagnostic, ...]:
    """What is legal and probably slow."""
    return plan_lint.lint(graph, machine)


def compile_schedule(
    name_or_path: str | Path,
    ranks: int,
    params: Mapping[str, object] | None = None,
    machine: str | Machine = DEFAULT,
) -> plan_ir.Plan:
    """A proven, checked plan of a schedule for `ranks` GPUs of a machine (a stored profile's name, or a Machine).

    Example: `compile_schedule("ag_gemm/hetero_fused_1d", 8, {"M": 16384})`.
    Raises ScheduleError (the text), PlanError (the plan) or UsageError (unknown names).
    """
    schedule = load(name_or_path)
    target = profile(machine, ranks) if isinstance(machine, str) else machine
    return plan_of(build(schedule, ranks, params), target)
