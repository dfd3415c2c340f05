"""Verifies that a run computes what its schedule claims, with fresh inputs, poisoned buffers and an independent
reference.

Runs are compared on up to three kinds of data. On integers so small that nothing rounds, the result must be equal, so
that no tolerance can hide a missing or doubled term. On normal random data, the error must stay within what the plan's
own roundings add up to. If the plan rounds partial sums, data of one sign is used as well, which reveals partial sums
that stop growing or overflow their type. If roundings may change the result by more than the share `USEFUL`, the error
may still be no more than this share.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

import numpy as np

from ..driver.api import Array, OnProgress
from ..errors import NumbersError
from ..geometry.region import Box, Region, describe
from ..graph.claim_values import finished, functions
from ..graph.functions import OWN
from ..graph.ir import Claim
from ..graph.noise import USEFUL, useful
from ..graph.scales import is_scales, name_of, spread
from ..plan.ir import Plan
from ..types import TYPES
from .executor import Executor
from .inputs import InputValues, exact_limit, fresh_inputs, largest, largest_one_signed, plain
from .projection import project, times, vectors
from .reference import DOUBLE_OPERATIONS, Inputs, evaluate, extent, take
from .rounding import Allowance, allowances, of_integers

RUNNING = 0.6  # of the time of a verified run on the host, about; the rest is comparing

Outputs: TypeAlias = Mapping[str, Mapping[int, Array]]  # by tensor and rank


@dataclass(frozen=True, slots=True)
class Worst:
    """The element with the largest error; NaN if nothing was written there."""

    tensor: str
    rank: int
    index: tuple[int, ...]
    got: float
    wanted: float | None  # None where nothing is claimed

    def __str__(self) -> str:
        where = f"{self.tensor} of rank {self.rank}, {describe(Box(self.index, tuple(i + 1 for i in self.index)))}"
        if np.isnan(self.got):
            return f"{where}: NaN, never written" + ("" if self.wanted is None else f"; wanted {self.wanted:.6g}")
        return f"{where}: {self.got:.6g}, wanted {self.wanted:.6g}"


@dataclass(frozen=True, slots=True)
class Verification:
    """`rel_err` is max|C − R| / max|R| over all ranks of the claim that comes closest to its tolerance, or
    passes it furthest; inf if an element was never written, None if nothing is claimed. `unproven` outputs
    have no claim: they were looked through for NaN and not compared."""

    ok: bool
    rel_err: float | None
    tolerance: float
    worst: Worst | None  # None if nothing was compared element by element
    unproven: tuple[str, ...]
    integers: bool | None = None  # whether the run on integers gave what is claimed; None: there was none
    alone: InputValues | None = None  # the one run that was asked for; None: all, or the one that there is
    one_signed: Verification | None = None  # the run on data of one sign; None: there was none
    allowance: float = (
        0.0  # the share of a result that roundings may take on data of one sign, of all claims the most; 0
    )
    # if integers alone were run
    useful: float = USEFUL  # the share up to which an error says that the result is right; more if claims admit fp8

    @property
    def correct(self) -> bool:
        """Whether the numbers are right. False if roundings may take more than is `useful` of the result: an error
        within such an allowance proves nothing."""
        return self.ok and self.allowance <= self.useful


def verified_run(
    executor: Executor, *, seed: int = 0, values: InputValues | None = None, progress: OnProgress | None = None
) -> Verification:
    """Run the executor's plan on fresh inputs in the executor's own buffers, and compare.

    Outputs and scratch are filled with NaN before: what is never written, or read too early, shows.
    There are runs on the plan's integers, on data of one sign if the plan rounds partial sums, and on normal data
    (see `fresh_inputs`); `values` asks for one of them alone. Where nothing is claimed, there is one, on normal data.

    In a group each process looks at its own ranks, and all get the verdict of all.

    Raises what `Executor.run` raises. Wrong numbers are no error here but a result.
    """
    if values is not None or not executor.plan.claims:
        found = _one_run(executor, seed, values or "normal", progress)
        integers = found.ok if values == "exact" and executor.plan.claims else None
        return replace(found, integers=integers, alone=values)
    allowed = allowances(executor.plan)
    kinds: list[InputValues] = ["exact", "normal"]  # the last one is the run that counts as the timed one
    if any(allowance.partial for allowance in allowed):
        kinds.insert(1, "one-signed")
    runs = {
        kind: _one_run(executor, seed, kind, _part(progress, i / len(kinds), (i + 1) / len(kinds)), allowed)
        for i, kind in enumerate(kinds)
    }
    worst = next((run.worst for run in runs.values() if not run.ok), runs["normal"].worst)
    ok = all(run.ok for run in runs.values())
    one_signed = runs.get("one-signed")
    return replace(runs["normal"], ok=ok, worst=worst, integers=runs["exact"].ok, one_signed=one_signed)


def _part(progress: OnProgress | None, start: float, stop: float) -> OnProgress | None:
    """Tells of a part of something as of that part of the whole."""
    return None if progress is None else lambda part: progress(start + (stop - start) * part)


def write_inputs(executor: Executor, seed: int = 0, values: InputValues = "normal") -> Inputs:
    """Writes `fresh_inputs` of the executor's ranks. Returns those of all ranks."""
    inputs = fresh_inputs(executor.plan, seed, values)
    for name, arrays in inputs.items():
        for rank in executor.ranks:
            executor.write(name, rank, arrays[rank])
    return inputs


def _one_run(
    executor: Executor,
    seed: int,
    values: InputValues,
    progress: OnProgress | None,
    allowed: Sequence[Allowance] | None = None,
) -> Verification:
    plan = executor.plan
    inputs = write_inputs(executor, seed, values)
    executor.poison()
    executor.run(progress=_part(progress, 0.0, RUNNING))
    if progress is not None:
        progress(RUNNING)
    outputs = {
        t.name: {rank: executor.read(t.name, rank) for rank in executor.ranks}
        for t in plan.tensors
        if t.kind == "output"
    }
    begun = time.monotonic()
    mine = look(plan, inputs, outputs, values)
    if progress is not None:
        progress(1.0)
    return verdict(plan, values, _of_all(executor, mine, time.monotonic() - begun), allowed)


def _of_all(executor: Executor, mine: Look, took: float = 0.0) -> list[Look]:
    """What every process has seen. It `took` this one so many seconds; another one may have more to look at."""
    if executor.group is None:
        return [mine]
    timeout = None if executor.timeout is None else executor.timeout + 10 * took
    told = executor.group.exchange(pickle.dumps(mine), timeout, "the verdict on a run")
    return [pickle.loads(data) for data in told]


def check_replay(executor: Executor) -> None:
    """Run the plan once more, on the same inputs and poisoned outputs, as a graph: NumbersError unless every bit of
    every output is as the last run on streams left it. Kernels sum in a fixed order, so nothing may differ."""
    names = [(t.name, rank) for t in executor.plan.tensors if t.kind == "output" for rank in executor.ranks]
    before = {key: executor.read(*key) for key in names}
    executor.poison()
    executor.graph = True
    executor.run()
    mine = Look(next(_differing(executor, before), None), ())
    worst = next((seen.hole for seen in _of_all(executor, mine) if seen.hole is not None), None)
    if worst is not None:
        raise NumbersError(f"the replayed graph differs from the run on streams: {worst}")


def _differing(executor: Executor, before: Mapping[tuple[str, int], Array]) -> Iterator[Worst]:
    for (name, rank), wanted in before.items():
        got = executor.read(name, rank)
        bits = np.dtype(f"u{got.dtype.itemsize}")
        differs = got.view(bits) != wanted.view(bits)
        if differs.any():
            index = tuple(int(i) for i in np.unravel_index(int(differs.argmax()), differs.shape))
            yield Worst(name, rank, index, float(got[index]), float(wanted[index]))


@dataclass(frozen=True, slots=True)
class Compared:
    """What some ranks' outputs say of a claim. `worst`: None where they are right by their products with vectors."""

    error: float  # the largest |C − R|
    largest: float  # max|R|
    worst: Worst | None


@dataclass(frozen=True, slots=True)
class Look:
    """What some ranks' outputs say: an element that was never written (of replays: one that differs), or each claim's
    comparison."""

    hole: Worst | None
    claims: tuple[Compared, ...]


def compare(
    plan: Plan, inputs: Inputs, outputs: Mapping[str, Sequence[Array]], values: InputValues = "normal"
) -> Verification:
    """The outputs (one array a rank) against the claims, for `fresh_inputs`."""
    by_rank = {name: dict(enumerate(arrays)) for name, arrays in outputs.items()}
    return verdict(plan, values, [look(plan, inputs, by_rank, values)])


def look(plan: Plan, inputs: Inputs, outputs: Outputs, values: InputValues) -> Look:
    """The outputs of some ranks against the claims, for `fresh_inputs` of all."""
    hole = next(_never_written(outputs), None)
    if hole is not None:
        return Look(hole, ())
    inputs, found = plain(plan, inputs), dict(outputs)
    for tensor in (t for t in plan.tensors if t.name in outputs and t.scaling is not None):
        by = outputs[name_of(tensor.name)]
        found[tensor.name] = {r: a.astype(np.float32) * spread(by[r], a.shape) for r, a in outputs[tensor.name].items()}
    outputs = found
    return Look(None, tuple(_compared(plan, claim, inputs, outputs, values) for claim in plan.claims))


def verdict(
    plan: Plan, values: InputValues, looks: Sequence[Look], allowed: Sequence[Allowance] | None = None
) -> Verification:
    """The result of all ranks' outputs; `allowed` are the `allowances` of the plan, where they are known."""
    claimed = {target.tensor for claim in plan.claims for target in claim.targets}
    outputs = (t.name for t in plan.tensors if t.kind == "output" and not is_scales(t.name))
    unproven = tuple(name for name in outputs if name not in claimed)
    hole = next((seen.hole for seen in looks if seen.hole is not None), None)
    if hole is not None:
        return Verification(False, inf, 0.0, hole, unproven)
    if values == "exact":  # whatever roundings allow
        allowed = of_integers(plan)
    elif allowed is None:
        allowed = allowances(plan)
    most = max((allowance.one_sign for allowance in allowed), default=0.0)
    result = Verification(True, None, 0.0, None, unproven, allowance=most)
    for number, (claim, allowance) in enumerate(zip(plan.claims, allowed, strict=True)):
        limit = allowance.random
        if values == "one-signed":
            limit = allowance.one_sign * _all_largest(plan, claim)
        most_useful = useful(claim.within, allowance.fast)
        capped = values == "one-signed" or allowance.one_sign > most_useful
        found = _judged([seen.claims[number] for seen in looks], limit, most_useful if capped else inf)
        if result.rel_err is None or (result.ok, -_share(result)) > (found.ok, -_share(found)):
            result = replace(found, unproven=unproven, allowance=most)
    known = zip(plan.claims, allowed, strict=True)
    return replace(result, useful=max((useful(claim.within, one.fast) for claim, one in known), default=USEFUL))


def _all_largest(plan: Plan, claim: Claim) -> float:
    """The result where every one-signed input is as large as may be. No partial sum of others passes its part of it, so
    that no rounding is larger than the one there."""
    return largest(claim.value, largest_one_signed(plan))


def _judged(parts: Sequence[Compared], limit: float, most: float) -> Verification:
    """A claim; `limit` is what |C − R| may be, but no more than the share `most` of max|R|."""
    compared = [part for part in parts if part.worst is not None]
    if not compared:
        return Verification(True, 0.0, 0.0, None, ())
    furthest = max(compared, key=lambda part: part.error)  # the first of these
    error, largest = furthest.error, max(part.largest for part in compared)
    limit = min(limit, most * largest) if limit else 0.0
    relative = error / largest if largest else (inf if error else 0.0)
    return Verification(error <= limit, relative, limit / largest if largest else 0.0, furthest.worst, ())


def _compared(plan: Plan, claim: Claim, inputs: Inputs, outputs: Outputs, values: InputValues) -> Compared:
    if functions(claim.value):  # no product with vectors comes through a function
        share = _stored(plan) if values == "exact" and finished(claim.value) else 0.0
        return _furthest(claim, _elements(claim, inputs, outputs), share)
    if extent(claim.value).operations > DOUBLE_OPERATIONS:
        if values == "exact" and _same_projected(plan, claim, inputs, outputs):
            return Compared(0.0, 0.0, None)
        if values == "one-signed":
            return _furthest(claim, _means(claim, inputs, outputs))
    return _furthest(claim, _elements(claim, inputs, outputs))


def _stored(plan: Plan) -> float:
    """The share that storing a function of a whole number may change, with the function's own error: outside of
    products only two stores round."""
    return 2 * max(TYPES[t.dtype].unit_roundoff for t in plan.tensors) + OWN


def _means(claim: Claim, inputs: Inputs, outputs: Outputs) -> Iterator[tuple[Region, Array, Array]]:
    """The means of the rows of a large result. What roundings take from elements of one sign they take from the mean
    as well."""
    shapes = extent(claim.value).shapes
    wanted = project(claim.value, [np.full((s[-1], 1), 1 / max(1, s[-1])) for s in shapes], inputs)
    for target, shape, mean in zip(claim.targets, shapes, wanted, strict=True):
        if target.rank in outputs[target.tensor] and mean.size:
            got = times(take(outputs[target.tensor][target.rank], target), np.full((shape[-1], 1), 1 / shape[-1]))
            yield target, got[:, 0], mean[:, 0]


def _same_projected(plan: Plan, claim: Claim, inputs: Inputs, outputs: Outputs) -> bool:
    """Whether large results are what is claimed, by their products with random vectors. What is larger than the
    plan's types hold exactly is not: its products with vectors would be rounded."""
    by = vectors(claim.value, len(claim.targets))
    limit = exact_limit(plan)
    parts: list[tuple[int, Array]] = []  # with their places among the claim's
    for number, target in enumerate(claim.targets):
        if target.rank in outputs[target.tensor]:
            # numpy looks through bf16 ten times as slowly as through fp32
            part = take(outputs[target.tensor][target.rank], target).astype(np.float32, copy=False)
            if part.size and not -limit <= part.min() <= part.max() <= limit:
                return False
            parts.append((number, part))
    wanted = project(claim.value, by, inputs)
    return all(np.array_equal(times(part, by[number]), wanted[number]) for number, part in parts)


def _share(verification: Verification) -> float:
    """How much of the tolerance is used."""
    assert verification.rel_err is not None
    return verification.rel_err / verification.tolerance if verification.tolerance else verification.rel_err


def _never_written(outputs: Outputs) -> Iterator[Worst]:
    for name, arrays in outputs.items():
        for rank, array in arrays.items():
            nan = np.isnan(array)
            if nan.any():
                index = np.unravel_index(int(np.argmax(nan)), array.shape)
                yield Worst(name, rank, tuple(map(int, index)), float("nan"), None)


def _elements(claim: Claim, inputs: Inputs, outputs: Outputs) -> Iterator[tuple[Region, Array, Array]]:
    """The result of each rank that is here, and what is claimed of it."""
    here = [number for number, target in enumerate(claim.targets) if target.rank in outputs[target.tensor]]
    for target, wanted in zip(claim.targets, evaluate(claim.value, inputs, of=here), strict=True):
        if wanted is not None:
            yield target, take(outputs[target.tensor][target.rank], target), wanted


def _furthest(claim: Claim, found: Iterable[tuple[Region, Array, Array]], share: float = 0.0) -> Compared:
    """The largest |C − R|, its place, and max|R|, of what was found and what is wanted in these regions. With a `share`
    what is up to this share of |R| is no difference."""
    error, largest = -1.0, 0.0
    worst = Worst(claim.targets[0].tensor, 0, (), 0.0, 0.0)  # of a claim on nothing
    for target, got, wanted in found:
        if not wanted.size:
            continue
        off = np.subtract(got, wanted, dtype=wanted.dtype)
        np.abs(off, out=off)
        if share:
            off = np.maximum(off - share * np.abs(wanted) - OWN, 0)
        at = np.unravel_index(int(off.argmax()), off.shape)
        largest = max(largest, float(wanted.max()), -float(wanted.min()))
        if float(off[at]) > error:
            error = float(off[at])
            index = _index(target, tuple(map(int, at)))
            worst = Worst(target.tensor, target.rank, index, float(got[at]), float(wanted[at]))
    return Compared(max(error, 0.0), largest, worst)


def _index(region: Region, logical: tuple[int, ...]) -> tuple[int, ...]:
    """Where an element of the region's logical coordinates, or a row of it, lies in the tensor."""
    index = []
    kept = iter(logical)
    for axis in region.axes:
        if axis.dropped:
            index.append(axis.segments[0].start)
            continue
        i = next(kept, -1)
        if i < 0:
            break
        for s in axis.segments:
            if i < s.size:
                index.append(s.start + i)
                break
            i -= s.size
    return tuple(index)
