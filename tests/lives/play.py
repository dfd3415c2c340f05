"""One process's part of a life, and what it finds wrong.

All that runs is compared: a run that raised no error must be right in every element, by integers with which nothing
rounds. Outputs hold PATTERN from before a run's call; until the call nobody may have written them. NOTE the stand-in's
device memory is memory of the process, so that looking at it takes no call of the driver.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.gpu import collectives, issue_order, runs, watchdog
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import fresh_inputs
from ficco_rt.exec.reference import evaluate, take
from ficco_rt.exec.workspace import Workspace
from ficco_rt.geometry.region import Region
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from ficco_rt.process.group import Group
from ficco_rt.select import sized
from ficco_rt.select.choose import choose
from ficco_rt.types import numpy_dtype
from tests import cases
from tests.lives.life import BUCKET, MOST, OWN, Event, Key, Life, Op, Report
from tests.lives.striking import calm, strike, waited
from tests.mock import standin
from tests.pipes import Pipes

PATTERN = 0x55  # of each byte of an output before its run: no integer
LONG = 20.0  # seconds, where nothing is to be given up
RETRY = 5.0  # of a run after the life
OPENING = 1.5  # and of exchanges that a process may not come to
ANSWER = 2.0  # after its limit a call must have come back
MARGIN = 4.0  # on a busy machine
# The driver's own patience, shorter: most lives would only sleep.
SHORT = ((runs, "DRAIN", 0.3), (watchdog, "ANSWER", 0.5), (watchdog, "HEALTH", 0.03), (collectives, "SETTLE", 0.5),
         (issue_order, "LEAST", 0.5))  # fmt: skip
PHASE, ENDED = 0, 1  # of a process on the page: which part of its life it is in, and whether it has ended
OPS = 8  # from where on the page has what a process has called
ROW = 128  # entries a process

Errors = (DeviceError, UsageError)


# ---------------------------------------------------------------- what lives have in common, made once


def settings(key: Key) -> str:
    more = "; sms 132; nccl 22809" if key.library else ""
    return f"devices {key.ranks}; shared {int(key.processes > 1)}{more}"


_KEYS: dict[int, Key] = {}  # of the plans that live


@cache
def plan(key: Key) -> Plan:
    if key.rows:
        return _of_operation(key)
    sizes = cases.sizes(key.schedule, key.ranks, True) | cases.few_chunks(key.schedule) | cases.once(key.schedule)
    graph = build(cases.schedule(key.schedule), key.ranks, sizes)
    if key.driver == "host":
        return plan_of(graph, profile("h200-switch", key.ranks))
    standin.of(key.driver).reset(settings(key))
    made = plan_of(graph, discover(key.driver, key.ranks, processes=key.processes))
    _KEYS[id(made)] = key
    return made


def _of_operation(key: Key) -> Plan:
    on_gpus = key.driver != "host"
    if on_gpus:
        standin.of(key.driver).reset(settings(key))
    machine = discover(key.driver, key.ranks, processes=key.processes) if on_gpus else profile("h200-switch", key.ranks)
    rows = key.rows * (1 if key.schedule == "gemm_ar" else key.ranks)
    made = choose(key.schedule, key.ranks, machine, sizes=columns(key) | {"M": rows}).plan
    _KEYS[id(made)] = key
    return made


def columns(key: Key) -> dict[str, object]:
    """The sizes of an operation but for its rows."""
    return {"N": 8 * key.ranks, "K": 16 * key.ranks, "T": "fp32"}


def plan_of_operation(life: Life) -> Callable[..., Plan]:
    """In the place of `Operation._plan`: the plans are there."""

    def found(operation: Any, sizes: Mapping[str, Any]) -> Plan:
        name = operation._operation
        rows = sizes["M"] // (1 if name == "gemm_ar" else life.ranks)
        return plan(Key(life.driver, name, life.ranks, life.processes, rows=rows))

    return found


def key_of(made: Plan) -> Key:
    return _KEYS[id(made)]


@cache
def inputs(key: Key, data: int) -> Mapping[str, Sequence[Any]]:
    return fresh_inputs(plan(key), data, "exact")


@cache
def wanted(key: Key, data: int) -> list[tuple[Region, Any]]:
    """What a run must leave, region by region: from the claims alone."""
    found: list[tuple[Region, Any]] = []
    for claim in plan(key).claims:
        found += zip(claim.targets, evaluate(claim.value, inputs(key, data)), strict=True)
    return found


@cache
def rows_of(key: Key, data: int, rows: int) -> tuple[Mapping[str, Sequence[Any]], Sequence[Any]]:
    """An operation's inputs with so many rows, and what must come out on each rank."""
    chance, ranks = np.random.default_rng(data), range(key.ranks)
    n, k = 8 * key.ranks, 16 * key.ranks
    gathers, scatters = key.schedule == "ag_gemm", key.schedule == "gemm_rs"
    sizes = (rows, k), (k, n // key.ranks)
    if not gathers:
        sizes = (rows * (key.ranks if scatters else 1), k // key.ranks), (k // key.ranks, n)
    a, b = ([chance.integers(-2, 3, size).astype(np.float32) for _ in ranks] for size in sizes)
    if gathers:
        return {"A": a, "B": b}, [np.concatenate(a) @ right for right in b]
    total = np.sum([left @ right for left, right in zip(a, b, strict=True)], axis=0)
    return {"A": a, "B": b}, [total[r * rows : (r + 1) * rows] if scatters else total for r in ranks]


# ---------------------------------------------------------------- an executor and what its caller has


class _Array:
    """A caller's tensor."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.address, self.shape = address, shape
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": dtype.str, "data": (address, False), "version": 3,
        }  # fmt: skip


class CallError(Exception):
    """A call that the caller made has failed."""


class Place:
    """Where a process's executors run: in a group or alone, each for itself or in one workspace, whose callers have
    the same `streams`."""

    def __init__(self, life: Life, group: Group | None, timeout: float) -> None:
        self.group, self.timeout = group, timeout
        self.seats: list[Seat] = []
        self.streams: list[Any] = []
        self.vendor: Any = None
        self.workspace: Workspace | None = None
        if life.workspace:
            self.workspace = Workspace(life.ranks, life.driver, group=group, timeout=timeout)

    def open(self, key: Key) -> Seat:
        on_host = key.driver == "host"
        made = (HostSized if on_host else Sized) if key.rows else (HostSeat if on_host else Seat)
        self.seats.append(made(key, self))
        return self.seats[-1]

    def together(self, seat: Seat) -> list[Seat]:
        """The seats whose runs end with those of this one."""
        return self.seats if self.workspace is not None else [seat]

    def close(self) -> None:
        """What its seats share."""
        if self.workspace is not None:
            for seat in self.seats:
                seat.drop_graphs()
            self.workspace.close()
            while self.streams:
                self.vendor.destroy_stream(self.streams.pop())


class Seat:
    """An executor on GPUs."""

    def __init__(self, key: Key, place: Place) -> None:
        self.key, self.place = key, place
        self.executor = self._opened()
        self.plan = self.executor.plan
        self.nothing = self._vendor.current() if key.driver != "host" else None  # no context
        self.views: dict[int, dict[tuple[str, int], Any]] = {}  # of a set: its tensors' memory
        self.pending: list[tuple[int, Op]] = []  # operations whose runs have not been seen to end, with their numbers
        self.bound: dict[int, Any] = {}
        self.streams: list[Any] = [] if place.workspace is None else place.streams
        self.graphs: list[Any] = []
        self.taken: list[tuple[Any, int]] = []
        self._write()

    def _opened(self) -> Executor:
        made, place = plan(self.key), self.place
        if place.workspace is not None:
            return Executor(made, workspace=place.workspace)
        return Executor(made, self.key.driver, group=place.group, timeout=place.timeout)

    def _write(self) -> None:
        for name, arrays in inputs(self.key, 0).items():
            for rank in self.executor.ranks:
                self.executor.write(name, rank, arrays[rank])

    @property
    def executors(self) -> list[Any]:
        return [self.executor]

    def tensors(self, number: int) -> None:
        """The set's memory, made when it is first needed. All processes come here at the same step."""
        if number in self.bound:
            return
        if number == OWN:
            self.bound[OWN] = self.executor.bind()
            self._own()
        else:
            self.bound[number] = self.executor.bind(**self._callers(number))

    def _own(self) -> None:
        driver: Any = self.executor.driver
        found = {key: driver._buffers[buffer] for key, buffer in self.executor._owned.items()}
        self.views[OWN] = {key: _view(t.address, t.shape, numpy_dtype(t.dtype)) for key, t in found.items()}

    def _callers(self, number: int) -> dict[str, list[Any]]:
        driver: Any = self.executor.driver
        gpus, given = driver._gpus, dict[str, list[Any]]()
        views = self.views[number] = {}
        for tensor in self.plan.tensors:
            for rank in self.executor.ranks if tensor.kind != "scratch" else ():
                device, dtype = gpus.device(rank), numpy_dtype(tensor.dtype)
                size = max(16, int(np.prod(tensor.shapes[rank])) * dtype.itemsize)
                with gpus.inside(device):
                    address = driver._vendor.alloc(size, "a caller's tensor")
                self.taken.append((device, address))
                views[tensor.name, rank] = _view(address, tensor.shapes[rank], dtype)
                given.setdefault(tensor.name, []).append(_Array(address, tensor.shapes[rank], dtype))
        return given

    def _streams(self) -> list[Any]:
        gpus, self.place.vendor = self._gpus, self._vendor
        for rank in self.executor.ranks[len(self.streams) :]:
            with gpus.inside(gpus.device(rank)):
                self.streams.append(self._vendor.new_stream(0))
        return self.streams

    @property
    def _gpus(self) -> Any:
        return self.executor.driver._gpus  # type: ignore[attr-defined]

    @property
    def _vendor(self) -> Any:
        return self.executor.driver._vendor  # type: ignore[attr-defined]

    # ---- what is done

    def limit(self, seconds: float) -> None:
        """Of runs, and of what executors that are made later exchange."""
        if self.place.workspace is not None:
            self.place.workspace.timeout = seconds
        for executor in self.executors:
            driver, executor.timeout = executor.driver, seconds
            if self.key.driver != "host":
                driver._gpus.timeout = driver._gpus.client.timeout = seconds
            if driver._peers is not None:
                driver._peers._timeout = seconds

    def call(self, op: Op) -> None:
        executor = self.executor_of(op)
        executor.graph, executor.traced = op.manner == "graph", op.manner == "traced"
        executor.gated = op.manner == "gated"
        self._run(op, None if op.do == "run" else [int(s) for s in self._streams()])

    def executor_of(self, op: Op) -> Any:
        return self.executor

    def _run(self, op: Op, streams: Sequence[int] | None) -> None:
        self.executor.run(self.bound[op.tensors], streams=streams)

    def fresh(self, op: Op) -> bool:
        """Whether no run is pending that has the same tensors."""
        return all(other.tensors != op.tensors for _, other in self.pending)

    def fill(self, op: Op) -> None:
        """New inputs, and the pattern in outputs; nothing of the executor runs."""
        kinds = {t.name: t.kind for t in self.plan.tensors}
        for (name, rank), view in self.views.get(op.tensors, {}).items():  # none: a run to come binds them
            if kinds[name] == "input":
                self._give(view, name, rank, op)
            elif kinds[name] == "output" and view.size:
                view.view(np.uint8).fill(PATTERN)

    def _give(self, view: Any, name: str, rank: int, op: Op) -> None:
        view[...] = inputs(self.key, op.data)[name][rank]

    def settle(self) -> None:
        """The caller waits for what stands behind runs on his streams."""

    def wrong(self, op: Op) -> str:
        """What a run has left that it must not."""
        for region, value in wanted(self.key, op.data):
            if region.rank in self.executor.ranks:
                got = take(self.views[op.tensors][region.tensor, region.rank], region)
                if not np.array_equal(got, value):
                    return f"{int((got != value).sum())} of {got.size} of {region.tensor} of rank {region.rank}"
        return ""

    def capture(self, op: Op) -> None:
        """A graph for each GPU, on its rank's stream."""
        gpus, vendor, streams = self._gpus, self._vendor, self._streams()
        executor = self.executor_of(op)
        executor.graph = executor.traced = executor.gated = False
        devices = [gpus.device(rank) for rank in self.executor.ranks]
        captured = list(zip(devices, streams, strict=True))
        try:
            for device, stream in captured:
                with gpus.inside(device):
                    vendor.begin_capture(stream)
            self._run(op, [int(s) for s in streams])
            while captured:
                device, stream = captured[0]
                with gpus.inside(device):
                    graph = vendor.end_capture(stream)
                    self.graphs.append((device, graph, vendor.instantiate(graph), stream))
                del captured[0]
        except BaseException:
            for _, stream in captured:
                vendor.drop_capture(stream)
            raise

    def replay(self, places: Sequence[int], before: Callable[[int], None]) -> None:
        for place in places:
            device, _, graph, stream = self.graphs[place]
            before(self.executor.ranks[place])
            function, arguments = self._vendor.graph_action(graph, stream)
            with self._gpus.inside(device):
                code = function(*arguments)[0]
            if code:
                raise CallError(f"the launch of a caller's graph gives {code}")

    def drop_graphs(self) -> None:
        vendor = self._vendor if self.graphs else None
        while self.graphs:
            _, captured, graph, _ = self.graphs.pop()
            vendor.destroy_graph(graph)
            vendor.destroy_captured(captured)

    def close(self, hung: Callable[[], bool]) -> None:
        """The caller's graphs go before the executor, his memory after it, unless something is `hung`."""
        self.drop_graphs()
        vendor = self._vendor
        contexts = {id(device): device for device, _ in self.taken}
        kept = {key: vendor.retain(device.local) for key, device in contexts.items()}
        try:
            for executor in self.executors:
                executor.close()
            while self.streams and self.place.workspace is None:
                vendor.destroy_stream(self.streams.pop())
            while self.taken and not hung():
                device, address = self.taken.pop()
                vendor.enter(kept[id(device)])
                vendor.free(address)
                vendor.enter(self.nothing)
        finally:
            for device in contexts.values():
                vendor.release(device.local)


class HostSeat(Seat):
    """An executor of the host driver."""

    def _own(self) -> None:
        driver: Any = self.executor.driver
        self.views[OWN] = {key: driver._arrays[buffer] for key, buffer in self.executor._owned.items()}

    def _callers(self, number: int) -> dict[str, list[Any]]:
        views = self.views[number] = {}
        for tensor in self.plan.tensors:
            for rank in self.executor.ranks if tensor.kind != "scratch" else ():
                views[tensor.name, rank] = np.empty(tensor.shapes[rank], numpy_dtype(tensor.dtype))
        names = {name for name, _ in views}
        return {name: [views[name, rank] for rank in self.executor.ranks] for name in names}

    def call(self, op: Op) -> None:
        self.executor_of(op).order = op.manner or "fifo"
        self._run(op, None)

    def close(self, hung: Callable[[], bool]) -> None:
        for executor in self.executors:
            executor.close()


class Sized(Seat):
    """An operation of a workspace; `executor` is that of its largest plan. All tensors are callers', of the largest
    size: a run takes the first rows of each."""

    def _opened(self) -> Executor:
        assert self.place.workspace is not None
        self.operation = sized.Operation(
            self.place.workspace, self.key.schedule, max_m=MOST, buckets=[BUCKET], **columns(self.key)
        )
        self.operation._store = None  # type: ignore[assignment]  # what keeps device plans is the server's cache
        return self.operation.executor(MOST)

    def _write(self) -> None:
        self.given: dict[int, dict[str, list[Any]]] = {}

    @property
    def executors(self) -> list[Any]:
        return list(self.operation._executors.values())

    def tensors(self, number: int) -> None:
        if number not in self.given:
            self.given[number] = self._callers(number)

    def executor_of(self, op: Op) -> Any:
        return self.operation.executor(op.rows)

    def _run(self, op: Op, streams: Sequence[int] | None) -> None:
        arrays, result = rows_of(self.key, op.data, op.rows)
        shapes = {name: given[0].shape for name, given in {**arrays, "C": result}.items()}
        tensors = {
            name: [self._rows(array, shapes[name]) for array in given] for name, given in self.given[op.tensors].items()
        }
        self.operation.run(streams=streams, **tensors)

    def settle(self) -> None:
        """For copies of the result's rows, of runs with fewer than the plan's; replays copy them, too."""
        devices = [self._gpus.device(rank) for rank in self.executor.ranks[: len(self.streams)]]
        streams = list(zip(devices, self.streams, strict=True))
        if not issue_order.poll(lambda: all(self._gpus._idle(*one) for one in streams), self._gpus.timeout, 1e-4):
            raise CallError("a caller's stream does not end")

    def _rows(self, array: Any, shape: tuple[int, ...]) -> Any:
        return _Array(array.address, shape, np.dtype(np.float32))

    def _give(self, view: Any, name: str, rank: int, op: Op) -> None:
        value = rows_of(self.key, op.data, op.rows)[0][name][rank]
        view[: len(value)] = value

    def wrong(self, op: Op) -> str:
        for rank in self.executor.ranks:
            value = rows_of(self.key, op.data, op.rows)[1][rank]
            view = self.views[op.tensors]["C", rank]
            if not np.array_equal(view[: len(value)], value):
                return f"{int((view[: len(value)] != value).sum())} of {value.size} of C of rank {rank}"
            if (view[len(value) :].view(np.uint8) != PATTERN).any():
                return f"rows behind the {len(value)} of C of rank {rank}"
        return ""


class HostSized(Sized, HostSeat):
    """An operation on the host."""

    def settle(self) -> None:
        pass

    def _rows(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array[: shape[0]]


def _view(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    size = int(np.prod(shape)) * dtype.itemsize
    return (
        np.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype).reshape(shape) if size else np.empty(shape)
    )


# ---------------------------------------------------------------- a process


class Player:
    """Process `place` of a life. `page`: what the processes of the life say, a row each."""

    def __init__(self, life: Life, place: int, pipes: Sequence[Connection | None], page: Any, folder: Path) -> None:
        self.life, self.place, self.page = life, place, page
        self.mine, self.pipes = page[place], pipes
        self.report = Report()
        self.home: Place | None = None
        self.seats: list[Seat] = []
        self.forked: list[int] = []
        self.struck = False  # the event has come
        self._filled: Op | None = None  # whose tensors a late process has filled before it waited
        self.lasted = 0.0  # seconds that a call may take
        self._groups = 0
        self._came: dict[object, bytes] = {}
        self.log: Callable[[str], None] = lambda text: None
        tempfile.tempdir = str(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if life.driver != "host":
            self.gpus = standin.of(life.driver)
            self.gpus.reset(f"{settings(life.keys[0])}; seed {life.seed + place}; {life.settings}")
            if life.library and life.processes > 1:
                self.gpus.set("apart 1")
        if not life.patient:
            for module, name, seconds in SHORT:
                assert hasattr(module, name), name
                setattr(module, name, seconds)

    def object(self, kind: str, text: str) -> None:
        self.log(f"{kind}: {text}")
        self.report.objections.append((kind, text))

    def group(self) -> Group | None:
        """A group of its own for each attempt."""
        self._groups += 1
        if self.life.processes == 1:
            return None
        return Group(Pipes(self.place, self.pipes, str(self._groups), self._came))

    # ---- the life

    def play(self) -> Report:
        life, event = self.life, self.life.event
        group = self.group()
        error = ""
        for number, op in enumerate(life.ops):
            self.log(f"{number} {op}")
            try:
                if number == event.op:
                    self._arm(event)
                if number == event.op and event.kind == "leave" and self.place == event.place:
                    error = "left"
                    break
                self._do(number, op, group)
            except Errors as caught:
                error = f"{type(caught).__name__}: {caught}"
            except CallError as caught:
                error = str(caught)
            except KeyboardInterrupt:
                error = "KeyboardInterrupt"
            if error:
                self._told(number, op, error)
                break
        self._quiet()
        if error or not self._right_everywhere():
            self._again(error)
        self._end(bool(error))
        return self.report

    def _told(self, number: int, op: Op, error: str) -> None:
        """An error tells of all runs of its executor that have not been seen to end."""
        self.report.told.append(f"at {number}, {op.do}: {error}")
        self.log(self.report.told[-1])
        for seat in self._together(self.seats[op.seat]) if op.seat < len(self.seats) else ():
            self.report.ends |= {seat.pending.pop()[0]: "told" for _ in list(seat.pending)}
        if op.issues:
            self.report.ends[number] = "told"

    def _together(self, seat: Seat) -> list[Seat]:
        return seat.place.together(seat)

    def _arm(self, event: Event) -> None:
        """From here on the time limits are short; what goes wrong does so in one process."""
        self.struck = event.kind not in ("none", "part")
        if event.kind != "none":
            self.lasted = self.life.limit
            for seat in self.seats:
                seat.limit(self.life.limit)
        if self.place != event.place:
            return
        n, more = event.call, event.more
        told = {
            "stop": f"stop {n}", "slow": f"delay {n} {int(more)}", "kill": f"kill {n}", "interrupt": f"interrupt {n}",
            "pause": f"pause {n}", "fail": f"fail * {n} {int(more)}", "lose": f"lose {n} {int(more)}",
            "library": f"lose_collective {n} {int(more)}",
        }.get(event.kind, "")  # fmt: skip
        if told and self.life.driver == "host":
            strike(event)
        elif told:
            self.gpus.set(told)
        if event.kind == "exit":
            raise SystemExit(0)
        if event.kind == "fork":
            self._fork(int(more))
        if event.kind == "late":
            self._late(self.life.ops[event.op], more * self.life.limit)

    def _late(self, op: Op, seconds: float) -> None:
        """What the run is to write holds the pattern while the others wait for it (`_called`)."""
        if op.issues:
            seat = self.seats[op.seat]
            if op.tensors in seat.views and seat.fresh(op):
                seat.fill(op)
                self._filled = op
        time.sleep(seconds)

    def _do(self, number: int, op: Op, group: Group | None) -> None:
        if op.do == "open":
            brief = self.struck or number == self.life.event.op
            wait = OPENING if brief or self.life.event.op < len(self.life.seats) else LONG
            with self._timed(wait, "open"):
                if self.home is None or not self.life.workspace:
                    self.home = Place(self.life, group, wait)
                self.seats.append(self.home.open(self.life.keys[op.seat]))
                self.seats[-1].tensors(OWN)
            if self.struck:
                self.seats[-1].limit(self.life.limit)
            return
        seat = self.seats[op.seat]
        if op.do == "sync":
            self._sync(seat)
        elif op.do == "poison":
            self._sync(seat)
            with self._timed(self.lasted or LONG, "poison"):
                seat.executor.poison()
        elif op.do == "close":
            self._sync(seat)
            with self._timed(self.lasted or LONG, "close"):
                seat.close(self._hung)
        elif op.do == "leave":
            with self._timed(self.lasted or LONG, "close"):
                seat.place.close()
                self._close()
        elif op.do == "capture":
            self._sync(seat)
            with self._timed(self.lasted or LONG, "capture"):
                seat.tensors(op.tensors)
                seat.capture(op)
        else:
            self._run(number, seat, op)

    def _run(self, number: int, seat: Seat, op: Op) -> None:
        busy = [(other.data, other.rows) for _, other in seat.pending if other.tensors == op.tensors]
        alone = op.do == "run" and not self.life.workspace
        if alone or any(given != (op.data, op.rows) for given in busy):
            self._sync(seat)
        with self._timed(self.lasted or LONG, "bind"):
            seat.tensors(op.tensors)
        fresh = seat.fresh(op)
        if fresh and op is not self._filled:
            seat.fill(op)
        check = partial(self._untouched, number, seat, op) if fresh else lambda rank: None
        part = self.life.event.kind == "part" and number == self.life.event.op
        with self._timed(self.lasted or LONG, op.do):
            if op.do == "replay":
                self.mine[OPS + number] = 1
                seat.pending.append((number, op))
                seat.replay(op.order[: len(op.order) // 2] if part else op.order, check)
                self.struck = self.struck or part
                return
            for rank in seat.executor.ranks:
                check(rank)
            self.mine[OPS + number] = 1
            seat.pending.append((number, op))
            seat.call(op)
        if op.do == "run":
            self._confirmed(seat)

    def _sync(self, seat: Seat) -> None:
        if any(other.pending for other in self._together(seat)):
            with self._timed(self.lasted or LONG, "synchronize"):
                seat.executor.synchronize()
            self._confirmed(seat)

    def _confirmed(self, seat: Seat) -> None:
        """No error: all that was pending must be right, and every process must have called it."""
        for other in self._together(seat):
            if other.pending:
                other.settle()
            pending, other.pending = other.pending, []
            for number, op in pending:
                wrong = other.wrong(op)
                self.report.ends[number] = "WRONG" if wrong else "right"
                if wrong:
                    self.object("WRONG", f"operation {number}, {self.life.seats[op.seat]}: {wrong}")
                absent = [p for p in range(self.life.processes) if not self.page[p][OPS + number]]
                if absent:
                    self.object("UNTOLD", f"operation {number} has ended well, and process {absent} has not called it")

    def _right_everywhere(self) -> bool:
        return all(self.report.ends.get(n) == "right" for n, op in enumerate(self.life.ops) if op.issues)

    # ---- memory

    def _untouched(self, number: int, seat: Seat, op: Op, rank: int) -> None:
        """What a rank's run is to write, nobody has written before its call."""
        for tensor in seat.plan.tensors:
            if tensor.kind == "output" and tensor.shapes[rank]:
                view = seat.views[op.tensors][tensor.name, rank]
                count = int((view.view(np.uint8) != PATTERN).any(-1).sum()) if view.size else 0
                if count:
                    self.object(
                        "WROTE",
                        f"operation {number}: {count} rows of {tensor.name}@{rank} were written before its call",
                    )

    # ---- afterwards

    def _quiet(self) -> None:
        """What the process has under way ends, right or with an error; a part of a caller's graphs too, of which the
        rest was not replayed."""
        for seat in self.seats:
            if seat.executor._closed:
                continue
            try:
                with self._timed(self.lasted or LONG, "synchronize"):
                    seat.executor.synchronize()
                self._confirmed(seat)
            except (*Errors, CallError, KeyboardInterrupt) as error:
                self.report.told.append(f"quiet: {type(error).__name__}: {error}")
                self.report.ends |= {number: "told" for number, _ in seat.pending}
                seat.pending.clear()

    def _again(self, error: str) -> None:
        """In one process the same executors once more, or new ones; in a group new ones, if all live. Not on a lost
        device."""
        life = self.life
        if life.event.kind == "lose":
            return
        self._calm()
        if life.processes > 1:
            self._close()
            if life.driver == "host" or not self._all_live():
                return
            self._anew()
            return
        for number, seat in enumerate(self.seats):
            if seat.executor._closed:
                continue
            try:
                seat.limit(RETRY)
                self._once_more(seat, 10 + number)
            except (*Errors, CallError) as told:
                self.report.again += f" same: {str(told)[:300]}"
                self._close()
                self._anew()
                return
        self.report.again += " same: right"

    def _anew(self) -> None:
        if life_lost(self.report):
            return
        try:
            with self._timed(RETRY, "open again"):
                self.seats.append(seat := Place(self.life, self.group(), RETRY).open(self.life.keys[0]))
            self._once_more(seat, 20)
            self.report.again += " new: right"
        except (*Errors, CallError) as told:
            self.report.again += f" new: {str(told)[:300]}"

    def _once_more(self, seat: Seat, number: int) -> None:
        manner = "fifo" if self.life.driver == "host" else "streams"
        op = Op("run", 0, manner, number % 4, rows=number + 1 if seat.key.rows else 0)
        with self._timed(RETRY, "retry"):
            seat.tensors(OWN)
            seat.executor.poison()
            seat.fill(op)
            seat.call(op)
        wrong = seat.wrong(op)
        if wrong:
            self.object("WRONG", f"the retry after {self.report.told[:1]}: {wrong}")

    def _calm(self) -> None:
        if self.life.driver == "host":
            calm()
        else:
            self.gpus.calm()

    def _close(self) -> None:
        closes = [partial(seat.close, self._hung) for seat in self.seats]
        closes += [place.close for place in dict.fromkeys(seat.place for seat in self.seats)]
        for close in closes:
            try:
                with self._timed(max(self.lasted, 0.3), "close"):
                    close()
            except Exception as error:  # noqa: BLE001  of a device that is lost: closing tells
                self.log(f"closing: {error}")

    def _hung(self) -> bool:
        """Whether nothing can be freed: a device is lost, or something of the process runs that does not end."""
        return self.life.event.kind == "lose" or any(seat._gpus.blocked for seat in self.seats)

    def _all_live(self) -> bool:
        """Whether every process has come here."""
        self.mine[PHASE] = 1
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            if any(row[ENDED] for row in self.page):
                return False
            if all(row[PHASE] for row in self.page):
                return True
            time.sleep(1e-3)
        return False

    def _end(self, failed: bool) -> None:
        """Everything is given back."""
        event = self.life.event.kind
        self._close()
        self._reap()
        if self.life.driver == "host":
            return
        # communicators of a run that was given up may keep calls; a stream may stop when all was seen to be right
        waits = ("ncclCommAbort blocks", "ncclCommDestroy blocks") if failed else ()
        waits += ("cuMemFree blocks", "hipFree blocks") if event == "stop" and self._right_everywhere() else ()
        found = [line for line in self.gpus.violations().splitlines() if not line.startswith(waits)]
        if found:
            self.object("VIOLATION", "; ".join(found[:3]))
        if not failed and event in ("none", "late") and self.gpus.live():
            self.object("LEFT", str(self.gpus.live()))

    # ---- forks

    def _fork(self, what: int) -> None:
        child = os.fork()
        if child:
            self.forked.append(child)
            return
        code = 0
        for seat in self.seats if what == 0 else ():
            with suppress(*Errors, CallError):
                seat.limit(0.5)
                manner = "fifo" if self.life.driver == "host" else "streams"
                op = Op("run", 0, manner, 1, rows=seat.key.rows)
                if self.life.processes == 1:  # else the memory is the parent's, too
                    seat.fill(op)
                seat.call(op)
                code = 3 if seat.wrong(op) else 4 if self.life.processes > 1 else code
        if what == 1:
            self.home = None
            self.seats.clear()
            gc.collect()
        if what == 2:
            raise SystemExit(0)
        os._exit(code)

    def _reap(self) -> None:
        for child in self.forked:
            until = time.monotonic() + 20
            while (found := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
                time.sleep(2e-3)
            if found[0] == 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self.object("HUNG", "a forked child does not end")
            elif found[1]:
                said = {3: "runs, with wrong numbers", 4: "runs for its parent"}
                code = os.waitstatus_to_exitcode(found[1])
                self.object("WRONG" if code in said else "CRASH", f"a forked child {said.get(code, f'ends by {code}')}")

    # ---- time

    @contextmanager
    def _timed(self, limit: float, what: str) -> Iterator[None]:
        """A call comes back within its limit, and what the answer to a failure may take; time in which the machine had
        no processor for this process does not count."""
        begun, queued = time.monotonic(), waited()
        try:
            yield
        finally:
            took = time.monotonic() - begun - (waited() - queued)
            self.report.slowest = max(self.report.slowest, took - limit)
            if took > limit + ANSWER + MARGIN:
                self.object("HUNG", f"{what} took {took:.1f} s, with a limit of {limit:g} s")


def life_lost(report: Report) -> bool:
    """Whether an error has said that the process cannot use its GPUs any more."""
    text = f"{report.told} {report.again}"
    return "this process can use them no more" in text or "in a new process" in text


def prepare(life: Life) -> None:
    """What the process that forks lives makes for all of them."""
    for key in life.plans:
        plan(key)
        for data in range(4):
            if not key.rows:
                wanted(key, data)
