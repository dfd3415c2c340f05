"""Pass: joins streamed stages of a rank into one launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph import ir
from ..graph.budget import WORKS, Budget
from ..kernels.families import FAMILIES, fitting
from ..kernels.family import Family, GemmRequest
from ..kernels.works import kernel_work, symbolic
from .draft import Draft, LaunchKey


@dataclass(frozen=True, slots=True)
class _Works:
    """The ops of a stage (its index) on one rank."""

    stage: int
    ops: tuple[int, ...]


def fuse(draft: Draft) -> Draft:
    """Join streamed products that follow each other on a queue into one launch.

    One launch has one last wave instead of several, and a multiprocessor that has finished its part of a stage goes on
    with the next stage. Each work waits for its own flags, exactly as it would in a launch of its own stage. Earlier
    text raises these flags.

    Stages stay apart where

    - one stage waits for the other as a whole, or is waited for as a whole: only a launch begins or ends as a whole;
    - a stage needs what the launch itself writes or reads: between two launches stream order is free, inside one launch
      every such dependency takes a flag;
    - another queue of the rank uses multiprocessors: the longer launch would keep them;
    - their products differ in width, which decides the tiles; or no single family of kernels takes each stage alone and
      all of them together.
    """
    graph, arch, look = draft.graph, draft.machine.device.arch, symbolic(draft.graph.tensors)
    best = next(family for family in FAMILIES if family.serves(arch))
    engines = {q.name: q.engine for q in graph.queues}
    budget = Budget(WORKS)

    def family(some: Sequence[_Works]) -> Family[Any]:
        budget.spend(sum(len(works.ops) for works in some), graph.ops[some[0].ops[0]].where.origin)
        bodies = (graph.ops[i].body for works in some for i in works.ops)
        return fitting(GemmRequest(tuple(kernel_work(g, look) for g in bodies if isinstance(g, ir.Gemm))), arch)

    def alike(some: Sequence[_Works]) -> bool:
        """Whether the family that takes all works together would also take each stage alone. The best family does."""
        joint = family(some)
        return joint is best or all(family([works]) is joint for works in some)

    works: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))  # by rank and stage
    for i in draft.order:
        where = graph.ops[i].where
        if engines[graph.stages[where.stage].queue] != "copy":
            works[where.rank][where.stage].append(i)
    fused: dict[LaunchKey, LaunchKey] = {}
    for rank, stages in works.items():
        if len({graph.stages[s].queue for s in stages}) > 1:
            continue
        for run in _runs(graph, [_Works(s, tuple(ops)) for s, ops in stages.items()]):
            for launch in _launches(run, alike):
                head = LaunchKey(launch[0].stage, rank)
                fused.update((LaunchKey(works.stage, rank), head) for works in launch[1:])

    def launch_of(op: ir.Op) -> LaunchKey | None:
        if not graph.stages[op.where.stage].streamed:
            return None
        key = LaunchKey(op.where.stage, op.where.rank)
        return fused.get(key, key)

    return replace(draft, launch_of=tuple(map(launch_of, graph.ops)))


def _runs(graph: ir.Graph, stages: Sequence[_Works]) -> Iterator[list[_Works]]:
    """Groups of consecutive stages that the text allows to be one launch. A group may be a single stage."""
    awaited = {s for stage in graph.stages for s in stage.after}
    run: list[_Works] = []
    made: set[int] = set()  # the run's ops
    for works in stages:
        stage, ops = graph.stages[works.stage], works.ops
        goes_on = (
            bool(run)
            and not stage.after
            and _asked(graph, ops) == _asked(graph, run[0].ops)
            and made.isdisjoint(d.before for i in ops for d in graph.deps[i])
        )
        if run and not goes_on:
            yield run
            run, made = [], set()
        products = all(isinstance(graph.ops[i].body, ir.Gemm) for i in ops)
        if stage.streamed and works.stage not in awaited and products:
            run.append(works)
            made.update(ops)
        elif run:
            yield run
            run, made = [], set()
    if run:
        yield run


def _asked(graph: ir.Graph, ops: Sequence[int]) -> tuple[ir.Resources, int]:
    """What the text says of a launch: its resources, and how wide its products are."""
    widths = [g.out.shape[-1] for i in ops if isinstance(g := graph.ops[i].body, ir.Gemm)]
    return graph.ops[ops[0]].where.resources, max(widths, default=0)


def _launches(run: Sequence[_Works], alike: Callable[[Sequence[_Works]], bool]) -> Iterator[Sequence[_Works]]:
    """The run's launches, each as long as one family takes it."""
    at = 0
    while at < len(run):

        def fits(count: int, at: int = at) -> bool:
            return alike(run[at : at + count])

        count = _longest(fits, len(run) - at)
        yield run[at : at + count]
        at += count


def _longest(fits: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` that fits; a count of 1 always does. The search asks rarely, since each question
    costs time in proportion to its count."""
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
