"""Copies on the links of a machine: those that pass one port at the same time share its rate evenly. What one of them
cannot use, because another port holds it up more, is not given to the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ..machine.model import Machine, Port


@dataclass(slots=True, eq=False)
class _Flow:
    """A copy on its way: at `since` it had `left` bytes to pass at `rate`."""

    ports: tuple[Port, ...]
    alone: float  # its rate where it meets no other
    left: float
    done: Callable[[], None]
    since: float = 0.0
    rate: float = 0.0
    version: int = 0  # how often its rate has changed: an end that was foreseen at another one is none


class Flows:
    """All of a run's. `at` is the clock's: it calls back at a time."""

    def __init__(self, machine: Machine, at: Callable[[float, Callable[[], None]], None]) -> None:
        self._machine = machine
        self._at = at
        self._on: dict[Port, dict[_Flow, None]] = defaultdict(dict)  # in the order in which they began

    def begin(self, now: float, src: int, dst: int, size: int, done: Callable[[], None]) -> None:
        """`size` bytes go from rank `src` to rank `dst` from `now` on; `done` is called when all have come."""
        flow = _Flow(self._machine.ports(src, dst), self._machine.between(src, dst).rate, float(size), done)
        for port in flow.ports:
            self._on[port][flow] = None
        self._share(flow.ports, now)

    def _share(self, ports: tuple[Port, ...], now: float) -> None:
        """Rates of the flows on these ports, where others have begun or ended."""
        for flow in {flow: None for port in ports for flow in self._on[port]}:
            rate = flow.alone / max(len(self._on[port]) for port in flow.ports)
            if rate != flow.rate:
                flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
                flow.since, flow.rate = now, rate
                flow.version += 1
                self._foresee(flow, now + flow.left / rate)

    def _foresee(self, flow: _Flow, stop: float) -> None:
        version = flow.version
        self._at(stop, lambda: self._end(flow, version, stop))

    def _end(self, flow: _Flow, version: int, now: float) -> None:
        if version != flow.version:
            return
        for port in flow.ports:
            del self._on[port][flow]
        flow.version += 1
        self._share(flow.ports, now)
        flow.done()
