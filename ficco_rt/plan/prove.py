"""Proves a finished plan from the plan alone; what a stored file says about itself is not trusted.

A plan holds its claims and exact regions, and its check finds an order in which everything can happen. As each
conflicting pair is ordered, every run computes what this one order computes. So symbolic values are pushed through the
commands in this order, as they are pushed through the meaning of a schedule when it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import PlanError
from ..geometry.region import BoxMap, whole
from ..graph import ir as graph_ir
from ..graph.prove import Proof
from ..graph.scales import is_scales
from ..graph.trail import Step
from .check import Happening
from .ir import CollectiveCall, CopyAsync, Launch, Plan


def prove(plan: Plan, order: Sequence[Happening]) -> None:
    """Show that every claimed output holds what is claimed, in the order that `check` gave for the plan. Raises
    PlanError."""
    mistaken = Proof(plan.tensors, plan.claims, list(steps(plan, order)), PlanError).mistaken()
    if mistaken:
        raise PlanError(mistaken)


def unproven(plan: Plan | graph_ir.Graph) -> tuple[str, ...]:
    """Outputs that say so, or of which some element is in no claim: no proof speaks for them."""
    outputs = (t for t in plan.tensors if t.kind == "output" and not is_scales(t.name))
    return tuple(t.name for t in outputs if t.unproven or not _claimed(plan, t))


def _claimed(plan: Plan | graph_ir.Graph, tensor: graph_ir.Tensor) -> bool:
    """Is every element on every rank in some claim?"""
    claims = [claim for claim in plan.claims if claim.targets[0].tensor == tensor.name]
    for rank, shape in enumerate(tensor.shapes):
        seen: BoxMap[bool] = BoxMap(shape, False)
        for claim in claims:
            for box in claim.targets[rank].boxes:
                seen.update(box, lambda _: True)
        if not all(there for _, there in seen.items(whole(tensor.name, rank, shape).boxes[0])):
            return False
    return True


def steps(plan: Plan, order: Sequence[Happening]) -> Iterator[Step]:
    """What is done, in the order found. The calls of a collective are one: all have begun when the first one ends."""
    calls: dict[int, list[Step]] = {}
    for stream, command in plan.commands():
        if isinstance(command, CollectiveCall):
            calls.setdefault(command.group, []).append(Step(stream.rank, command.stage, command.origin, command))
    for s, i, work in order:
        rank = plan.streams[s].rank
        command = plan.streams[s].commands[i]
        match command:
            case CopyAsync():
                for t in command.transfers:
                    yield Step(rank, command.stage, t.origin, t)
            case Launch():
                body_of = command.works[work]
                yield Step(rank, command.stage_of(work), body_of.origin, body_of.body)
            case CollectiveCall():
                yield from calls.pop(command.group, ())
            case _:
                pass
