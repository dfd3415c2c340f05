"""The processes of a group, each with one or several GPUs: which ranks belong to which process, and the memory that
they share.

Every process makes the device plans of all ranks and issues its own part. Semaphores in memory order the work of
different processes (`device.run_ends`). So processes share nothing but memory: semaphores, scratch, and the tensors
that commands of other processes touch. It is mapped when a plan is bound, and unmapped when its owner says so.

Processes of different nodes (`device.multi_node`) share no memory. The machine that the plan was made for defines which
processes are on one node. These must be on one computer, or on computers of one NVLink domain, which share memory by
fabric handles. Processes of different nodes may also be on one computer.

Processes *agree* on every step that they take together, so that all take these steps in the same order: in
`Peers.agree` each sends which step it takes, and an error is raised if one takes another step or has failed.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ...device.ir import CopyMemory, DevicePlan, Features, Placement
from ...device.multi_node import nodes_of
from ...errors import DeviceError, LeftError, UsageError
from ...machine.discover import DeviceFacts
from ...process.descriptors import SocketNames, close_all, descriptors_pass, made, no_more_files, pass_around
from ...process.group import Group, gathered, processes
from .board import MOST, SIZE, Board
from .devices import facts_of, own_devices
from .devices import inside as current_on
from .issue_order import poll
from .memory_handles import IMEX, FabricTrial
from .refused import Closing, Refused, concerning, undo_on_error
from .sharing import Area, Found, Leaves, Mapped, Shared, Sharing
from .vendor import Gpu, Handle, Vendor

LOG = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, int]  # a tensor and a rank
T = TypeVar("T")

PARTING = 2.0  # seconds that `close` waits for others to let go of memory
TENSOR = "@"  # in the labels of tensors alone
_NO_EXPORT = (
    "this tensor's memory cannot be given to other processes; take tensors of ficco_rt.empty(…), or of ordinary "
    "allocations (cudaMalloc; PyTorch's default allocator)"
)
_NO_EXPORT_APART = (
    "this tensor's memory cannot be given to processes of another machine; take tensors of ficco_rt.empty(…), whose "
    "memory has fabric handles"
)
_NOTHING_LEAVES = (
    "memory of this GPU cannot be given to other processes, neither as file descriptors nor as fabric or IPC handles; "
    "run all ranks in one process"
)
_NO_IPC = (
    "memory of another process cannot be opened by its IPC handle. Has that process ended? Do containers keep the "
    "processes apart? Then give them a common network namespace, or a common folder for temporary files (memory then "
    "passes as file descriptors), or start them with --ipc=host and --pid=host"
)


class Peers:
    """See the module. `timeout`: seconds that processes wait for one another; None: without limit."""

    def __init__(self, vendor: Vendor, group: Group, name: str, ranks: int, node: int, timeout: float | None) -> None:
        """`name`: of what the processes have together, in messages. `node`: ranks of a node."""
        self.group = group
        self.name = name
        self._vendor = vendor
        self._timeout = timeout
        self._sockets: SocketNames | None = None  # how those are named by which descriptors pass
        self._fabric = False  # memory passes as fabric handles
        self._no_fabric = ""  # why it does not, where it was tried
        self._reach: tuple[int, ...] = ()
        self._numbers = count(1)
        self._areas: dict[int, Area] = {}  # of this process, by number
        self._told: set[int] = set()  # those that the others know
        self._gone: list[int] = []  # those given back since the last exchange
        self._own: dict[int, tuple[Mapped, int]] = {}  # our own allocations, by address, with their areas
        self._theirs: dict[tuple[int, int], Found] = {}  # by process and number
        self._inside: Callable[[], AbstractContextManager[None]] = nullcontext
        self.board: Board | None = None
        self.lost = False  # an exchange has failed: the others may be gone
        self.poisoned = False  # scratch was, which executors may share, and no run has followed
        self._closing = 0.0  # when this process began to close
        self._processes = processes(ranks, group.size)
        self._each = ranks // group.size
        self.gpus = 0  # that all processes have together
        self.ranks = tuple(rank for rank, process in enumerate(self._processes) if process == group.rank)
        self._nodes = nodes_of(self._processes, node)
        mine = {self._nodes[rank] for rank in self.ranks} if self._nodes else {0}
        pairs = zip(self._processes, self._nodes or (0,) * ranks, strict=True)
        self._near = sorted({process for process, node in pairs if node in mine})  # this node's processes
        self.machines: tuple[str, ...] = tuple(self.agree("open an executor", _host()))
        self._apart = next((p for p in self._near if self.machines[p] != _host()), None)  # one on another machine
        # of this node's processes, by their places in `_near`
        self._node = group.part(self._near)

    @cached_property
    def _sharing(self) -> Sharing:
        """DeviceError: the vendor's bindings have no such calls, which `connect` finds out."""
        return self._vendor.sharing()

    # ---- agreement

    def agree(self, what: str, data: object = None, error: Exception | None = None) -> list[Any]:
        """What every process states about step `what`, which all take now. UsageError: a process takes another step.
        LeftError: one has failed. DeviceError: one does not arrive."""
        mine = {"data": data, "error": None if error is None else str(error)}
        try:
            found = gathered(self.group, mine, self._timeout, what)
        except (DeviceError, UsageError):
            self.lost = True
            raise
        failed = [(p, said["error"]) for p, said in enumerate(found) if said["error"] and p != self.group.rank]
        if failed and error is None:
            p, text = failed[0]
            raise LeftError(f"{what}: process {p} failed: {text}")
        return [said["data"] for said in found]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, a process does something that the others do not wait for. Where it fails, they are told when they
        come to the next exchange."""
        try:
            yield
        except (DeviceError, UsageError) as error:
            self.leave(error)
            raise

    def leave(self, error: BaseException) -> None:
        """Tells the others that this process stops."""
        if not self.lost:
            self.lost = True
            with suppress(DeviceError):  # the first error is the one to tell
                self.group.leave(error)

    def give_up(self, why: str) -> Sequence[int]:
        """Publish that this process gives up its runs: nothing that is not checked yet may count as right. From any
        thread. The processes that have ended, of those that can be seen."""
        if self.board is not None:
            self.board.publish(why)
        if self.unseen:
            with suppress(DeviceError):  # of a store or a launcher that is gone
                self.group.leave(why)
        return self.board.gone() if self.board is not None else ()

    def verdict(self, far: bool = True) -> str:
        """Why another process has given up its runs; nothing: none has. `far`: ask those as well that are not on the
        page, which takes messages. NOTE asked in every run."""
        if self.board is not None and self.board.any_verdict:
            return self.board.verdict()
        return self.group.left() if far and self.unseen else ""

    @property
    def unseen(self) -> bool:
        """Whether some process shares no page with this one."""
        return self.board is None or len(self._near) < self.group.size

    @contextmanager
    def in_step(self, what: str) -> Iterator[None]:
        """Context manager for a step that all processes take: if one fails, all fail."""
        try:
            yield
        except (DeviceError, UsageError) as error:
            if not self.lost:
                with suppress(DeviceError, UsageError):  # the first error is the one to tell
                    self.agree(what, error=error)
            raise
        self.agree(what)

    def agreed(self, what: str, make: Callable[[], object]) -> list[Any]:
        """What every process has made."""
        try:
            mine = make()
        except (DeviceError, UsageError) as error:
            with suppress(DeviceError, UsageError):
                self.agree(what, error=error)
            raise
        return self.agree(what, mine)

    # ---- devices

    def place(self, ranks_per_gpu: int) -> tuple[Placement, dict[int, int], list[DeviceFacts]]:
        """The placement of all ranks; the devices of this process with the vendor's ordinals; and the facts of all
        devices. A device that several processes share, which take turns on it, is one for each of them. UsageError,
        DeviceError: devices are too few, or more processes have the same one than `ranks_per_gpu` lets."""
        needed = -(-self._each // ranks_per_gpu)
        most = max(1, ranks_per_gpu // self._each)  # processes that a GPU has room for
        mine, visible = own_devices(
            self._vendor, needed, self.group.rank, lambda make: self.agreed("choose GPUs", make), most
        )
        facts = self.agreed("tell about GPUs", lambda: self._own_facts(mine, visible, needed, most))
        owners: dict[str, list[int]] = {}
        for p, theirs in enumerate(facts):
            for uuid, _, exclusive in theirs:
                owners.setdefault(uuid, []).append(p)
                if len(owners[uuid]) > 1:
                    self._may_share(uuid, owners[uuid], most, exclusive)
        self.gpus = len(owners)
        self._reachable(mine, [(p, u) for p, theirs in enumerate(facts) for u, *_ in theirs], visible)
        devices = tuple(
            p * needed + place // ranks_per_gpu for p in range(self.group.size) for place in range(self._each)
        )
        locals_ = {self.group.rank * needed + i: local for i, local in enumerate(mine)}
        all_facts = [DeviceFacts(**f) for theirs in facts for _, f, _ in theirs]
        numbers = {uuid: number for number, uuid in enumerate(owners)}
        uuids = [uuid for theirs in facts for uuid, *_ in theirs]  # by device
        shared = len(owners) < len(uuids)
        gpus = tuple(numbers[uuids[device]] for device in devices) if shared else ()
        return Placement(devices, self._processes, self._nodes, gpus), locals_, all_facts

    def _may_share(self, uuid: str, owners: Sequence[int], most: int, exclusive: str) -> None:
        *others, last = map(str, owners)
        who = f"processes {', '.join(others)} and {last} have the same GPU ({uuid})"
        if exclusive:
            raise UsageError(f"{who}, which is in an exclusive compute mode; `{exclusive}` ends that")
        if len(owners) > most:
            raise UsageError(
                f"{who}; give each process GPUs of its own ({self._vendor.visible}, or make its GPU current before), "
                "run several ranks in one process with --ranks-per-gpu, or, to see whether a run is right, let these "
                f"processes take turns on the GPU with --ranks-per-gpu {len(owners) * self._each}"
            )

    def _own_facts(self, mine: Sequence[int], visible: Sequence[str], needed: int, most: int) -> list[Any]:
        if len(mine) < needed:
            raise DeviceError(
                f"process {self.group.rank} needs {needed} GPU{'s' * (needed > 1)} of its own and sees {len(visible)}, "
                f"of which other processes have all but {len(mine)}; --backend host runs without any"
            )
        return [
            [visible[i], asdict(facts_of(self._vendor, i)), self._vendor.exclusive(i) if most > 1 else ""] for i in mine
        ]

    def _reachable(self, mine: Sequence[int], all_: Sequence[tuple[int, str]], visible: Sequence[str]) -> None:
        """NOTE of a device that this process does not see nobody can ask: mapping its memory tells."""
        for p, uuid in all_:
            if p == self.group.rank or p not in self._near or uuid not in visible:
                continue
            for i in (i for i in mine if visible[i] != uuid):
                with concerning(f"device {i}"):
                    reached = self._vendor.can_access(i, visible.index(uuid))
                if not reached:
                    raise DeviceError(
                        f"device {i} of process {self.group.rank} has no direct access to the memory of process {p}'s "
                        f"GPU; set {self._vendor.visible} to GPUs that reach each other ({self._vendor.topology} shows "
                        "them)"
                    )

    def same_library(self, version: str, reason: str) -> str:
        """Why the library of collectives is not used: some process has none, or another version. Nothing: it is.
        `version`: this process's; if there is none, `reason` says why."""
        said = self.agree("choose a library of collectives", [version, reason])
        if not any(theirs for theirs, _ in said):
            return reason
        for p, (theirs, why) in enumerate(said):
            if not theirs:
                return f"process {p} has no library of collectives: {why}"
            if theirs != said[0][0]:
                return f"process 0 has {said[0][0]}, process {p} has {theirs}"
        return ""

    def common(self, mine: Features) -> Features:
        """What every process's driver does."""
        said = self.agree("tell what the driver does", asdict(mine))
        least = {name: min(theirs[name] for theirs in said) for name, v in said[0].items() if not isinstance(v, str)}
        return replace(mine, **{**said[0], **least})

    # ---- memory

    def connect(self, devices: Iterable[Gpu], inside: Callable[[], AbstractContextManager[None]]) -> None:
        """The devices are open: find the way by which memory passes between processes. `inside`: where calls of the
        vendor's driver are made. NOTE exchanges are outside of it: other threads may use the GPUs meanwhile.
        UsageError: there is none between machines."""
        here = list(devices)
        self._inside = inside
        self._reach = tuple(device.local for device in here)

        def able() -> list[bool]:
            found = [True, True]
            with self._inside():
                for device in here:  # NOTE on HIP memory that is made to find out is the current device's
                    with current_on(self._vendor, device):
                        asked = self._sharing.descriptors(device.local), self._sharing.fabric(device.local)
                        found = [a and b for a, b in zip(found, asked, strict=True)]
            return found

        said = self.agreed("ask how memory is shared", able)
        if len(self._near) > 1:
            self._find_way(all(descriptors for descriptors, _ in said), all(fabric for _, fabric in said), here[0])
        with self.in_step("open the page of all processes"):
            if self._apart is not None and not self._fabric:
                raise UsageError(
                    f"processes {self.group.rank} and {self._apart} are on different machines, and the plan has their "
                    "ranks on one node; between machines memory passes as fabric handles alone, and here it does not: "
                    f"{self._no_fabric or 'the GPUs have none'}. Or compile for a machine of nodes "
                    "(ficco_rt.discover(…, node=GPUS)), with a schedule called hierarchical"
                )
            self._open_board()

    def _find_way(self, descriptors: bool, fabric: bool, device: Gpu) -> None:
        """Descriptors, which need no service of the machine; then fabric handles; then IPC handles. `descriptors` and
        `fabric`: all GPUs have them."""
        if descriptors and self._apart is None:
            self._sockets = descriptors_pass(self._node, self._timeout)
        if fabric and self._sockets is None:
            each = (self._sharing, device.local, self._reach, self._inside, self._timeout)
            self._no_fabric = FabricTrial(self._node, self._near, *each).failure()
            self._fabric = not self._no_fabric
            LOG.debug("memory passes as %s: %s", self.way, self._no_fabric or "it was tried")

    def _open_board(self) -> None:
        """The first process of a node makes the page on which all of the node say what they do."""
        size = self._node.size
        if not 1 < size <= MOST or self._sockets is None:
            return
        with no_more_files():
            mine = [made(SIZE)] if self._node.rank == 0 else []
        with undo_on_error(close_all, mine):
            came = pass_around(self._node, mine, [1] + [0] * (size - 1), self._sockets, self._timeout)
        try:
            self.board = Board((mine or came[0])[0], self._node.rank, self._near)
        except OSError as error:  # a system without such locks: a killed process is then found by the time limit
            LOG.debug("%s", error)

    @property
    def way(self) -> str:
        """How memory passes between processes, for people."""
        if len(self._near) < 2:
            return "none: the other processes are on other nodes"
        sockets = {"abstract": "file descriptors", "path": "file descriptors over a path"}
        others = "fabric handles" if self._fabric else "IPC handles"
        return others if self._sockets is None else sockets[self._sockets]

    @property
    def _by_ipc(self) -> bool:
        return self._sockets is None and not self._fabric

    def alloc(self, device: Gpu, size: int, what: str, flags: bool) -> int | None:
        """Memory of a device of ours, which is current, that others can map; its address. None: ordinary memory is the
        way."""
        if self._by_ipc:
            return None
        leaves: Leaves = "fabric" if self._fabric else "descriptor"
        made = self._sharing.alloc(device.local, size, self._reach, what, flags=flags, leaves=leaves)
        if made is None:
            return None
        self._own[made.address] = made, self._add(Area(made.sizes, made.handles))
        return made.address

    def free(self, address: int) -> bool:
        """Give back what `alloc` made; False: it is none. Others that have it mapped keep it until they are told."""
        found = self._own.pop(address, None)
        if found is None:
            return False
        made, number = found
        self._drop(number)
        self._sharing.unmap(made)
        return True

    def _add(self, area: Area) -> int:
        number = next(self._numbers)
        self._areas[number] = area
        return number

    def _drop(self, number: int) -> None:
        area = self._areas.pop(number, None)
        if number in self._told:
            self._told.discard(number)
            self._gone.append(number)
        if area is not None and area.kept:
            for handle in area.handles:
                self._sharing.release(handle)

    def share(self, what: str, mine: Mapping[str, tuple[int, int]]) -> Shared:
        """The addresses of other processes' memory by its labels. `mine`: what is this process's, with addresses and
        sizes. All processes do this at the same step."""
        made = Shared({}, [], [])
        offered = mine if len(self._near) > 1 else {}
        with undo_on_error(self.release, made):
            said = self.agreed(what, lambda: self._offered(offered, made))
            self._told.update(int(number) for number in said[self.group.rank]["new"])
            came = self._descriptors(said)
            with self.in_step(f"{what}: map it"), self._inside():
                for p, descriptors in came.items():
                    self._take(p, said[p], descriptors, made)
        return made

    def _offered(self, mine: Mapping[str, tuple[int, int]], made: Shared) -> dict[str, Any]:
        places = {}
        with self._inside():
            for label, (address, size) in mine.items():
                try:
                    places[label] = self._area(address, size, label, made)
                except Refused as error:
                    error.advice = self._no_export if TENSOR in label else _NOTHING_LEAVES
                    raise
            new = {
                number: [list(area.sizes), area.ipc.hex(), self._fabric_handles(area)]
                for number in sorted({number for number, _ in places.values()} - self._told)
                for area in [self._areas[number]]
            }
        gone, self._gone = self._gone, []
        return {"places": places, "new": new, "gone": gone}

    def _fabric_handles(self, area: Area) -> list[str]:
        """Of the pieces, where such is the way. NOTE they keep no memory, and nobody gives any back before all have
        mapped it (`share`)."""
        if not self._fabric:
            return []
        return [self._exported(self._sharing.exported, handle).hex() for handle in area.handles]

    @property
    def _no_export(self) -> str:
        return _NO_EXPORT if self._apart is None else _NO_EXPORT_APART

    def _area(self, address: int, size: int, label: str, made: Shared) -> tuple[int, int]:
        """The area that holds these bytes, and where in it they begin."""
        for base, (mapped, number) in self._own.items():
            if base <= address < base + mapped.size:
                return number, address - base
        found = self._sharing.allocation(address, label)
        if found is not None:
            if self._apart is not None:  # IPC memory stays on this machine
                raise Refused("export", "NOT_SUPPORTED", label)
            base, number = found.address, next((n for n, area in self._areas.items() if area.allocation == found), 0)
            if not number:
                handle = self._sharing.handle(base, label)
                number = self._add(Area((found.size,), ipc=handle, allocation=found))
        else:
            if self._by_ipc:
                raise Refused("export", "NOT_SUPPORTED", label)
            base, handles, sizes = self._sharing.pieces(address, size, label)
            number = self._add(Area(sizes, handles, kept=True))
        self._areas[number].uses += 1
        made.callers.append(number)
        return number, address - base

    def _descriptors(self, said: Sequence[Any]) -> dict[int, list[int]]:
        """By other process of the node the descriptors of its new areas, in the order of these."""
        others = [p for p in self._near if p != self.group.rank]
        new = [[sizes for sizes, ipc, fabric in theirs["new"].values() if not (ipc or fabric)] for theirs in said]
        counts = [sum(map(len, theirs)) for theirs in new]
        if not any(counts):
            return {p: [] for p in others}
        mine: list[int] = []
        try:
            with self.in_step("export memory"), self._inside():
                for number, (_, ipc, fabric) in said[self.group.rank]["new"].items():
                    if not (ipc or fabric):
                        for handle in self._areas[int(number)].handles:
                            mine.append(self._exported(self._sharing.export, handle))
            if self._sockets is None:
                return {p: [] for p in others}
            came = pass_around(self._node, mine, [counts[p] for p in self._near], self._sockets, self._timeout)
            return {p: came[self._near.index(p)] for p in others}
        finally:
            close_all(mine)

    def _exported(self, export: Callable[[Handle, str], T], handle: Handle) -> T:
        try:
            return export(handle, "")
        except Refused as error:
            error.advice = self._no_export
            raise

    def _take(self, p: int, said: Mapping[str, Any], descriptors: Sequence[int], made: Shared) -> None:
        """Map what is new of a process, forget what is gone, and find its labels. The descriptors are closed."""
        left = iter(descriptors)
        try:
            for number, (sizes, ipc, fabric) in said["new"].items():
                what = f"memory of process {p}"
                try:
                    if ipc:
                        mapped = Mapped(self._sharing.open(bytes.fromhex(ipc), sizes[0], what), tuple(sizes))
                    else:
                        given = map(bytes.fromhex, fabric) if fabric else islice(left, len(sizes))
                        mapped = self._sharing.map([*given], sizes, self._reach, what)
                except Refused as error:
                    error.advice = error.advice or self._no_map(p, bool(ipc), bool(fabric))
                    raise
                self._theirs[p, int(number)] = Found(mapped, bool(ipc))
        finally:
            close_all(descriptors)
        for number in said["gone"]:
            if (p, number) in self._theirs:
                self._theirs[p, number].leaving = True
        for label, (number, offset) in said["places"].items():
            found = self._theirs[p, number]
            found.uses += 1
            made.theirs.append(found)
            made.addresses[label] = found.mapped.address + offset
        self._unmap_unused()

    def _no_map(self, p: int, ipc: bool, fabric: bool) -> str:
        """What to do where memory of a process cannot be mapped."""
        if ipc:
            return _NO_IPC + (f". As fabric handles memory does not pass: {self._no_fabric}" if self._no_fabric else "")
        if fabric:
            return f"has process {p} ended? {IMEX}"
        return (
            f"this process's GPU cannot use memory of process {p}'s GPU; take whole GPUs, no parts of them (MIG), that "
            f"reach each other ({self._vendor.topology} shows them), and name them in {self._vendor.visible}"
        )

    def _unmap_unused(self) -> None:
        with Closing() as closing:
            for key in [key for key, found in self._theirs.items() if found.leaving and not found.uses]:
                closing(self._unmap, key)

    def _unmap(self, key: tuple[int, int]) -> None:
        found = self._theirs.pop(key)
        if found.ipc:
            self._sharing.close(found.mapped.address)
        else:
            self._sharing.unmap(found.mapped)

    def release(self, shared: Shared) -> None:
        """A binding is given back: what it used of others, and of callers' memory, may go."""
        with self._inside():
            while shared.theirs:
                shared.theirs.pop().uses -= 1
            while shared.callers:
                number = shared.callers.pop()
                self._areas[number].uses -= 1
                if not self._areas[number].uses:
                    self._drop(number)
            self._unmap_unused()

    def unmap(self) -> None:
        """Unmaps all memory of other processes."""
        with Closing() as closing, self._inside():
            for key in list(self._theirs):
                closing(self._unmap, key)

    def part(self) -> None:
        """All is unmapped. Where others have ours open by IPC handles, which must not be freed before, wait until they
        have done the same, or have ended. NOTE no exchange: they may close much later."""
        if self.board is None or self.lost:
            return
        left, board = self._closes(self.board) + PARTING - time.monotonic(), self.board
        if any(area.ipc for area in self._areas.values()) and not poll(board.all_closed, left):
            LOG.warning("%s: other processes have memory of this one open by IPC handles, and it is freed", self.name)

    def _closes(self, board: Board) -> float:
        """The page says that this process closes: since when."""
        board.say("closed")
        self._closing = self._closing or time.monotonic()
        return self._closing

    def parted(self, limit: float) -> bool:
        """Whether all close, as this process does, and none has given up or ended. They get `limit` seconds from when
        this one began to close, and share a page."""
        board = self.board
        assert board is not None
        left = self._closes(board) + limit - time.monotonic()
        over = poll(lambda: board.any_verdict or bool(board.gone()) or board.all_closed(), left)
        return over and not (board.any_verdict or board.gone())

    def close(self) -> None:
        """Unmap all memory of other processes, and let go of callers'. NOTE this process's own memory is freed behind
        it, with its devices."""
        with Closing() as closing:
            if self.board is not None:
                closing(self.board.close)
            for key in list(self._theirs):
                closing(self._unmap, key)
            for number in list(self._areas):
                closing(self._drop, number)


def touched_by_others(plan: DevicePlan) -> list[Key]:
    """The tensors that commands of another process than their rank's touch, in an order that all processes find."""
    placement = plan.placement
    devices = {stream.name: stream.device for stream in plan.streams}
    streams = {stream.name.number: stream.device for stream in plan.streams if stream.name.kind == "plan"}
    found: set[Key] = set()

    def see(device: int, tensor: str, rank: int) -> None:
        if placement.process(device) != placement.processes[rank]:
            found.add((tensor, rank))

    for launch in plan.launches:
        for work in launch.works:
            for region in (*work.reads, *work.writes):
                see(streams[launch.stream], region.tensor, region.rank)
    for action in plan.body:
        for move in action.moves if isinstance(action, CopyMemory) else ():
            for region in (move.dst, move.src):
                see(devices[action.stream], region.tensor, region.rank)
    return sorted(found)


def label(key: Key, number: int = 0) -> str:
    """The label of a tensor in a set."""
    return f"{key[0]}{TENSOR}{key[1]}" + (f" of set {number}" if number else "")


def _host() -> str:
    """The machine, which containers share."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
