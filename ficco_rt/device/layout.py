"""What the device plans of all modes of a plan share."""

from __future__ import annotations

from dataclasses import dataclass

from ..machine.model import Device
from ..plan.ir import Plan
from .ir import Communicator, DeviceLaunch, Features, Placement
from .semaphores import SemaphoreLayout
from .sharing import Sharing


@dataclass(frozen=True, slots=True)
class Layout:
    """Semaphores, and launches by the place of their commands in the plan.
    `touched`: by stream of the plan, the ranks whose inputs and outputs its commands touch. `communicators`: those that
    the vendor's library of collectives opens; `own_way`: why the library makes none of the collectives."""

    plan: Plan
    plan_hash: str
    device: Device
    placement: Placement
    features: Features
    touched: tuple[frozenset[int], ...]
    semaphores: SemaphoreLayout
    sharing: Sharing
    launches: tuple[DeviceLaunch, ...]
    communicators: tuple[Communicator, ...]
    own_way: str
