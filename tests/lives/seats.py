"""The executors and operations that the processes of lives run, with their tensors, and what these must hold."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.gpu import issue_order
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
from tests.lives.life import BUCKET, MOST, OWN, Key, Life, Op
from tests.mock import standin

PATTERN = 0x55  # of each byte of an output before its run: no integer
LONG = 20.0  # seconds, where nothing is to be given up

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
