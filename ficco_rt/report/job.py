"""Compiles a request into a job: its graph, its plan, and the statements that reports make on both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ficco_dsl.diagnostics import Diagnostic

from ..errors import UsageError
from ..graph.noise import percent
from ..plan.ir import Plan
from ..types import TYPES
from .request import Request, machine_of, resolve, too_few
from .sources import sourced
from .wording import count, join_words, set_text, show_time

if TYPE_CHECKING:
    from ..graph.ir import Graph
    from ..machine.model import Machine
    from ..select.choose import Choice
    from ..select.params import Given
    from ..select.tune import Step


@dataclass(frozen=True, slots=True)
class Job:
    """A compiled request. A stored plan has no graph any more."""

    path: str
    title: str
    machine: Machine
    plan: Plan
    graph: Graph | None
    warnings: tuple[Diagnostic, ...]
    texts: Mapping[str, str]
    proof_time: float  # µs
    given: tuple[Given, ...] = ()  # what rules gave
    choice: Choice | None = None  # which has named the schedule

    @property
    def unproven(self) -> tuple[str, ...]:
        """The outputs that no claim speaks for, or not for all of them."""
        from ..plan.prove import unproven

        return unproven(self.plan)

    @property
    def short_sums(self) -> tuple[str, ...]:
        """The tensors that keep partial sums in a type that ends early."""
        from ..graph.noise import short_sums
        from ..graph.prove import meaning
        from ..plan.check import walk
        from ..plan.prove import steps

        done = meaning(self.graph) if self.graph is not None else list(steps(self.plan, walk(self.plan)))
        return short_sums(self.plan.tensors, self.plan.claims, done)

    @property
    def proven(self) -> bool:
        """Whether the proof, which the plan has passed, covers everything that the plan computes. A plan without claims
        has no proof."""
        return bool(self.plan.claims) and not self.unproven


def compile_job(
    request: Request, step: Step = lambda _: nullcontext(), found: Callable[[int | None], Machine] | None = None
) -> Job:
    """Everything from text (or stored plan) to a proven, checked plan; `found` as of `resolve`."""
    if request.source.is_plan:
        return _stored(request, step, found)
    from .. import compiler
    from ..files import shipped
    from ..graph.prove import prove
    from ..machine.profiles import is_file
    from ..plan import kernel_files
    from ..plan.check import check
    from ..plan.epilogues import cut_epilogues
    from ..plan.lower import lower

    source = request.source
    with sourced(source.texts):
        asked = resolve(request, step, found)
    machine = asked.machine
    with sourced(source.texts), compiler.compilation(asked.ranks):
        with step("binding sizes"):
            graph = cut_epilogues(asked.graph(), machine)
        begin = time.perf_counter()
        with step("proving"):
            prove(graph)
        proof_time = 1e6 * (time.perf_counter() - begin)
        with step("lowering"):
            plan = kernel_files.sealed(lower(graph, machine))
        with step("checking the plan"):
            check(plan)
    title = shipped.title(source.data.decode("utf-8", "replace"))
    warnings = compiler.lint(graph, machine)
    if found is None and not is_file(request.machine or ""):
        warnings = (*too_few(source, machine), *warnings)
    return Job(source.name, title, machine, plan, graph, warnings, source.texts, proof_time, asked.given)


def _stored(request: Request, step: Step, found: Callable[[int | None], Machine] | None) -> Job:
    from ..compiler import checked_plan, compilation
    from ..graph.noise import coarse
    from ..plan.prove import prove, steps

    source = request.source
    if source.is_device_plan:
        raise UsageError(f"{source.name}: is a device plan, which runs on no other memory; `ficco check` reads it")
    # the file states a number of ranks, which may be wrong: --gpus counts
    with sourced(source.texts), compilation(request.gpus or 1):
        with step("reading and checking the plan"):
            plan, order = checked_plan(source.data, source.name, request.trust)
        begin = time.perf_counter()
        with step("proving the plan"):
            prove(plan, order)
        proof_time = 1e6 * (time.perf_counter() - begin)
    if request.settings:
        raise UsageError(f"{source.name}: a plan has its sizes bound; --set belongs to a schedule")
    if request.gpus not in (None, plan.ranks):
        raise UsageError(f"{source.name}: is a plan for {count(plan.ranks, 'GPU')}, not for {request.gpus}")
    if request.machine is not None and (asked := machine_of(request.machine, plan.ranks)) != plan.target:
        if asked.name != plan.machine:
            raise UsageError(f"{source.name}: is a plan for {plan.machine}, not for {request.machine}")
        raise UsageError(
            f"{source.name}: is a plan for {plan.machine} with other numbers than {request.machine} has now; "
            "compile it again, or leave out --machine"
        )
    machine = plan.target if found is None else found(plan.ranks)
    found_coarse = {d.span: d for d in coarse(plan.tensors, plan.claims, list(steps(plan, order)))}
    return Job(source.name, "", machine, plan, None, tuple(found_coarse.values()), {}, proof_time)


def operations(plan: Plan) -> int:
    """Operations of the schedule that a plan carries out, on all ranks."""
    return len({part.op for part in plan.parts()})


def waits(plan: Plan) -> int:
    """Waits of a plan: on streams, and of the works of streamed launches."""
    return sum(len(command.waits) for _, command in plan.commands())


def proof_words(job: Job) -> str:
    """`proven`, or which outputs are not proven. A stored plan has been proven again, from its own content."""
    if not job.proven:
        return f"UNPROVEN {join_words(job.unproven) or 'for want of claims'}"
    return "proven" if job.graph is not None else f"proven from the plan in {show_time(job.proof_time)}"


def short_words(job: Job) -> str:
    """Which partial sums may overflow where the result does not, after a semicolon; nothing if none may."""
    short = job.short_sums
    if not short:
        return ""
    types = {t.name: TYPES[t.dtype] for t in job.plan.tensors}
    ends = join_words(dict.fromkeys(f"{types[name].name} ends at {types[name].largest:.5g}" for name in short))
    return f"; partial sums in {join_words(short)} may overflow where the result does not ({ends})"


def within_roundings(allowance: float) -> str:
    """The statement on numbers, in place of `correct`, if roundings may take too much of the result."""
    return f"within its roundings, which may take {percent(allowance)} of a result of one sign"


def given_words(job: Job) -> list[str]:
    """The values that rules gave where the caller left something open, and why."""
    return [f"{g.param} = {set_text(g.value)} by a rule: {g.why}" for g in job.given]
