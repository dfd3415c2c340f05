"""What streamed launches beside one another leave to the one that does not say how much it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ..graph import ir
from ..kernels.catalogue import copy_sms
from .draft import Draft


def rest(draft: Draft) -> Mapping[tuple[int, int], int]:
    """The multiprocessors of a streamed stage (its index, and the rank) that says no `sms`: what the streamed stages
    on the rank's other queues leave, which all say theirs. Where anything else runs there, nobody knows what it
    takes: such stages are absent."""
    graph, total = draft.graph, draft.machine.device.sms
    engines = {q.name: q.engine for q in graph.queues}
    said: dict[tuple[int, int], int | None] = {}  # as the stage's first statement says
    for i in draft.order:
        op = graph.ops[i]
        said.setdefault((op.where.stage, op.where.rank), op.where.resources.sms)
    copies = dict.fromkeys(said, True)
    for op in graph.ops:
        copies[op.where.stage, op.where.rank] &= isinstance(op.body, ir.Copy)
    taken: dict[int, dict[str, int | None]] = defaultdict(dict)  # by rank and queue, at most; None: nobody knows
    for (s, rank), sms in said.items():
        stage = graph.stages[s]
        if engines[stage.queue] == "copy":
            continue
        sms = copy_sms(total) if copies[s, rank] and sms is None else sms
        before = taken[rank].get(stage.queue, 0)
        known = stage.streamed and sms is not None and before is not None
        taken[rank][stage.queue] = max(before or 0, sms or 0) if known else None
    left = {}
    for (s, rank), sms in said.items():
        stage = graph.stages[s]
        if stage.streamed and sms is None and not copies[s, rank]:
            beside = [n for queue, n in taken[rank].items() if queue != stage.queue]
            room = total - sum(n or 0 for n in beside)
            if beside and None not in beside and room > 0:
                left[s, rank] = room
    return left
