"""The tables of docs/scale.md, made anew: schedules on 8 to 576 GPUs by the model.

    python -m tools.scale                 # replaces the tables of the page; some minutes
    python -m tools.scale --ranks 8,16    # prints rows of these numbers of ranks, and writes nothing

On H200 a time is one on the virtual clock up to `SIMULATED` ranks. Beyond, where compiling takes minutes or exceeds the
meter, and on GB200, whose tensor cores no kernel of ours uses, a time is that of a closed formula (`formula`), and has
a `~`. Nothing here is measured.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "dsl")]

from ficco_rt import compiler
from ficco_rt.files.atomic import read_text, write_atomic
from ficco_rt.graph.ir import CollectiveKind
from ficco_rt.machine.durations import ADDED, behind_another, collective_time
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.select.candidates import by_rules, text_of
from ficco_rt.select.facts import Facts, facts, turns
from ficco_rt.select.params import pieces
from ficco_rt.sim.simulate import simulate

PAGE = ROOT / "docs" / "scale.md"
SIMULATED = 64
NODES, DOMAINS = "h200-nodes", "gb200-nodes"
RANKS = {NODES: (8, 16, 32, 64, 128, 256, 576), DOMAINS: (8, 24, 72, 144, 288, 576)}
ROWS, WIDTH, DEPTH = 18432, 3584, 8192  # of A; columns a GPU, of 16 GPUs in all; inner size
COLLECTIVES: Mapping[str, CollectiveKind] = {"ag_gemm": "all_gather", "gemm_rs": "reduce_scatter"}


def sizes(operation: str, ranks: int, weak: bool) -> dict[str, object]:
    """Sizes over all ranks: `weak` ones grow with the ranks, so that the GEMM of a GPU keeps its size."""
    width = WIDTH * ranks if weak else 73728
    if operation == "ag_gemm":
        return {"M": ROWS, "N": width, "K": DEPTH}
    return {"M": ROWS, "N": DEPTH, "K": width}


def milliseconds(time: float) -> str:
    return f"{time / 1e3:#.3g}"


@dataclass(frozen=True, slots=True)
class Time:
    """Microseconds of a schedule; by the closed formula or on the virtual clock."""

    value: float
    formula: bool

    def __str__(self) -> str:
        return f"{'~' if self.formula else ''}{milliseconds(self.value)}"


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """One number of ranks: the GEMM alone, the vendor's collective and then the GEMM, and the rules' schedule."""

    ranks: int
    gemm: float
    serial: float
    overlapped: Time


def row(operation: str, ranks: int, machine_name: str, weak: bool) -> ScaleRow:
    """What the model says of one number of ranks."""
    machine, given = profile(machine_name, ranks), sizes(operation, ranks, weak)
    f = facts(operation, ranks, given, machine, "bf16")
    assert f is not None
    held = ROWS * DEPTH * f.item
    serial = f.gemm + machine.device.launch_time + collective_time(machine, COLLECTIVES[operation], held)
    name = f"{operation}/{'hierarchical' if f.nodes > 1 else 'streamed'}"
    return ScaleRow(ranks, f.gemm, serial, modelled(name, f, given, machine))


def modelled(name: str, f: Facts, given: Mapping[str, object], machine: Machine) -> Time:
    """A schedule with the values of the rules."""
    candidate, _ = by_rules(f, name)
    if f.ranks > SIMULATED or machine.name == DOMAINS:
        return Time(formula(f, machine, len(pieces(dict(candidate.params)["chunks"]))), True)
    graph = compiler.build(text_of(name), f.ranks, {**given, **dict(candidate.params)})
    return Time(simulate(compiler.plan_of(graph, machine, trusted=True), machine).duration, False)


def formula(f: Facts, machine: Machine, chunks: int) -> float:
    """Messages between nodes, copies inside a node of what is sent and of what has come, and the GEMM beside them; of
    the GEMM of the last piece nothing is hidden. On one node there are copies alone. A reduce-scatter adds up what
    comes; between nodes its last sums are GEMMs of a rank's rows."""
    inside, links, scatters = machine.links, f.links, f.operation == "gemm_rs"
    added = ADDED * f.memory((f.ranks + 1) * f.shape.sent) if scatters else 0.0
    if f.nodes == 1:
        sent = f.turns * (f.shard + chunks * links.copy_time) + links.signal_time
        ends = 2 if scatters else 1  # products are made before they are sent, and added behind
        return ends * f.device.launch_time + added + max(f.gemm, sent + ends * f.own / chunks)
    gemm, rows = f.gemm * whole_waves(f, f.rows * f.node / chunks), f.rows / chunks
    gemm += added / f.nodes + f.gemm / f.node * (whole_waves(f, rows) - 1) if scatters else 0.0
    messages = turns(links.kind, f.nodes - 1) * (f.shard + chunks * (links.copy_time + 2 * links.signal_time))
    copy = behind_another(machine.device, inside)
    copies = turns(inside.kind, f.node - 1) * f.nodes * (f.shard * links.rate / inside.rate + chunks * copy)
    behind = f.own * f.node / chunks
    return (1 + f.nodes * chunks) * f.device.launch_time + max(gemm, max(messages, copies) + copy + behind)


def whole_waves(f: Facts, rows: float) -> float:
    """How many times as long a GEMM takes in pieces of so many rows: half of what whole waves of tiles cost."""
    waves = ceil(max(1.0, rows) / 128) * ceil(f.shape.n / 256) / f.device.sms
    return min(1.5, (1 + ceil(waves) / waves) / 2)


def table(gathers: Sequence[ScaleRow], scatters: Sequence[ScaleRow]) -> Iterator[str]:
    """As the page has it: an all-gather and a reduce-scatter of the same sizes have the same yardsticks."""
    yield "| GPUs | GEMM | collective, then GEMM | all-gather | times as fast | reduce-scatter | times as fast |"
    yield "|--:|--:|--:|--:|--:|--:|--:|"
    for g, s in zip(gathers, scatters, strict=True):
        ours = " | ".join(f"{r.overlapped} | {r.serial / r.overlapped.value:.2f}" for r in (g, s))
        yield f"| {g.ranks} | {milliseconds(g.gemm)} | {milliseconds(g.serial)} | {ours} |"


def blocks(ranks: Sequence[int] = ()) -> Iterator[tuple[str, str]]:
    """Each table under its name."""
    for machine, all_ranks in RANKS.items():
        wanted = [n for n in all_ranks if not ranks or n in ranks]
        for kind in ("weak", "fixed"):
            found = [[row(operation, n, machine, kind == "weak") for n in wanted] for operation in COLLECTIVES]
            yield f"{machine} {kind}", "\n".join(table(*found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", help="numbers of ranks, to be printed alone, such as 8,16")
    asked = parser.parse_args().ranks
    ranks = [int(n) for n in asked.split(",")] if asked else []
    page = read_text(PAGE)
    for name, text in blocks(ranks):
        print(f"{name}\n{text}\n", flush=True)
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        page = re.sub(rf"{begin}.*?{end}", f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)
    if not ranks:
        write_atomic(PAGE, page)


if __name__ == "__main__":
    main()
