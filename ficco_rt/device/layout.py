"""What the device plans of all modes of a plan share."""

from __future__ import annotations

from dataclasses import dataclass

from ..machine.model import Device
from ..plan.ir import Plan
from .early_begin import EarlyBegin
from .ir import Communicator, DeviceLaunch, Features, Placement
from .semaphores import SemaphoreLayout


@dataclass(frozen=True, slots=True)
class Layout:
    """Semaphores, and launches by the place of their commands in the plan.
    `touched`: by stream of the plan, the ranks whose inputs and outputs its commands touch. `early_begin`: the streams
    that begin before other devices have ended the previous run; None: no stream does. `sets`: number of sets of
    semaphores and scratch between which runs alternate; with several, runs in callers' graphs have one of their own.
    `communicators`: those that the vendor's library of collectives opens; `own_way`: why the library makes none of the
    collectives."""

    plan: Plan
    plan_hash: str
    device: Device
    placement: Placement
    features: Features
    touched: tuple[frozenset[int], ...]
    semaphores: SemaphoreLayout
    early_begin: EarlyBegin | None
    sets: int
    launches: tuple[DeviceLaunch, ...]
    communicators: tuple[Communicator, ...]
    own_way: str

    @property
    def kept_sets(self) -> int:
        """Number of sets of semaphores and scratch in all modes: those between which runs alternate and, if there are
        several, one more for runs in callers' graphs, if the plan may have such runs."""
        return self.sets + (self.sets > 1 and self.features.embeds)
