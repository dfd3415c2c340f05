"""The fault campaign: the whole life of an executor, with one fault at every place where one can be.

    python -m tests.mock.campaign --full [--driver hip]     # all of it; prints the table of testing.md

A life is: make the executor; verify a traced run on streams, one without timestamps, and a replayed graph; close.
Faults are

    call       one driver call gives an error, each in turn
    interrupt  Ctrl-C while one driver call is made, each in turn
    stop       the stream that comes to a command stops for ever, each command in turn
    corrupt    one copy between devices writes other bytes, each in turn
    delay      one such copy takes 20,000 steps more, each in turn
    lost       from one call on every call fails, each in turn
    memory     the devices have a share of the memory that is needed

and after each the same process goes through a whole life without fault.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.gpu import gpus, runs
from ficco_rt.driver.gpu.owner import OWNER
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from tests import cases
from tests.mock import standin

RANKS = 2
TIMEOUT = 0.03  # seconds, of a run that is to be given up, and for a run to end behind a call that failed
LONG = 60.0  # of any other, however busy the machine is
UNKNOWN, LOST = 999, 719

# Calls that a plan's commands are made of, and those that make them ready: their errors name command and line.
OF_COMMANDS = {
    "cuMemcpyDtoDAsync", "cuMemcpy2DAsync", "cuMemcpyBatchAsync", "cuLaunchKernelEx", "cuStreamWriteValue32",
    "cuStreamWaitValue32", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuFuncGetAttribute",
    "cuFuncLoad", "cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuTensorMapEncodeTiled",
    "hipModuleLaunchKernel", "hipStreamWaitValue32", "hipModuleLoadData", "hipModuleGetFunction",
    "ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclSend", "ncclRecv",
    "hipFuncGetAttribute", "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", "hipStreamGetDevice",
    *(f"{vendor}Lt{call}" for vendor in ("cublas", "hipblas") for call in (
        "Create", "MatrixLayoutCreate", "MatmulDescCreate", "MatmulDescSetAttribute", "MatmulPreferenceCreate",
        "MatmulPreferenceSetAttribute", "MatmulAlgoGetHeuristic", "Matmul")),
}  # fmt: skip
OF_NO_DEVICE = {"cuDriverGetVersion", "cuDeviceGetCount", "hipGetDeviceCount", "ncclGetUniqueId"}
WITHOUT = {"ncclGetVersion", "ncclCommGetAsyncError"}  # where these fail, there is another way; or the watchdog asked
CODES = {"cuda": ("CUDA_ERROR_", "CUBLAS_STATUS_"), "hip": ("hipError", "HIPBLAS_STATUS_")}
ALLOCATIONS = {"cuMemAlloc", "hipMalloc", "hipExtMallocWithFlags"}

Kind = Literal["call", "interrupt", "stop", "corrupt", "delay", "lost", "memory"]


@dataclass
class Score:
    """How the faults of one kind ended."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Campaign:
    """The faults of one schedule."""

    setting = f"devices {RANKS}; query_steps 3000"

    def __init__(self, library: standin.StandIn, name: str, *, by_library: bool = False) -> None:
        self.library = library
        self.name = name
        self.there = _aborting()  # other tests may have left some for ever
        if by_library:  # collectives are those of NCCL, or RCCL
            self.setting += "; sms 132; nccl 22809"
        self.library.reset(self.setting)
        self.machine = discover(library.face, RANKS)
        sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name) | cases.once(name)
        self.plan = plan_of(build(cases.schedule(name), RANKS, sizes), self.machine)
        self.outputs = [(t.name, r) for t in self.plan.tensors if t.kind == "output" for r in range(RANKS)]
        assert self.life() == "right"  # kernels are compiled in it
        self.library.calm()
        assert self.life() == "right"
        self.calls = library.called()
        self.commands, self.copies = library.commands(), library.copies()

    def life(self, timeout: float = LONG) -> str:
        """ "right", or what was reported wrong: the verdict of the public checks, which must agree with the data."""
        with Executor(self.plan, self.library.face, machine=self.machine, timeout=timeout) as executor:
            executor.traced = True
            verdicts = [verified_run(executor, values="exact").ok]
            first = {key: executor.read(*key) for key in self.outputs}
            assert executor.trace.spans
            assert executor.duration >= 0
            executor.traced = False
            same = True
            for executor.graph in (False, True):
                verdicts.append(verified_run(executor, values="exact").ok)
                same &= all(
                    np.array_equal(executor.read(*key), values, equal_nan=True) for key, values in first.items()
                )
        assert same or not all(verdicts), "runs differ and both are said to be right"
        return "right" if all(verdicts) else "wrong numbers"

    def faults(self, kind: Kind, share: float, seed: int = 0) -> Iterator[tuple[str, str]]:
        """(what, setting) of each fault; below 1, `share` of them by chance, and at least two."""
        everything: list[tuple[str, str]] = []
        if kind == "call":
            for function, count in sorted(self.calls.items()):
                code = standin.OUT_OF_MEMORY if function in ALLOCATIONS else UNKNOWN
                found = [(f"{function} {n}", f"fail {function} {n} {code}") for n in range(1, count + 1)]
                everything += _some(found, share, f"{self.name}{function}{seed}", least=1)
            yield from everything
            return
        if kind in ("interrupt", "lost"):
            n = sum(self.calls.values())
            code = "" if kind == "interrupt" else f" {LOST}"
            word = "interrupt" if kind == "interrupt" else "lose"
            everything = [(f"{kind} at call {i}", f"{word} {i}{code}") for i in range(1, n + 1)]
        elif kind == "stop":
            everything = [(f"stop at command {i}", f"stop {i}") for i in range(1, self.commands + 1)]
        elif kind in ("corrupt", "delay"):
            more = " 20000" if kind == "delay" else ""
            everything = [(f"{kind} copy {i}", f"{kind} {i}{more}") for i in range(1, self.copies + 1)]
        elif kind == "memory":
            everything = [(f"memory {size}", f"memory {size}") for size in (1, 100, 1000, 4000, 8000)]
        yield from _some(everything, share, f"{self.name}{kind}{seed}", least=2)

    def strike(self, kind: Kind, what: str, setting: str, score: Score) -> None:
        """One life with the fault, and one after it."""
        library = self.library
        self._given_back()  # also what the life before began to abort at its very end
        library.reset(f"{self.setting}; seed {sum(map(ord, what))}")
        library.calm()
        library.set(setting)
        began = time.monotonic()
        text = ""
        try:
            end = self.life(TIMEOUT if kind == "stop" else LONG)
        except DeviceError as error:
            end, text = "error", str(error)
        except KeyboardInterrupt:
            end = "interrupted"
        spent = time.monotonic() - began
        self._given_back()
        fired = library.fired()
        reasons = list(self._objections(kind, fired, end, text))
        if spent > LONG / 2:
            reasons.append(f"took {spent:.1f} s")
        score.ends[end] += 1
        library.reset(self.setting)
        gpus._BLOCKED.clear()  # these devices are new ones
        if self.life() != "right" or library.live() or library.violations():
            reasons.append(f"the next life: {library.live()} {library.violations()}")
        score.wrong += [f"{self.name}, {what}: {reason}\n    {end}: {text}" for reason in reasons]

    def _given_back(self) -> None:
        """Waits for threads that still give communicators back of what is lost."""
        for thread in _aborting() - self.there:
            thread.join(60)

    def _objections(self, kind: Kind, fired: str, end: str, text: str) -> Iterator[str]:
        library = self.library
        found = library.violations().splitlines()
        if kind in (
            "stop",
            "interrupt",
        ):  # a stopped stream, or a graph that nobody knows, keeps calls
            found = [line for line in found if not re.match("ncclComm(Abort|Destroy) blocks for ever", line)]
        if found:
            yield f"violations: {found}"
        wanted = {
            "call": {"error"}, "lost": {"error"}, "memory": {"error", "right"}, "stop": {"error"},
            "interrupt": {"interrupted"}, "corrupt": {"wrong numbers", "error"}, "delay": {"right"},
        }[kind]  # fmt: skip
        if kind in ("call", "interrupt", "lost") and not fired:
            wanted = {"right"}  # no such call: how often a caller polls until all is done depends on the order of steps
        if kind == "call" and fired in WITHOUT:
            wanted = {"right", "error"}
        if end not in wanted:
            yield f"ended as '{end}'"
        live = library.live()
        if kind == "lost":
            live = {k: n for k, n in live.items() if k == "contexts"}
        # Ctrl-C may come between a call that makes something and the next instruction, so that nobody knows of it
        if live and kind != "stop" and (kind != "interrupt" or sum(live.values()) > 1):
            yield f"left {live}"
        if end != "error":
            return
        codes = ("nccl",) if fired.startswith("nccl") else CODES[library.face]
        told = fired in text and any(code in text for code in codes)
        if kind in ("call", "lost") and fired not in WITHOUT and not told:
            yield f"the error does not name {fired} and its code"
        if kind in ("call", "lost", "stop", "memory") and "device " not in text and fired not in OF_NO_DEVICE:
            yield "the error names no device"
        of_command = fired in OF_COMMANDS and "the start gate of a run" not in text
        if kind in ("call", "lost") and of_command and f"{self.name.split('/')[1]}.ficco:" not in text:
            yield "the error does not name the schedule's line"
        if kind == "stop" and "--timeout" not in text:
            yield "the error does not tell of the time limit"


def _aborting() -> set[threading.Thread]:
    """Threads whose last job, an abort, has not ended: all of communicators but the one that takes jobs now."""
    owners: list[threading.Thread] = []
    if OWNER._pid:
        OWNER.do(lambda: owners.append(threading.current_thread()))
    return {thread for thread in threading.enumerate() if thread.name == "ficco communicators"} - {*owners}


def _some(found: list[tuple[str, str]], share: float, seed: str, least: int) -> list[tuple[str, str]]:
    if share >= 1:
        return found
    count = min(len(found), max(least, round(share * len(found))))
    return random.Random(seed).sample(found, count)


def run(
    library: standin.StandIn, name: str, kinds: dict[Kind, float], *, by_library: bool = False
) -> dict[Kind, Score]:
    """Strike a schedule with a share of the faults of each kind."""
    campaign = Campaign(library, name, by_library=by_library)
    scores: dict[Kind, Score] = {}
    drain, runs.DRAIN = runs.DRAIN, TIMEOUT
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may have it ignored
    try:
        for kind, share in kinds.items():
            score = scores[kind] = Score()
            for what, setting in campaign.faults(kind, share):
                campaign.strike(kind, what, setting, score)
    finally:
        runs.DRAIN = drain
        signal.signal(signal.SIGINT, handler)
        library.reset("devices 0")
    return scores


ALL: tuple[Kind, ...] = ("call", "interrupt", "stop", "corrupt", "delay", "lost", "memory")


def main() -> int:
    parser = argparse.ArgumentParser(description="Strike every shipped schedule with faults, on the stand-in.")
    parser.add_argument("--full", action="store_true", help="every fault; otherwise a fiftieth of them")
    parser.add_argument("--kinds", default=",".join(ALL), help="some of these")
    parser.add_argument("--driver", default="cuda", choices=["cuda", "hip"])
    parser.add_argument("--nccl", action="store_true", help="collectives are those of NCCL, or RCCL")
    parser.add_argument("schedules", nargs="*", default=cases.SCHEDULES)
    options = parser.parse_args()
    library = {"cuda": standin.cuda, "hip": standin.hip}[options.driver]()
    share = 1.0 if options.full else 0.02
    total: dict[Kind, Score] = {kind: Score() for kind in ALL}
    for name in options.schedules or cases.SCHEDULES:
        began = time.monotonic()
        kinds = {k: share for k in ALL if k in options.kinds.split(",")}
        for kind, score in run(library, name, kinds, by_library=options.nccl).items():
            total[kind].ends += score.ends
            total[kind].wrong += score.wrong
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    print("| fault | strikes | DeviceError | wrong numbers | right | interrupted | objections |")
    print("|---|---|---|---|---|---|---|")
    for kind, score in total.items():
        ends = " | ".join(str(score.ends[e]) for e in ("error", "wrong numbers", "right", "interrupted"))
        print(f"| {kind} | {score.ends.total()} | {ends} | {len(score.wrong)} |")
    wrong = [text for score in total.values() for text in score.wrong]
    print("\n".join(wrong[:40]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
