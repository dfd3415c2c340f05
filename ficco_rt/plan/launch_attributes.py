"""Pass: converts the resources that the text requests into launch attributes."""

from __future__ import annotations

from dataclasses import replace

from ..kernels.catalogue import COPY, copy_sms
from .draft import Draft, LaunchKey, launches
from .ir import LaunchAttributes


def solve_resources(draft: Draft) -> Draft:
    """Give every launch its attributes: the shared memory that yields the residency asked for, its share of
    multiprocessors, and its priority where that differs from the priority of its queue."""
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
        attributes.update(
            dict.fromkeys(ops, LaunchAttributes(choice.smem, asked.residency, sms, priority, asked.leave))
        )
    return replace(draft, attributes=attributes)
