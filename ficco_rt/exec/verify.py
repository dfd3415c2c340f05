"""Does a run compute what the schedule claims? Fresh inputs, poisoned buffers, an independent reference.

Two runs are compared. One is on integers with which nothing rounds, so that the result must be equal: a missing or
doubled term has nothing to hide behind. One is on normal random data, whose error must stay within what the plan's own
roundings add up to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from ..driver.api import Array, OnProgress
from ..errors import NumbersError
from ..graph.ir import Claim
from ..plan.ir import Plan
from ..region import Box, Region, describe
from .executor import Executor
from .inputs import InputValues, exact_limit, fresh_inputs
from .projection import project, times, vectors
from .reference import DOUBLE_OPERATIONS, Inputs, evaluate, extent, take
from .rounding import tolerances


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is furthest off; NaN where nothing was written."""

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
    alone: InputValues | None = None  # the one run that was asked for; None: both, or the one that there is


def verified_run(
    executor: Executor, *, seed: int = 0, values: InputValues | None = None, progress: OnProgress | None = None
) -> Verification:
    """Run the executor's plan on fresh inputs in the executor's own buffers, and compare.

    Outputs and scratch are filled with NaN before: what is never written, or read too early, shows.
    There are two runs, on the plan's integers and then on normal data (see `fresh_inputs`); `values` asks for one
    of them alone, "exact" or "normal". Where nothing is claimed, there is one, on normal data.

    Raises what `Executor.run` raises. Wrong numbers are no error here but a result.
    """
    if values is not None or not executor.plan.claims:
        found = _one_run(executor, seed, values or "normal", progress)
        integers = found.ok if values == "exact" and executor.plan.claims else None
        return replace(found, integers=integers, alone=values)
    exact = _one_run(executor, seed, "exact", progress)
    normal = _one_run(executor, seed, "normal", progress)
    shown = normal if exact.ok else replace(normal, worst=exact.worst)
    return replace(shown, ok=exact.ok and normal.ok, integers=exact.ok)


def _one_run(executor: Executor, seed: int, values: InputValues, progress: OnProgress | None) -> Verification:
    plan = executor.plan
    inputs = fresh_inputs(plan, seed, values)
    for name, arrays in inputs.items():
        for rank, array in enumerate(arrays):
            executor.write(name, rank, array)
    executor.poison()
    executor.run(progress=progress)
    outputs = {
        t.name: [executor.read(t.name, r) for r in range(plan.ranks)] for t in plan.tensors if t.kind == "output"
    }
    return compare(plan, inputs, outputs, values)


def check_replay(executor: Executor) -> None:
    """Run the plan once more, on the same inputs and poisoned outputs, as a graph: NumbersError unless every bit of
    every output is as the last run on streams left it. Kernels sum in a fixed order, so nothing may differ."""
    plan = executor.plan
    names = [(t.name, rank) for t in plan.tensors if t.kind == "output" for rank in range(plan.ranks)]
    before = {key: executor.read(*key) for key in names}
    executor.poison()
    executor.graph = True
    executor.run()
    for (name, rank), wanted in before.items():
        got = executor.read(name, rank)
        bits = np.uint16 if got.dtype.itemsize == 2 else np.uint32
        differs = got.view(bits) != wanted.view(bits)
        if differs.any():
            index = tuple(int(i) for i in np.unravel_index(int(differs.argmax()), differs.shape))
            worst = Worst(name, rank, index, float(got[index]), float(wanted[index]))
            raise NumbersError(f"the replayed graph differs from the run on streams: {worst}")


def compare(
    plan: Plan, inputs: Inputs, outputs: Mapping[str, Sequence[Array]], values: InputValues = "normal"
) -> Verification:
    """The outputs (one array a rank) against the claims, for `fresh_inputs`."""
    claimed = {target.tensor for claim in plan.claims for target in claim.targets}
    unproven = tuple(t.name for t in plan.tensors if t.kind == "output" and t.name not in claimed)
    hole = next(_never_written(outputs), None)
    if hole is not None:
        return Verification(False, inf, 0.0, hole, unproven)
    limits = [0.0] * len(plan.claims) if values == "exact" else tolerances(plan)
    result = Verification(True, None, 0.0, None, unproven)
    for claim, limit in zip(plan.claims, limits, strict=True):
        found = _found(plan, claim, inputs, outputs, limit, values == "exact")
        if result.rel_err is None or (result.ok, -_share(result)) > (found.ok, -_share(found)):
            result = replace(found, unproven=unproven)
    return result


def _found(
    plan: Plan, claim: Claim, inputs: Inputs, outputs: Mapping[str, Sequence[Array]], limit: float, exact: bool
) -> Verification:
    """One claim; `limit` is what |C − R| may be."""
    if exact and extent(claim.value).operations > DOUBLE_OPERATIONS and _same_projected(plan, claim, inputs, outputs):
        return Verification(True, 0.0, 0.0, None, ())
    error, worst, largest = _worst(claim, inputs, outputs)
    relative = error / largest if largest else (inf if error else 0.0)
    return Verification(error <= limit, relative, limit / largest if largest else 0.0, worst, ())


def _same_projected(plan: Plan, claim: Claim, inputs: Inputs, outputs: Mapping[str, Sequence[Array]]) -> bool:
    """Whether large results are what is claimed, by their products with random vectors. What is larger than the
    plan's types hold exactly is not: its products with vectors would be rounded."""
    # numpy looks through bf16 ten times as slowly as through fp32
    parts = [take(outputs[t.tensor][t.rank], t).astype(np.float32, copy=False) for t in claim.targets]
    limit = exact_limit(plan)
    if any(part.size and not -limit <= part.min() <= part.max() <= limit for part in parts):
        return False
    by = vectors(claim.value, len(parts))
    wanted = project(claim.value, by, inputs)
    return all(np.array_equal(times(part, x), w) for part, x, w in zip(parts, by, wanted, strict=True))


def _share(verification: Verification) -> float:
    """How much of the tolerance is used."""
    assert verification.rel_err is not None
    return verification.rel_err / verification.tolerance if verification.tolerance else verification.rel_err


def _never_written(outputs: Mapping[str, Sequence[Array]]) -> Iterator[Worst]:
    for name, arrays in outputs.items():
        for rank, array in enumerate(arrays):
            nan = np.isnan(array)
            if nan.any():
                index = np.unravel_index(int(np.argmax(nan)), array.shape)
                yield Worst(name, rank, tuple(map(int, index)), float("nan"), None)


def _worst(claim: Claim, inputs: Inputs, outputs: Mapping[str, Sequence[Array]]) -> tuple[float, Worst, float]:
    """The largest |C − R|, its place, and max|R|."""
    error, largest = -1.0, 0.0
    worst = Worst(claim.targets[0].tensor, 0, (), 0.0, 0.0)  # of a claim on nothing
    for rank, (target, wanted) in enumerate(zip(claim.targets, evaluate(claim.value, inputs), strict=True)):
        got = take(outputs[target.tensor][target.rank], target)
        if not wanted.size:
            continue
        off = np.subtract(got, wanted, dtype=wanted.dtype)
        np.abs(off, out=off)
        at = np.unravel_index(int(off.argmax()), off.shape)
        largest = max(largest, float(wanted.max()), -float(wanted.min()))
        if float(off[at]) > error:
            error = float(off[at])
            index = _index(target, tuple(map(int, at)))
            worst = Worst(target.tensor, rank, index, float(got[at]), float(wanted[at]))
    return max(error, 0.0), worst, largest


def _index(region: Region, logical: tuple[int, ...]) -> tuple[int, ...]:
    """Where an element of the region's logical coordinates lies in the tensor."""
    index = []
    kept = iter(logical)
    for axis in region.axes:
        if axis.dropped:
            index.append(axis.segments[0].start)
            continue
        i = next(kept)
        for s in axis.segments:
            if i < s.size:
                index.append(s.start + i)
                break
            i -= s.size
    return tuple(index)
