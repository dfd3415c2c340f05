"""A plan's devices with all that is made on them: contexts, streams, events, memory.

Everything is registered as it is made, so `close` gives back whatever an error has left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from .devices import Device, close_devices, homes, open_devices
from .vendor import Handle, Vendor

# What the plan's priorities are among the device's, from the greatest to the least.
_SHARES = {"high": 0.0, "normal": 0.5, "low": 1.0}


class Gpus:
    """See the module. `homes[rank]` is the device of a rank."""

    def __init__(self, vendor: Vendor, ranks: int, ranks_per_gpu: int) -> None:
        self.vendor = vendor
        self.homes = homes(vendor, ranks, ranks_per_gpu)
        self.current: Device | None = None  # whose context is current, while a run is issued
        self.capturing = False  # what is issued goes into a graph
        self.marking = False  # what is issued is recorded for a trace
        self._callers: Handle = None  # the context that was current before
        self.devices = open_devices(vendor, tuple(dict.fromkeys(self.homes)))
        self.first = next(iter(self.devices.values()))
        self.control: dict[int, Handle] = {}  # a stream of each device, for what is done beside the plan
        self._streams: list[Handle] = []
        self._events: dict[int, tuple[Device, Handle]] = {}
        self._memory: dict[int, tuple[Device, int]] = {}  # address → size, too
        try:
            with self.inside(self.first):
                self._least, self._greatest = vendor.priorities()
            for ordinal, device in self.devices.items():
                self.control[ordinal] = self.new_stream(device)
        except BaseException:
            self.close()
            raise

    def device(self, rank: int) -> Device:
        return self.devices[self.homes[rank]]

    # ---- contexts

    @contextmanager
    def inside(self, device: Device) -> Iterator[None]:
        """Inside, the device's context is current; after, the caller's again."""
        self.vendor.push(device.context)
        try:
            yield
        finally:
            self.vendor.pop()

    def begin_issue(self) -> None:
        """From here `enter` changes contexts."""
        self._callers = self.vendor.current()
        self.current = None

    def end_issue(self) -> None:
        """The caller's context is current again."""
        self.current = None
        self.vendor.restore(self._callers)

    def enter(self, device: Device) -> None:
        """Make the device's context current, while a run is issued."""
        if self.current is not device:
            self.vendor.enter(device.context)
            self.current = device

    # ---- streams and events

    def priority(self, name: str) -> int:
        return self._greatest + round(_SHARES[name] * (self._least - self._greatest))

    def new_stream(self, device: Device, priority: str = "normal") -> Handle:
        with self.inside(device):
            stream = self.vendor.new_stream(self.priority(priority))
        self._streams.append(stream)
        return stream

    def new_event(self, device: Device, *, timing: bool = False) -> Handle:
        with self.inside(device):
            event = self.vendor.new_event(timing)
        self._events[id(event)] = (device, event)
        return event

    def drop_event(self, event: Handle) -> None:
        device, _ = self._events.pop(id(event))
        with self.inside(device):
            self.vendor.destroy_event(event)

    def idle(self) -> bool:
        """Whether all streams are through."""
        return all(map(self.vendor.idle, self._streams))

    # ---- memory

    def alloc(self, device: Device, size: int, what: str) -> int:
        """Bytes of the device's memory: their address."""
        with self.inside(device):
            address = self.vendor.alloc(max(16, size), what)
        self._memory[address] = (device, size)
        return address

    def free(self, address: int) -> None:
        device, _ = self._memory.pop(address)
        with self.inside(device):
            self.vendor.free(address)

    def put(self, device: Device, address: int, values: npt.NDArray[np.generic]) -> None:
        """Done on return: the copy goes by a stream that does not wait for the default one, as the plan's do not."""
        with self.inside(device):
            stream = self.control[device.ordinal]
            self.vendor.to_device(address, values.ctypes.data, values.nbytes, stream)
            self.vendor.wait_stream(stream)

    # ---- the end

    def held(self) -> tuple[int, int, int]:
        """Streams, events, and bytes of memory."""
        return len(self._streams), len(self._events), sum(size for _, size in self._memory.values())

    def close(self) -> None:
        """Give everything back. May be called twice."""
        for _, event in list(self._events.values()):
            self.drop_event(event)
        while self._streams:
            self.vendor.destroy_stream(self._streams.pop())
        for address in list(self._memory):
            self.free(address)
        close_devices(self.vendor, self.devices)
