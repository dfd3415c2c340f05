"""The error that a run may have: what the roundings of a plan add up to."""

from __future__ import annotations

from typing import NamedTuple

from ..graph.claim_values import finished
from ..graph.functions import FUNCTIONS
from ..graph.ir import Claim
from ..graph.noise import ACCUMULATED, UNIT, Noises, claimed
from ..plan.check import walk
from ..plan.ir import Plan
from ..plan.prove import steps
from .inputs import deviation, quantizations, scale
from .reference import extent

_SCALES = 2.0**-20  # of a term: its scales, their product and their use are rounded to fp32


class Allowance(NamedTuple):
    """The error that the roundings of a plan allow for a claim."""

    random: float  # for |C − R| of normal `fresh_inputs`
    one_sign: float  # the share of the result, on inputs of one sign
    partial: bool  # whether partial sums are rounded, besides the result
    fast: float = 0.0  # of `one_sign`, what sums by tensor cores alone take


def allowances(plan: Plan) -> list[Allowance]:
    """For each claim, what no |C − R| of normal `fresh_inputs` is to exceed: so many standard deviations of the error
    that none of the claim's elements passes them but for a chance of `CHANCE`. And the share of the result that
    roundings may take on inputs of one sign."""
    noises = Noises(plan.tensors, list(steps(plan, walk(plan))), scale(plan) ** 2)
    return [_allowance(noises, claim) for claim in plan.claims]


def of_integers(plan: Plan) -> list[Allowance]:
    """For each claim, what no |C − R| of the plan's integers is to exceed: nothing, unless the plan computes scales. Of
    inputs that are −1 and 1 it rounds only the scales; of sums, the values."""
    made = quantizations(plan)
    inputs = {t.name for t in plan.tensors if t.kind == "input"}
    if all(body.reads[0].tensor in inputs and not body.function and len(body.terms) == 1 for body in made):
        return [Allowance(_SCALES * extent(c.value).terms if made else 0.0, 0.0, partial=False) for c in plan.claims]
    noises = Noises(plan.tensors, list(steps(plan, walk(plan))))
    return [_allowance(noises, claim)._replace(one_sign=0.0) for claim in plan.claims]


def _allowance(noises: Noises, claim: Claim) -> Allowance:
    found = claimed(noises, claim)
    elements = sum(target.elements for target in claim.targets)
    error = found.error + (extent(claim.value).terms - 1) * ACCUMULATED * found.value
    spread = deviation(elements)
    if any(FUNCTIONS[f.function].factor for f in finished(claim.value)):
        spread *= spread / 2  # the product of two normal values has an exponential tail
    narrow = noises.types[claim.targets[0].tensor].unit_roundoff > UNIT  # the result's own store is one
    return Allowance(float(spread * error**0.5), found.lost, found.stores > narrow, noises.fast)
