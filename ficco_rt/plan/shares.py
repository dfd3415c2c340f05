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
    copies: dict[LaunchKey, bool] = {}
    for i in draft.order:
        where = graph.ops[i].where
        key = LaunchKey(where.stage, where.rank)
        said.setdefault(key, where.resources.sms)
        copies[key] = copies.get(key, True) and isinstance(graph.ops[i].body, ir.Copy)
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
    for key, sms in said.items():
        stage = graph.stages[key.stage]
        others = [n for queue, n in taken[key.rank].items() if queue != stage.queue]
        if stage.streamed and sms is None and not copies[key] and others and None not in others:
            left = total - sum(n or 0 for n in others)
            if left > 0:
                shares[key] = left
    return replace(draft, shares=shares)
