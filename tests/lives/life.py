"""A life: what processes do with executors, and the one thing that goes wrong. Each is drawn from its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, TypeAlias

from tests import cases

DriverName: TypeAlias = Literal["cuda", "hip", "host"]
Kind: TypeAlias = Literal[
    "none",  # nothing
    "late",  # a process comes to a run later than the time limit
    "part",  # of a caller's graphs, one a GPU, some are not replayed
    "stop",  # a stream stops for ever
    "slow",  # a copy takes long; it may end after the time limit, at any time
    "kill",  # SIGKILL at a call of the driver
    "interrupt",  # Ctrl-C at a call
    "pause",  # SIGSTOP at a call, SIGCONT later than the time limit
    "exit",  # the interpreter ends; nobody has closed anything
    "fork",  # a forked child uses the executor, drops it, or ends with it
    "fail",  # a call of the driver fails
    "lose",  # and every call after it
    "library",  # a collective of NCCL or RCCL never ends, and its communicators tell of an error
    "leave",  # a process closes its executors
]
KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
OWN, CALLERS = 0, (1, 2)  # sets of tensors: the executor's, and the callers'
MODES = ("streams", "graph")
DATA = 4  # inputs that a life draws from
# Operations whose rows change from run to run, and how many a rank may have; BUCKET of them need no copy.
OPERATIONS, MOST, BUCKET = ("ag_gemm", "gemm_rs", "gemm_ar"), 24, 8

# How often each kind is drawn: alone, and in groups.
_ALONE = {"none": 5, "part": 8, "stop": 15, "slow": 14, "kill": 3, "interrupt": 16, "pause": 4, "exit": 9, "fork": 5,
          "fail": 14, "lose": 5, "library": 5}  # fmt: skip
_GROUP = {"none": 4, "late": 15, "stop": 8, "slow": 8, "kill": 20, "interrupt": 10, "pause": 10, "exit": 8, "fork": 4,
          "fail": 9, "lose": 4, "library": 4, "leave": 3}  # fmt: skip
_HOST = {"none", "late", "kill", "interrupt", "pause", "exit", "fork", "fail", "leave"}
VENDOR_CODES = {"cuda": (999, 719, 2, 1), "hip": (999, 719, 2, 1), "host": (0,)}


@dataclass(frozen=True, slots=True)
class Op:
    """What every process does at this step. `run` ends with the run; `issue` and `replay` do not: `sync` waits for all
    of the executor's. `order`: in which the GPUs' graphs are replayed. `rows`: of an operation. `leave`: the workspace
    closes, and with it all executors."""

    do: Literal["open", "run", "issue", "capture", "replay", "sync", "poison", "close", "leave"]
    seat: int
    manner: str = ""  # streams, graph, traced, gated; on the host the order of steps
    data: int = 0
    tensors: int = OWN
    order: tuple[int, ...] = ()
    rows: int = 0

    @property
    def issues(self) -> bool:
        return self.do in ("run", "issue", "replay")


@dataclass(frozen=True, slots=True)
class Event:
    """What goes wrong in process `place` from operation `op` on: at its `call`-th driver call, or at the operation.
    `more`: the error's code, the steps of a copy, the seconds of a pause (times the limit), what a fork does."""

    kind: Kind
    op: int = 0
    place: int = 0
    call: int = 0
    more: float = 0


@dataclass(frozen=True, slots=True)
class Life:
    name: str  # by which it is drawn again
    driver: DriverName
    processes: int
    ranks: int
    seats: tuple[str, ...]  # the executors' schedules, or operations
    ops: tuple[Op, ...]
    event: Event
    limit: float  # seconds, of a run, from the event on
    library: bool = False  # collectives are those of NCCL, or RCCL
    patient: bool = False  # with the driver's own patience, not a shorter one
    settings: str = ""  # of the stand-in
    seed: int = 0  # of the order of steps
    workspace: bool = False  # the executors share one

    @property
    def keys(self) -> tuple[Key, ...]:
        """Of the seats; of an operation, that of its largest plan."""
        return tuple(
            Key(self.driver, name, self.ranks, self.processes, self.library, MOST if name in OPERATIONS else 0)
            for name in self.seats
        )

    @property
    def plans(self) -> tuple[Key, ...]:
        return (*self.keys, *(replace(key, rows=BUCKET) for key in self.keys if key.rows))


@dataclass(frozen=True, slots=True)
class Key:
    """Of a plan. `rows`: `schedule` is an operation, and this the bucket."""

    driver: DriverName
    schedule: str
    ranks: int
    processes: int
    library: bool = False
    rows: int = 0


def named(name: str, driver: DriverName = "cuda") -> Life:
    """The life of a name, as the table tells it: `alone-1-17` is life 17 of the single processes of campaign 1."""
    part, *rest = name.split("-")
    if part in ("alone", "groups") and len(rest) == 2:
        return drawn(driver, part == "groups", *map(int, rest))
    return next(life for life in PARTS[part](driver) if life.name == name)


def drawn(driver: DriverName, group: bool, campaign: int, number: int) -> Life:
    name = f"{'groups' if group else 'alone'}-{campaign}-{number}"
    chance = Random(name)
    processes = chance.choice((2, 2, 2, 3, 3, 4)) if group else 1
    ranks = (
        processes * (2 if processes == 2 and chance.random() < 0.15 else 1) if group else chance.choice((2, 2, 3, 4))
    )
    library = driver != "host" and chance.random() < 0.2
    # NOTE results are compared bit for bit, and those of rounded inputs are not exact
    pool = [n for n in cases.ONE_TYPE if not library or _calls(n)]
    workspace = chance.random() < 0.4
    seats = tuple(chance.sample(pool, chance.choices((1, 2, 3), (1, 3, 2) if workspace else (6, 3, 1))[0]))
    if workspace and not library:
        seats = tuple(chance.choice(OPERATIONS) if chance.random() < 0.4 else name for name in seats)
    weights = {k: n for k, n in (_GROUP if group else _ALONE).items() if driver != "host" or k in _HOST}
    if not library:
        weights.pop("library", None)
    if driver == "hip":
        weights.pop("part", None)  # it refuses callers' graphs
    kind: Kind = chance.choices(list(weights), list(weights.values()))[0]  # type: ignore[assignment]
    # a capture of NCCL's calls needs one GPU a process
    graphs = driver == "cuda" and (not library or ranks == processes)
    ops = tuple(_ops(chance, driver, seats, ranks // processes, graphs, kind, group, workspace))
    return Life(
        name, driver, processes, ranks, seats, ops, _event(chance, driver, kind, ops, processes),
        limit=chance.choice((0.1, 0.2, 0.3)) * (1.5 if group else 1),
        library=library,
        patient=chance.random() < 0.05,
        settings=f"call_steps {chance.choice((0, 0, 1, 3))}; query_steps {chance.choice((5, 64, 3000))}",
        seed=chance.randrange(1 << 20),
        workspace=workspace,
    )  # fmt: skip


def _calls(name: str) -> bool:
    return any(queue.engine == "nccl" for queue in cases.schedule(name).queues)


def _ops(
    chance: Random,
    driver: str,
    names: Sequence[str],
    graphs: int,
    may_capture: bool,
    kind: str,
    grouped: bool,
    workspace: bool,
) -> Iterator[Op]:
    """`graphs`: of a caller, one a GPU of the process."""
    seats = len(names)
    yield from (Op("open", seat) for seat in range(seats))
    captured: dict[int, int] = {}  # seat → rows
    pending: set[int] = set()
    must = kind == "part"
    for _ in range(chance.randint(2, 6)):
        seat, data = chance.randrange(seats), chance.randrange(DATA)
        rows = chance.choice((1, 3, BUCKET, BUCKET, 13, MOST)) if names[seat] in OPERATIONS else 0
        what = chance.choices(("run", "issue", "replay", "poison"), (5, 3, 2, 1))[0]
        if driver == "host" and what != "poison":
            order = chance.choice(("fifo", "adversarial", f"random({chance.randrange(99)})"))
            yield Op("run", seat, order, data, chance.choice((OWN, *CALLERS)), rows=rows)
            continue
        if (what == "replay" and may_capture) or must:
            must = False
            if seat not in captured:
                captured[seat] = rows
                yield Op("capture", seat, tensors=CALLERS[-1], rows=rows)
            for _ in range(chance.choice((1, 1, 2))):
                gpus = tuple(chance.sample(range(graphs), graphs))
                yield Op("replay", seat, "", data, CALLERS[-1], gpus, captured[seat])
            pending.add(seat)
        elif what == "issue":
            for _ in range(chance.choice((1, 2, 3))):
                yield Op("issue", seat, chance.choice(("streams", "graph")), data, CALLERS[0], rows=rows)
            pending.add(seat)
        elif what == "poison":
            if not (captured and grouped):  # NOTE no replay agrees with others that all have poisoned their scratch
                yield Op("poison", seat)
            continue
        else:
            manner = chance.choices(("streams", "graph", "traced", "gated"), (4, 4, 1, 1))[0]
            yield Op("run", seat, manner, data, chance.choice((OWN, CALLERS[0])), rows=rows)
        for other in sorted(pending):
            if chance.random() < 0.5:
                pending.discard(other)
                yield Op("sync", other)
    yield from (Op("sync", seat) for seat in sorted(pending))
    yield from (Op("close", seat) for seat in range(seats) if not workspace or chance.random() < 0.5)
    if workspace:
        yield Op("leave", 0)


def _event(chance: Random, driver: DriverName, kind: Kind, ops: Sequence[Op], processes: int) -> Event:
    seats = sum(op.do == "open" for op in ops)
    op = chance.randrange(len(ops)) if chance.random() < 0.15 else chance.randrange(seats, len(ops))
    if kind == "part":
        op = chance.choice([i for i, x in enumerate(ops) if x.do == "replay"])
    calls = 30 if driver == "host" else 300
    call = int(calls ** chance.random())
    more = {
        "late": chance.uniform(1.2, 3), "pause": chance.uniform(1.2, 4), "slow": 10 ** chance.uniform(2, 6),
        "fail": chance.choice(VENDOR_CODES[driver]), "lose": 719, "fork": chance.randrange(3), "library": 6,
    }.get(kind, 0.0)  # fmt: skip
    if kind == "library":
        call = chance.randint(1, 8)
    elif kind in ("stop", "slow"):
        call = int((60 if kind == "stop" else 12) ** chance.random())
    return Event(kind, op, chance.randrange(processes), call, more)


# ---------------------------------------------------------------- parts that take every case


def late(driver: DriverName) -> Iterator[Life]:
    """Process 0 gives its run up before process 1 calls its own: each schedule, in 2 and 3 processes, in both modes."""
    for processes in (2, 3):
        for name in cases.ONE_TYPE:
            for manner in MODES if driver != "host" else ("fifo", "adversarial"):
                ops = (Op("open", 0), Op("run", 0, manner), Op("run", 0, manner, 1), Op("close", 0))
                event = Event("late", 2, 1, 0, 4.0)
                yield Life(
                    f"late-{name}-{manner}-{processes}", driver, processes, processes, (name,), ops, event, 0.25,
                    settings="query_steps 5000",
                )  # fmt: skip


def ring(driver: DriverName, schedules: Sequence[str] = ("gemm_rs/ring", "ag_gemm/shard_ring")) -> Iterator[Life]:
    """Three processes, one of which is killed at a call of a run: at each, until the run has no more."""
    for name in schedules:
        for manner in MODES if driver != "host" else ("fifo",):
            for place in range(3):
                for call in range(1, 25 if driver == "host" else 91):
                    ops = (Op("open", 0), Op("run", 0, manner), Op("run", 0, manner, 1), Op("close", 0))
                    event = Event("kill", 2, place, call)
                    yield Life(
                        f"ring-{name}-{manner}-{place}-{call}", driver, 3, 3, (name,), ops, event, 0.5,
                        settings="query_steps 50", seed=call,
                    )  # fmt: skip


PARTS = {"late": late, "ring": ring}


@dataclass(slots=True)
class Report:
    """What a process says of its life. `ends`: of each operation that issues, how it ended. `again`: how the retry did
    in the same executor, and in a new one."""

    ends: dict[int, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    again: str = ""
    objections: list[tuple[str, str]] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)  # device plans that nobody had made
    imported: list[str] = field(default_factory=list)  # modules, likewise
    slowest: float = 0.0
