"""The vendor's GEMM (`kernel = vendor`) on one NVIDIA GPU: right, and how fast beside torch.matmul and our own kernel.

    python tools/vendor_check.py                        # one minute; needs PyTorch and ficco-rt[vendor]
    python tools/vendor_check.py --shapes 8192x8192x8192 --rounds 30

Every shape is a schedule of one rank. First a graph is captured before anything has run, then runs on streams; each
result is compared with a product in fp64: integers must be equal, normal data as near as one rounding of the output.
Then the library, torch.matmul and our own kernel take turns, in loops on a stream and as graphs of as many runs:
medians of the rounds, with the lowest and the highest. Exit code 4: a result is wrong; 3: something is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "dsl")]

import ficco_dsl
from ficco_rt import Executor, discover
from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import DeviceError
from ficco_rt.plan.ir import Plan

TEXT = """
schedule product
input   A[{m}, {k}] : {dtype}
input   B[{right}] : {dtype}
output  C[{m}, {n}] : {out} unproven
queue work {{ engine = sm{kernel} }}
stage mm on work {{ {gemm} }}
"""


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", help="such as 64x4608x7168, of bf16; otherwise ten of our own")
    parser.add_argument("--rounds", type=int, default=15, help="turns of the timings; 0: results are only compared")
    parser.add_argument("--loop", type=int, default=20, help="runs of a turn")
    options = parser.parse_args()
    if options.rounds < 0 or options.loop < 1:
        parser.error("--rounds is 0 or more, --loop a number from 1")
    try:
        cases = [shaped(shape) for shape in options.shapes] if options.shapes else [*CASES]
    except ValueError:
        parser.error("a shape is three numbers, such as 64x4608x7168")
    try:
        import torch
    except ImportError:
        sys.stderr.write("vendor_check needs PyTorch: pip install torch\n")
        return 3
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        machine = discover(1)
        wrong = [case for case in cases if not right(case, machine)]
        if wrong:
            print(f"NOT right: {', '.join(map(str, wrong))}")
            return 4
        print(f"all {len(cases)} right, as a graph and on streams\n")
        if options.rounds:
            table(cases, machine, options)
    except DeviceError as error:
        sys.stderr.write(f"vendor_check: {error}\n")
        return 3
    return 0


def shaped(text: str) -> Case:
    m, n, k = map(int, text.split("x"))
    return Case(m, n, k)


# ---------------------------------------------------------------- correctness


class Product:
    """A case on the GPU: its operands, its output, and an executor of it."""

    def __init__(self, case: Case, machine: Any, kernel: str, operands: tuple[Any, Any] | None = None) -> None:
        import torch

        types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
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
                step = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}[case.out]
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


def table(cases: list[Case], machine: Any, options: argparse.Namespace) -> None:
    """Microseconds of a run: medians of the rounds, lowest and highest."""
    import torch

    turns = f"{options.rounds} turns of {options.loop}"
    print(f"{torch.cuda.get_device_name(0)}, µs a run, median (lowest–highest) of {turns}")
    print("| m × n × k | how | vendor | torch.matmul | ours | vendor / torch | ours / torch |")
    print("|---|---|---|---|---|---|---|")
    for case in cases:
        library = Product(case, machine, "  kernel = vendor")
        ours = Product(case, machine, "", (library.a, library.b))
        library.fill(exact=False)
        for how in ("stream", "graph"):
            names = ("vendor", "torch", "ours")
            streams = (library.stream, library.stream, ours.stream)
            runs = [library.run, by_torch(library), ours.run]
            if how == "graph":
                made = zip(runs, streams, strict=True)
                runs = [captured(run, stream, options.loop) for run, stream in made]
            times: dict[str, list[float]] = {name: [] for name in names}
            for turn in range(options.rounds + 1):
                for i in (0, 1, 2) if turn % 2 else (2, 1, 0):
                    spent = timed(runs[i], streams[i], options.loop, how == "graph")
                    times[names[i]] += [spent] if turn else []  # the first one warms up
            mid = {name: median(taken) for name, taken in times.items()}
            cells = [f"{mid[n]:.1f} ({min(times[n]):.1f}–{max(times[n]):.1f})" for n in names]
            ratios = [f"{mid[n] / mid['torch']:.3f}" for n in ("vendor", "ours")]
            print(f"| {case} | {how} | {' | '.join([*cells, *ratios])} |", flush=True)
            del runs
        library.executor.close()
        ours.executor.close()
        del library, ours
        torch.cuda.empty_cache()


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


if __name__ == "__main__":
    sys.exit(main())
