"""Which streamed stages of a rank go out as one launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from ..graph import ir
from .draft import Draft, LaunchChoice

Choose: TypeAlias = Callable[[list[int]], LaunchChoice | str]
Works: TypeAlias = tuple[int, list[int]]  # a stage, and its ops on one rank


def joined(draft: Draft, choose: Choose) -> Mapping[tuple[int, int], tuple[int, int]]:
    """Streamed products right behind one another on a queue are one launch: a stage's index and rank, and those that
    the launch begins with. It has one last wave, and multiprocessors that have done their part of a stage go on with
    the next one's; every work waits for its own flags, raised by what stands before it in the text, as it would in a
    launch of its stage.

    Not where a stage waits for another one as a whole, or is waited for so: that is a launch's begin or end. Nor where
    it needs what the launch itself makes or reads: launches behind one another have that for nothing, works of one
    launch by flags. Nor where anything of the rank stands on another queue of multiprocessors, which the launch would
    keep. Nor where their widths differ, by one of which the tiles are chosen, or they are not all of one kind of
    kernel, by what `choose` says of each and of all together.
    """
    graph = draft.graph
    engines = {q.name: q.engine for q in graph.queues}
    works: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))  # by rank and stage
    for i in draft.order:
        where = graph.ops[i].where
        if engines[graph.stages[where.stage].queue] != "copy":
            works[where.rank][where.stage].append(i)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, stages in works.items():
        if len({graph.stages[s].queue for s in stages}) > 1:
            continue
        for run in _runs(graph, list(stages.items())):
            for launch in _launches(run, choose):
                head = launch[0][0], rank
                found.update(((s, rank), head) for s, _ in launch[1:])
    return found


def _runs(graph: ir.Graph, stages: Sequence[Works]) -> Iterator[list[Works]]:
    """Stages behind one another that the text lets be one launch; of one stage, too."""
    awaited = {s for stage in graph.stages for s in stage.after}
    run: list[Works] = []
    made: set[int] = set()  # the run's ops
    for s, ops in stages:
        goes_on = (
            bool(run)
            and not graph.stages[s].after
            and _asked(graph, ops) == _asked(graph, run[0][1])
            and made.isdisjoint(d.before for i in ops for d in graph.deps[i])
        )
        if run and not goes_on:
            yield run
            run, made = [], set()
        if graph.stages[s].streamed and s not in awaited and all(isinstance(graph.ops[i].body, ir.Gemm) for i in ops):
            run.append((s, ops))
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


def _launches(run: Sequence[Works], choose: Choose) -> Iterator[Sequence[Works]]:
    """The run's launches, each as long as kernels of one kind take it."""

    def kind(works: Sequence[Works]) -> str | None:
        choice = choose(list(chain.from_iterable(ops for _, ops in works)))
        return None if isinstance(choice, str) else choice.kernel.split("_gemm")[0]

    kinds = [kind([works]) for works in run] if len(run) > 1 else [None]
    at = 0
    while at < len(run):

        def fits(count: int, at: int = at) -> bool:
            return {*kinds[at : at + count], kind(run[at : at + count])} == {kinds[at]} != {None}

        count = _longest(fits, len(run) - at)
        yield run[at : at + count]
        at += count


def _longest(fits: Callable[[int], bool], most: int) -> int:
    """The longest count up to `most` that fits, as one does. What fits is asked of few: each is as long as it takes."""
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
