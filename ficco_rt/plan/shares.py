"""Pass: gives each of several concurrent streamed launches its share of the multiprocessors."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..graph import ir
from ..kernels.catalogue import copy_sms
from .draft import Draft, LaunchKey


def share_multiprocessors(draft: Draft) -> Draft:
    """A streamed stage without `sms` gets the multiprocessors that streamed stages on the rank's other queues leave
    free; all of those must state `sms`. If anything else runs on these queues, its use of multiprocessors is unknown,
    and the stage gets no share."""
    graph, total = draft.graph, draft.machine.device.sms
    engines = {q.name: q.engine for q in graph.queues}
    queues = {stage.queue for stage in graph.stages if engines[stage.queue] != "copy"}
    if len(queues) < 2 or not any(stage.streamed for stage in graph.stages):
        return draft  # nothing is beside a streamed launch
    said: dict[LaunchKey, int | None] = {}  # as the stage's first statement says
    for i in draft.order:
        where = graph.ops[i].where
        said.setdefault(LaunchKey(where.stage, where.rank), where.resources.sms)
    copies = dict.fromkeys(said, True)
    for op in graph.ops:
        copies[LaunchKey(op.where.stage, op.where.rank)] &= isinstance(op.body, ir.Copy)
    taken: dict[int, dict[str, int | None]] = defaultdict(dict)  # by rank and queue, at most; None: nobody knows
    for key, sms in said.items():
        stage = graph.stages[key.stage]
        if engines[stage.queue] == "copy":
            continue
        sms = copy_sms(total) if copies[key] and sms is None else sms
        before = taken[key.rank].get(stage.queue, 0)
        known = stage.streamed and sms is not None and before is not None
        taken[key.rank][stage.queue] = max(before or 0, sms or 0) if known else None
    shares = {}
    unknown = {rank: {queue for queue, n in of.items() if n is None} for rank, of in taken.items()}
    sums = {rank: sum(n or 0 for n in of.values()) for rank, of in taken.items()}
    for key, sms in said.items():
        stage = graph.stages[key.stage]
        if stage.streamed and sms is None and not copies[key]:
            mine = taken[key.rank]
            left = total - sums[key.rank] + (mine.get(stage.queue) or 0)
            if len(mine) > (stage.queue in mine) and unknown[key.rank] <= {stage.queue} and left > 0:
                shares[key] = left
    return replace(draft, shares=shares)
