"""Two processes, a GPU each or one that they share: right, the same bits as one process, a process killed, and what is
left behind.

    torchrun --nproc-per-node 2 -m tests.gpu.processes     # the part `right` in processes that others have started
    mpirun -n 2 python -m tests.gpu.processes '{"parts": ["capture", "ways"]}'    # other `Options`, as JSON

Parts, each with a time limit:

    right    every shipped schedule, on streams and as graphs, on fresh data and poisoned outputs: the claims hold, and
             two processes leave the same bits as one
    kill     one process is killed, stopped for longer than the time limit, or interrupted, at random moments of runs:
             no run that succeeds has other bits than the one before, each process ends with an error, and the next
             start works
    groups   in one job: a group of each process alone, and a group of both in the other order of ranks
    flat     runs in their thousands: descriptors, memory, streams and events before and after
    capture  runs with NCCL's collectives and messages, and one without, in a caller's graph of each process, captured
             as PyTorch captures: right on fresh data, and the time of a replay beside that of plain runs
    ways     memory passes without sockets, too: by which way, and why not as fabric handles

Where ranks share a GPU there is no `capture`: NCCL lets no two processes share one. Under a launcher the parts are
right, capture and ways. Without a launcher the processes are started here, by `spawn`, and find each other over pipes.
`python -m tools.bench --processes` measures times.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import pickle
import random
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as ready
from typing import TYPE_CHECKING, Any

from tests.gpu.side import EVERY, RANKS, TIMEOUT, Side, answered, prepared, process
from tests.pipes import between

if TYPE_CHECKING:
    from ficco_rt.process.group import Group

CAPTURED = ((EVERY, 2), ("gemm_ar/serial", 2), ("ag_gemm/hierarchical", 1), ("gemm_rs/streamed", 2))  # ranks of a node
FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "interrupted": signal.SIGINT}
IDLE = 300.0  # seconds that a launched process waits to be told something


@dataclass(frozen=True, slots=True)
class Options:
    """Which parts, and how much of each. `schedules`: of the parts right, kill and flat; if none is named all, four and
    one. `ranks_per_gpu`: two, if the processes share a GPU."""

    parts: Sequence[str] = ("right",)
    schedules: Sequence[str] = ()
    repeats: int = 1  # fresh data of each schedule
    kills: int = 3  # faults of the part kill
    patience: float = 3.0  # seconds of a run where a process is killed
    runs: int = 2000  # of the part flat
    scale: int = 4  # of the sizes: 1 is M = 256
    seed: int = 0
    ranks_per_gpu: int = 1
    driver: str = "cuda"  # or stand-in


# ---------------------------------------------------------------- who asks


class Failed(Exception):
    """A process has answered with an error, or not at all."""


class Several(ABC):
    """Processes that do the same things at the same time."""

    @abstractmethod
    def tell(self, name: str, *arguments: object) -> None:
        """Every process does this."""

    @abstractmethod
    def answers(self, limit: float) -> list[tuple[bool, Any]]:
        """What each has answered: whether it went well, and the value, or the error's words."""

    def ask(self, name: str, *arguments: object, limit: float = 120.0) -> list[Any]:
        """Every process does this; what each has answered. Failed: one has given an error, or no answer."""
        self.tell(name, *arguments)
        return self.taken(limit, f"{name}{arguments}")

    def taken(self, limit: float, what: str = "") -> list[Any]:
        """What each has answered. Failed: see `ask`."""
        answers = self.answers(limit)
        wrong = [f"process {p}: {text}" for p, (good, text) in enumerate(answers) if not good]
        if wrong:
            raise Failed(f"{what}: " + "\n".join(wrong))
        return [value for _, value in answers]


class Launched(Several):
    """The processes that a launcher has started, as the one at place 0 sees them: it tells the others what to do, and
    does it too."""

    def __init__(self, group: Group, side: Side) -> None:
        self._group, self._side = group, side
        self._own: tuple[bool, Any] = False, "nothing was asked"

    def tell(self, name: str, *arguments: object) -> None:
        self._group.exchange(pickle.dumps((name, arguments)), IDLE, "command")
        self._own = answered(self._side, name, arguments)

    def answers(self, limit: float) -> list[tuple[bool, Any]]:
        return [self._own, *map(pickle.loads, self._group.exchange(b"", limit, "answer")[1:])]

    def end(self) -> None:
        self._group.exchange(pickle.dumps(None), IDLE, "command")

    @staticmethod
    def obey(group: Group, side: Side) -> None:
        """The other places: they do what place 0 tells them, until it has nothing more."""
        while (command := pickle.loads(group.exchange(b"", IDLE, "command")[0])) is not None:
            group.exchange(pickle.dumps(answered(side, *command)), IDLE, "answer")


class Sides(Several):
    """Processes that are started here."""

    def __init__(self, count: int, driver: str, ranks_per_gpu: int) -> None:
        context = mp.get_context("spawn")
        pipes = between(count)
        self.controls: list[Connection] = []
        self.processes = []
        for place in range(count):
            mine, theirs = context.Pipe()
            started = context.Process(
                target=process, args=(place, pipes[place], theirs, driver, ranks_per_gpu), daemon=True
            )
            started.start()
            theirs.close()
            self.controls.append(mine)
            self.processes.append(started)
        for pipe in (pipe for of in pipes for pipe in of if pipe is not None):
            pipe.close()

    def tell_each(self, name: str, arguments: Sequence[tuple[object, ...]]) -> None:
        for control, given in zip(self.controls, arguments, strict=True):
            control.send((name, given))

    def tell(self, name: str, *arguments: object) -> None:
        for control in self.controls:
            control.send((name, arguments))

    def answers(self, limit: float) -> list[tuple[bool, Any]]:
        return self.answers_of(range(len(self.controls)), limit)

    def answers_of(self, places: Sequence[int], limit: float) -> list[tuple[bool, Any]]:
        """As `answers`, of these places."""
        until = time.monotonic() + limit
        found: list[tuple[bool, Any]] = [(False, f"no answer within {limit:g} s")] * len(self.controls)
        waiting = {place: self.controls[place] for place in places}
        while waiting and time.monotonic() < until:
            came = ready(list(waiting.values()), timeout=until - time.monotonic())
            for place in [p for p, control in waiting.items() if control in came]:
                try:
                    found[place] = self.controls[place].recv()
                except (EOFError, OSError):
                    found[place] = False, "the process is gone"
                del waiting[place]
        return found

    def end(self) -> None:
        for control in self.controls:
            control.close()
        for started in self.processes:
            started.join(5)
            if started.is_alive():
                started.kill()


def sizes_of(name: str, scale: int) -> dict[str, object]:
    """Sizes of a shipped schedule; `scale` 1 is small."""
    from ficco_rt.compiler import load
    from ficco_rt.files.shipped import find

    declared = {p.name for p in load(find(name)).params}
    chosen: dict[str, object] = {"M": 256 * scale, "N": 128 * scale, "K": 128 * scale}
    if "counts" in declared:
        chosen["counts"] = [[64 * scale * (1 + (s + 2 * e) % 3) for e in range(RANKS)] for s in range(RANKS)]
    return {key: value for key, value in chosen.items() if key in declared}


def right(both: Several, alone: Sides, options: Options) -> bool:
    from ficco_rt.files import shipped

    names = options.schedules or [entry.name for entry in shipped.entries()]
    good, began, runs, way = True, time.monotonic(), 0, ""
    for name in names:
        sizes, told = sizes_of(name, options.scale), []
        try:
            both.tell("open", name, sizes, TIMEOUT)
            alone.ask("open", name, sizes, TIMEOUT)
            opened = both.answers(120)
            if not all(good_ for good_, _ in opened):
                raise Failed("\n".join(str(text) for _, text in opened))
            way = both.ask("way")[0]
            for seed in range(options.repeats):
                values = "exact" if seed == 1 else "normal"
                alone.tell("data", seed, values)
                both.ask("data", seed, values)
                alone.answers(60)
                for graph in (False, True):  # one after the other: processes that share a GPU take turns on it
                    wanted = alone.ask("run", graph)[0]
                    theirs: dict[Any, str] = {}
                    for found in both.ask("run", graph):
                        theirs |= found
                    wrong = [text for asked in (alone, both) for text in asked.ask("judged", seed, values) if text]
                    runs += 1
                    if wrong:
                        told.append(f"wrong: {wrong[0]}")
                    # one process shares multiprocessors out to both ranks of a GPU: sums have another order there
                    if theirs != wanted and (options.ranks_per_gpu == 1 or values == "exact"):
                        differs = sorted(key for key in wanted if theirs.get(key) != wanted[key])
                        told.append(f"seed {seed}, graph {graph}: other bits in {differs}")
                    both.ask("poison")
            both.ask("close")
            alone.ask("close")
        except Failed as error:
            told.append(str(error))
        if told:
            good = False
            print(f"right   {name}: " + "\n        ".join(told[:3]), flush=True)
            if any("no answer" in line or "Error" in line for line in told):
                return False
    took = time.monotonic() - began
    print(
        f"right   {len(names)} schedules, {runs} runs in two processes with one process's bits, by {way}: "
        f"{'all' if good else 'NOT all'} ({took:.0f} s)",
        flush=True,
    )
    return good


def launched(options: Options) -> bool:
    """The parts right, capture and ways in the processes of a launcher; place 0 has the one process beside them."""
    from ficco_rt.process.group import Group

    group = Group.from_env()
    side = Side(group, prepared(options.driver, group.rank, options.ranks_per_gpu), options.ranks_per_gpu)
    if group.rank:
        Launched.obey(group, side)
        return True
    both, good = Launched(group, side), True
    if "right" in options.parts:
        alone = Sides(1, options.driver, options.ranks_per_gpu)
        good = right(both, alone, options)
        alone.end()
    good = ("capture" not in options.parts or capture(both, options)) and good
    good = ("ways" not in options.parts or ways(both, options)) and good
    both.end()
    return good


def capture(both: Several, options: Options) -> bool:
    """Under a minute on two GPUs: most of it goes into opening communicators."""
    good = True
    for name, node in CAPTURED:
        sizes = {"rows": 128 * options.scale} if name == EVERY else sizes_of(name, options.scale)
        try:
            both.ask("open", name, sizes, TIMEOUT, RANKS, node)
            both.ask("data", 0, "exact")
            by, *_ = both.ask("hold")  # before any run
            wrong = []
            for seed, values in enumerate(("exact", "normal", "exact")):
                both.ask("data", seed, values)
                both.ask("replayed", 20)
                wrong += [f"seed {seed}: {text}" for text in both.ask("judged", seed, values) if text]
                both.ask("data", seed, values)
                both.ask("run", seed == 1)
                wrong += [f"seed {seed}, plain: {text}" for text in both.ask("judged", seed, values) if text]
            for graph in (False, True):  # warm
                both.ask("looped", graph, 20)
            times = [both.ask("replayed", 300), both.ask("looped", True, 300), both.ask("looped", False, 300)]
            both.ask("let_go")
            both.ask("close")
        except Failed as error:
            print(f"capture {name}, {RANKS // node} node(s): {error}", flush=True)
            return False
        good = good and not wrong
        caller, own, streams = (max(found) for found in times)
        said = "; ".join(wrong[:3]) or "right"
        print(
            f"capture {name}, {RANKS // node} node(s), {by or 'no collectives'}: {said}; back to back, in the caller's "
            f"graph {caller:.1f} µs, in our graph {own:.1f} µs, on streams {streams:.1f} µs",
            flush=True,
        )
    return good


def ways(both: Several, options: Options) -> bool:
    name, good = "gemm_ar/streamed", True
    try:
        for refused in (False, True):
            both.ask("no_sockets", refused)
            both.ask("open", name, sizes_of(name, options.scale), TIMEOUT)
            both.ask("data", 0, "exact")
            both.ask("run", False)
            wrong = [text for text in both.ask("judged", 0, "exact") if text]
            good = good and not wrong
            how = "without sockets" if refused else "as usual"
            why = f"; as fabric handles: {both.ask('no_fabric')[0]}" if refused else ""
            print(f"ways    {how}: by {both.ask('way')[0]}{why}: {wrong or 'right'}", flush=True)
            both.ask("close")
        both.ask("no_sockets", False)
    except Failed as error:
        print(f"ways    {error}", flush=True)
        return False
    return good


def kill(options: Options) -> bool:
    """Each time: two fresh processes, and something happens to one at a random moment of their runs."""
    draw, good, slowest = random.Random(options.seed), True, dict.fromkeys(FAULTS, 0.0)
    names = list(options.schedules) or ["ag_gemm/streamed", "gemm_rs/direct", "gemm_ar/streamed", "gemm_rs/ring"]
    for turn in range(options.kills):
        both = Sides(RANKS, options.driver, options.ranks_per_gpu)
        fault, name = list(FAULTS)[turn % len(FAULTS)], names[turn // len(FAULTS) % len(names)]
        graph, dies = bool(turn // (len(FAULTS) * len(names)) % 2), draw.randrange(RANKS)
        what = f"kill    turn {turn}, {fault}, {name}, graph {graph}"
        try:
            both.ask("open", name, sizes_of(name, options.scale), options.patience)
            both.ask("data", 0, "normal")
            both.ask("run", graph)  # so the start after a fault works, too
            wrong = [text for text in both.ask("judged", 0, "normal") if text]
            both.tell("spin", graph, 60.0)
            time.sleep(draw.uniform(0.0, 0.5))
            victim = both.processes[dies].pid or 0
            os.kill(victim, FAULTS[fault])
            began, limit = time.monotonic(), options.patience if fault == "stopped" else 0.0
            found = both.answers_of([1 - dies], options.patience + 15)[1 - dies]
            slowest[fault] = max(slowest[fault], time.monotonic() - began - limit)
            told = [found]
            if fault == "stopped":
                os.kill(victim, signal.SIGCONT)
            if fault != "killed":
                told.append(both.answers_of([dies], options.patience + 15)[dies])
            untold = [one for one in told if one[0] or not str(one[1]).startswith(("DeviceError", "KeyboardInterrupt"))]
            if untold or wrong:
                good = False
                print(f"{what}: {untold or wrong}", flush=True)
            elif turn < len(FAULTS):
                print(
                    f"{what}: the other says\n        " + "\n        ".join(str(found[1]).splitlines()[:3]), flush=True
                )
        except Failed as error:
            good = False
            print(f"{what}: {error}", flush=True)
        finally:
            both.end()
    state = "each told every process" if good else "NOT each told every process"
    times = ", ".join(f"{fault} {late:.1f} s" for fault, late in slowest.items())
    print(
        f"kill    {options.kills} faults of seed {options.seed}: {state}, no wrong numbers; slowest answers behind the "
        f"limit: {times}",
        flush=True,
    )
    return good


def groups(both: Sides, alone: Sides, options: Options) -> bool:
    good, name = True, "gemm_rs/streamed"
    try:
        sizes = sizes_of(name, options.scale)
        both.tell_each("regroup", [([place],) for place in range(RANKS)])
        both.taken(60)
        both.ask("open", name, sizes, TIMEOUT, 1)
        for graph in (False, True):
            both.ask("data", 0, "normal")
            both.ask("run", graph)
            wrong = [text for text in both.ask("judged", 0, "normal") if text]
            good = good and not wrong
            print(f"groups  each process alone, graph {graph}: {wrong or 'right'}", flush=True)
        both.ask("close")
        both.ask("regroup", list(reversed(range(RANKS))))
        both.ask("open", name, sizes, TIMEOUT)
        alone.ask("open", name, sizes, TIMEOUT)
        # one process shares multiprocessors out to both ranks of a GPU: sums have another order there
        values = "normal" if options.ranks_per_gpu == 1 else "exact"
        for graph in (False, True):
            alone.ask("data", 1, values)
            both.ask("data", 1, values)
            wanted = alone.ask("run", graph)[0]
            theirs = {key: found for part in both.ask("run", graph) for key, found in part.items()}
            good = good and theirs == wanted
            same = "one process's bits" if theirs == wanted else "OTHER BITS"
            print(f"groups  the other order of ranks, graph {graph}: {same}", flush=True)
        both.ask("close")
        alone.ask("close")
        both.ask("regroup", None)
    except Failed as error:
        print(f"groups  {error}", flush=True)
        return False
    return good


def flat(both: Sides, options: Options) -> bool:
    name, good = (*options.schedules, "ag_gemm/streamed")[0], True
    try:
        both.ask("open", name, sizes_of(name, options.scale), TIMEOUT)
        both.ask("data", 0, "normal")
        for graph in (False, True):
            both.ask("loop", graph, 200)
        before = both.ask("held")
        for graph in (False, True):
            both.ask("loop", graph, options.runs // 2, limit=300)
        after = both.ask("held")
        for place, (a, b) in enumerate(zip(before, after, strict=True)):
            same = (a[0], *a[2:]) == (b[0], *b[2:]) and b[1] - a[1] < 4096
            good = good and same
            print(
                f"flat    process {place}, {options.runs} runs: descriptors {a[0]} → {b[0]}, host memory {a[1]} → "
                f"{b[1]} kB, streams {a[2]} → {b[2]}, events {a[3]} → {b[3]}, GPU memory {a[4]} → {b[4]} B"
                + ("" if same else "  NOT FLAT"),
                flush=True,
            )
        both.ask("close")
    except Failed as error:
        print(f"flat    {error}", flush=True)
        return False
    return good


def started(asked: Mapping[str, Any]) -> bool:
    """Parts in processes that are started here; `asked` has what is in `Options`."""
    options, good = Options(**asked), True
    parts: dict[str, Callable[[Sides, Sides], bool]] = {
        "right": lambda both, alone: right(both, alone, options),
        "groups": lambda both, alone: groups(both, alone, options),
        "flat": lambda both, alone: flat(both, options),
        "capture": lambda both, alone: capture(both, options),
        "ways": lambda both, alone: ways(both, options),
        "kill": lambda both, alone: kill(options),
    }
    for part in options.parts:  # who has failed may be in the midst of something: each part has its own
        began = time.monotonic()
        both, alone = (Sides(n, options.driver, options.ranks_per_gpu) for n in (RANKS, 1))
        good = parts[part](both, alone) and good
        both.end()
        alone.end()
        print(f"{part:<8}took {time.monotonic() - began:.0f} s", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(0 if launched(Options(**json.loads("".join(sys.argv[1:]) or "{}"))) else 4)
