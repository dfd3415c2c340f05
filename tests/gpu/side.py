"""A process of several: what it is asked."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficco_rt.errors import DeviceError, NumbersError, ScheduleError, UsageError
from tests.pipes import Pipes

if TYPE_CHECKING:
    from ficco_rt.process.group import Group

ERRORS = (DeviceError, NumbersError, ScheduleError, UsageError, RuntimeError)  # torch's are the last
RANKS = 2
TIMEOUT = 10.0  # seconds of a run
EVERY = "every collective"  # no shipped schedule: all_gather, all_reduce, reduce_scatter and all_to_all by NCCL


class Side:
    """One process: all ranks of a plan, or one of them."""

    def __init__(self, group: Group | None, driver: str, ranks_per_gpu: int = 1) -> None:
        from ficco_rt.driver.registry import VENDORS, discover

        self._vendor = VENDORS[driver]()  # type: ignore[index]
        self._name = driver
        self._all = self._group = group
        self._machine = discover(driver, RANKS, ranks_per_gpu)  # type: ignore[arg-type]
        self._driver: Any = None
        self._shared = ranks_per_gpu

    def regroup(self, ranks: Sequence[int] | None) -> None:
        """What is opened from here on runs in a group of these places; None: of all."""
        from ficco_rt.process.group import Group

        self._group = self._all if ranks is None else Group(self._all, ranks=ranks)

    def open(self, name: str, sizes: dict[str, object], timeout: float, ranks: int = RANKS, node: int = 0) -> list[int]:
        """`node`: of so many ranks, and with NCCL."""
        from ficco_rt.compiler import build, load, plan_of
        from ficco_rt.driver.api import Options
        from ficco_rt.driver.gpu.driver import GpuDriver
        from ficco_rt.driver.registry import discover
        from ficco_rt.files.shipped import find
        from tests.gpu.collectives import every_plan

        machine = self._machine if ranks == RANKS else replace(self._machine, ranks=ranks)
        if node:
            machine = discover(self._name, ranks, processes=ranks, node=node)  # type: ignore[arg-type]
        if name == EVERY:
            plan = every_plan(ranks, self._name, int(str(sizes["rows"])), machine=machine)
        else:
            plan = plan_of(build(load(find(name)), ranks, sizes), machine)
        self._plan = plan
        # the same engine of collectives on both sides: their bits are compared
        engine: Any = "auto" if node else "copies"
        options = Options(ranks_per_gpu=self._shared, timeout=timeout, collectives=engine, group=self._group)
        self._driver = GpuDriver(self._vendor, plan, options)
        self._ranks = self._driver._gpus.ranks
        mine = [(t, rank) for t in plan.tensors for rank in self._ranks]
        self._memory = {(t.name, r): self._driver.alloc(r, t.shapes[r], t.dtype) for t, r in mine}
        self._binding = self._driver.bind(self._memory)
        self._streams = []
        for rank in self._ranks:
            with self._driver._gpus.inside(self._driver._gpus.device(rank)):
                self._streams.append(int(self._vendor.new_stream(0)))
        return list(self._ranks)

    def data(self, seed: int, values: Any) -> None:
        from ficco_rt.exec.inputs import fresh_inputs

        inputs = fresh_inputs(self._plan, seed, values)
        for t in self._plan.tensors:
            for rank in self._ranks:
                if t.kind == "input":
                    self._driver.write(self._memory[t.name, rank], inputs[t.name][rank])
        self.poison()

    def poison(self) -> None:
        for t in self._plan.tensors:
            for rank in self._ranks if t.kind != "input" else ():
                self._driver.poison(self._memory[t.name, rank])
        if self._group is not None:  # nobody writes into scratch that is about to be poisoned
            self._group.barrier(TIMEOUT, "poison")

    def run(self, graph: bool) -> dict[tuple[str, int], str]:
        """What the outputs hold after a run, as hashes."""
        if graph:
            self._driver.capture(self._binding)
        self._driver.run(self._binding, graph=graph)
        self._driver.synchronize()
        return {key: hashlib.sha256(array.tobytes()).hexdigest()[:16] for key, array in self._outputs().items()}

    def _outputs(self) -> dict[tuple[str, int], Any]:
        outputs = [(t.name, r) for t in self._plan.tensors if t.kind == "output" for r in self._ranks]
        return {key: self._driver.read(self._memory[key]) for key in outputs}

    def judged(self, seed: int, values: Any) -> str:
        """What is wrong with the last run on this process's ranks; nothing if it is right."""
        from ficco_rt.exec.inputs import fresh_inputs
        from ficco_rt.exec.verify import look, verdict

        outputs: dict[str, dict[int, Any]] = {}
        for (name, rank), array in self._outputs().items():
            outputs.setdefault(name, {})[rank] = array
        seen = look(self._plan, fresh_inputs(self._plan, seed, values), outputs, values)
        result = verdict(self._plan, values, [seen])
        return "" if result.ok else str(result.worst)

    def loop(self, graph: bool, count: int) -> None:
        """Runs back to back on a caller's stream."""
        if graph:
            self._driver.capture(self._binding)
        for _ in range(count):
            self._driver.run(self._binding, self._streams, graph=graph)
        self._driver.synchronize()

    def hold(self) -> str:
        """A caller's graph holds a run, captured in the mode of `torch.cuda.graph`. What makes the collectives."""
        from ficco_rt.driver.cuda.call import api

        cu, (stream,) = api(), map(self._vendor.stream, self._streams)
        with self._driver._gpus.inside(self._driver._gpus.first):
            code = cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)[0]
            assert not code, code
            try:
                self._driver.run(self._binding, self._streams)
            finally:
                code, graph = cu.cuStreamEndCapture(stream)
            assert not code, code
            self._graph = self._vendor.instantiate(graph)
            self._vendor.destroy_captured(graph)
        return str(self._driver.collectives)

    def replayed(self, count: int) -> float:
        """Replays back to back; microseconds of one."""
        function, arguments = self._vendor.graph_action(self._graph, self._vendor.stream(self._streams[0]))
        with self._driver._gpus.inside(self._driver._gpus.first):
            begun = time.perf_counter()
            for _ in range(count):
                code = function(*arguments)[0]
                assert not code, code
        self._driver.synchronize()
        return (time.perf_counter() - begun) / count * 1e6

    def looped(self, graph: bool, count: int) -> float:
        """As `loop`; microseconds of a run."""
        begun = time.perf_counter()
        self.loop(graph, count)
        return (time.perf_counter() - begun) / count * 1e6

    def let_go(self) -> None:
        self._vendor.destroy_graph(self._graph)

    def no_sockets(self, refused: bool) -> None:
        """No file descriptor passes from here on, or all do."""
        from ficco_rt.driver.gpu import peers
        from ficco_rt.process import descriptors

        vars(peers)["descriptors_pass"] = (lambda *_: None) if refused else descriptors.descriptors_pass

    def no_fabric(self) -> str:
        """Why memory does not pass as fabric handles."""
        peers = self._driver._peers
        return str(peers._no_fabric or ("it does" if peers._fabric else "the GPUs have none"))

    def spin(self, graph: bool, seconds: float) -> int:
        """Runs until the time is over, or an error comes: what a killed process leaves to the other."""
        if graph:
            self._driver.capture(self._binding)
        until, count = time.perf_counter() + seconds, 0
        first: dict[tuple[str, int], str] = {}
        while time.perf_counter() < until:
            found = self.run(graph)
            first = first or found
            count += 1
            assert found == first, f"run {count} succeeds with other bits"
        return count

    def held(self) -> tuple[int, ...]:
        """Descriptors, kilobytes of memory, streams, events, bytes on the GPU."""
        rss = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
        h = self._driver.holdings()
        return len(os.listdir("/proc/self/fd")), int(rss.split()[1]), h.streams, h.events, h.size

    def close(self) -> None:
        if self._driver is not None:
            for rank, stream in zip(self._ranks, self._streams, strict=True):
                with self._driver._gpus.inside(self._driver._gpus.device(rank)):
                    self._vendor.destroy_stream(self._vendor.stream(stream))
            driver, self._driver = self._driver, None
            driver.close()

    def way(self) -> str:
        return str(self._driver._peers.way) if self._driver._peers is not None else "one process"


def process(
    place: int, pipes: Sequence[Connection | None], control: Connection, driver: str, ranks_per_gpu: int = 1
) -> None:
    """Answers what the parent asks for, until it is gone."""
    driver = prepared(driver, place, ranks_per_gpu)
    side: Side | None = None
    while True:
        try:
            name, arguments = control.recv()
        except EOFError:
            os._exit(0)
        try:
            side = side or Side(_group(place, pipes), driver, ranks_per_gpu)
        except ERRORS as error:
            control.send((False, f"{type(error).__name__}: {error}"))
        else:
            control.send(answered(side, name, arguments))


def prepared(driver: str, place: int, ranks_per_gpu: int = 1) -> str:
    """The driver's name; the stand-in is put in the place of CUDA's."""
    if driver == "stand-in":
        from ficco_rt.driver.gpu.workspace import GpuWorkspace
        from tests.mock import standin

        there = "sms 132; nccl 22809; apart 1; query_steps 3000; fabric 1"
        standin.cuda().reset(f"devices {RANKS // ranks_per_gpu}; seed {place + 1}; {there}")
        GpuWorkspace._vendors_turn = lambda self: False  # type: ignore[method-assign]
        return "cuda"
    return driver


def _group(place: int, pipes: Sequence[Connection | None]) -> Group | None:
    from ficco_rt.process.group import Group

    if len(pipes) == 1:
        return None
    os.environ.setdefault("LOCAL_RANK", str(place))  # as torchrun says it
    return Group(Pipes(place, pipes))


def answered(side: Side, name: str, arguments: Sequence[object]) -> tuple[bool, Any]:
    try:
        return True, getattr(side, name)(*arguments)
    except (KeyboardInterrupt, AssertionError, *ERRORS) as error:
        return False, f"{type(error).__name__}: {error}"
