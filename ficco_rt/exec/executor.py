"""Runs a plan on a driver: allocates buffers, binds the caller's arrays, issues runs.

    with Executor(plan) as executor:
        executor.run(A=[...], B=[...], C=[...])   # one array a rank; C is written in place
        executor.trace                            # what happened when

On GPUs arrays are tensors of any library that supports DLPack or `__cuda_array_interface__`. With `streams=[…]`, the
caller's streams, one a rank, `run` returns at once.

All decisions are made when arrays are bound; a run only makes the prepared calls.
"""

from __future__ import annotations

import sys
import time
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from math import prod
from threading import get_ident
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ..driver.api import (
    Array,
    Buffer,
    CollectivesBy,
    Driver,
    DriverName,
    Holdings,
    OnProgress,
    Options,
    size_words,
)
from ..driver.gpu.refused import undo_on_error
from ..driver.host.order import host_order
from ..driver.registry import VENDORS, discover, open_driver
from ..errors import DeviceError, UsageError
from ..files.arguments import of_kind, seconds, whole
from ..files.store import Store
from ..geometry.rows import Rows
from ..graph.ir import Tensor
from ..graph.scales import is_scales, name_of
from ..machine.profiles import AnyMachine, chosen
from ..plan.codec import plan_facts
from ..plan.ir import Plan
from ..process.group import Group, agree, as_group
from ..sim.simulate import simulate
from ..trace.model import Lane, Trace
from ..types import TYPES
from ..version import __version__
from .bindings import array_of, checked, checked_on_device, padded, pair, without_scales
from .bound import KEPT, KEPT_OF_MANY, Bindings, Bound, Given
from .device_arrays import key_of
from .workspace import TIMEOUT, Closable, User, Workspace

if TYPE_CHECKING:
    from ..device.run_plan import RunPlan

P = ParamSpec("P")
T = TypeVar("T")


def _alone(method: Callable[Concatenate[Executor, P], T]) -> Callable[Concatenate[Executor, P], T]:
    """What one thread at a time does with an executor. UsageError: another thread is in the midst of something."""

    @wraps(method)
    def entered(self: Executor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        me, user = get_ident(), self._user
        before = user.thread
        if before and before != me:
            raise self._in_use()
        try:  # as in `run`
            user.thread = me
            return method(self, *args, **kwargs)
        finally:
            user.thread = before

    return entered


class Executor(Closable):
    """Runs a plan any number of times, and owns what the plan needs for it.

    `driver` is a name ("host", the default, or "cuda") or a Driver made for this plan, which the executor then owns.
    `machine` (a Machine, a file, or a stored one's name) prices virtual time, where the driver has no clock of devices;
    by default it is the one that the plan was made for, or the GPUs found. `order` is how the host driver steps: fifo,
    random(SEED), adversarial, lazy(STREAM); `random:SEED` and `lazy:STREAM`, as the command line has it, are the same.
    On GPUs, `ranks_per_gpu` ranks share one, `graph` runs the plan as captured graphs, one a GPU (None: a plan without
    copies, once it has often run on the same tensors), and a run that takes more than `timeout` seconds is given up
    with a report of who waits for what. If a call of the vendor's driver takes
    that long, a thread prints the same report on stderr, and `run` raises the error when the call returns. None: no
    limit. `collectives` says what makes the plan's collectives on GPUs: "library", which is NCCL or RCCL; "copies",
    which are our own copies and sums; "auto", the library if it is installed and each rank has a GPU of its own.

    `workspace`: GPUs with what executors share there (`ficco.Workspace`), whose driver, group and so on the executor
    has. `store`: what keeps the plan's checked device plans between processes, as an `Operation`'s are.

    `group`: the processes that run the plan together, each its own `ranks`: a torch.distributed process group, an
    mpi4py communicator, or a `ficco.Group`. Every process makes an executor of the same plan; tensors, streams, `write`
    and `read` are of its own ranks. All processes make the same calls in the same order. A run on the host is then
    given up, too, when no process moves for `timeout` seconds.

    Executors of a process may be used in different threads, each by one thread at a time: a second thread that enters
    meanwhile gets a UsageError; executors of one `workspace` count as one. Their runs have one order, the same on all
    GPUs, and share a GPU at the same time if they leave each other room. An executor on GPUs, or of a group, that
    was not closed is closed when Python frees it, with a ResourceWarning.

    Raises UsageError (a user kernel without host function, no such machine or stream), DeviceError (memory).
    """

    def __init__(
        self,
        plan: Plan,
        driver: Driver | DriverName | None = None,
        *,
        machine: AnyMachine | None = None,
        order: str = "fifo",
        ranks_per_gpu: int = 1,
        graph: bool | None = False,
        timeout: float | None = TIMEOUT,
        collectives: CollectivesBy = "auto",
        group: object = None,
        workspace: Workspace | None = None,
        store: Store | None = None,
    ) -> None:
        self.plan = of_kind(plan, Plan, "an Executor runs a plan, as compile() or load_plan() gives it")
        if workspace is not None:
            self._fits(workspace, driver, machine, ranks_per_gpu, timeout, group)
            driver, machine, group, timeout = workspace.driver, workspace.machine, workspace.group, workspace.timeout
        self.group: Group | None = None if group is None else as_group(group)
        if machine is None and isinstance(driver, str) and driver in VENDORS:
            machine = discover(driver, plan.ranks, ranks_per_gpu, 1 if self.group is None else self.group.size)
        self.machine = chosen(plan.target if machine is None else machine, plan.ranks)
        self.timeout = timeout = seconds(timeout, "timeout")
        self.graph = graph
        self.issued_in = 0.0  # microseconds that the host took to issue the last run
        if driver is None or isinstance(driver, str):
            order = host_order(order, plan)
            if self.group is not None:
                agree(self.group, {"ficco": __version__, "driver": driver or "host", **plan_facts(plan)}, timeout)
            shared = None if workspace is None else workspace.shared
            options = Options(order, ranks_per_gpu, timeout, collectives, self.group, shared, store)
            driver = open_driver(driver or "host", plan, options)
        self.driver: Driver = driver
        waited = driver.on_device or self.group is not None  # by GPUs, or by other processes
        self._finalizer = weakref.finalize(self, _forgotten, driver, plan.schedule) if waited else None
        self._closed = False
        self._around = sys.exception()  # what is handled where the executor is made is no reason to close it
        self._user = User() if workspace is None else workspace.user
        self._owned: dict[tuple[str, int], Buffer] = {}
        self._filled: set[tuple[str, int]] = set()  # owned inputs that were written
        self._scaled = any(t.scaling is not None for t in plan.tensors)
        self._bound: Bound | None = None  # what the last run ran
        self._bindings = Bindings(driver, plan, KEPT if workspace is None else KEPT_OF_MANY)
        self._trace: Trace | None = None
        self._ran = False
        with undo_on_error(self.close):
            self._own(t for t in plan.tensors if t.kind == "scratch")
        self._workspace = workspace  # which lives as long
        if workspace is not None:
            workspace.add(self)

    def _fits(
        self,
        workspace: Workspace,
        driver: object,
        machine: object,
        ranks_per_gpu: int,
        timeout: float | None,
        group: object,
    ) -> None:
        """UsageError: the plan does not run in this workspace, or what the workspace says is said again."""
        from .workspace import Workspace

        of_kind(workspace, Workspace, "workspace is a ficco.Workspace").still_open()
        if (driver, machine, ranks_per_gpu, timeout, group) != (None, None, 1, TIMEOUT, None):
            raise UsageError(
                "the driver, the machine, ranks_per_gpu, the timeout and the group of an executor in a workspace are "
                "the workspace's: leave them out"
            )
        if self.plan.ranks != workspace.ranks:
            raise UsageError(
                f"schedule '{self.plan.schedule}' was compiled for {self.plan.ranks} ranks, and the workspace has "
                f"{workspace.ranks}: compile it for these, or make another workspace"
            )

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        ranks = f"{len(self.ranks)} of {self.plan.ranks}" if self.group is not None else f"{self.plan.ranks}"
        return f"<Executor of {self.plan.schedule}: {ranks} ranks by the {self.driver.name} driver{state}>"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that this process runs: all, or in a group its own. Raises nothing."""
        return self.driver.ranks

    # ---- life

    @_alone
    def close(self) -> None:
        """Release everything; may be called twice. The caller's arrays stay as they are. A caller's graph that holds
        runs of the executor must not be replayed any more. In a group, where it is closed because of an error or of
        Ctrl-C, in a `with` or a `finally`, the other processes are notified, and raise an error in their next run.

        Raises DeviceError (the devices still run something that does not end, or refuse to give something back).
        """
        if not self._closed:
            self._closed = True
            _EMBEDDED.discard(self)
            if self._finalizer is not None:
                self._finalizer.detach()
            self._bound = None
            self._bindings.clear()
            self._owned.clear()
            error = sys.exception()
            ends = isinstance(error, SystemExit) and not error.code
            if self.group is not None and error is not None and error is not self._around and not ends:
                self.driver.leave(error)
            self.driver.close()

    def _in_use(self) -> UsageError:
        return UsageError(
            f"another thread is using the executor of schedule '{self.plan.schedule}', which takes one thread at a "
            "time: make an executor for each thread, or keep threads apart by a threading.Lock"
        )

    def _open(self) -> None:
        if self._closed:
            raise UsageError(f"the executor of schedule '{self.plan.schedule}' is closed; make a new one to run again")

    # ---- running

    @_alone
    def bind(self, /, **tensors: object) -> Bound:
        """Bind arrays, as `run` takes them, ahead of runs: `run(bound)` is then free of all checks. They stay alive
        and bound until `release`.

        Raises UsageError (what is given does not fit, the executor is closed), DeviceError (memory).
        """
        self._open()
        bound = self._bind(tensors)
        bound.pinned, bound.tensors = True, tensors
        return bound

    @_alone
    def bind_at(self, given: Given, rows: Rows | None = None) -> Bound:
        """Bind tensors that lie where they are said to lie. They have the plan's shapes, or such `rows` as the driver
        takes, and the plan's types: nothing is checked.

        Raises UsageError (the executor is closed, memory of another GPU), DeviceError (memory).
        """
        self._open()
        return self._bindings.get(given, self._owned, rows=rows)

    def again(self, bound: Bound) -> bool:
        """Whether a binding by `bind_at` may run again: it is kept, and its memory has not been reallocated.

        Raises nothing.
        """
        return not self._closed and self._bindings.again(bound)

    @_alone
    def release(self, bound: Bound) -> None:
        """Release what `bind` made, when its last run has ended. What was released before is ignored.

        Raises UsageError (the executor is closed, `bind` has not made it), DeviceError (the last run failed).
        """
        self._open()
        if self._bindings.holds(of_kind(bound, Bound, "release takes what bind() made")):
            self._bindings.release(bound)
            if self._bound is bound:
                self._bound = None

    def run(
        self,
        bound: Bound | None = None,
        /,
        *,
        streams: Sequence[object] | None = None,
        progress: OnProgress | None = None,
        **tensors: object,
    ) -> None:
        """Run the plan once: to its end, or, given the callers' `streams`, to be run on the devices.

        `streams`: one a rank of this process, of the rank's GPU, as an int handle or an object of PyTorch, CuPy or any
        library with `__cuda_stream__`. The run touches a rank's inputs and outputs after earlier work on the rank's
        stream has ended, and later work on that stream begins when the run no longer touches them; other ranks' parts
        may then still run. `synchronize` waits for the whole run, and only then raises its errors.

        If the caller is capturing the streams into graphs (CUDA), the run becomes a part of these graphs: it runs
        whenever they are replayed, on the tensors given now. One graph may hold the streams of all GPUs, joined by
        events, or each GPU may have a graph; then each run needs a replay of every one. The executor keeps what such
        graphs need until it is closed, and stays alive until then. Replays and plain runs of an executor may follow
        each other; a replay comes after the runs and replays that precede it on its streams.

        `tensors`: for each input and output that is bound a sequence of one array a rank of this process, of exactly
        the plan's shape and dtype, contiguous, bound by reference and written in place: a numpy array, or a tensor in
        host memory that gives DLPack; on GPUs a tensor there. Of a scaled input a sequence of pairs (values, scales),
        with scales as the plan has them ("A.scales"). Or `bound`, what `bind` made of them. An input that is
        not given must have been set with `write`; an output that is not given is read with `read`. Binding other arrays
        takes milliseconds and waits for the last run; on GPUs bindings are cached, so that tensors at the addresses of
        one of the last few runs cost only a look-up.

        Raises UsageError (what is given does not fit), DeviceError (memory, deadlock, a failing user kernel).
        """
        me, user = get_ident(), self._user
        before = user.thread
        if before and before != me:
            raise self._in_use()
        try:  # NOTE a Ctrl-C may come at any call: none stands between the question and the answer
            user.thread = me
            if self._closed:
                self._open()
            if bound is None:
                bound = self._bind(tensors)
            elif tensors or not self._bindings.holds(bound):
                what = "arrays beside it" if tensors else "one that is released, or another executor's"
                raise UsageError(f"run takes what bind() made, alone; given {what}")
            self._run(bound, streams, progress)
        finally:
            user.thread = before

    def repeat(self, bound: Bound, streams: Sequence[object] | None) -> bool:
        """Run a binding as `run` does, if it may run `again`; whether it was run. NOTE most calls of an `Operation` end
        here.

        Raises UsageError, DeviceError (as `run`).
        """
        me, user = get_ident(), self._user
        before = user.thread
        if before and before != me:
            raise self._in_use()
        try:  # as in `run`
            user.thread = me
            if self._closed or not self._bindings.again(bound):
                return False
            self._run(bound, streams, None)
            return True
        finally:
            user.thread = before

    def _run(self, bound: Bound, streams: Sequence[object] | None, progress: OnProgress | None) -> None:
        # NOTE every run comes here, and an abstract class is asked by a call, which lists and tuples save
        if streams is not None and not (isinstance(streams, (list, tuple, Sequence)) and streams):
            given = "0" if isinstance(streams, Sequence) else f"one {type(streams).__name__}"
            raise UsageError(f"streams: wanted one a rank, {len(self.ranks)}; given {given}")
        binding, driver, graph = bound.binding, self.driver, self.graph
        assert binding is not None
        if graph:
            graph = not driver.tracing
            if graph:
                driver.capture(binding)
        last = self._ran, self._trace, self._bound
        self._ran, self._trace, self._bound = False, None, bound
        begun = time.perf_counter()
        try:
            embedded = driver.run(binding, streams or (), graph=graph)
        except UsageError:  # nothing ran: the run before is still the last one
            self._ran, self._trace, self._bound = last
            raise
        self.issued_in = (time.perf_counter() - begun) * 1e6
        if embedded:  # a replay of the caller's graph needs the executor and its bound buffers
            self._ran, self._trace, _ = last
            bound.pinned = True
            _EMBEDDED.add(self)
            return
        if streams is None:
            driver.synchronize(progress)
        self._ran = True

    @_alone
    def synchronize(self) -> None:
        """Wait for the last run's end.

        Raises UsageError (the executor is closed), DeviceError (the run failed, or did not end within `timeout`).
        """
        self._open()
        self.driver.synchronize()

    @_alone
    def check(self) -> None:
        """Return if no run has been given up since the last `synchronize` or `check`, without waiting.

        Use it for runs that the caller has waited for in another way: on the caller's streams, or as replays of the
        caller's graphs. Their results are valid if they have ended and this method returns.

        Raises UsageError (the executor is closed), DeviceError (a run was given up, here or by another process: later
        work may have read wrong numbers).
        """
        self._open()
        self.driver.check()

    @_alone
    def run_plan(self) -> RunPlan:
        """The driver calls of the last run of this process, in their order; `str` prints them.

        Raises UsageError (the executor is closed, nothing has run yet, or the host driver makes no such calls).
        """
        self._open()
        return self.driver.run_plan()

    @property
    def duration(self) -> float:
        """Microseconds that the last run took on the devices, or takes on the virtual clock.

        Raises UsageError (the executor is closed; no run has ended; the last one was on callers' streams, and not
        `timed`), DeviceError (it failed).
        """
        self._open()
        measured = self.driver.elapsed()
        return self.trace.duration if measured is None else measured

    @property
    def traced(self) -> bool:
        """Whether runs are recorded for `trace`. On GPUs that puts timestamps between the commands, which cost time,
        and a run is then issued command by command, with `graph` too. Raises nothing."""
        return self.driver.tracing

    @traced.setter
    def traced(self, on: bool) -> None:
        self.driver.tracing = on and self.driver.on_device

    @property
    def timed(self) -> bool:
        """Whether GPUs also measure the time of runs on callers' streams, for `duration`. This costs the host two calls
        a GPU and run, and adds about 3 µs to the run (H200). Other runs are always timed. Raises nothing."""
        return self.driver.timing or not self.driver.on_device

    @timed.setter
    def timed(self, on: bool) -> None:
        self.driver.timing = on

    @property
    def gated(self) -> bool:
        """Whether a run on streams begins only after the host has issued all of it, so that the `duration` of a short
        run is the time of the GPUs alone. A traced run always begins so. A caller's stream is delayed until the host
        has issued the run. Raises nothing."""
        return self.driver.gated

    @gated.setter
    def gated(self, on: bool) -> None:
        self.driver.gated = on and self.driver.on_device

    @property
    def held(self) -> bool:
        """Whether the last run began only after the host had issued all of it. Graphs never do, nor do long runs and
        runs on devices with few hardware queues (docs/gpus.md). Raises nothing."""
        return self.driver.held

    @property
    @_alone
    def trace(self) -> Trace:
        """The record of the last run that ended, in microseconds: a span for each thing that a stream did. In a group
        on GPUs it holds the spans of all processes on one clock, and all processes ask for it at the same step.

        Raises UsageError (no run has ended, the executor is closed; on GPUs: the run was not `traced`).
        """
        self._open()
        if not self._ran:
            raise UsageError("there is no trace: no run has ended")
        if self._trace is None:
            if self.driver.clock == "virtual":
                self._trace = simulate(self.plan, self.machine)
            else:
                lanes = tuple(Lane(s.id, s.rank, s.name, s.engine) for s in self.plan.streams)
                machine, spans = self.machine.name, self.driver.spans()
                if not spans and any(stream.commands for stream in self.plan.streams):
                    raise UsageError("the last run was not traced: set executor.traced = True before it")
                clock, within = self.driver.clock, self.driver.within
                self._trace = Trace(self.plan.schedule, machine, clock, self.plan.ranks, lanes, spans, within=within)
        return self._trace

    @property
    def order(self) -> str:
        """How the host driver steps; set it to step the next runs otherwise.

        Raises UsageError (the driver is not the host's; no such order or stream).
        """
        self._stepped()
        return self.driver.order

    @order.setter
    def order(self, text: str) -> None:
        self._open()
        self._stepped()
        self.driver.order = host_order(text, self.plan)

    def _stepped(self) -> None:
        if not self.driver.order:
            raise UsageError(f"the {self.driver.name} driver steps by itself: only the host driver has an order")

    # ---- tensors that the executor owns

    @_alone
    def write(self, tensor: str, rank: int, array: object) -> None:
        """Set the executor's own copy of an input, for runs that are not given one: from a numpy array, or a contiguous
        tensor in host memory that gives DLPack. Of a scaled input a pair (values, scales), of which the scales may be
        one number or have no padding.

        Raises UsageError: the tensor is no input (runs write outputs and scratch), or the array does not fit.
        """
        self._open()
        rank = whole(rank, "rank")
        found = self._tensor(tensor, rank)
        if found.kind != "input":
            names = ", ".join(t.name for t in self.plan.tensors if t.kind == "input") or "none"
            raise UsageError(f"{tensor} is {found.kind}, which a run writes; the inputs to write are {names}")
        parts = [(found, array)]
        if found.scaling is not None and isinstance(array, tuple | list):
            values, scales = pair(found, rank, array)
            parts = [(found, values), (self._tensor(name_of(tensor), rank), padded(found, rank, scales))]
        for part, given in parts:
            seen = array_of(part, rank, given, part.name, bound=False)
            self._own([part])
            self.driver.write(self._owned[part.name, rank], seen)
            self._filled.add((part.name, rank))

    @_alone
    def read(self, tensor: str, rank: int) -> Array:
        """A copy of a tensor as the executor holds it: of the caller's array where the last run was given one. It is a
        numpy array of the tensor's shape on that rank. Scratch is that of the last run that was issued, and not of a
        replay of a caller's graph. In a group, what other ranks write into it, and nobody here reads, may still come.

        Raises UsageError (no such tensor or rank, the executor is closed), DeviceError (memory, the last run failed).
        """
        self._open()
        rank = whole(rank, "rank")
        found = self._tensor(tensor, rank)
        kept = self._bound is not None and self._bindings.holds(self._bound)
        buffer = self._bound.memory.get((tensor, rank)) if self._bound is not None and kept else None
        if buffer is None:
            self._own([found])
            buffer = self._owned[tensor, rank]
        return self.driver.read(buffer)

    @property
    @_alone
    def holdings(self) -> Holdings:
        """The resources that the executor holds: the same after any number of runs on the same tensors, once there have
        been two runs of each kind.

        Raises UsageError (the executor is closed).
        """
        self._open()
        return self.driver.holdings()

    @_alone
    def poison(self) -> None:
        """Fill the executor's scratch and outputs with NaN, so that what is never written shows. In a group, all
        processes call this before the same run, which then begins when all have done it. Replays of your graphs do not
        wait for that: call a barrier of your own between `poison` and the replay.

        Raises UsageError (the executor is closed), DeviceError (memory).
        """
        self._open()
        mine = [t for t in self.plan.tensors if t.kind != "input"]
        self._own(mine)
        for tensor in mine:
            for rank in self.ranks:
                self.driver.poison(self._owned[tensor.name, rank])

    def _tensor(self, name: str, rank: int) -> Tensor:
        found = next((t for t in self.plan.tensors if t.name == name), None)
        if found is None or not 0 <= rank < self.plan.ranks:
            names = ", ".join(t.name for t in self.plan.tensors)
            raise UsageError(f"there is no tensor '{name}' of rank {rank}; {names} on ranks 0–{self.plan.ranks - 1}")
        if rank not in self.ranks:
            mine = ", ".join(map(str, self.ranks))
            raise UsageError(f"{name} of rank {rank} is in another process; this one has the ranks {mine}")
        return found

    def _own(self, tensors: Iterable[Tensor]) -> None:
        """Allocate the tensors on all ranks of this process, where not done; only if all of it fits."""
        missing = [(t, r) for t in tensors for r in self.ranks if (t.name, r) not in self._owned]
        if not missing:
            return
        need: dict[int, int] = defaultdict(int)
        for tensor, rank in missing:
            need[rank] += TYPES[tensor.dtype].bytes * prod(tensor.shapes[rank])
        for pool in self.driver.pools():
            total = sum(need[r] for r in pool.ranks)
            if total > pool.free:
                who = f"ranks {pool.ranks[0]}–{pool.ranks[-1]}" if len(pool.ranks) > 1 else f"rank {pool.ranks[0]}"
                names = ", ".join(dict.fromkeys(t.name for t, _ in missing))
                raise DeviceError(
                    f"{names} of {who} need {size_words(total)} and {pool.name} has {size_words(pool.free)} free; "
                    f"take smaller sizes with --set, or only compile the schedule with `ficco compile`"
                )
        for tensor, rank in missing:
            shape, scratch = tensor.shapes[rank], tensor.name if tensor.kind == "scratch" else ""
            self._owned[tensor.name, rank] = self.driver.alloc(rank, shape, tensor.dtype, scratch=scratch)

    # ---- binding

    def _bind(self, tensors: Mapping[str, object]) -> Bound:
        """The plan bound to the given arrays, and to buffers of the executor for the rest."""
        if self._scaled:
            tensors = without_scales(self.plan, tensors)
        seen = key_of(tensors) if self.driver.on_device else None
        known = self._bindings.known(seen) if seen is not None else None
        if known is not None:
            return known
        given: Given = (checked_on_device if self.driver.on_device else checked)(self.plan, tensors, self.ranks)
        mine = [t for t in self.plan.tensors if t.name not in tensors]
        self._own(mine)
        for tensor in mine:
            absent = [r for r in self.ranks if (tensor.name, r) not in self._filled]
            if tensor.kind == "input" and absent and is_scales(tensor.name):
                scaled, _, _ = tensor.name.partition(".")
                raise UsageError(f"input {scaled} of rank {absent[0]} has values and no scales: give pairs of both")
            if tensor.kind == "input" and absent:
                raise UsageError(
                    f"input {tensor.name} of rank {absent[0]} has no value: give run({tensor.name}=[…]), "
                    f"one array a rank, or set it with write('{tensor.name}', {absent[0]}, array)"
                )
        return self._bindings.get(given, self._owned, seen)


_EMBEDDED: set[Executor] = set()  # runs of these are in callers' graphs: they live until they are closed


def _forgotten(driver: Driver, schedule: str) -> None:
    """Nobody has closed the executor."""
    try:
        warnings.warn(
            f"an executor of schedule '{schedule}' was not closed: call close(), or use `with`", ResourceWarning, 2
        )
    finally:
        driver.drop()
