"""What a process of a group on the stand-in can be asked for (`tests.mock.processes`): each method is a question."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ficco_rt.errors import DeviceError, UsageError
from tests.mock import standin
from tests.mock.standin import Face
from tests.mock.worker_tensors import TIMEOUT, Tensors
from tests.mock.worker_workspace import Workspaces
from tests.pipes import Pipes


class Worker(Tensors, Workspaces):
    """A process of a group. The rest of ficco_rt is imported when the library stands in for the vendor's."""

    def __init__(
        self, place: int, pipes: Sequence[Connection | None], face: Face, question: int, settings: str
    ) -> None:
        from ficco_rt.driver.gpu.workspace import GpuWorkspace
        from ficco_rt.process.group import Group

        self.place, self.face = place, face
        self.gpus = standin.of(face)
        self.gpus.reset(f"devices {len(pipes)}; seed {place + 1}; {settings.replace('PLACE', str(place))}")
        self._name = str(question)
        self._pipes = pipes
        self._came: dict[object, bytes] = {}  # for any of its groups
        self._options: dict[str, Any] = {}  # of its executors
        self.group = Group(Pipes(place, pipes, self._name, self._came))
        GpuWorkspace._vendors_turn = lambda driver: False  # type: ignore[method-assign]

    def plan(self, name: str, **sizes: object) -> Any:
        from ficco_rt.compiler import build, plan_of
        from ficco_rt.driver.registry import discover
        from tests import cases

        ranks = self.group.size
        chosen = cases.sizes(name, ranks, True) | cases.few_chunks(name) | sizes
        return plan_of(build(cases.schedule(name), ranks, chosen), discover(self.face, ranks, processes=ranks))

    @contextmanager
    def executor(self, name: str, timeout: float = TIMEOUT, **options: Any) -> Iterator[Any]:
        from ficco_rt.exec.executor import Executor

        options = {"group": self.group, "timeout": timeout, **self._options, **options}
        with Executor(self.plan(name), self.face, **options) as executor:
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

    def nodes(self, node: int, sizes: dict[str, object], collectives: bool) -> tuple[bool, str, str]:
        """Messages and collectives of the library: on nodes of so many processes. What was exported, too."""
        from ficco_rt.driver.registry import discover
        from tests.gpu import test_nodes as nodes

        size = self.group.size
        machine = discover(self.face, size, processes=size, node=node)
        if collectives:
            fine = nodes.collectives(machine, self.face, 1, self.group, rows=4)
        else:
            fine = nodes.right(machine, 1, self.face, sizes, 1, self.group)
        return fine, f"{self._exported()} exported", self.left()

    def _exported(self) -> int:
        calls = {"cuda": "cuMemExportToShareableHandle", "hip": "hipMemExportToShareableHandle"}
        return self.gpus.called().get(calls[self.face], 0)

    def alone_on_a_node(self, call: int) -> str:
        """Process 1 is killed at a call of its runs, where process 0 knows of it by the library alone."""
        from ficco_rt.driver.gpu import collectives, watchdog
        from ficco_rt.driver.registry import discover
        from ficco_rt.exec.executor import Executor
        from tests.gpu import test_nodes as nodes

        collectives.SETTLE, watchdog.HEALTH = 1.0, 0.05
        machine = discover(self.face, 2, processes=2, node=1)
        plan = nodes.plan_of("ag_gemm", machine, 1, 1, {"M": 32, "N": 16, "K": 32, "T": "fp32"})
        with Executor(plan, self.face, group=self.group, timeout=TIMEOUT) as executor:
            self.fill(executor, 0)
            executor.run()
            if self.place:
                self.gpus.set(f"kill {call}")
            for _ in range(1000):
                executor.run()
        return "nobody was killed"

    def library_fails(self, functions: Sequence[str]) -> list[str]:
        """Each of these calls of the library fails once, in process 1; then all is well."""
        from ficco_rt.driver.gpu import collectives, watchdog

        collectives.SETTLE, watchdog.HEALTH = 0.5, 0.05
        said = []
        for function in (*functions, ""):
            if self.place and function:
                self.gpus.set(f"fail {function} 1 3")
            try:
                self._all_collectives()
                said.append("no error")
            except DeviceError as error:
                said.append(f"{self.gpus.fired()} {error}".strip())
            self.gpus.calm()
            left = self.left()
            said[-1] += f" LEFT {left}" if left else ""
            self._afresh()
            self.group.barrier(60, "the next call")
        return said

    def _all_collectives(self) -> None:
        from ficco_rt.driver.registry import discover
        from ficco_rt.exec.executor import Executor
        from tests.gpu.collectives import every_plan

        plan = every_plan(2, self.face, 4, machine=discover(self.face, 2, processes=2))
        with Executor(plan, self.face, group=self.group, timeout=2.0) as executor:
            self.fill(executor, 0)
            executor.run()

    def engine(self, name: str, collectives: str = "auto") -> str:
        """What makes the collectives."""
        with self.executor(name, collectives=collectives) as executor:
            said = str(executor.driver.collectives)
        return f"{said}{self.left()}"

    def traced(self, name: str) -> tuple[Any, str]:
        """The trace of a run, which all processes have."""
        with self.executor(name) as executor:
            self.fill(executor, 0)
            executor.traced = True
            executor.run()
            trace = executor.trace
            assert executor.trace is trace
        return trace, self.left()

    def gpus_of(self, name: str) -> list[int]:
        """The GPU of each rank, where processes share one."""
        with self.executor(name) as executor:
            return list(executor.driver._gpus.placement.gpus)

    def opened(self, name: str, ranks_per_gpu: int = 1) -> str:
        with self.executor(name, ranks_per_gpu=ranks_per_gpu) as executor:
            self.fill(executor, 0)
            executor.run()
            way = str(executor.driver._peers.way)
            assert executor.driver.describe() == "2 × stand-in"
        return f"{way}{self.left()}"

    def kinds(self, name: str) -> list[str]:
        """Of HIP: the kinds of copies to the other process, after the driver has tried them, both ways."""
        from ficco_rt.driver.gpu.vendor import LinearCopy

        with self.executor(name) as executor:
            self.fill(executor, 0)
            executor.run()
            vendor, gpus = executor.driver._vendor, executor.driver._gpus
            theirs, mine = next(iter(vendor._theirs)), gpus.ones[self.place]
            stream = gpus.control[self.place]
            return [vendor.copy(LinearCopy(*way, 4), stream)[1][3].name for way in ((theirs, mine), (mine, theirs))]

    def parts(self, name: str, after: float) -> tuple[float, str]:
        """Process 1 closes later. When it begins to close, and when process 0 has freed its memory, on one clock."""
        freed = {"cuda": "cuMemFree", "hip": "hipFree"}[self.face]
        with self.executor(name) as executor:
            self.fill(executor, 0)
            executor.run()
            self.group.barrier(TIMEOUT)
            before = self.gpus.called().get(freed, 0)
            if self.place:
                time.sleep(after)
            begun = time.monotonic()
            executor.close()
            ended = time.monotonic()
        assert self.gpus.called().get(freed, 0) > before
        return begun if self.place else ended, self.left()

    def alone(self, name: str) -> str:
        """Each process runs a plan of one rank in a group of its own, on the GPU that `LOCAL_RANK` tells."""
        from ficco_rt.process.group import Group

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
        from ficco_rt.process.group import Group

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
        """One process runs what it has bound, the other binds anew, tensors that the first one writes."""
        with self.executor("gemm_ar/streamed") as executor:
            self.fill(executor, 0)
            executor.run()
            if self.place:
                executor.driver.bind(dict(executor._owned))
            else:
                executor.driver._peers.agree("capture")
        return self.left()

    def faults(self, name: str, functions: Sequence[str]) -> list[str]:
        """Each of these calls fails once, in process 0: the first one, or the one whose number is behind the name; then
        all is well."""
        said = []
        for function in functions:
            if self.place == 0:
                call, _, number = function.partition(" ")
                self.gpus.set(f"fail {call} {number or 1} 999")
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
        from ficco_rt.process.group import Group

        self._name += "+"
        self.group = Group(Pipes(self.place, self._pipes, self._name, self._came))

    def fault_free(self, name: str) -> None:
        with self.executor(name) as executor:
            self.fill(executor, 0)
            executor.run()

    def given(self, kind: str) -> tuple[Any, str]:
        """Runs on a caller's tensors of a kind; see `_tensor`."""
        return self._given(kind), self.left()

    def _given(self, kind: str) -> Any:
        from ficco_rt.exec.inputs import fresh_inputs

        with self.executor("gemm_ar/streamed") as executor, ExitStack() as stack:
            self.fill(executor, 3)
            tensors: dict[str, list[Any]] = {}
            for t in executor.plan.tensors:
                shape = t.shapes[self.place]
                if t.kind != "scratch":
                    tensors[t.name] = [self._tensor(kind, executor.driver, shape, t.dtype, stack)]
            bound = executor.bind(**tensors)
            for name, arrays in fresh_inputs(executor.plan, 3, "exact").items():
                executor.driver.write(bound.memory[name, self.place], arrays[self.place])
            for executor.graph in (False, True):
                executor.run(bound)
            got = {("C", self.place): executor.driver.read(bound.memory["C", self.place])}
            executor.release(bound)
        return got

    def captured(self, name: str, replays: int) -> tuple[list[Any], str]:
        """The run as a part of a caller's graph, a graph in each process, replayed at each one's own pace."""
        found = []
        with self.executor(name) as executor:
            self.fill(executor, 0)
            executor.run()
            with self._graph_of(executor) as replay:
                for seed in range(replays):
                    self.fill(executor, seed)
                    replay()
                    replay()
                    executor.synchronize()
                    found.append(self.outputs(executor))
        return found, self.left()

    @staticmethod
    def _all_nan(driver: Any) -> bool:
        """Whether the scratch of the sets behind the first holds nothing else."""
        from ficco_rt.types import numpy_dtype

        fine = True
        for tensor in (tensor for more in driver._more.values() for tensor in more):
            values = np.zeros(tensor.shape, numpy_dtype(tensor.dtype))
            with driver._gpus.inside(driver._gpus.device(tensor.rank)):
                driver._vendor.to_host(values.ctypes.data, tensor.address, values.nbytes)
            fine = fine and bool(np.isnan(values).all())
        return fine

    def mixed(self, name: str, runs: int) -> tuple[list[Any], list[int], str]:
        """Runs of all kinds behind each other, of fresh data each, replays of a caller's graph among them; which set of
        scratch and words each of the others took. What scratch holds is what the last run has left there."""
        from ficco_rt.exec.inputs import fresh_inputs

        found, taken = [], []
        with self.executor(name) as executor:
            words = executor.driver._parts.resources.addresses
            distinct = len({address for of in words for address in of})
            assert distinct == executor.driver._all_sets() * len(words[0]), "sets share words"
            self.fill(executor, 0)
            executor.run()
            with self._graph_of(executor) as replay:
                for seed in range(runs):
                    kind = ("streams", "graph", "graph", "replay", "traced")[seed % 5]
                    self.gpus.set(f"seed {2 * seed + self.place}; call_steps {seed % 4}")
                    self.fill(executor, seed)
                    assert kind == "replay" or self._all_nan(executor.driver), "a set is not poisoned"
                    if kind == "replay":
                        replay()  # NOTE what another process poisons meanwhile is left by the second
                        replay()
                        executor.synchronize()
                        (bound,) = (b for b in executor.driver._binder.bindings if b.more)
                        sets = [bool(one.parts) for one in (bound, *bound.more)]
                        assert sets == [False, False, True, False], "the first run of a graph has the first of its sets"
                    else:
                        executor.graph, executor.traced = kind == "graph", kind == "traced"
                        executor.run()
                        assert kind == "traced" or "barrier" not in str(executor.run_plan()), "behind replays"
                        executor.traced = False
                        taken.append(executor.driver._runs.number)
                    found.append(self.outputs(executor))
                    if name == "ag_gemm/oneshot" and kind != "replay":
                        gathered = np.concatenate(fresh_inputs(executor.plan, seed, "exact")["A"])
                        assert np.array_equal(executor.read("G", self.place), gathered), "another run's scratch"
        return found, taken, self.left()

    def half_replayed(self, name: str, timeout: float) -> tuple[list[Any], str]:
        """Runs that process 0 replays in a graph of its own, and process 1 calls."""
        found = []
        with self.executor(name, timeout) as executor:
            self.fill(executor, 0)
            executor.run()
            with self._graph_of(executor) as replay:
                for _ in range(3):
                    self.group.barrier(TIMEOUT)
                    if self.place:
                        executor.run()
                    else:
                        replay()
                    executor.synchronize()
                    found.append(self.outputs(executor))
        return found, self.left()

    @contextmanager
    def _graph_of(self, *executors: Any, of: Any = None) -> Iterator[Callable[[], None]]:
        """Inside, a caller's graph holds runs, and a call replays it. `of`: its stream, if there is one."""
        vendor, gpus = executors[0].driver._vendor, executors[0].driver._gpus
        with gpus.inside(gpus.first):
            stream = vendor.new_stream(0) if of is None else of
            vendor.begin_capture(stream)
            for executor in executors:
                executor.run(streams=[int(stream)])
            captured = vendor.end_capture(stream)
            graph = vendor.instantiate(captured)
        function, arguments = vendor.graph_action(graph, stream)

        def replay() -> None:
            with gpus.inside(gpus.first):
                assert not function(*arguments)[0]

        try:
            yield replay
        finally:
            vendor.destroy_graph(graph)
            vendor.destroy_captured(captured)
            if of is None:
                vendor.destroy_stream(stream)

    def captured_calls(self, node: int, what: str, call: int = 0) -> tuple[list[str], str]:
        """Runs that are collectives of the library alone, and messages between nodes, in a caller's graph among runs of
        the host. `what`: right; or process 1 is killed at a call, a collective is lost, or the graph outlives the
        executor, and all graphs replay until an error comes."""
        from ficco_rt.driver.gpu import collectives, watchdog
        from ficco_rt.driver.registry import discover
        from ficco_rt.exec.executor import Executor
        from ficco_rt.exec.inputs import fresh_inputs
        from ficco_rt.exec.verify import look, verdict
        from tests.gpu.collectives import every_plan

        collectives.SETTLE, watchdog.HEALTH = 0.5, 0.05
        said: list[str] = []
        machine = discover(self.face, 2, processes=2, node=node)
        plan = every_plan(2, self.face, 4, machine=machine)
        executor = Executor(plan, self.face, group=self.group, timeout=2)
        self.fill(executor, 0)
        with self._graph_of(executor) as replay:  # before any run
            for turn in range(6 if what == "right" else 1):
                self.gpus.set(f"seed {2 * turn + self.place}; call_steps {turn % 4}")
                executor.poison()
                if turn % 3 == 2:
                    executor.run()
                replay()
                executor.synchronize()
                found: dict[str, dict[int, Any]] = {}
                for (name, rank), array in self.outputs(executor).items():
                    found.setdefault(name, {})[rank] = array
                seen = look(executor.plan, fresh_inputs(executor.plan, 0, "exact"), found, "exact")
                said.append("right" if verdict(executor.plan, "exact", [seen]).ok else "WRONG")
            if what == "killed" and self.place:
                self.gpus.set(f"kill {call}")
            if what == "lost":
                self.gpus.set("lose_collective 2 6")
            try:
                for _ in range(1000 if what in ("killed", "lost") else 0):
                    replay()
                    executor.synchronize()
            except DeviceError as error:
                said.append(str(error))
            if what == "kept":
                try:
                    executor.close()
                except DeviceError as error:
                    said.append(str(error))
        executor.close()
        if what == "kept":
            time.sleep(0.2)  # the communicators leave when the graph has gone
        return said, self.left()

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

    def rebound(self, times: int) -> tuple[object, object]:
        """What is held when callers' tensors have been bound once, and often, each time new ones."""
        found = []
        with self.executor("gemm_ar/streamed") as executor:
            for _ in range(times):
                with ExitStack() as stack:
                    tensors = {
                        t.name: [self._tensor("empty", executor.driver, t.shapes[self.place], t.dtype, stack)]
                        for t in executor.plan.tensors
                        if t.kind != "scratch"
                    }
                    bound = executor.bind(**tensors)
                    executor.run(bound)
                    executor.release(bound)
                    del tensors, bound
                gc.collect()
                self.group.barrier(TIMEOUT)
                found.append((len(os.listdir("/proc/self/fd")), self.gpus.live()))
        return found[1], found[-1]

    # ---- faults

    def life(self, name: str, dies: int = -1, call: int = 0, folder: str = "", timeout: float = TIMEOUT) -> str:
        """Opened, bound, run on streams and as graphs, closed; process `dies` is killed at a call of its driver. How
        many calls there are."""
        tempfile.tempdir = folder or None
        if self.place == dies:
            self.gpus.set(f"kill {call}")
        with self.executor(name, timeout) as executor:
            self.fill(executor, 0)
            for executor.graph in (False, True):
                executor.run()
                executor.run()
        tempfile.tempdir = None
        return f"{self.gpus.calls()}{self.left()}"

    def command(self, words: Sequence[str], place: int, settings: str) -> tuple[int, str]:
        """`ficco-run` as torchrun starts it, with these settings in one process: exit code, standard error."""
        from ficco_rt.cli import together
        from ficco_rt.cli.main import execute
        from ficco_rt.process.group import Group

        together.launched = lambda: ("torchrun", self.group.size)
        together.GOODBYE = 0.5
        Group.from_env = lambda timeout: self.group  # type: ignore[method-assign,assignment]
        if self.place == place:
            self.gpus.set(settings)
        with redirect_stderr(StringIO()) as said, redirect_stdout(StringIO()):
            code = execute("ficco-run", list(words))
        return code, f"{said.getvalue()}{self.left()}"

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

    def absent(self, name: str, step: int, timeout: float) -> str:
        """Process 1 does not come to one of the exchanges of a life."""
        from ficco_rt.process.group import Group

        class Absent(Group):
            left = step

            def exchange(self, mine: bytes, timeout: float | None, what: str = "") -> tuple[bytes, ...]:
                if self.rank and not self.left:
                    raise _AbsentError
                self.left -= 1
                return super().exchange(mine, timeout, what)

        self.group = Absent(self.group)
        try:
            return self.life(name, timeout=timeout)
        except _AbsentError:
            return f"absent{self.left()}"

    def sharing(self, question: str, *arguments: Any) -> Any:
        """A question, where all processes take turns on one GPU."""
        self.gpus.set("devices 1")
        self._options = {"ranks_per_gpu": self.group.size}
        return getattr(self, question)(*arguments)

    def apart(self, question: str, *arguments: Any) -> Any:
        """A question, as if each process were on a machine of its own."""
        from ficco_rt.driver.gpu import peers

        right = peers._host
        peers._host = lambda: f"machine {self.place}"
        try:
            return getattr(self, question)(*arguments)
        finally:
            peers._host = right

    def launched_apart(self, words: Sequence[str]) -> tuple[int, str]:
        """`command`, where a launcher has started one process on each machine."""
        os.environ["LOCAL_WORLD_SIZE"] = "1"
        code, said = self.apart("command", words, 0, "")
        return code, said

    def orphaned(self, name: str) -> str:
        """Process 1 ends when it has told how its memory is to be mapped; process 0 maps it then."""
        from ficco_rt.driver.gpu.peers import Peers

        right = Peers._take

        def take(peers: Peers, *arguments: Any) -> None:
            if self.place:
                os._exit(0)
            time.sleep(0.2)
            right(peers, *arguments)

        Peers._take = take  # type: ignore[method-assign]
        return self.life(name, timeout=0.5)

    def refusing(self, refused: str, question: str, *arguments: Any) -> Any:
        """A question, where sockets of these names are not reached: those in the network namespace, and those in
        folders."""
        from ficco_rt.process.descriptors import _Mailbox

        right = _Mailbox.send

        def send(self: _Mailbox, message: bytes, descriptors: Sequence[int], name: bytes) -> None:
            if ("abstract" if name[:1] == b"\0" else "path") in refused:
                raise ConnectionRefusedError(111, "Connection refused")
            right(self, message, descriptors, name)

        _Mailbox.send = send  # type: ignore[method-assign]
        try:
            return getattr(self, question)(*arguments)
        finally:
            _Mailbox.send = right  # type: ignore[method-assign]

    def unequal(self, name: str, kind: str, timeout: float) -> tuple[list[Any], str]:
        """The processes do not do the same."""
        with self.executor(name, timeout) as executor:
            self.fill(executor, 0)
            executor.graph = kind == "graphs" and self.place == 0
            executor.run()
            if kind == "runs" and self.place == 0:
                executor.run()
            if kind == "binds":
                executor.run() if self.place else executor.driver.bind(dict(executor._owned))
            found = [self.outputs(executor)]
            if self.place == 1 and kind != "graphs":  # it is there, and does nothing
                time.sleep(2 * timeout)
        return found, self.left()

    def leaves(self, name: str, interrupted: bool, waits: float) -> str:
        """Process 1 leaves after a run, `waits` seconds later than the other one begins the next."""
        try:
            with self.executor(name) as executor:
                self.fill(executor, 0)
                executor.run()
                if self.place == 1:
                    time.sleep(waits)
                    raise KeyboardInterrupt if interrupted else UsageError("C: wanted 3 columns")
                executor.run()
        except KeyboardInterrupt:
            return ""
        return "nothing"


class _AbsentError(Exception):
    pass
