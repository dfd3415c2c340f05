"""Prepared driver calls, made one after another in a loop without decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ...device.run_plan import Call, Current, enters
from ...errors import Span
from .gpus import Gpus
from .refused import Refused, concerns
from .vendor import DriverFunction, Gpu, Vendor

ENTERS = "its context"  # what a call is for that makes a device's context current


class DriverStep(NamedTuple):
    """A driver call with the device whose context it needs, and what it is for: words, the schedule's line, and the
    call of the device plan; none for a call that changes the context."""

    device: Gpu
    function: DriverFunction
    arguments: tuple[Any, ...]
    what: str
    place: Span | None = None
    call: Call | None = None


def entered(vendor: Vendor, steps: Iterable[DriverStep], *, captured: bool = False) -> Iterator[DriverStep]:
    """The steps, with those between them that make a device's context current for what needs it. `captured`: they are
    to be captured, each with its own context."""
    current: Gpu | None = None
    for step in steps:
        needs: Current = "its own" if captured else vendor.context_of((step.function, step.arguments))
        if enters(needs, step.device, current):
            current = step.device
            yield DriverStep(current, *vendor.enter_action(current.context), ENTERS)
        yield step


def make(gpus: Gpus, steps: Sequence[DriverStep]) -> None:
    """Makes the calls, including those that change contexts (`entered`). NOTE `watchdog` relies on the names of
    variables here. Each run comes here: fields cost less than unpacking."""
    for step in steps:
        code = step.function(*step.arguments)[0]
        if code:
            error = code if isinstance(code, Refused) else gpus.vendor.failure(step.function, code)
            concerns(error, step.device, step.what, step.place)
            raise error
