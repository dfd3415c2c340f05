"""Graph → Plan. The passes, in order; each says what is true after it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..graph.ir import Graph
from ..machine.model import Machine
from .choose import choose_kernels
from .draft import Draft, to_text
from .emit import emit
from .fuse import fuse
from .ir import Plan
from .place import place
from .resources import solve_resources
from .shares import share_multiprocessors
from .sync import synchronise
from .transfers import order_transfers

PASSES: tuple[Callable[[Draft], Draft], ...] = (
    place,  # every op has a stream
    order_transfers,  # ops stand in the order in which they are issued; `order = auto` has its rounds
    fuse,  # it is known which streamed stages are one launch
    share_multiprocessors,  # streamed launches beside one another have their shares
    synchronise,  # every dependency has a carrier: stream order, event or flag, and no wait is wasted
    choose_kernels,  # every launch has a kernel that takes its works as they wait
    solve_resources,  # every launch has its attributes
)


LOG = logging.getLogger(__name__)  # at level DEBUG it shows the draft after each pass


def lower(graph: Graph, machine: Machine) -> Plan:
    """The plan of a proven graph for a machine. Raises ScheduleError where the machine lacks what the text asks."""
    draft = Draft(graph, machine)
    for run in PASSES:
        draft = run(draft)
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("after %s\n%s", run.__name__, to_text(draft))
    return emit(draft)
