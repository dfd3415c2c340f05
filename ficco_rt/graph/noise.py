"""Estimates what the roundings of a schedule add up to, on random inputs and on inputs of one sign.

The ops are taken in an order in which they can happen. Each element carries

* its *value*: the mean square on random inputs. As the squares of its terms add up, it is also the number of terms, and
  so the element where all inputs are 1;
* its *error*: the mean square on random inputs. Roundings go up as often as down, so their squares add up;
* the largest share that can be *lost* on inputs of one sign. There partial sums only grow. A store to a type with unit
  roundoff u changes the sum by the share u at most, and the next store may change it in the same direction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import floor, inf, log2
from operator import attrgetter
from typing import NamedTuple

from ficco_dsl.diagnostics import Diagnostic, Span

from ..geometry.region import BoxMap, Region
from ..types import ACCUMULATOR, TYPES, Dtype
from .functions import FUNCTIONS, GROWTH, OWN, SLOPE
from .ir import Claim, Collective, Gemm, Reduce, Tensor, by_call
from .kinds import kind_of
from .op_rules import SUMS
from .trail import Step

# A larger share of the result that roundings may take says nothing of whether the result is right.
USEFUL = 0.05


def useful(within: Iterable[Dtype], fast: float = 0.0) -> float:
    """`USEFUL`, or more of a claim that admits fp8, two roundings to it besides, and of a plan whose sums may be `fast`
    (`Noises.fast`)."""
    coarse = (TYPES[dtype].unit_roundoff for dtype in within if TYPES[dtype].quantised)
    return USEFUL + 2 * max(coarse, default=0.0) + fast


UNIT = TYPES[ACCUMULATOR].unit_roundoff
ACCUMULATED = UNIT**2
TF32 = 2.0**-11  # the unit roundoff of an operand's 10 bits of mantissa
# NOTE tensor cores cut what they add, so that errors lean to one side: up to 2u for each step of 8 along K.
CUT = (2 / 8) ** 2 * ACCUMULATED
# NOTE those of Hopper keep 14 binary digits of a sum of fp8 products, up to 128 of K, and cut products to its last:
# the mean square of that error for each product, and the share that it takes from products of one sign.
CUT_OF_FP8, LOST_OF_FP8, PROMOTED = 2.0**-26, 2.0**-6, 128
# … and from each of K products, if nothing else adds up: they are half a digit on average, and so is the sum so far.
# cuBLASLt's sums lost 16 % with K = 8192 on an H200, and 66 % with 32768.
LOST_ALONE = 2.0**-15


class Noise(NamedTuple):
    """What an element carries. `stores`: the narrow stores on its way, at most. `place` numbers the statement whose
    stores lose most, which is the share `taken`. Of a function's value, of which many are multiplied and added up, the
    mean square and the error are the share `mean` of these figures."""

    value: float
    error: float
    lost: float = 0.0
    stores: int = 0
    place: int = -1
    taken: float = 0.0
    mean: float = 1.0


NOTHING = Noise(0.0, 0.0)


@dataclass(slots=True)
class Stores:
    """What a statement has stored, as to partial sums."""

    origin: Span
    tensor: str
    called: bool  # by a collective of the vendor's library
    smallest: float = inf  # where all inputs are 1
    largest: float = 0.0
    dropped_at: float = 0.0  # so many pieces are in the first sum which the next piece no longer changes; 0: in none
    pieces: float = 0.0  # of such a sum in the end


class Noises:
    """What the elements of the written tensors carry while the ops go by; those of inputs are all alike."""

    def __init__(self, tensors: Sequence[Tensor], steps: Sequence[Step], value: float = 1.0) -> None:
        """`value`: the mean square of an input's elements."""
        self.input = Noise(value, 0.0)
        self.types = {t.name: TYPES[t.dtype] for t in tensors}
        self.scaled = {t.name for t in tensors if t.scaling is not None}  # of whose values no type ends too early
        self.stores: list[Stores] = []
        self.fast = 0.0  # the share that sums by tensor cores alone may lose
        self.places: dict[Span, int] = {}
        self.kept: dict[Noise, Noise] = {}  # one object a value: neighbours that hold the same are one cell
        written = [t for t in tensors if t.kind != "input"]
        self.cells = {(t.name, rank): BoxMap(shape, NOTHING) for t in written for rank, shape in enumerate(t.shapes)}
        for members in by_call(steps, lambda step: step.body):
            body, origin = members[0].body, members[0].origin
            if isinstance(body, Collective):
                self._collective([s.body for s in members if isinstance(s.body, Collective)], origin)
            else:
                kind_of(body).noise(body, self, origin)

    def read(self, region: Region) -> Noise:
        """The most that an element of the region carries."""
        cells = self.cells.get((region.tensor, region.rank))
        if cells is None:
            return self.input
        return _worst({noise for box in region.boxes for _, noise in cells.items(box)})

    def write(self, region: Region, noise: Noise) -> None:
        noise = self.kept.setdefault(noise, noise)
        for box in region.boxes:
            self.cells[region.tensor, region.rank].update(box, lambda _: noise)

    def forget(self, region: Region) -> None:
        """Nothing is claimed of what is written."""
        self.write(region, NOTHING)

    def store(self, body: Gemm | Reduce, terms: list[Noise], origin: Span) -> None:
        """Add up in an accumulator, apply the function, and round to the type of the result."""
        region, total, mean = body.out, _sum(terms), 1.0
        if body.function is not None:
            mean = FUNCTIONS[body.function].mean(total.value)
            terms = [total := _applied(total, None if body.factor is None else self.read(body.factor))]
        unit = self.types[region.tensor].unit_roundoff
        place = self._place(region.tensor, origin, total.value)
        stores = self.stores[place]
        before = max(terms, key=attrgetter("value"), default=NOTHING)
        piece = total.value - before.value
        if before.stores and 0 < piece <= unit * 2.0 ** floor(log2(before.value)):
            stores.dropped_at = stores.dropped_at or before.value / piece
            stores.pieces = max(stores.pieces, total.value / piece)
        self.write(region, self._rounded(total, place, unit, unit)._replace(mean=mean))

    def _rounded(self, total: Noise, place: int, unit: float, share: float, stores: int = 1) -> Noise:
        """After so many `stores` of the whole value, which lose such a `share` in all."""
        taken = total.taken + share if total.place == place else share
        if total.place != place and taken < total.taken:
            place, taken = total.place, total.taken
        error = total.error + stores * unit**2 * total.value
        narrow = total.stores + stores * (unit > UNIT)
        return Noise(total.value, error, total.lost + share, narrow, place, taken)

    def _place(self, tensor: str, origin: Span, value: float, *, called: bool = False) -> int:
        """The number of a statement, which stores a sum of this value."""
        place = self.places.setdefault(origin, len(self.places))
        if place == len(self.stores):
            self.stores.append(Stores(origin, tensor, called))
        stores = self.stores[place]
        stores.smallest, stores.largest = min(stores.smallest, value), max(stores.largest, value)
        return place

    def multiply(self, gemm: Gemm, origin: Span) -> None:
        """Add up products in an accumulator, add what is added, and round."""
        left, right = self.read(gemm.left), self.read(gemm.right)
        inner = gemm.depth
        value = inner * left.value * right.value
        error = inner * (left.error * right.value + left.value * right.error + left.error * right.error)
        error *= left.mean * right.mean
        error += inner * ACCUMULATED * value
        adds = float(inner)  # sums in the accumulator; a tensor core cuts two units at every eighth
        if self.types[gemm.left.tensor].half is not None:
            error += inner**2 * CUT * value
            adds = 2 * (inner / 8 + 1)
        worse = max(left, right, key=attrgetter("lost"))
        lost = left.lost + right.lost + adds / 2 * UNIT  # partial sums are half of the final one on average
        if gemm.tf32:
            error += inner * 2 * TF32**2 * left.value * right.value + inner**2 * CUT * value
            lost += 2 * TF32
        if self.types[gemm.left.tensor].quantised:
            alone = LOST_ALONE * inner if gemm.fast else 0.0
            error += max(PROMOTED, inner * gemm.fast) * CUT_OF_FP8 * value
            lost += LOST_OF_FP8 + alone
            self.fast = max(self.fast, alone)
        added = (gemm.out,) if gemm.accumulate else gemm.addends
        product = Noise(value, error, lost, max(left.stores, right.stores), worse.place, worse.taken)
        self.store(gemm, [product, *(self.read(a) for a in added)], origin)

    def _collective(self, calls: list[Collective], origin: Span) -> None:
        """A vendor's sum may be stored at every rank that it comes past, where it has grown evenly."""
        found = [self.read(call.src) for call in calls]
        if calls[0].kind == "send_recv":
            by_rank = {call.src.rank: noise for call, noise in zip(calls, found, strict=True)}
            for call in calls:
                for region in call.writes:
                    self.write(region, by_rank[call.by])
            return
        if calls[0].kind in SUMS:
            unit = self.types[calls[0].dst.tensor].unit_roundoff
            total, ranks = _sum(found), len(calls)
            place = self._place(calls[0].dst.tensor, origin, total.value, called=True)
            result = self._rounded(total, place, unit, unit * (ranks + 1) / 2, ranks)
        else:
            result = _worst(found)
        for call in calls:
            self.write(call.dst, result)


def _worst(found: Collection[Noise]) -> Noise:
    """The most of each figure."""
    if len(found) == 1:
        return next(iter(found))
    return max(found, key=attrgetter("lost"), default=NOTHING)._replace(
        value=max((n.value for n in found), default=0.0),
        error=max((n.error for n in found), default=0.0),
        stores=max((n.stores for n in found), default=0),
        mean=max((n.mean for n in found), default=1.0),
    )


def _sum(terms: list[Noise]) -> Noise:
    """In an accumulator."""
    value = sum(n.value for n in terms)
    if not value:
        return NOTHING
    error = sum(n.error for n in terms) + len(terms) * ACCUMULATED * value
    lost = sum(n.value * n.lost for n in terms) / value + len(terms) * UNIT
    place, taken = max(((n.place, n.value * n.taken / value) for n in terms), key=lambda found: found[1])
    return Noise(value, error, lost, max(n.stores for n in terms), place, taken)


def _applied(total: Noise, factor: Noise | None) -> Noise:
    """A function of a sum, whose values are no larger than its argument."""
    error = SLOPE**2 * total.error + OWN**2 * total.value
    found = total._replace(error=error, lost=GROWTH * total.lost + OWN, taken=GROWTH * total.taken)
    if factor is None or not total.value:
        return found
    worse = max(found, factor, key=attrgetter("taken"))
    return Noise(
        total.value * factor.value,
        error * factor.value + total.value * factor.error + error * factor.error,
        found.lost + factor.lost,
        max(found.stores, factor.stores),
        worse.place,
        worse.taken,
    )


def claimed(noises: Noises, claim: Claim) -> Noise:
    """The most that one of the claim's elements carries."""
    return _worst({noises.read(target) for target in claim.targets})


def coarse(tensors: Sequence[Tensor], claims: Sequence[Claim], steps: Sequence[Step]) -> list[Diagnostic]:
    """Statements whose partial sums are too coarse, or too large, for the type that they are kept in: warnings."""
    if not claims or not _suspicious(tensors, steps):
        return []
    noises = Noises(tensors, steps)
    found = []
    for claim in claims:
        worst = claimed(noises, claim)
        if worst.lost > useful(claim.within, noises.fast) and worst.place >= 0:
            stores = noises.stores[worst.place]
            found.append(_too_coarse(stores, noises.types[stores.tensor].name, claim, worst))
    for stores in noises.stores:
        kept = noises.types[stores.tensor]
        if stores.largest <= kept.largest or stores.tensor in noises.scaled:
            continue
        for claim in claims:
            value, of = claimed(noises, claim).value, noises.types[claim.targets[0].tensor]
            if not stores.largest <= value <= of.largest:  # not of this claim, or too large itself
                continue
            found.append(
                Diagnostic(
                    stores.origin,
                    f"{stores.tensor} keeps partial sums in {kept.name}, which ends at {kept.largest:.5g}: where all "
                    f"inputs are 1, one is {stores.largest:.6g}, and '{claim.text}' is {value:.6g} in {of.name}",
                    help="keep partial sums in an fp32 scratch tensor",
                )
            )
    return found


def _too_coarse(stores: Stores, dtype: str, claim: Claim, worst: Noise) -> Diagnostic:
    taken = f"roundings may take {percent(worst.lost)} of '{claim.text}' on inputs of one sign"
    if stores.called:
        where = f"a collective may round {stores.tensor} to {dtype} at every rank that a sum comes past"
        return Diagnostic(stores.origin, f"{where}: {taken}", help="give the collective fp32 tensors")
    if stores.dropped_at:
        first, of = (f"{number:.0f}" for number in (stores.dropped_at, stores.pieces))
        taken = f"where all inputs are 1, the sum stops growing after {first} of {of} pieces; {taken}"
    if worst.stores == 1:
        help = "give it a wider type, such as bf16"
        return Diagnostic(stores.origin, f"{stores.tensor} is stored in {dtype}: {taken}", help=help)
    return Diagnostic(
        stores.origin,
        f"{stores.tensor} keeps partial sums in {dtype}: {taken}",
        help="keep partial sums in an fp32 scratch tensor, or add up fewer and larger pieces, such as one gemm over "
        "all of K",
    )


def short_sums(tensors: Sequence[Tensor], claims: Sequence[Claim], steps: Sequence[Step]) -> tuple[str, ...]:
    """The tensors that keep partial sums in a type that ends early. Such a sum may pass the type's end where the result
    does not, since terms of the other sign come later."""
    if not any(_short(t.dtype) for t in tensors):
        return ()
    noises = Noises(tensors, steps)
    results = [claimed(noises, claim).value for claim in claims]
    stored = (s for s in noises.stores if _short(noises.types[s.tensor].name) and s.tensor not in noises.scaled)
    partial = [s.tensor for s in stored if _partial(s, results)]
    return tuple(dict.fromkeys(partial))


def _partial(stores: Stores, results: Sequence[float]) -> bool:
    """Whether what is stored becomes a larger result, the least of those that it can become."""
    return stores.smallest < min((value for value in results if value >= stores.largest), default=0.0)


def _short(dtype: str) -> bool:
    return TYPES[dtype].exponent < TYPES[ACCUMULATOR].exponent


def percent(share: float) -> str:
    """`38 %`, `0.4 %`; never more than all."""
    return "all" if share >= 1 else f"{100 * share:.2g} %"


def _suspicious(tensors: Sequence[Tensor], steps: Sequence[Step]) -> bool:
    """Whether anything can pass the limits: a quick bound, which counts stores, and takes each tensor of a rank as a
    whole. Half of the limit is left to the sums in accumulators."""
    if any(_short(t.dtype) and not TYPES[t.dtype].quantised for t in tensors):
        return True
    units = {t.name: TYPES[t.dtype].unit_roundoff for t in tensors}
    stored: dict[tuple[str, int], float] = {}  # unit roundoffs
    for step in steps:
        body = step.body
        before = [stored.get((r.tensor, r.rank), 0.0) for r in body.reads]
        unit = max((units[region.tensor] for region in body.writes), default=0.0)
        found = max(before, default=0.0) + (unit if kind_of(body).side != "moves" else 0.0)
        if isinstance(body, Gemm):
            found = max(found, unit + before[0] + before[1])
        elif isinstance(body, Collective) and body.kind in SUMS:
            found += unit * len(tensors[0].shapes)
        for region in body.writes:
            key = (region.tensor, region.rank)
            stored[key] = max(stored.get(key, 0), found)
    return max(stored.values(), default=0.0) > USEFUL / 2
