"""The operation of a plan: what the plan computes, apart from how, derived from its claims.

All schedules with the same claims on tensors of the same sizes and types are schedules of one operation, users' own
schedules included; names do not matter. An operation is what the claims contain: matrix products, and collectives over
their operands or results. `gemm_rs` is a product on each rank and a reduce-scatter of the results; so is any schedule
that claims it.

The claims name the usual way to compute it. Products whose operands are sharded can also be computed in another way,
which sends the other operand from rank to rank instead of the tensor that the claim gathers or reduces
(`ag_gemm/stationary_a`, `gemm_rs/stationary_c`). Which way is faster depends on the sizes, so an operation holds both.

A schedule of iterations (`concurrent/…`) writes its outputs many times over: it carries out its operation that often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import zip_longest
from math import prod
from typing import TypeAlias

from ..errors import UsageError
from ..graph.claim_values import Shapes, axis_of, operands, parts, shapes_of, walk
from ..graph.ir import Added, Applied, Claim, ClaimValue, CollectiveKind, Combined, Graph, Operand, Product
from ..graph.scales import is_scales
from ..plan.ir import Plan
from ..plan.prove import unproven
from ..types import TYPES, Dtype

Pairs: TypeAlias = dict[tuple[int, int], int]  # (from rank, to rank) → elements
Parts: TypeAlias = tuple[int | tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Multiplication:
    """A matrix product on every rank: (m, n, k) of each, and the types of its left operand and of its result."""

    shapes: tuple[tuple[int, int, int], ...]
    dtype: Dtype
    result: Dtype


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective. `parts[r]`: elements that rank r gives (all_gather) or is left with (reduce_scatter, all_reduce);
    of an all_to_all, of what it gives each rank. `item`: bytes of an element; `least`: of the narrowest type that the
    claim lets it have on its way."""

    kind: CollectiveKind
    parts: Parts
    item: int
    least: int

    @property
    def even(self) -> bool:
        """Whether all ranks give, or keep, equally much, as a vendor's collective requires."""
        return len({x for part in self.parts for x in ((part,) if isinstance(part, int) else part)}) == 1

    def pairs(self, ranks_per_gpu: int = 1) -> Pairs:
        """The least elements that have to go from one GPU to another: what is the same for all ranks of a GPU goes
        there once, and what they add up leaves once. Between which ranks of the two GPUs is arbitrary."""
        found: Pairs = {}
        ranks = len(self.parts)
        gpus = [range(first, min(first + ranks_per_gpu, ranks)) for first in range(0, ranks, ranks_per_gpu)]

        def add(a: int, b: int, elements: int) -> None:
            if elements:
                found[a, b] = found.get((a, b), 0) + elements

        for rank, part in enumerate(self.parts):
            for gpu in (gpu for gpu in gpus if rank not in gpu):
                if not isinstance(part, int):
                    for other in gpu:
                        add(rank, other, part[other])
                    continue
                other = gpu[rank % ranks_per_gpu % len(gpu)]
                if self.kind in ("all_gather", "all_reduce"):
                    add(rank, other, part)
                if self.kind in ("reduce_scatter", "all_reduce"):
                    add(other, rank, part)
        return found


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute an operation: its steps, in a possible order. `by`: what it sends in place of what the claims
    send, in words; empty for the usual way. Words name tensors, so they do not count when ways are compared."""

    steps: tuple[Multiplication | Exchange, ...]
    by: str = field(default="", compare=False)

    @property
    def multiplications(self) -> tuple[Multiplication, ...]:
        return tuple(step for step in self.steps if isinstance(step, Multiplication))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(step for step in self.steps if isinstance(step, Exchange))


@dataclass(frozen=True, slots=True)
class Repeated:
    """A product and a collective of its result, of which a run makes `number`."""

    product: Multiplication
    exchange: Exchange
    number: int


@dataclass(frozen=True, slots=True)
class Operation:
    """See the module. The first of the ways is the usual one, which the claims say. `times`: how often a run carries it
    out, which is how often it writes each element of its outputs anew, on average."""

    ranks: int
    ways: tuple[Way, ...]
    times: Fraction = Fraction(1)

    @property
    def usual(self) -> Way:
        return self.ways[0]

    @property
    def repeated(self) -> Repeated | None:
        """What each of many iterations does; None: the operation is carried out once, or is no such thing."""
        steps, number = self.usual.steps, len(self.usual.steps) * self.times / 2
        if self.times <= 1 or len(steps) < 2 or number.denominator != 1:
            return None
        product, exchange = steps[:2]
        if not isinstance(product, Multiplication) or not isinstance(exchange, Exchange):
            return None
        alike = steps == (product, exchange) * (len(steps) // 2)
        return Repeated(product, exchange, int(number)) if alike and exchange.even else None


def operation_of(plan: Plan | Graph) -> Operation | None:
    """The operation of a plan, or of the graph of a schedule; None: not all of its outputs are claimed."""
    if not plan.claims or unproven(plan):
        return None
    dtypes = {t.name: t.dtype for t in plan.tensors}
    kinds = {t.name: t.kind for t in plan.tensors}
    found: list[list[tuple[str, _Steps]]] = []
    for claim in plan.claims:
        own = dtypes[claim.targets[0].tensor]
        admitted = min(TYPES[dtype].bytes for dtype in (own, *claim.within))
        reader = _Reader(cache(lambda value: shapes_of(value, plan.ranks, kinds)), dtypes, own, admitted)
        found.append(list(reader.ways(claim.value)))
    ways = []
    for number in range(max(map(len, found))):
        steps: _Steps = {}
        words: dict[str, None] = {}
        for each in found:  # values that claims share are made once
            by, made = each[min(number, len(each) - 1)]
            steps |= made
            words |= {by: None} if by else {}
        ways.append(Way(tuple(steps.values()), ", ".join(words)))
    return Operation(plan.ranks, tuple(ways), _times(plan))


def require_operation(plan: Plan | Graph, name: str, baseline: Plan | Graph) -> None:
    """Raises UsageError: a schedule that was given as a candidate for the operation `name` computes something else than
    the operation's baseline does, or the same on tensors that lie otherwise. The types that values may have on their
    way do not count."""
    found, wanted = operation_of(plan), operation_of(baseline)
    if wanted is None:
        return
    if found is None:
        raise UsageError(
            f"nothing says that this is a schedule of {name}: not all of its outputs have a claim; write `computes`"
        )
    for ours, theirs in zip_longest(found.usual.steps, wanted.usual.steps):
        if _bare(ours) != _bare(theirs):
            raise UsageError(f"this is no schedule of {name}: it has {_words(ours)}; {name} has {_words(theirs)}")
    for own, usual in zip(plan.claims, baseline.claims, strict=False):
        if (layout(own), epilogue(own)) != (layout(usual), epilogue(usual)):
            raise UsageError(f"this is no schedule of {name}: it takes {own.text}; {name} takes {usual.text}")


def layout(claim: Claim) -> tuple[bool, ...]:
    """Which operands of a claim's product are stored transposed, in the order of its text."""
    product = next((part for part in walk(claim.value) if isinstance(part, Product)), claim.value)
    return tuple(operand.transposed for operand in operands(product))


def epilogue(claim: Claim) -> tuple[str, ...]:
    """The sums and functions of a claim."""
    parts = (part for part in walk(claim.value) if isinstance(part, Added | Applied))
    return tuple(part.function if isinstance(part, Applied) else "+" for part in parts)


def _unbiased(value: ClaimValue) -> ClaimValue:
    """Without sums that add one row to every row."""
    match value:
        case Added(left=left, right=Operand(regions=regions)) if len(regions[0].shape) == 1:
            return _unbiased(left)
        case Combined(operand=operand):
            return replace(value, operand=_unbiased(operand))
    return value


def _bare(step: Multiplication | Exchange | None) -> object:
    return replace(step, least=step.item) if isinstance(step, Exchange) else step


def _words(step: Multiplication | Exchange | None) -> str:
    """`an all_gather of elements of 2 bytes, 64 on rank 0, 0 on rank 1`."""
    match step:
        case None:
            return "nothing"
        case Multiplication(shapes=shapes, dtype=dtype, result=result):
            sizes = [" × ".join(map(str, shape)) for shape in shapes]
            return f"a product of {dtype} to {result}, m × n × k = {_of_ranks(sizes)}"
        case Exchange(kind=kind, parts=parts, item=item):
            counts = [str(part if isinstance(part, int) else list(part)) for part in parts]
            article = "an" if kind.startswith("a") else "a"
            return f"{article} {kind} of elements of {item} bytes, {_of_ranks(counts)}"


def _of_ranks(words: Sequence[str]) -> str:
    """What the ranks have, once if that is the same for all."""
    if len(set(words)) == 1:
        return f"{words[0]} on each rank"
    shown = [f"{word} on rank {rank}" for rank, word in enumerate(words[:4])]
    return ", ".join(shown) + (", …" if len(words) > 4 else "")


def _times(plan: Plan | Graph) -> Fraction:
    """How often each element of the claimed outputs is written anew, on average; what is added to them does not
    count."""
    outputs = {t.name: t for t in plan.tensors if t.kind == "output" and not is_scales(t.name)}
    bodies = plan.parts() if isinstance(plan, Plan) else (op.body for op in plan.ops)
    made = 0
    for body in bodies:
        for region in body.writes:
            if region.tensor in outputs and (region.tensor, region.rank) not in {
                (r.tensor, r.rank) for r in body.reads
            }:
                made += region.elements
    held = sum(prod(shape) for tensor in outputs.values() for shape in tensor.shapes)
    return max(Fraction(1), Fraction(made, max(1, held)))


_Steps: TypeAlias = dict[object, Multiplication | Exchange]  # by what in the claim they make


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one claim. `own` is the type of its output, `admitted` the bytes of the narrowest type that it admits."""

    shapes: Callable[[ClaimValue], Shapes]
    dtypes: Mapping[str, Dtype]
    own: Dtype
    admitted: int

    def ways(self, value: ClaimValue) -> Iterator[tuple[str, _Steps]]:
        """What each sends in words, and its steps. The usual way first; another one only where the whole claim has the
        form that has one."""
        yield "", dict(self._usual(value))
        value = _unbiased(value)
        match value:
            case Product(left=Combined(kind="all_gather", axis=0, operand=Operand() as left), right=Operand() as right):
                sent = f"sending {_name(right)} and products in place of {_name(left)}"
                yield sent, dict(self._other_of_gathered(value, left, right))
            case Combined(kind=kind, axis=axis, operand=Product(left=Operand() as left, right=Operand() as right)):
                names = " and ".join(dict.fromkeys((_name(left), _name(right))))
                if kind == "all_reduce":
                    sent = f"sending {names} and finished rows in place of sums"
                    yield sent, dict(self._other_of_reduced(value, left, right, None))
                elif kind == "reduce_scatter" and axis == 0 and value.shares:
                    sent = f"sending {names} in place of products"
                    yield sent, dict(self._other_of_reduced(value, left, right, value.shares[0]))

    def _usual(self, value: ClaimValue) -> Iterator[tuple[object, Multiplication | Exchange]]:
        match value:
            case Product(left=left, right=right):
                yield from self._usual(left)
                yield from self._usual(right)
                shapes = [(*a, b[1]) for a, b in zip(*self._of(left, right), strict=True)]
                yield value, self._product((left, right), shapes)
            case Added() | Applied():  # sums and functions do not count
                for part in parts(value):
                    yield from self._usual(part)
            case Combined(operand=operand):
                yield from self._usual(operand)
                yield _untransposed(value), self._exchange(value.kind, _parts(value, self.shapes(operand)), operand)

    def _other_of_gathered(
        self, value: Product, left: Operand, right: Operand
    ) -> Iterator[tuple[object, Multiplication | Exchange]]:
        """Every rank multiplies its rows with all of the right operand, and sends the others their columns."""
        mine, theirs = self._of(left, right)
        columns = [n for _, n in theirs]
        yield (value, "right"), self._exchange("all_gather", tuple(k * n for k, n in theirs), right)
        yield value, self._product((left, right), [(m, k, sum(columns)) for m, k in mine])
        yield (value, "result"), self._exchange("all_to_all", tuple(tuple(m * n for n in columns) for m, _ in mine))

    def _other_of_reduced(
        self, value: Combined, left: Operand, right: Operand, rows: Sequence[int] | None
    ) -> Iterator[tuple[object, Multiplication | Exchange]]:
        """Every rank makes its rows of the whole product; in an all_reduce it then sends them to all."""
        mine, theirs = self._of(left, right)
        cut = _even(mine[0][0], len(mine)) if rows is None else tuple(rows)
        depth, columns = sum(k for _, k in mine), theirs[0][1]
        yield (value, "left"), self._exchange("all_to_all", tuple(tuple(m * k for m in cut) for _, k in mine), left)
        yield (value, "right"), self._exchange("all_gather", tuple(k * n for k, n in theirs), right)
        yield value, self._product((left, right), [(m, depth, columns) for m in cut])
        if rows is None:
            yield (value, "result"), self._exchange("all_gather", tuple(m * columns for m in cut))

    def _product(self, operands: Sequence[ClaimValue], shapes: Sequence[tuple[int, ...]]) -> Multiplication:
        """Of (m, k, n) on each rank, in the narrower type of the operands: to this one the other is rounded."""
        dtype = min(map(self._dtype, operands), key=lambda dtype: TYPES[dtype].bytes)
        return Multiplication(tuple((m, n, k) for m, k, n in shapes), dtype, self.own)

    def _exchange(self, kind: CollectiveKind, parts: Parts, of: ClaimValue | None = None) -> Exchange:
        item = TYPES[self.own if of is None else self._dtype(of)].bytes
        return Exchange(kind, parts, item, min(item, self.admitted))

    def _dtype(self, value: ClaimValue) -> Dtype:
        match value:
            case Operand(regions=regions):
                return self.dtypes[regions[0].tensor]
            case Combined(operand=operand):
                return self._dtype(operand)
            case _:
                return self.own

    def _of(self, left: ClaimValue, right: ClaimValue) -> tuple[Shapes, Shapes]:
        return self.shapes(left), self.shapes(right)


def _untransposed(value: Combined) -> Combined:
    """The gather that brings the same elements: `all_gather(X, rows)` for `all_gather(X.T, cols)`."""
    match value:
        case Combined(kind="all_gather", operand=Operand(transposed=True) as operand):
            return replace(value, operand=replace(operand, transposed=False), axis=1 - value.axis)
    return value


def _name(operand: Operand) -> str:
    return operand.regions[0].tensor


def _parts(value: Combined, shapes: Shapes) -> Parts:
    """See `Exchange.parts`; `shapes` are those of the operand."""
    at = axis_of(value, len(shapes[0]))
    sizes = [prod(shape) for shape in shapes]
    across = [size // shape[at] if size else 0 for size, shape in zip(sizes, shapes, strict=True)]
    match value.kind:
        case "all_gather":
            return tuple(sizes)
        case "all_reduce":
            return _even(sizes[0], len(shapes))
        case "reduce_scatter":
            assert value.shares is not None
            return tuple(n * across[0] for n in value.shares[0])
        case _:
            assert value.shares is not None
            return tuple(tuple(n * width for n in own) for own, width in zip(value.shares, across, strict=True))


def _even(size: int, ranks: int) -> tuple[int, ...]:
    """Cut in as many parts, of which two differ by one at most."""
    return tuple(size * (i + 1) // ranks - size * i // ranks for i in range(ranks))
