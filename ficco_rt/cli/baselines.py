"""Baselines of an operation, measured on GPUs in turn with the runs of a schedule.

Three more plans of the operation are run: its `serial` schedule in the library, its products alone, and its copies
alone. This module writes the schedules of the last two. They compute the operation in the way that takes least time by
the model. A turn runs each plan once, between two runs of the schedule, so that clock rates and power limits affect all
of them alike.

For a schedule that repeats a product and its collective (`concurrent/…`), serial means the same iterations one after
the other, by the vendor's libraries if these are installed. The collectives alone are then run as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, prod
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..driver.api import Pool
    from ..exec.executor import Executor
    from ..exec.ideal import Yardsticks
    from ..exec.operation import Exchange, Multiplication, Operation, Repeated
    from ..graph.ir import Claim
    from ..machine.model import Machine
    from ..plan.ir import Plan

TURNS = 5  # at most, in the timed runs
UNASKED = 3  # timed runs, each with a turn, where the command line says nothing of either
FILLED = 0.9  # of the memory that is free: what the plans may take together

Key = Literal["serial", "multiplying", "moving", "sharing"]
ITERATIONS = "iterations one after the other"  # what serial is called where it is a repeated product and collective


@dataclass(frozen=True, slots=True)
class BaselinePlans:
    """What is run to measure the yardsticks: the operation in turn (`serial`), its products, its copies, and, where it
    repeats a product and its collective, so many `iterations` of the collectives. A plan is missing where nothing is
    multiplied or moved; `serial`, where the library has none, or where it is the plan that is measured, which
    `serial_by` names then."""

    plans: Mapping[Key, Plan]
    serial_by: str
    iterations: int = 0
    ideal_by: str = ""  # of the way of `multiplying` and `moving`

    def overfill(self, pools: tuple[Pool, ...]) -> str:
        """Why the baselines do not fit into the free memory; empty if they fit."""
        for pool in pools:
            needed = sum(_bytes(plan, rank) for plan in self.plans.values() for rank in pool.ranks)
            if needed > FILLED * pool.free:
                gib = 1 << 30
                return f"they need {needed / gib:.1f} GiB and {pool.name} has {pool.free / gib:.1f} GiB free"
        return ""


def baseline_plans(plan: Plan, machine: Machine, ranks_per_gpu: int, vendor: bool = False) -> BaselinePlans | None:
    """Compiled for the machine; None: the plan has no operation. `vendor`: a vendor's library of GEMMs is there."""
    from ..exec.ideal import best_way
    from ..exec.operation import operation_of

    operation = operation_of(plan)
    if operation is None:
        return None
    way = best_way(operation, machine, ranks_per_gpu)
    counts = _counts(way.exchanges, plan.ranks, ranks_per_gpu)
    repeated = operation.repeated
    if repeated is not None:
        asked = (stream.collectives for stream in plan.streams if stream.collectives is not None)
        threads = next((of.threads for of in asked if of.threads is not None), None)  # the library reads it once

        def made(**what: bool) -> Plan:
            return _compiled(repeated_text(repeated, vendor=vendor, threads=threads, **what), plan.ranks, machine)

        copies = _compiled(copies_text(counts, ceil(operation.times)), plan.ranks, machine)
        plans: dict[Key, Plan] = {"serial": made(), "multiplying": made(sharing=False), "moving": copies}
        return BaselinePlans(plans | {"sharing": made(multiplying=False)}, ITERATIONS, repeated.number, way.by)
    serial, name = _shipped_serial(operation, plan.claims[0], machine)
    plans = {} if serial is None or serial == plan else {"serial": serial}
    if way.multiplications:
        plans["multiplying"] = _compiled(products_text(way.multiplications), plan.ranks, machine)
    if any(map(any, counts)):
        plans["moving"] = _compiled(copies_text(counts), plan.ranks, machine)
    return BaselinePlans(plans, name, ideal_by=way.by)


class Baselines(ExitStack):
    """The executors of such plans, which `opened` makes, and how long their runs took. To be closed, which keeps the
    times; before the first turn, `warm`."""

    def __init__(self, plans: BaselinePlans, opened: Callable[[Plan], Executor]) -> None:
        from ..exec.inputs import noise

        super().__init__()
        self._plans = plans
        self._times: dict[Key, list[float]] = {key: [] for key in plans.plans}
        self._executors: dict[Key, Executor] = {}
        with ExitStack() as opening:
            for key, plan in plans.plans.items():
                executor = self._executors[key] = opening.enter_context(opened(plan))
                for name, rank, array in noise(plan):
                    executor.write(name, rank, array)
            self.push(opening.pop_all())

    def warm(self, *, graph: bool) -> None:
        """One run of each plan that does not count: it loads kernels and makes graphs."""
        for executor in self._executors.values():
            executor.graph = graph
            executor.run()

    def turn(self) -> None:
        """Runs each baseline once."""
        for key, executor in self._executors.items():
            executor.run()
            self._times[key].append(executor.duration)

    def yardsticks(self, time: float, last: int = 0) -> Yardsticks:
        """`time` is the schedule's own, for where it is itself the serial one. `last`: of so many turns; 0: of all."""
        from ..exec.ideal import Yardsticks

        found = {key: median(times[-last:]) for key, times in self._times.items()}
        multiplying, moving = found.get("multiplying", 0.0), found.get("moving", 0.0)
        serial = found.get("serial", time if self._plans.serial_by else multiplying + moving)
        turns = max(map(len, self._times.values()), default=1)
        plans, sharing = self._plans, found.get("sharing", 0.0)
        return Yardsticks(
            multiplying, moving, serial, "operation", plans.iterations, sharing, plans.ideal_by, plans.serial_by, turns
        )


def turns_among(runs: int) -> frozenset[int]:
    """The numbers of the runs after which the baselines have a turn: spread evenly, the last run among them."""
    return frozenset((i + 1) * runs // min(TURNS, runs) - 1 for i in range(min(TURNS, runs)))


# ---------------------------------------------------------------- what is run


def _shipped_serial(operation: Operation, claim: Claim, machine: Machine) -> tuple[Plan | None, str]:
    """The serial schedule in the library that is one of the operation, on a weight that is stored as the claim's and
    with a bias if it has one, and its name."""
    from .. import compiler
    from ..errors import ScheduleError
    from ..exec.operation import epilogue, layout, operation_of
    from ..files import shipped

    sizes = _sizes(operation)
    stored = {"transb": int(layout(claim)[-1]), "bias": int("+" in epilogue(claim))}
    for entry in shipped.entries():
        if not entry.name.endswith("/serial") or sizes is None:
            continue
        schedule = compiler.load(entry.path)
        declared = {p.name for p in schedule.params} | {t.name for t in schedule.types}
        given = {name: value for name, value in {**sizes, **stored}.items() if name in declared}
        try:
            graph = compiler.build(schedule, operation.ranks, given)
        except ScheduleError:  # it has another form
            continue
        if operation_of(graph) == operation:
            return compiler.plan_of(graph, machine), entry.name
    return None, ""


def _sizes(operation: Operation) -> Mapping[str, object] | None:
    """The operation's sizes by the names that shipped schedules have for them; None: it is none of theirs."""
    usual = operation.usual
    if len(usual.multiplications) != 1 or len(usual.exchanges) != 1:
        return None
    (product,), (exchange,) = usual.multiplications, usual.exchanges
    (m, n, k), *_ = product.shapes
    columns, depth = (sum(shape[axis] for shape in product.shapes) for axis in (1, 2))
    types = {"T": product.dtype, **({"Sum": product.result} if product.result != product.dtype else {})}
    match exchange.kind:
        case "all_gather":
            return types | {"M": m, "N": columns, "K": k}
        case "all_to_all":
            counts = [[part // max(1, k) for part in parts] for parts in exchange.parts if isinstance(parts, tuple)]
            return types | {"counts": counts, "N": n, "K": k}
        case _:
            return types | {"M": m, "N": n, "K": depth}


def _counts(exchanges: tuple[Exchange, ...], ranks: int, ranks_per_gpu: int) -> list[list[int]]:
    """Elements of two bytes that each rank sends to each."""
    counts = [[0] * ranks for _ in range(ranks)]
    for exchange in exchanges:
        for (src, dst), elements in exchange.pairs(ranks_per_gpu).items():
            counts[src][dst] += elements * exchange.least // 2
    return counts


def products_text(products: tuple[Multiplication, ...]) -> str:
    """A schedule of the products alone, each a launch on every rank."""

    def lines() -> Iterator[str]:
        yield "schedule products_alone"
        for i, product in enumerate(products):
            for name, sizes in zip("mnk", zip(*product.shapes, strict=True), strict=True):
                yield f"param {name}{i} = {list(sizes)}"
        for i, product in enumerate(products):
            yield f"input A{i}[m{i}[rank], k{i}[rank]] : {product.dtype}"
            yield f"input B{i}[k{i}[rank], n{i}[rank]] : {product.dtype}"
            yield f"output C{i}[m{i}[rank], n{i}[rank]] : {product.result}"
        yield from (f"computes C{i} = A{i} * B{i}" for i in range(len(products)))
        yield "queue compute { engine = sm }"
        yield f"stage mm on compute {{ {'  '.join(f'gemm C{i} = A{i} * B{i}' for i in range(len(products)))} }}"

    return "\n".join(lines()) + "\n"


def repeated_text(
    of: Repeated, *, vendor: bool, threads: int | None = None, multiplying: bool = True, sharing: bool = True
) -> str:
    """A schedule of iterations, one after the other: a product, and the vendor's collective of it. One buffer holds the
    products, so that each waits for the collective before it. Or the products alone, or the collectives alone."""
    kind, product = of.exchange.kind, of.product
    rows = {"all_gather": "m * ranks", "reduce_scatter": "m / ranks"}.get(kind, "m")
    (m, n, k), *_ = product.shapes
    lines = ["schedule iterations", *(f"param {name} = {size}" for name, size in (("m", m), ("n", n), ("k", k)))]
    if multiplying:
        lines += [f"input A[m, k] : {product.dtype}", f"input B[k, n] : {product.dtype}"]
    place = ("scratch" if sharing else "output") if multiplying else "input"
    lines.append(f"{place} P[m, n] : {product.result}{' unproven' if place == 'output' else ''}")
    if sharing:
        lines.append(f"output Y[{rows}, n] : {product.result} unproven")
    lines += [
        f"queue compute {{ engine = sm{'  kernel = vendor' if vendor else ''} }}",
        f"queue vendor {{ engine = nccl{f'  threads = {threads}' if threads else ''} }}",
    ]
    stages = ["stage mm on compute { gemm P = A * B }"] if multiplying else []
    stages += [f"stage share on vendor {{ {kind} Y <- P }}"] if sharing else []
    return "\n".join([*lines, f"step i in 0..{of.number} {{", *stages, "}"]) + "\n"


def copies_text(counts: list[list[int]], times: int = 1) -> str:
    """A schedule of the copies alone, repeated: `counts[s][d]` elements of two bytes go from rank s to rank d. Each
    rank sends to the next one first, so that no two ranks send to the same one."""
    inbound = [list(column) for column in zip(*counts, strict=True)]
    return f"""schedule copies_alone
param counts = {counts}
param inbound = {inbound}
input X[sum(counts[rank])] : bf16
output Y[sum(inbound[rank])] : bf16 unproven
queue dma {{ engine = copy }}
step i in 0..{times} {{
  stage move on dma {{
    for p in peers {{ copy Y.rows(rank of inbound[p]) @ p <- X.rows(p of counts[rank]) }}
  }}
}}
"""


def _compiled(text: str, ranks: int, machine: Machine) -> Plan:
    import ficco_dsl

    from .. import compiler

    return compiler.plan_of(compiler.build(ficco_dsl.parse(text, "<baseline>"), ranks), machine)


def _bytes(plan: Plan, rank: int) -> int:
    from ..types import TYPES

    return sum(TYPES[tensor.dtype].bytes * prod(tensor.shapes[rank]) for tensor in plan.tensors)
