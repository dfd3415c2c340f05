"""Processes of a group on the stand-in, each with a library of its own: started once, asked for many things.

    with Processes(2) as both:
        answers = both.ask("shipped", "ag_gemm/streamed", …)   # what each has answered: a value, or an error's text

Whatever a process does it does in a `Worker`, whose methods can be asked for. Each question has a group of its own, so
that an error in one spoils no other. Processes fork a child for what is asked `once`, which may be killed.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as ready
from pathlib import Path
from typing import Any

import numpy as np

from ficco_rt.errors import DeviceError, UsageError
from tests.mock import standin
from tests.mock.standin import Face
from tools.processes_check import Pipes

TIMEOUT = 15.0  # seconds that processes wait for each other, and that a run may take


def kernels() -> str:
    """Where all processes of a session find their compiled kernels."""
    folder = Path(tempfile.gettempdir()) / f"ficco-standin-{os.getuid()}-kernels"
    return os.environ.get("FICCO_CACHE") or str(folder)


class Worker:
    """A process of a group. The rest of ficco_rt is imported when the library stands in for the vendor's."""

    def __init__(
        self, place: int, pipes: Sequence[Connection | None], face: Face, question: int, settings: str
    ) -> None:
        from ficco_rt.driver.gpu.driver import GpuDriver
        from ficco_rt.group import Group

        self.place, self.face = place, face
        self.gpus = standin.of(face)
        self.gpus.reset(f"devices {len(pipes)}; seed {place + 1}; {settings.replace('PLACE', str(place))}")
        self._name = str(question)
        self._pipes = pipes
        self.group = Group(Pipes(place, pipes, self._name))
        GpuDriver._vendors_turn = lambda driver: False  # type: ignore[method-assign]

    def plan(self, name: str, **sizes: object) -> Any:
        from ficco_rt.compiler import build, plan_of
        from ficco_rt.driver.registry import discover
        from tests import cases

        ranks = self.group.size
        chosen = cases.sizes(name, ranks, True) | cases.few_chunks(name) | sizes
        return plan_of(build(cases.schedule(name), ranks, chosen), discover(self.face, ranks, processes=ranks))

    @contextmanager
    def executor(self, name: str, **options: Any) -> Iterator[Any]:
        from ficco_rt.exec.executor import Executor

        with Executor(self.plan(name), self.face, group=self.group, timeout=TIMEOUT, **options) as executor:
            yield executor

    def fill(self, executor: Any, seed: int) -> None:
        from ficco_rt.exec.inputs import fresh_inputs

        for name, arrays in fresh_inputs(executor.plan, seed, "exact").items():
            for rank in executor.ranks:
                executor.write(name, rank, arrays[rank])
        executor.poison()

    @staticmethod
    def outputs(executor: Any) -> dict[tuple[str, int], Any]:
        names = [t.name for t in executor.plan.tensors if t.kind == "output"]
        return {(name, rank): executor.read(name, rank) for name in names for rank in executor.ranks}

    def left(self) -> str:
        """What is left when everything is closed, and what was done that nobody may do."""
        live = self.gpus.live()
        return f"{live or ''}{self.gpus.violations()}"

    # ---- questions

    def shipped(self, name: str, seeds: int, settings: str = "") -> tuple[list[Any], str]:
        """Outputs of runs on streams and as graphs, of fresh data each, two runs of it in a row, in many orders."""
        self.gpus.set(settings)
        found = []
        with self.executor(name) as executor:
            for seed in range(seeds):
                self.gpus.set(f"seed {2 * seed + self.place}; call_steps {seed % 4}; query_steps {(5, 5000)[seed % 2]}")
                executor.graph = bool(seed % 2)
                self.fill(executor, seed)
                executor.run()
                first = self.outputs(executor)
                executor.run()
                again = self.outputs(executor)
                assert all(np.array_equal(first[key], again[key]) for key in first), "the second run left other bits"
                found.append(again)
        return found, self.left()

    def opened(self, name: str, ranks_per_gpu: int = 1) -> str:
        with self.executor(name, ranks_per_gpu=ranks_per_gpu) as executor:
            self.fill(executor, 0)
            executor.run()
            way = str(executor.driver._peers.way)
            assert executor.driver.describe() == "2 × stand-in"
        return f"{way}{self.left()}"

    def alone(self, name: str) -> str:
        """Each process runs a plan of one rank in a group of its own, on the GPU that `LOCAL_RANK` tells."""
        from ficco_rt.group import Group

        os.environ["LOCAL_RANK"] = str(self.place)
        self.group = Group(self.group, ranks=[self.place])
        try:
            with self.executor(name) as executor:
                self.fill(executor, 0)
                executor.run()
                gpu = executor.driver._gpus.first.local
        finally:
            del os.environ["LOCAL_RANK"]
        return f"GPU {gpu}{self.left()}"

    def reversed(self, name: str) -> tuple[list[Any], str]:
        """The group in the other order of ranks."""
        from ficco_rt.group import Group

        self.group = Group(self.group, ranks=[1, 0])
        with self.executor(name) as executor:
            self.fill(executor, 0)
            executor.run()
            found = [self.outputs(executor)]
        return found, self.left()

    def other_plans(self) -> str:
        with self.executor(("ag_gemm/streamed", "ag_gemm/oneshot")[self.place]):
            pass
        return self.left()

    def other_orders(self) -> str:
        """One process runs what it has bound, the other binds anew."""
        with self.executor("ag_gemm/streamed") as executor:
            self.fill(executor, 0)
            executor.run()
            if self.place:
                executor.driver.bind(dict(executor._owned))
            else:
                executor.driver._peers.agree("capture")
        return self.left()

    def faults(self, name: str, functions: Sequence[str]) -> list[str]:
        """Each of these calls fails once, in process 0; then all is well."""
        said = []
        for function in functions:
            if self.place == 0:
                self.gpus.set(f"fail {function} 1 999")
            try:
                self.fault_free(name)
                said.append("no error")
            except DeviceError as error:
                said.append(str(error))
            if self.place == 0:
                said[-1] = f"{self.gpus.fired()}: {said[-1]}"
                self.gpus.calm()
            left = self.left()
            said[-1] += f" LEFT {left}" if left else ""
            self._afresh()
        self.fault_free(name)
        return said

    def _afresh(self) -> None:
        """A group of its own for what comes next: the one before is of no use once an exchange has failed."""
        from ficco_rt.group import Group

        self._name += "+"
        self.group = Group(Pipes(self.place, self._pipes, self._name))

    def fault_free(self, name: str) -> None:
        with self.executor(name) as executor:
            self.fill(executor, 0)
            executor.run()

    def given(self, kind: str) -> tuple[Any, str]:
        """Runs on a caller's tensors: `empty` ones, ordinary ones, or ones that cannot leave the process."""
        return self._given(kind), self.left()

    def _given(self, kind: str) -> Any:
        from ficco_rt import empty
        from ficco_rt.exec.inputs import fresh_inputs

        with self.executor("gemm_ar/streamed") as executor:
            self.fill(executor, 3)
            gpus, vendor = executor.driver._gpus, executor.driver._vendor
            tensors: dict[str, list[Any]] = {}
            for t in executor.plan.tensors:
                shape, size = t.shapes[self.place], int(np.prod(t.shapes[self.place])) * 4
                if kind == "empty" and t.kind != "scratch":
                    tensors[t.name] = [empty(shape, t.dtype, group=self.group, driver=self.face)]
                elif kind == "pooled" and t.kind != "scratch":
                    tensors[t.name] = [_Array(self.gpus.pooled(self.place, size), shape)]
                elif t.kind != "scratch":
                    with gpus.inside(gpus.first):
                        tensors[t.name] = [_Array(vendor.alloc(size, "a caller's tensor"), shape)]
            bound = executor.bind(**tensors)
            for name, arrays in fresh_inputs(executor.plan, 3, "exact").items():
                executor.driver.write(bound.memory[name, self.place], arrays[self.place])
            for executor.graph in (False, True):
                executor.run(bound)
            got = {("C", self.place): executor.driver.read(bound.memory["C", self.place])}
            executor.release(bound)
            for array in (array for arrays in tensors.values() for array in arrays if kind == "ordinary"):
                with gpus.inside(gpus.first):
                    vendor.free(array.address)
        return got

    def captured(self, name: str, replays: int) -> tuple[list[Any], str]:
        """The run as a part of a caller's graph, a graph in each process, replayed at each one's own pace."""
        found = []
        with self.executor(name) as executor:
            driver = executor.driver
            vendor, gpus = driver._vendor, driver._gpus
            self.fill(executor, 0)
            executor.run()
            with gpus.inside(gpus.first):
                stream = vendor.new_stream(0)
                vendor.begin_capture(stream)
                executor.run(streams=[int(stream)])
                captured = vendor.end_capture(stream)
                graph = vendor.instantiate(captured)
            for seed in range(replays):
                self.fill(executor, seed)
                with gpus.inside(gpus.first):
                    for _ in range(2):
                        function, arguments = vendor.graph_action(graph, stream)
                        assert not function(*arguments)[0]
                executor.synchronize()
                found.append(self.outputs(executor))
            with gpus.inside(gpus.first):
                vendor.destroy_graph(graph)
                vendor.destroy_captured(captured)
                vendor.destroy_stream(stream)
        return found, self.left()

    def flat(self, name: str, runs: int) -> tuple[object, object]:
        """What is held before many runs, and after."""

        def held() -> object:
            return len(os.listdir("/proc/self/fd")), executor.holdings, self.gpus.live()

        with self.executor(name) as executor:
            self.fill(executor, 0)
            for executor.graph in (False, True):
                executor.run()
            before = held()
            for _ in range(runs):
                executor.run()
            return before, held()

    def doomed(self, name: str, dies: int, call: int, graph: bool) -> str:
        """Process `dies` is killed at a call of its runs; the other one tells."""
        with self.executor(name, graph=graph) as executor:
            self.fill(executor, 0)
            executor.run()
            if self.place == dies:
                self.gpus.set(f"kill {call}")
            for _ in range(1000):
                executor.run()
        return "nobody was killed"


class _Array:
    """A caller's tensor."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.address = address
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (address, False), "version": 3}


def _serve(place: int, pipes: Sequence[Connection | None], face: Face, settings: str, control: Connection) -> None:
    """Import once what all children need, fork them, and say which one was killed."""
    os.environ["FICCO_CACHE"] = kernels()
    standin.of(face)
    import_module({"cuda": "cuda.bindings.driver", "hip": "hip"}[face])
    for name in ("ficco_rt.exec.verify", "tests.cases"):
        import_module(name)
    steady: Connection | None = None
    while True:
        try:
            question, more, once, asked = control.recv()
        except EOFError:
            os._exit(0)
        child = 0
        asking = None if once else steady
        if asking is None:
            asking, theirs = mp.Pipe()
            child = os.fork()
            if not child:
                asking.close()
                _answer(theirs, lambda *given: Worker(place, pipes, face, *given))
            theirs.close()
        asking.send((question, f"{settings}; {more}", *asked))
        try:
            control.send(asking.recv())
        except EOFError:
            control.send("gone")
        if once:
            asking.close()
            os.waitpid(child, 0)
        else:
            steady = asking


def _answer(asked: Connection, worker_of: Callable[[int, str], Worker]) -> None:
    """A child's life."""
    code = 1
    try:
        while True:
            question, settings, name, arguments = asked.recv()
            worker = worker_of(question, settings)
            try:
                asked.send(getattr(worker, name)(*arguments))
            except (DeviceError, UsageError) as error:
                asked.send(f"{type(error).__name__}: {error}{' LEFT ' + worker.left() if worker.left() else ''}")
    except EOFError:
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


class Processes:
    """So many of them, with a vendor's stand-in each that is set so for every question. See the module. They are
    started when they are first asked."""

    def __init__(self, count: int, face: Face = "cuda", settings: str = "") -> None:
        self.face = face
        self._count, self._settings = count, settings
        self._question = 0
        self._controls: list[Connection] = []
        self._started: list[Any] = []

    def _start(self) -> None:
        context = mp.get_context("spawn")
        pipes: list[list[Connection | None]] = [[None] * self._count for _ in range(self._count)]
        for a in range(self._count):
            for b in range(a):
                pipes[a][b], pipes[b][a] = context.Pipe()
        for place in range(self._count):
            mine, theirs = context.Pipe()
            self._started.append(
                context.Process(
                    target=_serve, args=(place, pipes[place], self.face, self._settings, theirs), daemon=True
                )
            )
            self._started[-1].start()
            theirs.close()
            self._controls.append(mine)
        for pipe in (pipe for of in pipes for pipe in of if pipe is not None):
            pipe.close()

    def _end(self) -> None:
        for control in self._controls:
            control.close()
        for process in self._started:
            process.join(10)
            process.kill()
        self._controls.clear()
        self._started.clear()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ask(
        self, name: str, *arguments: object, settings: str = "", limit: float = 60.0, once: bool = False
    ) -> list[Any]:
        """What each process has answered; "gone" if it was killed."""
        if not self._started:
            self._start()
        self._question += 1
        for control in self._controls:
            control.send((self._question, settings, once, (name, arguments)))
        found: list[Any] = ["no answer"] * len(self._controls)
        waiting = dict(enumerate(self._controls))
        while waiting:
            came = ready(list(waiting.values()), timeout=limit)
            if not came:
                break
            for place in [p for p, control in waiting.items() if control in came]:
                found[place] = waiting.pop(place).recv()
        return found
