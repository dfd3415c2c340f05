"""The devices of a plan with everything that is created on them: contexts, streams, events, memory.

Every object is registered as soon as it is created, so `close` releases everything, even after an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...device.ir import Placement
from ...errors import DeviceError
from ..api import size_words
from .devices import close_devices, inside, open_devices
from .issue_order import ISSUE_ORDER, SPIN, Client, poll
from .peers import Peers
from .refused import Closing, Refused, concerning, concerns, undo_on_error
from .vendor import Gpu, Handle, Vendor

# What memory is for.
Kind: TypeAlias = Literal["scratch", "semaphores", "tables", "partial sums", "library", "staging", "tensors"]

_BLOCKED: set[tuple[str, int]] = set()  # devices of the process, by vendor, on which something runs that does not end

# What the plan's priorities are among the device's, from the greatest to the least.
_SHARES = {"high": 0.0, "normal": 0.5, "low": 1.0}


class Gpus:
    """See the module. `timeout`: seconds that the host waits for devices; None: without limit. `name`: the name of the
    owner in messages. `peers`: the processes that drive the other devices of the placement; `locals_` are then the
    vendor's ordinals of this process's devices."""

    def __init__(
        self,
        vendor: Vendor,
        placement: Placement,
        timeout: float | None,
        name: str = "",
        peers: Peers | None = None,
        locals_: Mapping[int, int] | None = None,
    ) -> None:
        self.vendor = vendor
        self.client = Client(name, vendor, timeout)
        self.timeout = timeout
        self.placement = placement
        self.peers = peers
        self._locals = dict(locals_) if locals_ is not None else {i: i for i in placement.ordinals}
        self.ranks = tuple(r for r, device in enumerate(placement.devices) if device in self._locals)
        self.hung = False  # see `hang`
        self._waited = False  # in vain, for what runs on the devices
        self._issuing = False
        self._callers: Handle = None  # the context that was current before
        self.devices: dict[int, Gpu] = {}
        self.control: dict[int, Handle] = {}  # a stream of each device, for what the plan does not say
        self.ones: dict[int, int] = {}  # a word of each device's memory that holds 1: what raises a flag by a copy
        self._streams: list[tuple[Gpu, Handle]] = []
        self._events: dict[int, tuple[Gpu, Handle]] = {}
        self._memory: dict[int, tuple[Gpu, int, Kind]] = {}  # address → size, too
        self.limit: int | None = None  # bytes of each device
        with self.issue_lock():
            self._open()

    def _open(self) -> None:
        vendor = self.vendor
        self.devices = open_devices(vendor, self._locals)
        self.first = next(iter(self.devices.values()))
        self.client.sms = {device.local: device.facts.sms for device in self.devices.values()}
        with undo_on_error(self.close):
            with self.inside(self.first):
                self._least, self._greatest = vendor.priorities()
            for ordinal, device in self.devices.items():
                self.control[ordinal] = self.new_stream(device)
                one = np.ones(1, np.uint32)
                self.ones[ordinal] = self.placed(device, one, "the word that flags are copied from")
            vendor.prepare(self.devices, self.ones)

    def hang(self) -> None:
        """Records that something runs that does not end, so that a call may block for ever. Calls of other executors
        that wait for these devices may block, too (`blocked`)."""
        self.hung = True
        _BLOCKED.update((self.vendor.name, device.local) for device in self.devices.values())

    @property
    def blocked(self) -> bool:
        """Whether something runs on these devices, of any executor of the process, that does not end."""
        return self.hung or any((self.vendor.name, device.local) in _BLOCKED for device in self.devices.values())

    def device(self, rank: int) -> Gpu:
        """The device of a rank of this process."""
        return self.devices[self.placement.devices[rank]]

    # ---- contexts

    def issue_lock(self) -> AbstractContextManager[None]:
        """Context manager: no other thread of the process uses GPUs. For calls that may wait for a device."""
        return ISSUE_ORDER.lock(self.client)

    @contextmanager
    def inside(self, device: Gpu) -> Iterator[None]:
        """The issue lock is held, the device's context is current, and what is refused concerns it; afterwards the
        caller's context is current."""
        with self.issue_lock(), inside(self.vendor, device):
            yield

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Context manager: calls do not become part of a capture of the calling thread."""
        with concerning(self.first), self.vendor.uncaptured():
            yield

    def begin_issue(self, needed: Handle | None = None) -> bool:
        """From here calls that are made change contexts (`steps.make`). False: the context that all of them need is
        the caller's, so that they need not."""
        try:
            self._callers = self.vendor.current()
        except Refused as error:
            concerns(error, self.first)
            raise
        self._issuing = needed is None or bool(self._callers != needed)
        return self._issuing

    def end_issue(self) -> None:
        """Make the caller's context current again. After an error this may be tried once more."""
        if self._issuing:
            with concerning(self.first):
                self.vendor.enter(self._callers)
            self._issuing = False

    @contextmanager
    def issuing(self) -> Iterator[None]:
        """Inside, calls that are made change contexts; after, the caller's is current again."""
        self.begin_issue()
        with undo_on_error(self.end_issue):
            yield
            self.end_issue()

    # ---- streams and events

    def priority(self, name: str) -> int:
        return self._greatest + round(_SHARES[name] * (self._least - self._greatest))

    def new_stream(self, device: Gpu, priority: str = "normal") -> Handle:
        with self.inside(device):
            stream = self.vendor.new_stream(self.priority(priority))
            self._streams.append((device, stream))
        return stream

    def new_event(self, device: Gpu, *, timing: bool = False) -> Handle:
        with self.inside(device):
            event = self.vendor.new_event(timing)
            self._events[id(event)] = (device, event)
        return event

    def drop_event(self, event: Handle) -> None:
        device, _ = self._events.pop(id(event))
        with concerning(device):
            self.vendor.destroy_event(event)

    def _states(self) -> Iterator[tuple[Gpu, bool | DeviceError]]:
        """Whether each stream has finished, or the error of its device."""
        for device, stream in self._streams:
            try:
                yield device, self._idle(device, stream)
            except DeviceError as error:
                yield device, error

    def idle(self) -> tuple[bool, DeviceError | None]:
        """Whether all streams have finished, except on devices whose work failed; and the first of these errors."""
        found = [state for _, state in self._states()]
        return False not in found, next((state for state in found if isinstance(state, DeviceError)), None)

    def _idle(self, device: Gpu, stream: Handle) -> bool:
        with concerning(device):
            return self.vendor.idle(stream)

    def busy(self) -> tuple[str, ...]:
        """Devices whose streams still run something, or whose work failed."""
        return tuple(dict.fromkeys(str(device) for device, state in self._states() if state is not True))

    def well(self) -> None:
        """Raises DeviceError if work on a device failed."""
        for ordinal, stream in self.control.items():
            self._idle(self.devices[ordinal], stream)

    def finish(self, device: Gpu, stream: Handle) -> None:
        """The host waits for a stream. DeviceError if that takes longer than `timeout`."""
        if not poll(lambda: self._idle(device, stream), self.timeout, 1e-4, SPIN):
            self.hang()
            raise DeviceError(f"{device} did not come to rest within {self.timeout:g} s (--timeout)")

    def calm(self) -> bool:
        """Under the issue lock: waits until runs on these devices and replays of callers' graphs have ended, so that no
        call waits for them inside the vendor's driver. They get `timeout`, once. Returns whether they have ended."""
        mine = {device.local for device in self.devices.values()}
        limit = 0.0 if self._waited else self.timeout
        over = poll(lambda: self.blocked or not ISSUE_ORDER.busy(self.vendor.name, mine), limit, 1e-4)
        self._waited = self._waited or not over
        return over and not self.blocked

    # ---- memory

    def alloc(
        self, device: Gpu, size: int, what: str, kind: Kind = "tables", *, flags: bool = False, shared: bool = False
    ) -> int:
        """Bytes of the device's memory: their address. `flags`: what other devices write while kernels look. `shared`:
        what other processes use, if there are any."""
        size = max(16, size)
        if self.limit is not None:
            held = self.memory_of(device)
            if sum(held.values()) + size > self.limit:
                by_kind = ", ".join(f"{size_words(n)} of {name}" for name, n in held.items())
                raise DeviceError(
                    f"{device}: {what} needs {size_words(size)}, and the workspace may hold {size_words(self.limit)}; "
                    f"it holds {by_kind or 'nothing'}; make it with a higher limit"
                )
        with self.inside(device):
            make = self.vendor.alloc_flags if flags else self.vendor.alloc
            found = self.peers.alloc(device, size, what, flags) if shared and self.peers is not None else None
            address = make(size, what) if found is None else found
            self._memory[address] = (device, size, kind)
        return address

    def free(self, address: int) -> None:
        device, *_ = self._memory[address]
        with self.inside(device):
            if not self.calm():  # NOTE the call waits for what runs
                return
            del self._memory[address]  # whatever the call says: it may tell of an earlier error
            if self.peers is None or not self.peers.free(address):
                self.vendor.free(address)

    def put(self, device: Gpu, address: int, values: npt.NDArray[np.generic]) -> None:
        """Copies to the device; complete on return. The copy uses a stream that does not wait for the default one, as
        the plan's streams do not."""
        with self.inside(device):
            stream = self.control[device.ordinal]
            self.vendor.to_device(address, values.ctypes.data, values.nbytes, stream)
            self.finish(device, stream)

    def placed(self, device: Gpu, values: npt.NDArray[np.generic], what: str) -> int:
        """An array in the device's memory: its address."""
        address = self.alloc(device, values.nbytes, what)
        with undo_on_error(self.free, address):
            self.put(device, address, values)
        return address

    def memory_of(self, device: Gpu) -> dict[Kind, int]:
        """Bytes of a device's memory by kind."""
        found: dict[Kind, int] = {}
        for at, size, kind in list(self._memory.values()):
            if at is device:
                found[kind] = found.get(kind, 0) + size
        return found

    # ---- the end

    def held(self) -> tuple[int, int, int]:
        """Streams, events, and bytes of memory."""
        return len(self._streams), len(self._events), sum(size for _, size, _ in self._memory.values())

    def close(self) -> None:
        """Releases everything. May be called twice."""
        with Closing() as closing:
            for _, event in list(self._events.values()):
                closing(self.drop_event, event)
            while self._streams:
                device, stream = self._streams.pop()
                closing(self.vendor.destroy_stream, stream, of=device)
            if self.peers is not None:
                closing(self._leave, self.peers)
            for _ in range(2):  # once more what a context that was not to be had has kept
                for address in list(self._memory):
                    closing(self.free, address)
            closing(close_devices, self.vendor, self.devices)

    def _leave(self, peers: Peers) -> None:
        with self.inside(self.first):
            peers.close()
