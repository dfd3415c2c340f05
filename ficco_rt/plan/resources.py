"""Pass: what the text asks of the device becomes launch attributes."""

from __future__ import annotations

from dataclasses import replace

from ..kernels.catalogue import COPY, copy_sms
from .draft import Draft, LaunchKey, launches
from .ir import LaunchAttributes


def solve_resources(draft: Draft) -> Draft:
    """Every launch has its shared memory, which gives the residency asked for, its share of multiprocessors, and its
    priority where that is not its queue's."""
    graph, total = draft.graph, draft.machine.device.sms
    queues = {q.name: q.resources.priority for q in graph.queues}
    attributes: dict[int, LaunchAttributes] = {}
    for ops in launches(draft):
        where, choice = graph.ops[ops[0]].where, draft.kernels[ops[0]]
        asked = where.resources
        sms = draft.shares.get(LaunchKey(where.stage, where.rank), asked.sms)
        if choice.kernel == COPY:
            sms = sms or copy_sms(total)
        priority = asked.priority if asked.priority != queues[graph.stages[where.stage].queue] else None
        attributes.update(dict.fromkeys(ops, LaunchAttributes(choice.smem, asked.residency, sms, priority)))
    return replace(draft, attributes=attributes)
