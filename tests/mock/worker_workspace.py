"""Questions to a `Worker` about executors that share a workspace."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.mock.worker_tensors import TIMEOUT


class Workspaces:
    def large(self: Any, names: Sequence[str], turns: int) -> tuple[list[Any], str]:
        """The same of plans that count as too large for two sets."""
        from ficco_rt.device import sharing
        from ficco_rt.driver.gpu import binding

        kept, sharing.LARGEST = sharing.LARGEST, -1
        binding.plans_of.cache_clear()
        try:
            return self.together(names, turns)  # type: ignore[no-any-return]
        finally:
            sharing.LARGEST = kept
            binding.plans_of.cache_clear()

    def together(self: Any, names: Sequence[str], turns: int) -> tuple[list[Any], str]:
        """Runs of several plans in one workspace, behind each other without a wait, in orders that are the same in all
        processes: on streams, as graphs, and (CUDA) in graphs of a caller. In each turn the outputs of all."""
        from ficco_rt.exec.executor import Executor
        from ficco_rt.exec.workspace import Workspace

        chance, found = random.Random(turns), []
        with Workspace(self.group.size, self.face, group=self.group, timeout=TIMEOUT) as workspace, ExitStack() as last:
            executors = [Executor(self.plan(name), workspace=workspace) for name in names]
            vendor, gpus = executors[0].driver._vendor, executors[0].driver._gpus  # type: ignore[attr-defined]
            for executor in executors:
                self.fill(executor, 0)
                executor.run()
            with gpus.inside(gpus.first):
                stream = vendor.new_stream(0)
            last.callback(vendor.destroy_stream, stream)
            embeds = executors[0].driver._features.embeds  # type: ignore[attr-defined]
            graphs = [last.enter_context(self._graph_of(executor, of=stream)) for executor in executors if embeds]
            if embeds:
                twice = [executor for executor in (*executors, *executors[:1]) for _ in range(2)]
                graphs.append(last.enter_context(self._graph_of(*twice, of=stream)))
                sets = [one for executor in executors for one in self._embedded(executor)]
                assert all(sets), "runs of a graph take one set alone, or others' sets"
            for seed in range(turns):
                self.gpus.set(f"seed {2 * seed + self.place}; call_steps {seed % 4}; query_steps {(5, 5000)[seed % 2]}")
                for executor in executors:
                    self.fill(executor, seed)
                for number in (*range(len(executors)), *chance.choices(range(len(executors)), k=5)):
                    executors[number].graph = chance.random() < 0.5
                    executors[number].run(streams=[int(stream)])
                    again = chance.choice(range(len(graphs) or 1))
                    if embeds and chance.random() < 0.5:
                        graphs[again]()
                executors[chance.choice(range(len(executors)))].synchronize()
                found.append([self.outputs(executor) for executor in executors])
            self._binds_alone(executors)
            memory = workspace.memory
            assert memory["scratch"] < sum(self._scratch(executor) for executor in executors), memory
            executors[0].close()
            executors[0] = Executor(self.plan(names[0]), workspace=workspace)
            assert workspace.memory["scratch"] == memory["scratch"], "a plan like another one took more"
            self.fill(executors[0], turns)
            executors[0].run()
        return found, self.left()

    def crossed(self: Any, names: Sequence[str], turns: int, timeout: float) -> tuple[list[Any], str]:
        """Runs of a workspace each, which the processes issue in opposite orders on streams of their own."""
        from ficco_rt.exec.executor import Executor
        from ficco_rt.exec.workspace import Workspace

        found = []
        with ExitStack() as last:
            given = [Workspace(self.group.size, self.face, group=self.group, timeout=timeout) for _ in names]
            for workspace in given:
                last.enter_context(workspace)
            made = [Executor(self.plan(name), workspace=w) for name, w in zip(names, given, strict=True)]
            streams = []
            for executor in made:
                vendor, gpus = executor.driver._vendor, executor.driver._gpus  # type: ignore[attr-defined]
                with gpus.inside(gpus.first):
                    streams.append(vendor.new_stream(0))
                last.callback(vendor.destroy_stream, streams[-1])
                self.fill(executor, 0)
                executor.run()
            for seed in range(turns):
                self.gpus.set(f"seed {2 * seed + self.place}; call_steps {seed % 4}")
                for executor in made:
                    self.fill(executor, seed)
                for number in range(len(made))[:: -1 if (self.place + seed) % 2 else 1]:
                    made[number].run(streams=[int(streams[number])])
                for executor in made:
                    executor.synchronize()
                found.append([self.outputs(executor) for executor in made])
        return found, self.left()

    def poisoned(self: Any, names: Sequence[str]) -> tuple[list[Any], str]:
        """A run of the second plan behind `poison` of the first, to which process 1 comes late."""
        from ficco_rt.exec.executor import Executor
        from ficco_rt.exec.workspace import Workspace

        with Workspace(self.group.size, self.face, group=self.group, timeout=TIMEOUT) as workspace:
            first, second = (Executor(self.plan(name), workspace=workspace) for name in names)
            for executor in (first, second):
                self.fill(executor, 0)
                executor.run()
            time.sleep(0.3 * self.place)
            first.poison()
            second.run()
            found = self.outputs(second)
        return found, self.left()

    def late(self: Any, names: Sequence[str]) -> list[str]:
        """Process 1 comes to the opening of the second executor when process 0 has given it up. What the opening tells,
        and then a run of the first one."""
        from ficco_rt.errors import DeviceError
        from ficco_rt.exec.executor import Executor
        from ficco_rt.exec.workspace import Workspace

        told = []
        with suppress(DeviceError), Workspace(self.group.size, self.face, group=self.group, timeout=TIMEOUT) as shared:
            first, plan = Executor(self.plan(names[0]), workspace=shared), self.plan(names[1])
            self.fill(first, 0)
            first.run()
            driver: Any = first.driver
            driver._gpus.timeout = driver._gpus.client.timeout = driver._peers._timeout = shared.timeout = 0.5
            time.sleep(1.0 * self.place)
            for call in (partial(Executor, plan, workspace=shared), first.run):
                try:
                    call()
                except DeviceError as error:
                    told.append(str(error).partition("\n")[0])
        return told

    def sized(self: Any, asked: Sequence[tuple[str, int]], touching: bool) -> tuple[bool, str]:
        """Operations on tensors of these rows, of which each process has its rank's: the last one the same ones at each
        number of rows, the others new ones. So no process can tell by its own whether another one has to bind."""
        import ficco_rt as ficco
        from ficco_rt.exec.device_arrays import look
        from tests import cases
        from tests.host.test_sized import K, N

        fine, ranks, kept = True, self.group.size, {}
        with ficco.Workspace(ranks, self.face, group=self.group, timeout=TIMEOUT) as workspace, ExitStack() as last:
            made = {
                name: ficco.Operation(workspace, name, max_m=40, buckets=(8, 20), N=N, K=K, T="fp32")
                for name in dict.fromkeys(name for name, _ in asked)
            }
            if touching:  # a schedule of gemm_ar whose processes write each other's C
                made["gemm_ar"]._plan = lambda sizes: ficco.compile(
                    "gemm_ar/streamed", ranks, workspace.machine, **sizes
                )
            for seed, (name, m) in enumerate(asked):
                values, wanted = cases.numbers(name, ranks, m, N, K, seed)
                driver = made[name].executor(m).driver
                with ExitStack() as stack:
                    given = {}
                    for tensor, of_ranks in values.items():
                        mine = of_ranks[self.place]
                        if self.place < ranks - 1:
                            given[tensor] = self._tensor("ordinary", driver, mine.shape, "fp32", stack)
                        elif (name, m, tensor) in kept:
                            given[tensor] = kept[name, m, tensor]
                        else:
                            given[tensor] = self._tensor("ordinary", driver, mine.shape, "fp32", last)
                            kept[name, m, tensor] = given[tensor]
                        if mine.size:
                            driver._gpus.put(driver._gpus.first, look(given[tensor], str).address, mine)
                    made[name].run(**{n: [tensor] for n, tensor in given.items()})
                    for tensor, of_ranks in wanted.items():
                        found = np.empty(of_ranks[self.place].shape, np.float32)
                        if found.size:
                            with driver._gpus.inside(driver._gpus.first):
                                address = look(given[tensor], str).address
                                driver._vendor.to_host(found.ctypes.data, address, found.nbytes)
                        fine = fine and np.array_equal(found, of_ranks[self.place])
                    del given
            copied = made["gemm_ar"].copied(3)
            fine = fine and copied == (4 * 3 * (N + K // ranks) if touching else 0)
            none = any("backward" in name and not m for name, m in asked)  # a sum over no rows is one over zeros
            fine = fine and (touching or none) == bool(workspace.memory.get("staging"))
        return fine, self.left()

    def measured(self: Any, ours: float) -> tuple[list[str], float, str]:
        """The kernels of an operation's plan: when nothing is kept, when that is kept, and when process 1 has kept
        another. The first process measures, by itself, that ours takes so long and the library's 2 µs. And what a real
        measurement takes here."""
        import ficco_rt as ficco
        from ficco_rt.calibrate import alone
        from ficco_rt.calibrate.gpu_times import OnGpus
        from ficco_rt.driver.registry import discover
        from ficco_rt.kernels.families import AloneTimes, PlainProduct
        from ficco_rt.select import sized
        from ficco_rt.select.choose import choose

        kept: Any = SimpleNamespace(
            plan=None, get=lambda *_: kept.plan, put=lambda _, plan: setattr(kept, "plan", plan)
        )
        sized.has_gemms, mine = lambda _: True, self.group.part((self.place,))
        alone.times = lambda product, driver, group: (
            AloneTimes(ours, 2.0) if (self.place, group) == (0, mine) else exit(1)
        )
        sizes, kernels = {"N": 512, "K": 512, "counts": ((64, 64), (64, 64))}, []
        with ficco.Workspace(2, self.face, group=self.group, timeout=TIMEOUT) as workspace:
            operation = ficco.Operation(workspace, "a2a_gemm", max_m=64, by="rules", N=512, K=512)
            operation._store = kept
            for turn in range(3):
                if turn == 2 and self.place:
                    machine, other = workspace.machine, AloneTimes(4.0 - ours, 2.0)
                    kept.plan = choose("a2a_gemm", 2, machine, "rules", sizes=sizes, timer=lambda _, o=other: o).plan
                kernels += sorted({launch.kernel for _, launch in operation._plan(sizes).launches()})
        small, one = PlainProduct(16, 16, 16, True, "bf16"), discover(self.face, 1)
        return kernels, alone._micros(alone._plan(small, one), OnGpus(self.face, mine)), self.left()

    def _binds_alone(self: Any, executors: Sequence[Any]) -> None:
        """Where all that processes touch of one another is scratch, one of them binds for itself."""
        for executor in executors:
            if executor.driver._others is not None and self.place:
                outputs = [t for t in executor.plan.tensors if t.kind == "output"]
                more = {
                    (t.name, r): executor.driver.alloc(r, t.shapes[r], t.dtype) for t in outputs for r in executor.ranks
                }
                executor.driver.bind({**executor._owned, **more})

    @staticmethod
    def _embedded(executor: Any) -> list[bool]:
        """Of each set of the executor's tensors, whether runs of callers' graphs use it as the plan says."""
        of = executor.driver._parts
        bindings = [binding for binding in executor.driver._binder.bindings if binding.of is of]
        numbers = {binding.number: False for binding in bindings}
        for binding in bindings:
            numbers[binding.number] |= bool(binding.parts)
        alternate = executor.driver._plans().layout.sharing.sets
        return [held == (number >= alternate or alternate == 1) for number, held in numbers.items()]

    @staticmethod
    def _scratch(executor: Any) -> int:
        """Bytes that the executor needs alone, in all sets."""
        from ficco_rt.types import TYPES

        driver, rank = executor.driver, executor.ranks[0]
        scratch = [t for t in executor.plan.tensors if t.kind == "scratch"]
        return sum(len(driver._kinds(t.name)) * TYPES[t.dtype].bytes * int(np.prod(t.shapes[rank])) for t in scratch)
