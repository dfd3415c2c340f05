"""Yardsticks and traced runs on the GPUs of this machine: are they what docs/explain.md says?

For some schedules of each operation at one shape it measures time, serial and ideal as `ficco-run` does, and traces a
run; `-s` shows the table. What must hold:

* serial, computing alone and moving alone of an operation are the same in the runs of all its schedules, within 5 %;
* no schedule takes less than 0.98 of the ideal;
* a traced run has a start gate, and its first kernel or copy begins within 60 µs of the run's begin;
* a traced run of almost as many actions on a stream as a start gate allows does not block the host.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

import ficco_rt
from ficco_rt.cli.main import execute
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.ir import DevicePlan, Placement
from ficco_rt.device.start_gate import MOST
from ficco_rt.driver.api import DriverName
from ficco_rt.driver.registry import VENDORS
from ficco_rt.exec.inputs import noise
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from tests.gpu.apart import apart

SCHEDULES = (
    "ag_gemm/serial", "ag_gemm/streamed", "ag_gemm/hetero_fused_1d",
    "gemm_rs/serial", "gemm_rs/streamed", "gemm_rs/relay",
    "gemm_ar/serial", "gemm_ar/overlapped",
)  # fmt: skip
APART, BEATEN, LATE = 0.05, 0.98, 60.0
LONG = "ag_gemm/hetero_unfused_1d"  # a command a chunk and peer
LONGEST = (16, 24, 32, 40, 48, 64, 80, 96, 128)  # chunks of it, until there is no start gate
SIZE, ITERS = 8192, 20
LIMIT = 300  # seconds


@pytest.mark.gpus2
def test_all_holds(backend: str, ranks: int) -> None:
    apart(holds, backend, ranks, SIZE, ITERS, limit=LIMIT)


@dataclass(frozen=True, slots=True)
class Row:
    schedule: str
    facts: dict[str, Any]
    begins: float  # µs: the first kernel or copy of a traced run
    gated: bool

    def text(self) -> str:
        f = self.facts
        times = [f"{1e3 * f[k + '_ms']:8.1f}" for k in ("time", "serial", "compute_alone", "communication_alone")]
        share = f"{100 * f['share_of_ideal']:5.1f} %"
        return f"{self.schedule:26} {' '.join(times)} {share} {1e3 * f['exposed_ms']:8.1f} {self.begins:7.1f}"


def measured(name: str, backend: str, gpus: int, size: int, iters: int) -> dict[str, Any]:
    words = [name, "--backend", backend, "--gpus", str(gpus), "--json", "--warmup", "3"]
    words += ["--iters", str(iters), *(f"--set={x}={size}" for x in "MNK")]
    out = io.StringIO()
    with redirect_stdout(out):
        code = execute("ficco-run", words)
    assert not code, f"{name}: ficco-run ended with {code}"
    found = json.loads(out.getvalue())
    assert isinstance(found, dict)
    return found


def traced(plan: Plan, machine: Machine, backend: str) -> tuple[float, float, DevicePlan]:
    """When the first span of a traced run begins, how long the host took to issue it (µs), and its device plan."""
    placement = Placement(tuple(range(plan.ranks)))
    features = VENDORS[backend]().features(machine.device.arch)  # type: ignore[index]
    with ficco_rt.Executor(plan, backend, machine=machine, timeout=20) as executor:  # type: ignore[arg-type]
        for name, rank, array in noise(plan):
            executor.write(name, rank, array)
        executor.run()
        executor.traced = True
        for _ in range(2):  # the first one makes its calls
            executor.run()
        begins = min(span.start for span in executor.trace.spans if span.kind != "wait")
        return begins, executor.issued_in, device_plan(layout_of(plan, machine.device, placement, features), "traced")


def has_start_gate(plan: DevicePlan) -> bool:
    return plan.has_start_gate


def longest(plan: DevicePlan) -> int:
    return max(sum(a.stream == s.name for a in plan.body) for s in plan.streams)


def objections(rows: Sequence[Row]) -> list[str]:
    found = []
    for operation in dict.fromkeys(row.schedule.split("/")[0] for row in rows):
        mine = [row for row in rows if row.schedule.startswith(f"{operation}/")]
        for key in ("serial_ms", "compute_alone_ms", "communication_alone_ms"):
            values = [row.facts[key] for row in mine]
            if max(values) > (1 + APART) * min(values):
                found.append(f"{operation}: {key} from {1e3 * min(values):.1f} to {1e3 * max(values):.1f} µs")
    for row in rows:
        if row.facts["yardsticks"] != "measured":
            found.append(f"{row.schedule}: its yardsticks are {row.facts['yardsticks']}")
        if row.facts["time_ms"] < BEATEN * row.facts["ideal_ms"]:
            found.append(f"{row.schedule}: takes less than its ideal")
        if not row.gated:
            found.append(f"{row.schedule}: a traced run has no start gate")
        elif row.begins > LATE:
            found.append(f"{row.schedule}: a traced run begins {row.begins:.0f} µs late")
    return found


def long_run(machine: Machine, backend: str) -> tuple[str, list[str]]:
    """A traced run near the most actions that a start gate allows."""
    ranks, last = machine.ranks, "no traced run of it has a start gate"
    for chunks in LONGEST:
        plan = ficco_rt.compile(LONG, ranks, machine, M=ranks * chunks * 64, N=512, K=512, chunks=chunks)
        begins, issued, made = traced(plan, machine, backend)
        if not has_start_gate(made):
            break
        last = f"{longest(made)} of {MOST} actions on a stream: issued in {issued:.0f} µs, begins at {begins:.1f} µs"
        if issued > 5e6:
            return last, [f"the host took {issued / 1e6:.1f} s to issue a traced run"]
    return f"{LONG}, {last}", []


def holds(backend: DriverName, ranks: int, size: int, iters: int) -> bool:
    """Print the table, and what does not hold."""
    machine = ficco_rt.discover(ranks, backend)
    rows = []
    print(f"{machine.name}, M = N = K = {size}; µs")
    print(f"{'':26} {'time':>8} {'serial':>8} {'GEMM':>8} {'copies':>8}   ideal  exposed  begins")
    for name in SCHEDULES:
        facts = measured(name, backend, ranks, size, iters)
        plan = ficco_rt.compile(name, ranks, machine, M=size, N=size, K=size)
        begins, _, made = traced(plan, machine, backend)
        rows.append(Row(name, facts, begins, has_start_gate(made)))
        print(rows[-1].text(), flush=True)
    text, wrong = long_run(machine, backend)
    print(text)
    wrong = [*objections(rows), *wrong]
    print("\n".join(wrong) if wrong else "all holds")
    return not wrong
