"""A plan's repeats: each on fresh data, on streams and as a graph, held against a reference that other plans share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, isnan
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import numpy as np

from ficco_rt.errors import NumbersError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import InputValues, quantizations
from ficco_rt.exec.reference import take
from ficco_rt.exec.rounding import Allowance, allowances, of_integers
from ficco_rt.graph.ir import Claim
from tests.gpu.rows import Sizes

Outputs: TypeAlias = dict[str, list[Any]]  # by tensor: one array a rank
NORMAL_EVERY = {"small": 1, "real": 10}  # of the repeats on exact data, how many for each on normal data


@dataclass(frozen=True, slots=True)
class Draw:
    """Which random inputs."""

    seed: int
    values: InputValues

    def __str__(self) -> str:
        return f"{self.values} data, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Reference:
    """A claim's value: one array a rank. `exact`: an output must be equal to it, and it is of the output's type."""

    arrays: Sequence[Any]
    largest: float  # of all ranks' magnitudes
    exact: bool


class Data(Protocol):
    """Inputs, kept by draw or made anew, and the references of what plans with equal `likeness` claim."""

    def join(self, parts: list[Any], axis: int) -> Any:
        """End to end."""

    def attach(self, executor: Executor) -> None:
        """What follows is for this executor."""

    def load(self, draw: Draw) -> None:
        """The executor's inputs are the draw's."""

    def run(self, *, graph: bool) -> Outputs:
        """Run on outputs and scratch full of NaN. What was given out before stays as it is, but for a graph's."""

    def references(self, draw: Draw) -> Sequence[Reference]:
        """For each claim, with the draw's inputs loaded."""

    def same(self, pairs: Iterable[tuple[Any, Any]]) -> bool:
        """Whether all bits are."""

    def off(self, got: Any, wanted: Any) -> Any:
        """|got − wanted|, computed in float32 or wider."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of all repeats: the largest relative error and the tolerance, microseconds on the devices at best."""

    error: float
    tolerance: float
    streams: float
    graph: float


@dataclass(slots=True)
class Spent:
    """Seconds by what they went into."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        begun = perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + perf_counter() - begun

    def __str__(self) -> str:
        return ", ".join(f"{what} {seconds:.0f} s" for what, seconds in self.seconds.items())


def draws(sizes: Sizes, repeats: int) -> Iterator[Draw]:
    """Integers for each repeat, and normal data beside the first, and every 10th at real sizes."""
    for seed in range(repeats):
        yield Draw(seed, "exact")
        if seed % NORMAL_EVERY[sizes] == 0:
            yield Draw(seed, "normal")


def check(executor: Executor, data: Data, todo: Iterable[Draw], spent: Spent) -> Facts:
    """Run the plan on every draw. NumbersError: a result is wrong, or a graph's differs; what running raises."""
    plan = executor.plan
    limits: dict[InputValues, list[Allowance]] = {"normal": allowances(plan)}
    limits["exact"] = of_integers(plan) if quantizations(plan) else limits["normal"]  # of sums that no type holds
    error = limit = 0.0
    best = {False: inf, True: inf}

    def run(graph: bool) -> Outputs:
        with spent.on("runs"):
            outputs = data.run(graph=graph)
            best[graph] = min(best[graph], executor.duration)
        return outputs

    with spent.on("executors"):
        data.attach(executor)
        executor.timed = True
    for draw in todo:
        with spent.on("data"):
            data.load(draw)
        with spent.on("references"):
            references = data.references(draw)
        outputs = run(graph=False)
        with spent.on("comparing"):
            for claim, reference, bound in zip(plan.claims, references, limits[draw.values], strict=True):
                allowed = 0.0 if reference.exact or not reference.largest else bound.random / reference.largest
                error = max(error, compare(data, claim, reference, outputs, allowed, draw))
                limit = max(limit, allowed)
        replayed = run(graph=True)
        with spent.on("comparing"):
            pairs = {(n, r): (a, replayed[n][r]) for n, arrays in outputs.items() for r, a in enumerate(arrays)}
            if not data.same(pairs.values()):
                name, rank = next(at for at, pair in pairs.items() if not data.same([pair]))
                raise NumbersError(f"{name} of rank {rank}: the graph's result differs ({draw})")
    return Facts(error, limit, best[False], best[True])


def compare(data: Data, claim: Claim, reference: Reference, outputs: Outputs, allowed: float, draw: Draw) -> float:
    """max|C − R| / max|R| over all ranks; NumbersError if it is more than allowed, or something is NaN."""
    parts = [take(outputs[t.tensor][t.rank], t, data.join) for t in claim.targets]
    if reference.exact and data.same(zip(parts, reference.arrays, strict=True)):
        return 0.0
    error, where = 0.0, ""
    for target, got, wanted in zip(claim.targets, parts, reference.arrays, strict=True):
        if 0 in got.shape:
            continue
        off = data.off(got, wanted)
        at = tuple(int(i) for i in np.unravel_index(int(off.argmax()), tuple(off.shape)))
        place = f"{target.tensor} of rank {target.rank}, {list(at)}"
        if isnan(float(off[at])):
            raise NumbersError(f"{place}: NaN, never written; wanted {float(wanted[at]):.6g} ({draw})")
        if float(off[at]) > error:
            error, where = float(off[at]), f"{place}: {float(got[at]):.6g}, wanted {float(wanted[at]):.6g}"
    relative = error / reference.largest if reference.largest else (inf if error else 0.0)
    if relative > allowed:
        raise NumbersError(f"{where}; relative error {relative:.2e}, allowed {allowed:.2e} ({draw})")
    return relative
