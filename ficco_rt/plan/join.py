"""Which streamed stages of a rank go out as one launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..graph import ir
from .draft import Draft, LaunchChoice

Choose: TypeAlias = Callable[[list[int]], LaunchChoice | str]


def joined(draft: Draft, choose: Choose) -> Mapping[tuple[int, int], tuple[int, int]]:
    """Streamed products right behind one another on a queue are one launch: a stage's index and rank, and those that
    the launch begins with. It has one last wave, and multiprocessors that have done their part of a stage go on with
    the next one's; every work waits for its own flags, raised by what stands before it in the text, as it would in a
    launch of its stage.

    Not where a stage waits for another one as a whole, or is waited for so: that is a launch's begin or end. Nor where
    anything of the rank stands on another queue of multiprocessors, which the launch would keep. Nor where they are
    not all of one kind of kernel, by what `choose` says of their ops and of all together.
    """
    graph = draft.graph
    engines = {q.name: q.engine for q in graph.queues}
    awaited = {s for stage in graph.stages for s in stage.after}
    works: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))  # by rank and stage
    for i in draft.order:
        where = graph.ops[i].where
        if engines[graph.stages[where.stage].queue] != "copy":
            works[where.rank][where.stage].append(i)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, stages in works.items():
        if len({graph.stages[s].queue for s in stages}) > 1:
            continue
        head: int | None = None
        launch: list[int] = []
        for s, ops in stages.items():
            stage = graph.stages[s]
            streamed = stage.streamed and s not in awaited and all(isinstance(graph.ops[i], ir.Gemm) for i in ops)
            if streamed and head is not None and not stage.after and _alike(draft, choose, launch, ops):
                found[s, rank] = (head, rank)
                launch = launch + ops
            else:
                head, launch = (s, ops) if streamed else (None, [])
    return found


def _alike(draft: Draft, choose: Choose, launch: list[int], more: list[int]) -> bool:
    """Does the text say the same of both, and are both, and the whole, of kernels of one kind?"""
    a, b = (draft.graph.ops[works[0]].where.resources for works in (launch, more))
    if a != b:
        return False
    choices = [choose(works) for works in (launch, more, launch + more)]
    return len({None if isinstance(c, str) else c.kernel.split("_gemm")[0] for c in choices}) == 1
