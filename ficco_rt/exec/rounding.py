"""How far a run may be off: what the roundings of a plan add up to, on random inputs.

The works of the plan are taken in an order in which they can happen. Each element carries two mean squares: of its
value and of its error. A store to a type with unit roundoff u adds u² · value² to the squared error. Sums and products
take along the errors of what they read, and add those of the fp32 accumulator. Roundings are as often up as down, so
that their squares add up, as those of the values do: a partial sum of a tenth of the terms has a tenth of the value's
square.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..graph.ir import Claim, Copy, Gemm, KernelCall, Reduce
from ..plan.check import walk
from ..plan.ir import CollectiveCall, CopyAsync, Launch, Part, Plan, Transfer, Work
from ..region import BoxMap, Region
from ..types import ACCUMULATOR, TYPES
from .inputs import deviation, scale
from .reference import extent

ACCUMULATED = TYPES[ACCUMULATOR].unit_roundoff ** 2
# NOTE tensor cores cut what they add, so that errors lean to one side: up to 2u for each step of 8 along K.
CUT = (2 / 8) ** 2 * ACCUMULATED


class Noise(NamedTuple):
    """Mean squares over random inputs."""

    value: float
    error: float


NOTHING = Noise(0.0, 0.0)


def tolerances(plan: Plan) -> list[float]:
    """For each claim, what no |C − R| of normal `fresh_inputs` is to exceed: so many standard deviations of the
    error that none of the claim's elements passes them but for a chance of `CHANCE`."""
    noise = _Noises(plan)
    noise.run()
    return [_bound(claim, [noise.read(target) for target in claim.targets]) for claim in plan.claims]


def _bound(claim: Claim, found: list[Noise]) -> float:
    elements = sum(target.elements for target in claim.targets)
    reference = (extent(claim.value).terms - 1) * ACCUMULATED * max(n.value for n in found)
    error = max(n.error for n in found) + reference
    return float(deviation(elements) * error**0.5)


class _Noises:
    """What the elements of the written tensors carry while the works go by; those of inputs are all alike."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.input = Noise(scale(plan) ** 2, 0.0)
        self.types = {t.name: TYPES[t.dtype] for t in plan.tensors}
        self.kept: dict[Noise, Noise] = {}  # one object a value: neighbours that hold the same are one cell
        self.cells: dict[tuple[str, int], BoxMap[Noise]] = {}
        self.groups: dict[int, list[CollectiveCall]] = {}
        shapes = {t.name: t.shapes for t in plan.tensors}
        for part in plan.parts():
            if isinstance(part, CollectiveCall):
                self.groups.setdefault(part.group, []).append(part)
            for region in part.writes:
                key = (region.tensor, region.rank)
                if key not in self.cells:
                    self.cells[key] = BoxMap(shapes[region.tensor][region.rank], NOTHING)

    def run(self) -> None:
        for part in self._parts():
            match part:
                case Transfer(dst=dst, src=src) | Work(body=Copy(dst=dst, src=src)):
                    self._write(dst, self.read(src))
                case CollectiveCall(group=group):  # all calls at once, when the first one's turn has come
                    self._collective(self.groups.pop(group, []))
                case Work(body=Gemm() as gemm):
                    self._gemm(gemm)
                case Work(body=Reduce(out=out, terms=terms)):
                    self._store(out, self._sum([self.read(term) for term in terms]))
                case Work(body=KernelCall() as call):  # nothing is claimed of what it writes
                    for region in call.writes:
                        self._write(region, NOTHING)

    def _parts(self) -> Iterator[Part]:
        for s, i, work in walk(self.plan):
            command = self.plan.streams[s].commands[i]
            match command:
                case CopyAsync():
                    yield from command.transfers
                case Launch():
                    yield command.works[work]
                case CollectiveCall():
                    yield command

    def read(self, region: Region) -> Noise:
        """The most that an element of the region carries."""
        cells = self.cells.get((region.tensor, region.rank))
        if cells is None:
            return self.input
        found = {noise for box in region.boxes for _, noise in cells.items(box)}
        return Noise(max((n.value for n in found), default=0.0), max((n.error for n in found), default=0.0))

    def _write(self, region: Region, noise: Noise) -> None:
        noise = self.kept.setdefault(noise, noise)
        for box in region.boxes:
            self.cells[region.tensor, region.rank].update(box, lambda _: noise)

    def _store(self, region: Region, noise: Noise) -> None:
        """Round to the region's type."""
        unit = self.types[region.tensor].unit_roundoff
        self._write(region, Noise(noise.value, noise.error + unit**2 * noise.value))

    def _sum(self, terms: list[Noise]) -> Noise:
        """In an accumulator."""
        value = sum(n.value for n in terms)
        return Noise(value, sum(n.error for n in terms) + len(terms) * ACCUMULATED * value)

    def _gemm(self, gemm: Gemm) -> None:
        left, right = self.read(gemm.left), self.read(gemm.right)
        inner = gemm.left.shape[0 if gemm.left_transposed else -1]
        value = inner * left.value * right.value
        error = inner * (left.error * right.value + left.value * right.error + left.error * right.error)
        error += inner * ACCUMULATED * value
        if self.types[gemm.left.tensor].half is not None:
            error += inner**2 * CUT * value
        added = (gemm.out,) if gemm.accumulate else gemm.addends
        self._store(gemm.out, self._sum([Noise(value, error), *(self.read(a) for a in added)]))

    def _collective(self, calls: list[CollectiveCall]) -> None:
        """A vendor's sum may be stored at every rank that it comes past."""
        if not calls:
            return
        found = [self.read(call.src) for call in calls]
        if calls[0].kind == "send_recv":
            by_rank = {call.src.rank: noise for call, noise in zip(calls, found, strict=True)}
            for call in calls:
                for region in call.writes:
                    self._write(region, by_rank[call.by])
            return
        if calls[0].kind in ("all_reduce", "reduce_scatter"):
            result = self._sum(found)
            unit = self.types[calls[0].dst.tensor].unit_roundoff
            result = Noise(result.value, result.error + len(calls) * unit**2 * result.value)
        else:
            result = Noise(max(n.value for n in found), max(n.error for n in found))
        for call in calls:
            self._write(call.dst, result)
