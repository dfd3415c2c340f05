"""Graph → Plan: the passes in order, each with a comment on what is true after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..graph.ir import Graph
from ..machine.model import Machine
from . import promises
from .choose_kernels import choose_kernels
from .draft import Draft, to_text
from .emit import emit
from .fuse import fuse
from .ir import Plan
from .leave import resolve_leave
from .place import place
from .promises import Promise, hold
from .shares import share_multiprocessors
from .sync import synchronise
from .transfers import order_transfers


@dataclass(frozen=True, slots=True)
class Pass:
    """A step of lowering, and the rules of the draft that hold after it."""

    run: Callable[[Draft], Draft]
    promises: tuple[Promise, ...]

    @property
    def name(self) -> str:
        return self.run.__name__


PASSES: tuple[Pass, ...] = (
    # every op has a stream
    Pass(place, (promises.ops_have_streams,)),
    # ops stand in the order in which they are issued; `order = auto` has its rounds
    Pass(order_transfers, (promises.order_is_topological,)),
    # it is known which streamed stages are one launch
    Pass(fuse, (promises.launches_are_alike,)),
    # streamed launches beside one another have their shares of the multiprocessors
    Pass(share_multiprocessors, (promises.shares_fit,)),
    # every dependency is carried: stream order, event or flag, and no wait is wasted; `check` proves it of the plan
    Pass(synchronise, (promises.signals_have_numbers,)),
    # every launch has a kernel that takes its works as they wait, and its attributes
    Pass(choose_kernels, (promises.kernels_take_works, promises.attributes_are_sizes)),
)


LOG = logging.getLogger(__name__)  # at level DEBUG it shows the draft after each pass


def lower(graph: Graph, machine: Machine) -> Plan:
    """The plan of a proven graph for a machine. Raises ScheduleError where the machine lacks what the text asks."""
    draft = Draft(resolve_leave(graph, machine), machine)
    for step in PASSES:
        draft = step.run(draft)
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("after %s\n%s", step.name, to_text(draft))
        hold(draft, step.name, step.promises)
    return emit(draft)
