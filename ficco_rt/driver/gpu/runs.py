"""Runs of a plan: issues, captures, replays, waits for, and gives up runs. The device plans define what is issued."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

from ... import env
from ...device.collectives import ONE_EACH
from ...device.ir import GATED, EventName, Mode
from ...device.run_plan import RunPlan, uploads
from ...errors import DeviceError, UsageError
from . import board
from .binding import Binder, BoundPlan, Callers, PlanParts, RunManner
from .collectives import Communicators
from .devices import inside
from .gpus import Gpus
from .issue_order import ISSUE_ORDER, LEAST, SPIN, Client, Issued, Wait, poll
from .refused import concerning, undo_on_error
from .resources import RunResources
from .spans import HasPassed, stuck
from .steps import DriverStep, entered, make
from .vendor import Gpu, Handle
from .watchdog import let_go, told

ALIVE = 0.05  # seconds of waiting for a run after which other processes are looked after
CAPTURES = 64  # of which it is known how many runs they hold: those that are under way
_THREADS_OWN = 2  # the handle of each thread's own default stream, in CUDA and HIP
_PER_THREAD = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"  # set: that is what 0 means in cuda.bindings
DRAIN = 1.0  # seconds that a given-up run gets to end once its semaphores are forced up, and the one before it gets


class Runs:
    """The runs of the plans of a workspace: one after another, in the order in which they are issued."""

    def __init__(self, gpus: Gpus, resources: RunResources, binder: Binder, communicators: Communicators) -> None:
        self._gpus = gpus
        self._resources = resources
        self._binder = binder
        self._communicators = communicators
        self._client = gpus.client
        self._client.report, self._client.release = self._report, self._let_through
        self._client.replaying = resources.under_way
        self._running = False  # issued, not seen to end
        self._trouble: DeviceError | None = None  # of asking whether all is through
        self._dirty = False  # a run was given up: semaphores and counters may be up
        self._last: BoundPlan | None = None  # what the last run ran
        self._of: PlanParts | None = None  # of which plan
        self._manner: RunManner | None = None  # and how
        self._issued = 0  # whole runs, without those in callers' graphs
        self._latest: tuple[BoundPlan, RunManner, int | None, Sequence[Wait]] | None = None  # see `run_plan`
        self.replays = False  # callers' graphs hold runs, and may be under way
        self._captures: dict[tuple[int, ...], int] = {}  # by the captures of all devices: runs in them
        self._board = gpus.peers.board if gpus.peers is not None else None
        self._pid, self._forks = os.getpid(), board.forks
        self._looked_at: Callers = ()
        self._threads_own = False  # some of these are default streams of the calling thread
        self._why = ""  # why these devices get no further run
        self.lost = False  # a run failed or does not end: these devices get no further run

    def last_of(self, parts: PlanParts) -> bool:
        """Whether the last run was one of this plan, or there was none."""
        return self._of is None or self._of is parts

    @property
    def traced(self) -> BoundPlan | None:
        """What the last run ran, if it was recorded."""
        return self._last if self._manner is not None and self._manner.mode == "traced" else None

    @property
    def number(self) -> int:
        """The set that the last run used."""
        return self._last.number if self._last is not None else 0

    @property
    def held(self) -> bool:
        """Whether the last run began behind a start gate."""
        last, manner = self._last, self._manner
        return last is not None and manner is not None and last.plans.of(manner.mode).has_start_gate

    # ---- issuing

    def run(self, binding: BoundPlan, callers: Callers, mode: Mode, timing: bool = False) -> bool:
        """Whether it has become a part of the graphs that the callers capture on their streams, to run when these are
        replayed. `timing`: on callers' streams it is timed, too; others always are."""
        gpus, client = self._gpus, self._client
        if callers and gpus.vendor.capturing(callers):
            with gpus.uncaptured():
                self._embed(binding, callers, mode)
            return True
        if binding.more:
            binding = binding.in_turn(self._issued)
        if not binding.complete:
            self._complete(binding)
        taken = False
        try:
            self._prepare()
            manner, latest = self._set(binding, mode, callers, timing), binding.latest
            if latest is not None and (latest[0] is manner or latest[0] == manner):
                calls = latest[1]
            else:
                calls = self._binder.calls(binding, manner)
            ISSUE_ORDER.acquire(client)
            taken = True
            waits = ISSUE_ORDER.submit(client, calls.submission)
            enters = bool(calls.enters or waits) and gpus.begin_issue(None if waits else calls.context)
            steps = calls.steps if enters else calls.inside
            if waits:
                steps = [*self._run_waits(waits), *steps]
            self._running, self._last, self._manner, self._of = True, binding, manner, binding.of
            if self._board is not None:
                self._board.issues()
            make(gpus, steps)
            if enters:
                gpus.end_issue()
            self._latest = binding, manner, self._issued, waits
            self._issued += 1
            if client.overdue:
                self._told()
        except BaseException as error:
            self._abandon(error, callers)
            raise
        finally:
            if taken:
                ISSUE_ORDER.release()
        return False

    def _complete(self, binding: BoundPlan) -> None:
        """See `Binder.complete`. The other processes do not wait for that: where it fails, they are told."""
        peers = self._gpus.peers
        with self._gpus.uncaptured(), nullcontext() if peers is None else peers.alone():
            self._binder.complete(binding)

    def _set(self, binding: BoundPlan, mode: Mode, callers: Callers, timing: bool) -> RunManner:
        """How a run is made now: the very manner of the run before, if that says it. NOTE each run comes here."""
        before, replays = self._manner, self.replays
        timed = mode == "traced" or timing or not callers
        behind = self._running or replays  # replays may be under way like the run before
        others, last = before is None or before.callers != callers, self._last
        alike = last is not None and self._of is binding.of and last.plans is binding.plans
        if before is not None and not others and not (alike and before.mode == mode):
            (waits, _), ends = binding.plans.known_ends(mode), last.plans.known_ends(before.mode)[1] if last else ()
            others = not callers or not waits.issubset(ends) or mode in GATED or before.mode in GATED
        if callers is not self._looked_at:
            self._looked_at, self._threads_own = callers, any(map(_is_threads_own, callers))
        others = others or self._threads_own  # NOTE another thread's may have been meant by the same handle
        if before is None or others or before != (mode, callers, behind, timed, False, replays):
            return RunManner(mode, callers, behind, timed, others, replays)
        return before

    def _run_waits(self, waits: Sequence[Wait]) -> Iterator[DriverStep]:
        """The run waits on a device for another executor's."""
        devices = {device.local: device for device in self._gpus.devices.values()}
        wait = self._gpus.vendor.wait_action
        steps = (
            DriverStep(devices[i], *wait(stream, event), "another executor's run") for i, stream, event, _ in waits
        )
        return entered(self._gpus.vendor, steps)

    # ---- giving up: published first, then forced

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Inside, no other thread gives runs up, and none is in the midst of it. DeviceError: the vendor's driver does
        not come back from signalling semaphores."""
        if not self._client.lock.acquire(timeout=LEAST):
            self._gpus.hang()
            self._lose(f"another thread has signalled semaphores for {LEAST:g} s, and the driver does not come back")
            self.answers()
        try:
            yield
        finally:
            self._client.lock.release()

    def ill(self) -> str:
        """From the watchdog's thread: a failure that no stream shows."""
        if not self.lost and self._gpus.peers is not None:
            with self._gpus.vendor.uncaptured():  # NOTE in a capture of another thread
                why = self._ended_early() or self._gpus.peers.verdict(far=False)
                if why and self._board is not None and self._on_callers():
                    return "\n".join([why, *self._board.lines()])
        return self._communicators.ill()

    def _told(self) -> None:
        """DeviceError: what another thread has said of what was issued, which was let go then."""
        with self._locked():  # by then all is forced
            text, self._client.overdue = self._client.overdue, ""
        self._dirty = True
        self._release(text)
        raise DeviceError(text)

    def _condemned(self, *, far: bool = True) -> None:
        """DeviceError: another process has given up, and what this one has not checked yet may be wrong, too. `far`:
        ask those as well that can be asked by messages alone."""
        peers = self._gpus.peers
        why = peers.verdict(far) if peers is not None else ""
        if why:
            self._give_up(why)

    def _let_through(self, why: str) -> None:
        """All processes are told that this one gives its runs up; then whatever waits for a semaphore, or in a
        collective for other ranks, goes on. From any thread that has the client's lock."""
        peers = self._gpus.peers
        gone = peers.give_up(why.partition("\n")[0]) if peers is not None else ()
        try:
            self._resources.force_up(gone)
        finally:
            self._communicators.abort()

    def _lose(self, why: str) -> None:
        """These devices get no further run."""
        self.lost, self._why = True, self._why or why.partition("\n")[0]

    def _spoiled(self) -> None:
        """A run was given up: semaphores and counters may be up. Graphs that hold calls of communicators go, which
        would keep these, and are made again."""
        self._dirty = True
        if not self._communicators.aborted:
            return
        for binding in self._binder.bindings:
            with suppress(DeviceError):  # another error is on its way
                self._binder.drop_graphs(binding)

    def _abandon(self, error: BaseException, callers: Callers) -> None:
        """The run that was being issued stays incomplete: let through what was issued, and forget the rest. This runs
        while another error is on its way, so it raises none. `callers`: streams on which some of it may be."""
        if not self.lost and self.here:
            self._running = self._dirty = True
            self._await_last()
            self._follow(callers)
            self._release(_reason(error))
        if self.here and not self._gpus.hung:
            with suppress(DeviceError):
                self._gpus.end_issue()

    def _await_last(self) -> None:
        """The last complete run ends by itself: forcing its semaphores up would spoil it, and its end resets
        semaphores. It gets DRAIN seconds."""
        peers = self._gpus.peers
        with suppress(DeviceError):
            poll(lambda: self._all_through() or (peers is not None and bool(peers.verdict(far=False))), DRAIN)

    def _follow(self, callers: Callers) -> None:
        """The devices' own streams stand behind the callers', on which graphs of a run that is not whole may be."""
        vendor = self._gpus.vendor
        for rank, caller in zip(self._gpus.ranks, callers, strict=False):
            device = self._gpus.device(rank)
            with suppress(DeviceError), self._gpus.inside(device):
                event = self._resources.event(EventName("caller", rank), device)
                vendor.record(event, caller)
                vendor.wait(self._gpus.control[device.ordinal], event)

    def _prepare(self) -> None:
        """NOTE each run comes here, and there is mostly nothing to check: that is found out without a call."""
        page = self._board
        ill = self.lost or self._gpus.hung or self._client.overdue or board.forks != self._forks
        if ill or (page is not None and page.any_verdict):
            self.check(far=False)
        if self._dirty:
            self._clear()

    # ---- graphs

    def capture(self, binding: BoundPlan) -> None:
        """The binding's run as a graph for each device, if it has none yet; of each set that runs use alternately. The
        first set's come last: who asks whether there are any, asks for these."""
        for one in reversed(binding.buffer_sets):
            if not one.graphs:
                self._prepare()
                self._capture(one, "graph")

    def _capture(self, binding: BoundPlan, mode: Mode) -> None:
        gpus = self._gpus
        self._complete(binding)
        self.quiet()
        steps = self._binder.captured(binding, mode)
        with gpus.issue_lock():
            try:
                self._record(binding, mode, steps)
            except BaseException as error:  # the first error is the one to tell
                with suppress(DeviceError):
                    self._binder.drop_graphs(binding)
                if self._communicators.unfinished is not None:
                    self._release(_reason(error))
                raise

    def _record(self, binding: BoundPlan, mode: Mode, steps: Sequence[DriverStep]) -> None:
        """Capture all devices' control streams at once, with the streams behind them, and make graphs of that, or keep
        them as parts of callers' graphs."""
        gpus, vendor = self._gpus, self._gpus.vendor
        recording: list[Gpu] = []
        recorded: dict[int, Handle] = {}
        try:
            for ordinal, device in gpus.devices.items():
                with inside(vendor, device):
                    recording.append(device)
                    vendor.begin_capture(gpus.control[ordinal])
            with gpus.issuing():
                make(gpus, steps)
            for ordinal, device in gpus.devices.items():
                with inside(vendor, device):
                    recorded[ordinal] = vendor.end_capture(gpus.control[ordinal])
                    recording.remove(device)
            if mode == "embedded":
                binding.parts |= recorded
                return
            for ordinal, device in gpus.devices.items():
                with inside(vendor, device):
                    binding.graphs[ordinal] = self._instance(recorded.pop(ordinal))
                    if uploads(binding.plans.of(mode)):
                        vendor.upload(binding.graphs[ordinal], gpus.control[ordinal])
        except BaseException:  # the first error is the one to tell
            for device in recording:
                with suppress(DeviceError), inside(vendor, device):
                    vendor.drop_capture(gpus.control[device.ordinal])
            for graph in recorded.values():
                with suppress(DeviceError):
                    vendor.destroy_captured(graph)
            raise

    def _instance(self, recorded: Handle) -> Handle:
        """A graph to be launched, of what was recorded, which is given back."""
        vendor = self._gpus.vendor
        with undo_on_error(vendor.destroy_captured, recorded):
            graph = vendor.instantiate(recorded)
        with undo_on_error(vendor.destroy_graph, graph):
            vendor.destroy_captured(recorded)
        return graph

    # ---- callers' graphs

    def _embed(self, binding: BoundPlan, callers: Callers, mode: Mode) -> None:
        """The binding's run as a part of the graphs that the callers capture. What cannot be is refused before the
        first call that these captures see."""
        gpus = self._gpus
        captures = self._captured_alike(binding, callers, mode)
        self._prepare()
        for ordinal, device in gpus.devices.items():  # which later runs wait for, whether any run was before them
            self._resources.event(EventName("completion", ordinal), device)
        before = self._captures.pop(captures, 0)  # runs in the same graphs
        binding = binding.in_turn(before, embedded=True)
        if not binding.parts:
            self._capture(binding, "embedded")
        if not before:
            self._resources.embed(binding.of.resources.counts(binding.number))
        manner = RunManner("embedded", callers, behind=True, timed=False, others=True, replays=not before)
        calls = self._binder.calls(binding, manner)
        self.replays = self._communicators.lent = True
        with gpus.issue_lock():
            ISSUE_ORDER.embed(self._client, calls.submission)
            with gpus.issuing():
                make(gpus, calls.steps)
        self._captures[captures] = before + 1
        while len(self._captures) > CAPTURES:
            del self._captures[next(iter(self._captures))]
        self._latest = binding, manner, None, ()

    def run_plan(self) -> RunPlan:
        """The calls of the run that was issued last, or has become a part of callers' graphs. UsageError: none was."""
        if self._latest is None:
            raise UsageError("no run was issued yet: a run plan tells how the last one was")
        binding, manner, run, waits = self._latest
        if binding not in self._binder.bindings:
            raise UsageError("the last run's tensors are bound no more: ask for its run plan before they are released")
        return self._binder.run_plan(binding, manner, run, [(wait.device, wait.stream, wait.of) for wait in waits])

    def _captured_alike(self, binding: BoundPlan, callers: Callers, mode: Mode) -> tuple[int, ...]:
        """The captures that these streams take part in. UsageError, DeviceError: not as a run needs it."""
        gpus = self._gpus
        if binding.plans.layout.communicators and not gpus.placement.each_alone:
            # NVIDIA: of several GPUs of a process, a graph's launch may wait for graphs that are launched after it
            raise UsageError(f"streams: {ONE_EACH}, or make the executor with collectives='copies'")
        if not binding.plans.layout.features.embeds:
            raise UsageError(f"streams: {gpus.vendor.name} runs no plan inside a graph that its caller captures")
        if mode == "traced":
            raise UsageError("a run in a caller's graph takes no times of its commands: set executor.traced = False")
        captures: dict[int, int] = {}  # by device
        for rank, stream in zip(gpus.ranks, callers, strict=True):
            device = gpus.device(rank)
            with concerning(device, f"the stream of rank {rank}"):
                found = gpus.vendor.capture_of(stream)
            if found is None:
                raise UsageError(
                    f"streams: some are being captured, rank {rank}'s is not; capture on it too, or let it wait for an "
                    "event that a captured stream has recorded"
                )
            if captures.setdefault(device.ordinal, found) != found:
                raise UsageError(
                    f"streams: rank {rank}'s and those of other ranks on {device} are captured into different graphs; "
                    "ranks that share a GPU share a graph"
                )
        return tuple(captures.values())

    # ---- the end of a run

    def check(self, *, far: bool = True) -> None:
        """DeviceError: a run that was not checked yet was given up, here or by another process. Waits for nothing."""
        self.answers()
        if self._client.overdue:
            self._told()
        if self._gpus.peers is not None:
            self._condemned(far=far)

    def synchronize(self) -> None:
        self.check()
        if not (self._running or self.replays):
            return
        try:
            self._wait()
        except DeviceError:
            raise
        except BaseException as error:  # no one waits for the run any more, and a semaphore may keep it from ending
            self._dirty = True
            self._release(_reason(error))
            raise

    def _wait(self) -> None:
        begun = time.monotonic()
        limit = self._gpus.timeout
        naps = 0
        while not self._ended():
            waited = time.monotonic() - begun
            if limit is not None and waited > limit:
                self._give_up(f"the run did not end within {limit:g} s (--timeout)")
            naps += 1
            if waited > SPIN:
                time.sleep(min(1e-3, 1e-5 * naps))
                self._ended(everywhere=True)
                self._look_for_others(waited)
        # NOTE only now: a verdict is published before anything is forced, so what has ended without one has ended well
        self._condemned()
        client = self._client
        with self._locked():
            fine = not client.overdue
            if fine:
                client.generation += 1
        self._running, client.over = False, True
        if not fine:
            self._told()
        if self._board is not None:
            self._board.ends()

    def _look_for_others(self, waited: float) -> None:
        """DeviceError: a process has given up or has ended, and its part of the run will never come."""
        if waited < ALIVE:
            return
        self._condemned()
        if self._board is not None:
            self._board.say("waits")
        gone = self._ended_early()
        if gone and not self._ended():  # it may have done its part first
            self._give_up(gone)

    def _ended_early(self) -> str:
        """Which processes have ended without closing their executors; nothing: none has."""
        gone = self._board.gone() if self._board is not None else []
        names = " and ".join(map(str, gone))
        return f"process{'es' if len(gone) > 1 else ''} {names} ended in the midst of a run" if gone else ""

    def quiet(self) -> None:
        """The last run has ended, and the devices answer."""
        self.synchronize()
        self.answers()

    @property
    def here(self) -> bool:
        """Whether the current process created them, and is not a fork of that process."""
        return board.forks == self._forks

    def answers(self) -> None:
        if self.lost or self._gpus.hung:
            where = "new processes" if self._gpus.peers is not None else "a new process"
            why = f" ({self._why})" if self._why else ""
            raise DeviceError(f"the GPUs run nothing since an earlier error{why}; make a new executor, in {where}")
        if not self.here:
            raise DeviceError(
                f"process {self._pid} has made this executor and has forked this process, in which GPUs do not work; "
                "start processes by another way than fork (multiprocessing: the method spawn)"
            )

    def microseconds(self) -> float:
        """From the last run's begin to its end on a device; the slowest counts."""
        if self._manner is None or not self._manner.timed:
            raise UsageError("the last run, on callers' streams, was not timed: set executor.timed = True before it")
        self.synchronize()
        return max(self.since(ordinal, EventName("end", ordinal)) for ordinal in self._gpus.devices)

    def since(self, ordinal: int, event: EventName) -> float:
        """Microseconds from a recorded run's begin to an event. Devices' clocks are set to one another by the event
        that begins the run: they agree to some microseconds, the time that it takes to reach them."""
        assert self._last is not None
        begin, passed = map(self._last.of.resources.recorded, (EventName("begin", ordinal), event))
        with concerning(self._gpus.devices[ordinal]):
            return max(0.0, 1e3 * self._gpus.vendor.milliseconds(begin, passed))

    def _ended(self, *, everywhere: bool = False) -> bool:
        """Whether the run has. DeviceError: what ran failed; with `everywhere`, on a device that another one still
        waits for, too."""
        try:
            if everywhere:
                self._gpus.well()
            return self._all_through()
        except DeviceError as error:
            self._lose(str(error))  # errors of running work stay with the context
            report = self._report()
            self._release(_reason(error))  # else other executors of the process wait for what runs, to give memory back
            raise DeviceError("\n".join([str(error), *report])) from error

    def _all_through(self) -> bool:
        return all(map(self._through, self._gpus.devices))

    def _through(self, ordinal: int) -> bool:
        device = self._gpus.devices[ordinal]
        events = [EventName("completion", ordinal)] + [EventName("replayed", ordinal)] * self.replays
        with concerning(device, "while the plan ran"):
            return all(self._gpus.vendor.ended(self._resources.event(event, device)) for event in events)

    def _idle(self) -> tuple[bool, DeviceError | None]:
        """Whether everything has finished, except on devices whose work failed; and the first of these errors."""
        through, error = self._gpus.idle()
        if error is None:
            with suppress(DeviceError):
                through = through and not self._on_callers()
        return through, error

    def _on_callers(self) -> list[str]:
        """Devices that have not finished what may stand on callers' streams. DeviceError: a run failed."""
        if not (self._running or self.replays):
            return []
        return [str(device) for ordinal, device in self._gpus.devices.items() if not self._through(ordinal)]

    def _busy(self) -> list[str]:
        """Devices that still run something, or whose work failed."""
        found = dict.fromkeys(self._gpus.busy())
        with suppress(DeviceError):
            found |= dict.fromkeys(self._on_callers())
        return list(found)

    def _give_up(self, why: str) -> None:
        replayed = self._manner is not None and self._manner.mode == "graph"
        report = self._report() or [f"{device} still runs what belongs to no command" for device in self._busy()]
        others = self._board.lines() if self._board is not None else []
        ahead = ISSUE_ORDER.ahead(self._client)
        if ahead:
            report = self._report_on(ahead)
        self._dirty = True
        through = self._release(why)
        if replayed and not ahead and self._gpus.peers is None:
            report = self._report_on_streams() if through else []
            silent = "a replayed graph does not tell how far it got; on streams (--no-graph) the run does"
            report = report or [*self._communicators.calls(), silent]
        busy = " and ".join(self._busy())
        state = "" if through else f"\n{busy} still run it: this process can use them no more"
        raise DeviceError("\n".join([why, *others, *report]) + state)

    def _report_on(self, ahead: Sequence[Client]) -> list[str]:
        """The executors whose runs this run stands behind. Those runs take too long as well, and are released."""
        report = []
        for other in ahead:
            generation = other.generation
            report += [f"it stands behind a run of {other.name}, which has not ended:", *told(other)]
            why = f"{other.name}: its run was given up, because a run of {self._client.name} stood behind it"
            let_go(other, why, generation)
        if self._gpus.peers is not None:
            report.append("runs that do not fit on a GPU together are issued in one order by all processes of a group")
        return report

    def _report(self, issued: Issued | None = None) -> list[str]:
        """A line for each stream that is not through. `issued`: of a run that is not whole yet, what is."""
        if self._last is None or self._manner is None or self._manner.mode == "graph":
            return []
        plan = self._last.plans.layout.plan
        mine = [stream for stream in plan.streams if stream.rank in self._gpus.ranks]
        devices = {stream.id: str(self._gpus.device(stream.rank)) for stream in mine}
        return stuck(plan, devices, self._passed(issued), traced=self._manner.mode == "traced")

    def _report_on_streams(self) -> list[str]:
        """Where the commands of a graph that did not end block when they are issued one by one."""
        assert self._last is not None
        try:
            self.run(self._last, (), "streams")
            poll(self._ended, DRAIN)
            report = self._report()
        except DeviceError as error:
            report = str(error).splitlines()
        self._dirty = True
        self._release("its commands were issued once more, for a report")
        return ["the same commands, issued one by one:", *report] if report else []

    def _passed(self, issued: Issued | None) -> HasPassed:
        def passed(event: EventName) -> bool:
            try:
                assert self._last is not None
                handle = self._last.of.resources.recorded(event)
                return (issued is None or id(handle) in issued) and self._gpus.vendor.ended(handle)
            except (DeviceError, KeyError):
                return False

        return passed

    def _release(self, why: str) -> bool:
        """Force all semaphores up, so that every wait ends, and wait a little. Returns whether everything has
        finished."""
        if self._gpus.peers is not None:  # the others' semaphores are not ours to reset
            self._lose(why)
        with suppress(DeviceError), self._locked():  # what still waits is seen below
            self._let_through(why)
        if not self._drained():
            self._lose(why)
            self._gpus.hang()
            return False
        self._running, self._client.over = False, True
        self._spoiled()
        if self.replays and not self.lost:  # the caller may replay his graphs again, by no call of ours
            with suppress(DeviceError):
                self._clear()
        return True

    def _drained(self) -> bool:
        """Wait a little for all streams: does nothing run any more?"""
        self._trouble = None

        def drained() -> bool:
            through, error = self._idle()
            self.lost = self.lost or (error is not None and self._trouble is not None)  # again: no single call's
            self._trouble = self._trouble or error
            return through and (error is None or self.lost)

        return poll(drained, DRAIN)

    def _clear(self) -> None:
        """Semaphores and counters are 0, whatever a given-up run has left, and communicators are open. Nobody forces
        semaphores of what was under way before any more."""
        with self._locked():
            self._client.generation += 1
            self._client.overdue = ""  # of the run that was given up, which was told
        self._communicators.ready()
        self._resources.clear()
        self._binder.clear()
        self._dirty = False

    def settle(self) -> None:
        """Called before everything is given back: let the last run end, or force it to end. DeviceError: asking for
        that failed."""
        self._trouble = None
        unchecked = (self._running or self.replays) and not self.lost
        if not self._gpus.hung and not self._drained():
            if self.lost:  # what still runs waits for a device that failed
                self._gpus.hang()
            else:
                self._release("it was closed in the midst of a run")
        if self._trouble is not None:
            raise self._trouble
        if unchecked and not self.lost:
            self.check()


def _reason(error: BaseException) -> str:
    """Why runs are given up, in a line."""
    if isinstance(error, KeyboardInterrupt):
        return "it was interrupted (Ctrl-C)"
    return str(error).partition("\n")[0] or type(error).__name__


def _is_threads_own(stream: Handle) -> bool:
    """Whether a handle of a caller's stream stands for another stream in another thread."""
    return int(stream) == _THREADS_OWN or (not int(stream) and env.others(_PER_THREAD) not in (None, "", "0"))


def handles(streams: Sequence[object], ranks: Sequence[int], stream: Callable[[int], Handle]) -> Callers:
    """The callers' streams, one a rank of this process, by `Vendor.stream`. Each is given as an int handle, or as an
    object with `cuda_stream` (PyTorch), `ptr` (CuPy) or `__cuda_stream__`."""
    if streams and len(streams) != len(ranks):
        raise UsageError(f"streams: wanted one a rank, {len(ranks)}; given {len(streams)}")
    try:
        return tuple([stream(_handle(given, rank)) for rank, given in zip(ranks, streams, strict=False)])
    except OverflowError as error:
        raise UsageError(f"streams: {list(streams)} holds a number that is no handle") from error


def steady(streams: Sequence[object]) -> bool:
    """Whether the handles of these streams stay the same: ints, and PyTorch's streams. Other objects might return
    another handle each time."""
    return all(isinstance(given, int) or hasattr(given, "cuda_stream") for given in streams)


def _handle(given: object, rank: int) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    for name in ("cuda_stream", "ptr"):
        found = getattr(given, name, None)
        if isinstance(found, int):
            return found
    protocol = getattr(given, "__cuda_stream__", None)
    if callable(protocol):
        return int(protocol()[1])
    raise UsageError(f"streams: rank {rank}'s is {type(given).__name__}, not a stream of a GPU")
