"""The vendor's GEMM (`kernel = vendor`) on one NVIDIA GPU: right, and how fast beside torch.matmul and our own kernel.

Every shape is a schedule of one rank. First a graph is captured before anything has run, then runs on streams; each
result is compared with a product in fp64: integers must be equal, normal data as near as one rounding of the output.
Then the library, torch.matmul and our own kernel take turns, in loops on a stream and as graphs of as many runs:
medians of the rounds, with the lowest and the highest, which `-s` shows. `--long 10` takes 20 rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest

import ficco_dsl
from ficco_rt import Executor, discover
from ficco_rt.calibrate import alone
from ficco_rt.compiler import build, plan_of
from ficco_rt.exec.inputs import InputValues
from ficco_rt.exec.verify import verified_run
from ficco_rt.files.store import Store
from ficco_rt.kernels.families import PlainProduct
from ficco_rt.plan.ir import Plan
from ficco_rt.types import ELEMENT_TYPES, TYPES
from tests.gpu.apart import apart

TEXT = """
schedule product
input   A[{m}, {k}] : {dtype}
input   B[{right}] : {dtype}
output  C[{m}, {n}] : {out} unproven
queue work {{ engine = sm{kernel} }}
stage mm on work {{ {gemm} }}
"""

SCALED = """
schedule with_scales
param cut = 0
type A = fp8_e4m3 scaled 1x128
type B = fp8_e4m3 scaled 128x128
type R = bf16
input   X[24, 272]  : A
input   Y[136, 272] : B
input   b[136]      : bf16
scratch G[48, 272]  : A
output  C[24, 136]  : R
output  D[48, 136]  : R
output  E[24, 136]  : bf16
computes C = X * Y.T
computes D = all_gather(X, rows) * Y.T
computes E = gelu_tanh(X * Y.T + b)
queue dma { engine = copy }
queue one { engine = sm  kernel = vendor }
stage gather on dma { for p in all { copy G.rows(rank of ranks) @ p <- X } }
stage own on one {
  if cut == 1 { gemm C = X[:, 0:128] * Y[:, 0:128].T gemm C += X[:, 128:272] * Y[:, 128:272].T }
  else { gemm C[:, 0:128] = X * Y[0:128].T gemm C[:, 128:136] = X * Y[128:136].T }
  gemm E = gelu_tanh(X * Y.T + sum(b))
}
stage all_rows on one {
  if cut == 2 { gemm D[5:48] = G[5:48] * Y.T gemm D[0:5] = G[0:5] * Y.T }
  else { gemm D.rows([1, 0] of 3) = G.rows([1, 0] of 3) * Y.T gemm D.rows(2 of 3) = G.rows(2 of 3) * Y.T }
}
"""
# Types of its operands, and how cuBLASLt is told that they are scaled.
SCALINGS: tuple[tuple[dict[str, object], set[object]], ...] = (
    ({}, {("1x128", "128x128")}),
    ({"cut": 1, "R": "fp32"}, {("1x128", "128x128")}),
    ({"B": "fp8_e5m2 scaled 1x128"}, {("1x128", "1x128")}),
    ({"A": "fp8_e5m2 scaled row", "B": "fp8_e4m3 scaled row", "fast": 1}, {("row", "row")}),
    ({"cut": 2, "A": "fp8_e4m3 scaled row", "B": "fp8_e5m2 scaled row"}, {("row", "row")}),
    ({"A": "fp8_e4m3 scaled tensor", "B": "fp8_e4m3 scaled tensor"}, {("tensor", "tensor"), ("row", "row")}),
    ({"A": "fp8_e4m3 scaled tensor", "B": "fp8_e4m3 scaled row", "R": "fp32"}, {("row", "row")}),
    ({"A": "fp8_e4m3", "B": "fp8_e5m2"}, {None}),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A product. `pieces` of K are added one after another, `gathered` are taken in another order by one gemm."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    out: str = "bf16"
    pieces: int = 1
    gathered: bool = False
    transposed: bool = False

    def __str__(self) -> str:
        more = [f"{self.dtype} to {self.out}"] if (self.dtype, self.out) != ("bf16", "bf16") else []
        more += [f"K in {self.pieces}{' gathered' if self.gathered else ''}"] if self.pieces > 1 else []
        more += ["B transposed"] if self.transposed else []
        return f"{self.m}×{self.n}×{self.k}" + (f" ({', '.join(more)})" if more else "")

    def plan(self, machine: Any, kernel: str) -> Plan:
        """Its plan for one rank, by the vendor's library or by our own kernels."""
        right, dot_t = (f"{self.n}, {self.k}", ".T") if self.transposed else (f"{self.k}, {self.n}", "")
        n, along = self.pieces, "cols" if self.transposed else "rows"
        gemm = f"gemm C = A * B{dot_t}"
        if self.gathered:
            order = [*range(1, n, 2), *range(0, n, 2)]
            gemm = f"gemm C = A.cols({order} of {n}) * B.{along}({order} of {n}){dot_t}"
        elif n > 1:
            parts = (f"A.cols({i} of {n}) * B.{along}({i} of {n}){dot_t}" for i in range(n))
            gemm = " ".join(f"gemm C {'+=' if i else '='} {part}" for i, part in enumerate(parts))
        text = TEXT.format(
            m=self.m, n=self.n, k=self.k, right=right, dtype=self.dtype, out=self.out, kernel=kernel, gemm=gemm
        )
        return plan_of(build(ficco_dsl.parse(text, "product.ficco"), 1, {}), machine)


CASES = (
    Case(5000, 1000, 3000),
    Case(3000, 2304, 7168),
    Case(64, 4608, 7168),
    Case(64, 7168, 4096),
    Case(8192, 8192, 8192),
    Case(4096, 4096, 8192, out="fp32", pieces=4),
    Case(4096, 4096, 8192, out="fp32", pieces=4, gathered=True),
    Case(4096, 4096, 4096, dtype="fp16", out="fp16", transposed=True),
    Case(1021, 509, 1031),
    Case(2048, 2048, 2048, dtype="fp32", out="fp32"),
)
ALONE = (
    (220, 1536, 14528, False),
    (294, 2048, 13056, False),
    (64, 7168, 4096, True),
    (16, 2560, 8192, True),
    (3964, 11392, 1216, False),
)
ROUNDS, LOOP = 2, 20  # turns of the timings, and runs of a turn
LIMIT = 120  # seconds of all cases

pytestmark = [pytest.mark.torch, pytest.mark.nvmath]


def test_products() -> None:
    apart(products, limit=LIMIT)


def test_scaled_products() -> None:
    apart(scaled, limit=LIMIT)


def test_times(long: int) -> None:
    apart(times, ROUNDS * long, limit=LIMIT * long)


def test_what_products_take_alone() -> None:
    apart(measured_again, limit=LIMIT)


def measured_again() -> bool:
    """Whether ours and the library's take as long, one beside the other, when both are measured again."""
    fine = True
    for shape in ALONE:
        found = []
        for _ in range(2):
            with TemporaryDirectory() as folder, patch.object(alone, "user_store", partial(Store, Path(folder))):
                found.append(alone.times(PlainProduct(*shape, "bf16"), "cuda"))
        print(shape, *found, flush=True)
        ratios = [times.library / times.ours for times in found if times is not None]
        fine = fine and len(ratios) == 2 and max(ratios) < 1.06 * min(ratios)
    return fine


def products() -> bool:
    """Whether all cases are right."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    machine = discover(1)
    wrong = [case for case in CASES if not right(case, machine)]
    print(f"NOT right: {', '.join(map(str, wrong))}" if wrong else f"all {len(CASES)} right, as a graph and on streams")
    return not wrong


# ---------------------------------------------------------------- correctness


def scaled() -> bool:
    """Of fp8, by two ranks on one GPU."""
    machine, wrong = discover(2, ranks_per_gpu=2), 0
    modes: list[tuple[bool, InputValues]] = [(False, "exact"), (False, "normal"), (True, "one-signed")]
    for types, scalings in SCALINGS:
        plan = plan_of(build(ficco_dsl.parse(SCALED, "scaled.ficco"), 2, types), machine)
        with Executor(plan, "cuda", machine=machine, ranks_per_gpu=2, timeout=30) as executor:
            for executor.graph, values in modes:
                found = verified_run(executor, values=values)
                print(f"  {types}, as {scalings}, graph {executor.graph}, {values}: {found}", flush=True)
                wrong += not found.ok
    return not wrong


class Product:
    """A case on the GPU: its operands, its output, and an executor of it."""

    def __init__(self, case: Case, machine: Any, kernel: str, operands: tuple[Any, Any] | None = None) -> None:
        import torch

        types = {t.name: getattr(torch, t.torch) for t in ELEMENT_TYPES}
        self.case, self.dtype, self.out_dtype = case, types[case.dtype], types[case.out]
        right = (case.n, case.k) if case.transposed else (case.k, case.n)
        made = {"dtype": self.dtype, "device": "cuda:0"}
        self.a, self.b = operands or (torch.empty(case.m, case.k, **made), torch.empty(*right, **made))
        self.c = torch.empty(case.m, case.n, dtype=self.out_dtype, device="cuda:0")
        self.executor = Executor(case.plan(machine, kernel), "cuda", timeout=60)
        self.stream = torch.cuda.Stream(0)
        self.bound = self.executor.bind(A=[self.a], B=[self.b], C=[self.c])

    def run(self) -> None:
        self.executor.run(self.bound, streams=[self.stream])

    def fill(self, exact: bool) -> None:
        """Small integers, of which no sum is rounded in fp32, or normal data; and NaN where the output goes."""
        import torch

        for x in (self.a, self.b):
            if exact:
                x.copy_(torch.randint(-4, 5, x.shape, device=x.device))
            else:
                x.copy_(torch.randn(x.shape, device=x.device))
        self.c.fill_(float("nan"))
        torch.cuda.synchronize()

    def reference(self) -> Any:
        """In fp64, column block by column block."""
        import torch

        right = self.b.T if self.case.transposed else self.b
        left = self.a.double()
        return torch.cat([left @ block.double() for block in right.split(2048, dim=1)], dim=1)


def right(case: Case, machine: Any) -> bool:
    """Of a graph that is captured before anything has run, and of runs on streams. Pieces of K that are added to a
    16-bit output are rounded in between, which the bound does not know: such cases are not among ours."""
    import torch

    good = True
    for mode in ("graph", "streams"):
        product = Product(case, machine, "  kernel = vendor")
        run = captured(product.run, product.stream, 1) if mode == "graph" else product.run
        for exact in (True, False):
            product.fill(exact)
            run()
            torch.cuda.synchronize()
            expected = product.reference()
            if exact:
                fine = bool(torch.equal(product.c, expected.to(product.out_dtype)))
                print(f"  {case}, {mode}: integers {'equal' if fine else 'DIFFER'}", end="")
            else:
                step = TYPES[case.out].unit_roundoff
                bound = step * expected.abs() + 2.0**-21 * case.k
                worst = float(((product.c.double() - expected).abs() / bound).max())
                fine = worst < 1.01
                print(f"; normal data off by {worst:.2f} of what may be", flush=True)
            good &= fine
        if mode == "streams":
            print(f"  {product.executor.driver.describe()}")
        del run  # a caller's graph goes before the executor whose runs it holds
        product.executor.close()
        del product
        torch.cuda.empty_cache()
    return good


def captured(run: Callable[[], None], stream: Any, times: int) -> Callable[[], None]:
    """So many runs as one graph of the caller's."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="relaxed")
        for _ in range(times):
            run()
        graph.capture_end()

    def replay() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


# ---------------------------------------------------------------- times


def times(rounds: int) -> bool:
    """Microseconds of a run: medians of the rounds, lowest and highest."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    machine = discover(1)
    turns = f"{rounds} turns of {LOOP}"
    print(f"{torch.cuda.get_device_name(0)}, µs a run, median (lowest–highest) of {turns}")
    print("| m × n × k | how | vendor | torch.matmul | ours | vendor / torch | ours / torch |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        library = Product(case, machine, "  kernel = vendor")
        ours = Product(case, machine, "", (library.a, library.b))
        library.fill(exact=False)
        for how in ("stream", "graph"):
            names = ("vendor", "torch", "ours")
            streams = (library.stream, library.stream, ours.stream)
            runs = [library.run, by_torch(library), ours.run]
            if how == "graph":
                made = zip(runs, streams, strict=True)
                runs = [captured(run, stream, LOOP) for run, stream in made]
            taken: dict[str, list[float]] = {name: [] for name in names}
            for turn in range(rounds + 1):
                for i in (0, 1, 2) if turn % 2 else (2, 1, 0):
                    spent = timed(runs[i], streams[i], LOOP, how == "graph")
                    taken[names[i]] += [spent] if turn else []  # the first one warms up
            mid = {name: median(found) for name, found in taken.items()}
            cells = [f"{mid[n]:.1f} ({min(taken[n]):.1f}–{max(taken[n]):.1f})" for n in names]
            ratios = [f"{mid[n] / mid['torch']:.3f}" for n in ("vendor", "ours")]
            print(f"| {case} | {how} | {' | '.join([*cells, *ratios])} |", flush=True)
            del runs
        library.executor.close()
        ours.executor.close()
        del library, ours
        torch.cuda.empty_cache()
    return True


def by_torch(product: Product) -> Callable[[], None]:
    """torch.matmul into another output. Pieces of K are one product to it; a wider output it makes by a conversion."""
    import torch

    right = product.b.T if product.case.transposed else product.b
    out = torch.empty(product.case.m, product.case.n, dtype=product.dtype, device="cuda:0")

    def run() -> None:
        with torch.cuda.stream(product.stream):
            torch.matmul(product.a, right, out=out)

    return run


def timed(run: Callable[[], None], stream: Any, loop: int, graph: bool) -> float:
    """Microseconds of one run in a loop, by events; the GPU sleeps first, so that the host is ahead of it."""
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(4_000_000)
        start.record(stream)
    for _ in range(1 if graph else loop):
        run()
    stop.record(stream)
    torch.cuda.synchronize()
    return 1e3 * float(start.elapsed_time(stop)) / loop
