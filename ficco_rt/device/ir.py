"""The device plan: every call that a run makes on the devices, in the order of issue. Nothing is left to decide.

`device.build` makes it from a plan, a device, a placement and a mode, before any memory exists. `device.check` checks
it without other input. A driver binds addresses to it and issues its actions.

Ordering rules:
- actions of one stream happen one after another; the launch of a kernel with `early` may begin while the kernel before
  it on its stream still runs, and waits itself for that kernel's end before it touches what is not read-only;
- `AwaitEvent` waits for the `RecordEvent` of the same event that was issued last before it;
- a semaphore is 0 when a run begins; streams and kernels that wait for it continue once it is 1; it is reset once;
- a stream that acquires a semaphore (`SemaphoreOp.acquires`) waits for it and resets it itself;
- consecutive runs alternate between `sets` sets of semaphores and of scratch that is not `private`, those in a caller's
  graph between two others (`sharing`): what a run leaves in a set is visible to no run before the next one that uses
  this set;
- a semaphore that counts runs (`Semaphore.tells_runs`) is never reset: a device counts its runs in one of its
  semaphores, and writes the count to semaphores of other devices; a device that waits for such a semaphore continues
  once the semaphore has reached its own count;
- the copies of a batch have no order among themselves; they begin when everything before the batch has ended;
- a call of a collective (`CallCollective`) ends on any rank only after it has begun on all; a `send_recv` only after it
  has begun on the rank that it receives from;
- the works of a kernel are taken in their order; `merged` works of a product are made as one, in registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress, product
from typing import Literal, TypeAlias

from ficco_dsl.diagnostics import Diagnostic, Span

from ..geometry.region import Region
from ..graph.ir import Collective, CollectiveSettings, Gemm, Leave, Priority, Tensor
from ..kernels.family import KernelConfig
from ..machine.model import Device
from ..plan.ir import Transfer, Work

VERSION = 10

# `streams`; `apart`, without inline ones; a `graph` for each device; `embedded`, these graphs as parts of the callers'
# own graphs, replayed when the callers replay theirs; `traced`, on streams with timestamps, and with marks inside
# launches that spin; `gated`, as `apart`, behind a start gate (`start_gate`).
Mode: TypeAlias = Literal["streams", "apart", "graph", "embedded", "traced", "gated"]
Used: TypeAlias = Literal["always", "graph", "embedded", "traced", "gated"]  # modes that use a semaphore
Library: TypeAlias = Literal["", "NCCL", "RCCL"]  # of collectives; none
GRAPHS: tuple[Mode, ...] = ("graph", "embedded")
PLAIN: tuple[Mode, ...] = ("streams", "apart", "gated")  # on streams, nothing between commands
GATED: tuple[Mode, ...] = ("traced", "gated")  # behind a start gate, where there can be one

PLACELESS = Span("device plan", 1, 1, 1, 1)  # of what no line of a schedule has asked for

# When an action of a prologue or epilogue is issued: `behind` a run that may still be under way, or `alone`, when the
# host has seen that run's end; where the run is `timed`. "behind others": the run before did not end on the same
# callers' streams. "behind replays": callers' graphs hold runs, and may be under way.
When: TypeAlias = Literal["always", "timed", "behind", "behind others", "behind replays"]

StreamKind: TypeAlias = Literal["plan", "signal", "wait", "control", "caller", "gate"]
EventKind: TypeAlias = Literal[
    "plan",
    "signal",
    "wait",
    "barrier",
    "start",
    "begin",
    "end",
    "completion",
    "caller",
    "tail",
    "captured",
    "entry",
    "exit",
    "ready",
    "open",
    "embedded",
    "begun",
    "replayed",
    "chain",
    "timestamp",
]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where ranks run: `devices[rank]` is the owner device of a rank; `processes[rank]` the process that drives this
    device (default: one drives all); `nodes[rank]` the node of this process (default: one); `gpus[rank]` the rank's GPU
    (default: each device is one), of which each process that shares it has a device. No events lead from one process
    to another, but semaphores do; from one node to another only messages of the vendor's library do."""

    devices: tuple[int, ...]
    processes: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()

    def share_gpu(self, a: int, b: int) -> bool:
        """Whether two ranks are on one GPU, where a copy between them may take a multiprocessor."""
        of = self.gpus or self.devices
        return of[a] == of[b]

    @property
    def ordinals(self) -> tuple[int, ...]:
        """The devices in use, in the order of their first ranks."""
        return _each_once(self.devices)

    @property
    def each_alone(self) -> bool:
        """Every process drives one device."""
        return len(set(self.processes) or {0}) == len(self.ordinals)

    def process(self, device: int) -> int:
        """The process that drives a device."""
        return self.processes[self.devices.index(device)] if self.processes else 0

    def node(self, device: int) -> int:
        """The node of a device."""
        return self.nodes[self.devices.index(device)] if self.nodes else 0

    def driven(self, process: int) -> tuple[int, ...]:
        """The devices that a process drives."""
        return tuple(device for device in self.ordinals if self.process(device) == process)

    def mates(self, device: int) -> tuple[int, ...]:
        """The devices that are driven by the process of a device, itself included."""
        return self.driven(self.process(device))

    def others(self, device: int) -> tuple[int, ...]:
        """The devices that other processes drive."""
        return tuple(other for other in self.ordinals if self.process(other) != self.process(device))

    def near(self, device: int) -> tuple[int, ...]:
        """The other devices of a device's node."""
        return tuple(other for other in self.ordinals if other != device and self.node(other) == self.node(device))

    def ranks(self, device: int) -> tuple[int, ...]:
        return tuple(rank for rank, owner in enumerate(self.devices) if owner == device)


@lru_cache(maxsize=16)
def _each_once(devices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(devices))


@dataclass(frozen=True, slots=True)
class Features:
    """What a vendor's driver can do for a run."""

    copy_batches: bool  # several copies in one call, without order among them; not in graphs
    batched_mem_ops: bool  # several signals and waits of semaphores in one call, without a multiprocessor
    side_waits: bool  # a copy stream waits less for an event of a side stream than for a semaphore
    early_starts: bool  # a kernel may begin while the one before it on its stream ends
    embeds: bool  # graphs can become parts of callers' graphs, and record events outside of these
    queues: int  # hardware queues of a device: streams beyond that number share them
    collectives: Library = ""  # the vendor's library, which makes collectives where `collectives.own_way` lets it
    vendor_gemms: bool = False  # the vendor's library of GEMMs is installed, and does what no tuned kernel is there for


@dataclass(frozen=True, slots=True, order=True)
class StreamName:
    """A stream of a device. `number` is the plan's stream (`plan`, and its side streams `signal` and `wait`), the
    device (`control`, `gate`), or the rank whose caller gives the stream (`caller`)."""

    kind: StreamKind
    number: int

    def __str__(self) -> str:
        return {
            "plan": f"stream {self.number}",
            "signal": f"stream {self.number} side (signals)",
            "wait": f"stream {self.number} side (waits)",
            "control": f"control {self.number}",
            "caller": f"caller {self.number}",
            "gate": f"start gate {self.number}",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class DeviceStream:
    """A stream and where it is. `rank` and `label` are the plan's for its streams. `inline`: see that module."""

    name: StreamName
    device: int
    priority: Priority
    rank: int | None = None
    label: str = ""
    inline: bool = False


@dataclass(frozen=True, slots=True, order=True)
class EventName:
    """An event. `number` counts by kind:

    plan: the plan's event; signal, wait: the plan's stream whose side stream it joins; barrier: a collective's group,
    with `rank` and `behind` (after the rank's part); start: the device, whose streams begin behind it, or those of all
    devices; begin, end: the device, of which times are taken; completion, captured: the device; entry, ready, exit: the
    device, points that semaphores alone tell others: its callers are ready and all earlier runs have ended on it
    (`ready` where streams tell it); the run is through with other devices' callers' tensors;
    open: the device, when all others are ready; embedded: the device, behind its graph in a
    caller's; begun, replayed: the device, each time that such a graph begins and has run; caller: the rank; tail: the
    plan's stream, at its end, or with `behind` its side stream that signals; chain: counts where the chain of a crowded
    device's graph goes on to another stream, `rank` is the device; timestamp: the plan's stream, where `rank` counts
    them.
    """

    kind: EventKind
    number: int
    rank: int = 0
    behind: bool = False

    @property
    def timing(self) -> bool:
        """Whether times are taken of it."""
        return self.kind in ("begin", "end", "timestamp")

    def __str__(self) -> str:
        match self.kind:
            case "plan":
                return f"event {self.number}"
            case "barrier":
                return f"barrier {self.number} {'behind' if self.behind else 'before'} rank {self.rank}"
            case "timestamp":
                return f"timestamp {self.rank} of stream {self.number}"
            case "chain":
                return f"chain {self.number}"
            case "caller":
                return f"caller {self.number}"
            case "signal" | "wait" | "tail":
                return f"{self.kind} of stream {self.number}"
            case _:
                return f"{self.kind} of device {self.number}"


@dataclass(frozen=True, slots=True)
class Semaphore:
    """A 32-bit word in the memory of the device that waits for it. It carries the plan's `flag`, or the `point` of
    another device that its device waits for, where no event leads; or it is a start gate, which has neither.

    `index` is its place among its device's semaphores. It is reset by the `kernel` that alone waits for it, by its
    stream right `behind` that kernel, at the `completion` of the run, or by the stream that waits for it (`acquired`);
    or `never`: it tells of runs. Then its `point` is an entry or exit, or it has none and is its device's own count of
    the runs. `used`: in all modes, in graphs, in graphs that are embedded, in traced runs, or, as a start gate, in the
    modes that have one."""

    device: int
    index: int
    flag: int | None
    point: EventName | None
    reset: Literal["kernel", "behind", "completion", "acquired", "never"]
    used: Used = "always"

    def used_in(self, mode: Mode) -> bool:
        if self.used in ("always", "gated"):
            return self.used == "always" or mode in GATED
        return mode == self.used or (self.used == "graph" and mode == "embedded")

    @property
    def tells_runs(self) -> bool:
        """Whether counts of runs stand in it."""
        return self.reset == "never"

    @property
    def counts_runs(self) -> bool:
        """Whether it is its device's own count."""
        return self.tells_runs and self.point is None

    @property
    def purpose(self) -> str:
        if self.used == "gated":
            return "start gate"
        if self.counts_runs:
            return "count of runs"
        return f"flag {self.flag}" if self.point is None else str(self.point)


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Cause:
    """The purpose of an action in words, and the line of the schedule that it comes from."""

    text: str
    origin: Span | None = field(default=None, compare=False)


class _Action:
    """What every action can say of itself."""

    __slots__ = ()
    cause: Cause

    @property
    def origin(self) -> Span:
        return self.cause.origin or PLACELESS

    @property
    def signals(self) -> tuple[int, ...]:
        """The semaphores that it signals; a kernel's stand in its launch."""
        return ()

    @property
    def awaits(self) -> tuple[int, ...]:
        """The semaphores that it waits for."""
        return ()

    @property
    def parts(self) -> tuple[Move | CallCollective, ...]:
        """What it carries out of ops; a kernel's works stand in its launch."""
        return ()

    def mistake(self, message: str) -> Diagnostic:
        return Diagnostic(self.origin, f"{self.cause.text}: {message}")


@dataclass(frozen=True, slots=True)
class RecordEvent(_Action):
    stream: StreamName
    event: EventName
    cause: Cause
    when: When = "always"


@dataclass(frozen=True, slots=True)
class AwaitEvent(_Action):
    stream: StreamName
    event: EventName
    cause: Cause
    when: When = "always"


@dataclass(frozen=True, slots=True)
class SemaphoreOp:
    """A stream signals a semaphore, or waits until it is set. `acquires`: the stream resets it after the wait."""

    semaphore: int
    signals: bool
    acquires: bool = False

    def __str__(self) -> str:
        does = "signal" if self.signals else "acquire" if self.acquires else "wait for"
        return f"{does} semaphore {self.semaphore}"


@dataclass(frozen=True, slots=True)
class StreamMemOps(_Action):
    """A stream signals semaphores or waits for them, one after another; in one call, if the driver has
    `batched_mem_ops`."""

    stream: StreamName
    changes: tuple[SemaphoreOp, ...]
    cause: Cause
    when: When = "always"

    @property
    def signals(self) -> tuple[int, ...]:
        return tuple(c.semaphore for c in self.changes if c.signals)

    @property
    def awaits(self) -> tuple[int, ...]:
        return tuple(c.semaphore for c in self.changes if not c.signals)


@dataclass(frozen=True, slots=True)
class Move(Transfer):
    """dst <- src by a copy engine. `pitched`: rows of one pitch, not one run of bytes on both sides."""

    pitched: bool
    stage: str


@dataclass(frozen=True, slots=True)
class CopyMemory(_Action):
    """Copies, and `semaphores` that are set by copying a 1 to each. `batch`: all in one call, without order among them;
    otherwise one after another, semaphores first. `by_kernel`: inside the device, by a kernel of the stream's
    priority."""

    stream: StreamName
    moves: tuple[Move, ...]
    semaphores: tuple[int, ...]
    batch: bool
    cause: Cause
    when: When = "always"
    by_kernel: bool = False

    @property
    def signals(self) -> tuple[int, ...]:
        return self.semaphores

    @property
    def parts(self) -> tuple[Move, ...]:
        return self.moves


@dataclass(frozen=True, slots=True)
class LaunchKernel(_Action):
    """Launches the entry at this index of the device plan's table of launches."""

    stream: StreamName
    launch: int
    cause: Cause
    when: When = "always"


@dataclass(frozen=True, slots=True)
class ResetSemaphores(_Action):
    """Semaphores `first` … `first + count - 1` of the stream's device are 0 again."""

    stream: StreamName
    first: int
    count: int
    cause: Cause
    when: When = "always"


@dataclass(frozen=True, slots=True)
class BarrierStep:
    """Semaphores `first` … `first + count - 1` of the table, which lie side by side, are signalled, awaited or reset;
    or the device's count of runs, `first`, goes up by one run."""

    does: Literal["signal", "wait", "reset", "count"]
    first: int
    count: int = 1

    @property
    def semaphores(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True)
class Barrier(_Action):
    """A barrier with other devices: a kernel of one warp takes these steps one after another; adjacent steps of one
    kind have no order. It signals and awaits semaphores that tell of runs, by the count in its device's semaphore
    `runs`. In a graph that costs the host less than the same steps by streams."""

    stream: StreamName
    runs: int
    steps: tuple[BarrierStep, ...]
    cause: Cause
    when: When = "always"

    @property
    def signals(self) -> tuple[int, ...]:
        return self.semaphores("signal")

    @property
    def awaits(self) -> tuple[int, ...]:
        return self.semaphores("wait")

    def semaphores(self, does: str) -> tuple[int, ...]:
        """The semaphores of all steps of a kind."""
        return tuple(semaphore for step in self.steps if step.does == does for semaphore in step.semaphores)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCollective(Collective, _Action):
    """A rank's call of collective `group` by the vendor's library. The calls of all ranks stand side by side, and are
    made together. The call reads and writes memory of its own rank alone."""

    stream: StreamName
    communicator: int  # of the device plan's table
    op: int  # of the plan
    stage: str
    cause: Cause
    when: When = "always"

    @property
    def parts(self) -> tuple[CallCollective, ...]:
        return (self,)


@dataclass(frozen=True, slots=True)
class LaunchGraph(_Action):
    """The actions of the body that belong to a device, as its graph: launched, or as a part of the caller's graph."""

    stream: StreamName
    device: int
    cause: Cause
    when: When = "always"


Action: TypeAlias = (
    RecordEvent
    | AwaitEvent
    | StreamMemOps
    | CopyMemory
    | LaunchKernel
    | ResetSemaphores
    | Barrier
    | CallCollective
    | LaunchGraph
)


@dataclass(frozen=True, slots=True)
class Communicator:
    """What the vendor's library opens for the collectives of a queue: a communicator on every rank's device. `blocks`:
    the multiprocessors of a device that a call may hold while it waits for other ranks."""

    queue: str
    settings: CollectiveSettings
    blocks: int


@dataclass(frozen=True, slots=True)
class DeviceLaunch:
    """A kernel's launch. `config` says how it is launched, `works` what it does.

    `sms` is its share: it holds no more multiprocessors than that while its blocks wait (`spins`). `early`: it may
    begin while the kernel before it on its stream ends. `stream` and `command` are the place in the plan;
    `stages` are those of the works.
    """

    config: KernelConfig
    works: tuple[Work, ...]
    sms: int
    spins: bool
    early: bool
    priority: Priority | None
    stream: int
    command: int
    stages: tuple[str, ...]
    origin: Span = field(compare=False)
    leave: Leave | None = None  # what its blocks leave room for

    @property
    def made_as_one(self) -> Sequence[tuple[int, ...]]:
        """The works as the kernel makes them, in order: each alone, or several that are merged."""
        return self.config.merged or tuple((i,) for i in range(len(self.works)))

    def early_reads(self, work: Work) -> tuple[Region, ...]:
        """What a work reads before the semaphores that it waits for are up: read-only operands."""
        sides = (work.body.left, work.body.right) if isinstance(work.body, Gemm) else ()
        return tuple(compress(sides, self.config.read_only))

    def mistake(self, message: str) -> Diagnostic:
        return Diagnostic(self.origin, f"{self.config.entry}: {message}")


@dataclass(frozen=True, slots=True)
class RunEnds:
    """A run's prologue and epilogue: the actions that are issued before its body and after it. They order the run after
    earlier runs and among the callers' streams. In the modes `graph` and `embedded` the prologue launches the graphs,
    or makes them parts of the callers'."""

    prologue: tuple[Action, ...]
    epilogue: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """See the module. `own` is the prologue and epilogue of a run that nobody's streams wait for, `called` that of a
    run among the callers' streams, one a rank; the mode `embedded` has no `own`. `tensors` are the plan's. `sets`:
    number of sets of semaphores and scratch, between which consecutive runs alternate, without those for callers'
    graphs; `private` scratch is in none of them (`sharing`)."""

    version: int
    schedule: str
    plan_hash: str
    mode: Mode
    placement: Placement
    device: Device
    features: Features
    tensors: tuple[Tensor, ...]
    streams: tuple[DeviceStream, ...]
    semaphores: tuple[Semaphore, ...]
    launches: tuple[DeviceLaunch, ...]
    written: tuple[int, ...]  # by op of the plan: elements that it writes, on all ranks
    body: tuple[Action, ...]
    own: RunEnds
    called: RunEnds
    communicators: tuple[Communicator, ...] = ()
    sets: int = 1
    private: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<DevicePlan of {self.schedule}, mode {self.mode}: {len(self.placement.devices)} ranks on "
            f"{len(self.placement.ordinals)} devices, {len(self.launches)} launches, {len(self.body)} actions>"
        )

    def marks(self, launch: DeviceLaunch) -> bool:
        """Whether the launch uses the instrumented variant of its kernel, which records when tiles waited, began and
        ended."""
        return self.mode == "traced" and launch.spins

    @property
    def actions(self) -> Iterator[Action]:
        """All actions: prologues, body and epilogues."""
        yield from (*self.own.prologue, *self.called.prologue, *self.body, *self.own.epilogue, *self.called.epilogue)

    @property
    def parts(self) -> Iterator[tuple[StreamName, Work | Move | CallCollective]]:
        """All that a run carries out of ops, with the stream of each."""
        for launch in self.launches:
            for work in launch.works:
                yield StreamName("plan", launch.stream), work
        for action in self.body:
            for part in action.parts:
                yield action.stream, part

    @property
    def device_of(self) -> dict[StreamName, int]:
        return {stream.name: stream.device for stream in self.streams}

    @property
    def semaphore_of(self) -> dict[int, int]:
        """The semaphore of each flag that has one."""
        return {semaphore.flag: i for i, semaphore in enumerate(self.semaphores) if semaphore.flag is not None}

    def run_ends(self, manner: Manner) -> RunEnds:
        """The actions that a run of a manner issues before the body and after it."""
        run_ends = self.called if manner.called else self.own
        return RunEnds(manner.of(run_ends.prologue), manner.of(run_ends.epilogue))

    @property
    def has_start_gate(self) -> bool:
        """Whether a run begins only after the host has issued all of it."""
        return any(semaphore.used == "gated" for semaphore in self.semaphores)

    @property
    def queues(self) -> dict[int, int]:
        """Number of hardware queues that each device's streams need so that no stream is delayed by a wait of
        another."""
        return queues(self.placement, [s for s in self.streams if s.name.kind != "caller"])

    @property
    def crowded(self) -> dict[int, int]:
        """The devices with fewer hardware queues than streams, including the callers' streams, and the number of queues
        that each needs."""
        return crowded(self.placement, self.streams, self.features)


def queues(placement: Placement, streams: Iterable[DeviceStream]) -> dict[int, int]:
    """Number of the streams on each device."""
    found = dict.fromkeys(placement.ordinals, 0)
    for stream in streams:
        found[stream.device] += 1
    return found


def crowded(placement: Placement, streams: Iterable[DeviceStream], features: Features) -> dict[int, int]:
    """See `DevicePlan.crowded`."""
    return {device: count for device, count in queues(placement, streams).items() if count > features.queues}


@dataclass(frozen=True, slots=True)
class Manner:
    """How a run is made: `called` among callers' streams, or on nobody's; the other fields are what `takes` asks."""

    called: bool
    behind: bool
    timed: bool
    others: bool = False
    replays: bool = False

    def __str__(self) -> str:
        said = {
            "on callers' streams" if self.called else "on its own streams": True,
            "behind the run before" if self.behind else "alone": True,
            "which was others'": self.behind and self.others,
            "behind replays": self.replays,
            "timed": self.timed,
        }
        return ", ".join(text for text, holds in said.items() if holds)

    def takes(self, when: When) -> bool:
        """Whether an action of a prologue or epilogue takes part; `manners` lists what a driver makes."""
        return {
            "always": True,
            "timed": self.timed,
            "behind": self.behind,
            "behind others": self.behind and self.others,
            "behind replays": self.replays,
        }[when]

    def of(self, actions: Iterable[Action]) -> tuple[Action, ...]:
        """The actions of a prologue or epilogue that take part."""
        return tuple(action for action in actions if action.when == "always" or self.takes(action.when))


def manners(plan: DevicePlan) -> tuple[Manner, ...]:
    """Every manner in which a driver makes runs of the plan: modes and conditions in one table.

    | | behind | timed | others | replays |
    |---|---|---|---|---|
    | a part of a callers' graph (`embedded`) | yes | no | yes | the first one of the graph |
    | alone: the host has seen the end of the run before | no | own or traced: yes; else either | no | no |
    | behind a run of the same callers whose end they know | yes | same | no | either, if the driver embeds graphs |
    | behind any other run | yes | same | yes | same |

    They know the end of a run of the same plan and mode, and of another one as `run_ends.known_ends` says.
    """
    if plan.mode == "embedded":
        return tuple(Manner(True, behind=True, timed=False, others=True, replays=first) for first in (True, False))
    behind = [Manner(False, behind=False, timed=True)]
    for others, replays in product((False, True), (False, True) if plan.features.embeds else (False,)):
        behind.append(Manner(False, behind=True, timed=True, others=others, replays=replays))
    times = (True,) if plan.mode == "traced" else (False, True)
    return (*behind, *(replace(manner, called=True, timed=timed) for timed in times for manner in behind))
