"""Runs the stages of the compiler in order: text → Schedule → Graph → proof → Plan → check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import ficco_dsl
from ficco_dsl.diagnostics import Diagnostic
from ficco_dsl.nodes import Schedule

from .files import atomic, shipped
from .files.arguments import of_kind, plain, whole
from .graph import ir as graph_ir
from .graph.bind import bind
from .graph.budget import one_meter, without_collection
from .graph.build import build as build_graph
from .graph.overrides import split_overrides, with_overrides
from .graph.prove import prove
from .machine.model import Machine
from .machine.profiles import DEFAULT, AnyMachine, chosen
from .plan import codec, kernel_files
from .plan import ir as plan_ir
from .plan import lint as plan_lint
from .plan.check import Happening, check
from .plan.epilogues import cut_epilogues
from .plan.lower import lower
from .plan.prove import prove as prove_plan
from .types import TYPES


def load(name_or_path: str | Path) -> Schedule:
    """Read and parse a schedule: a path, or a name in the library such as `ag_gemm/serial`."""
    path = shipped.find(str(name_or_path))
    return parsed(atomic.read_bytes(path), shipped.shown(path))


parsed = lru_cache(maxsize=256)(ficco_dsl.parse_bytes)  # a process compiles a text for many sizes


def build(schedule: Schedule, ranks: int, params: Mapping[str, object] | None = None) -> graph_ir.Graph:
    """The graph of a schedule; see `ficco_rt.graph.build`. Numbers may be of any type with `__index__`. `kernel`, which
    no param can be called, says `kernel = …` on all queues of multiprocessors, `fast` the same if no param is so
    called, and `compute.sms` what queue `compute` says of `sms`."""
    number = whole(ranks, "ranks")
    given = split_overrides({name: plain(value) for name, value in (params or {}).items()}, schedule)
    with compilation(number):
        if not given.said:
            return build_graph(schedule, number, given.params)
        graph = build_graph(with_overrides(schedule, given.said), number, given.params)
        return replace(graph, params=(*graph.params, *given.said.items()))


def sizes(schedule: Schedule, ranks: int, params: Mapping[str, object] | None = None) -> dict[str, object]:
    """The value of every param and type of a schedule, the text's own where none is given; all tensors' shapes fit.
    Raises ScheduleError, UsageError."""
    number = whole(ranks, "ranks")
    with compilation(number):
        given = split_overrides({name: plain(value) for name, value in (params or {}).items()}, schedule).params
        return dict(bind(schedule, number, given).params)


def plan_of(graph: graph_ir.Graph, machine: Machine, *, trusted: bool = False) -> plan_ir.Plan:
    """Proof, lowering and check of a built graph, whose epilogues are cut where kernels take none. A `trusted` one has
    no proof and no check: its plan is for the virtual clock alone, and its schedule is a shipped one, which the tests
    prove and check; but whether outputs may be fp8 is a matter of the types that are given."""
    with compilation(graph.ranks):
        graph = cut_epilogues(graph, machine)
        if not trusted or any(t.kind == "output" and TYPES[t.dtype].quantised for t in graph.tensors):
            prove(graph)
        plan = lower(graph, machine)
        if not trusted:
            check(plan)
    return plan


@contextmanager
def compilation(ranks: int = 1) -> Iterator[None]:
    """Context manager: the work inside counts as one compilation, and must stay within the budget of one
    (`graph.budget`)."""
    with without_collection(), one_meter(ranks):
        yield


def lint(graph: graph_ir.Graph, machine: Machine) -> tuple[Diagnostic, ...]:
    """Warnings on what is legal but probably slow."""
    return plan_lint.lint(graph, machine)


def compile_schedule(
    name_or_path: str | Path,
    ranks: int,
    params: Mapping[str, object] | None = None,
    machine: AnyMachine = DEFAULT,
) -> plan_ir.Plan:
    """A proven, checked plan of a schedule for `ranks` GPUs of a machine (a Machine, a file, or a stored one's name).

    Example: `compile_schedule("ag_gemm/hetero_fused_1d", 8, {"M": 16384})`.
    Raises ScheduleError (the text), PlanError (the plan) or UsageError (unknown names).
    """
    schedule = load(name_or_path)
    number = whole(ranks, "ranks")
    return compiled(schedule, number, params, chosen(machine, number))


def compiled(schedule: Schedule, ranks: int, params: Mapping[str, object] | None, machine: Machine) -> plan_ir.Plan:
    """A proven, checked plan with the hashes of its user kernels' files."""
    with compilation(ranks):
        return kernel_files.sealed(plan_of(build(schedule, ranks, params), machine))


def load_plan(path: str | Path, trust: bool = False) -> plan_ir.Plan:
    """A stored plan, read, checked and proven. Raises UsageError (the file), PlanError (what is in it)."""
    return plan_from(atomic.read_bytes(path), str(path), trust)


def plan_from(data: bytes, name: str, trust: bool = False) -> plan_ir.Plan:
    """The checked plan of a file's content, proven from itself; `name` is the file's, and what messages call it. With
    `trust` it may name files of kernels anywhere, else below its own folder."""
    with compilation():
        plan, order = checked_plan(data, name, trust)
        prove_plan(plan, order)
    return plan


def checked_plan(data: bytes, name: str, trust: bool) -> tuple[plan_ir.Plan, list[Happening]]:
    """The plan, not proven yet, and an order in which its works can happen."""
    folder = Path(name).parent
    plan = kernel_files.stored_in(codec.from_json(atomic.decoded(data, name), name), folder)
    order = check(plan)
    kernel_files.held(plan, folder, trust)
    return plan, order


def save_plan(plan: plan_ir.Plan, path: str | Path) -> None:
    """Store a plan: the whole file or nothing. Raises UsageError."""
    atomic.check_outputs([(atomic.PLAN, path)])
    atomic.write_atomic(path, stored(kernel_files.sealed(a_plan(plan)), Path(path).parent))


def stored(plan: plan_ir.Plan, folder: Path) -> str:
    """The text of a plan's file in `folder`."""
    return codec.to_json(kernel_files.relative(plan, folder))


def a_plan(value: object) -> plan_ir.Plan:
    """The value, checked to be a plan."""
    return of_kind(value, plan_ir.Plan, "a plan is needed, as compile() or load_plan() gives it")
