"""The probes, which are small schedules that each measure one cost, and the sizes at which they are run.

Each probe is text in the schedule language, so it is compiled, checked and run like users' schedules, by the same
driver calls and kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from ..files.records import HIDDEN

KIB, MIB = 1024, 1024**2
ROW = 4096  # elements of 2 bytes in a row of what is copied

Params: TypeAlias = Mapping[str, int]
Mode: TypeAlias = Literal["streams", "graph"]


@dataclass(frozen=True, slots=True)
class Probe:
    """`measures` says in words what the probe measures. `points`: the params of each run, the most informative first.
    `ranks`: the least number of ranks."""

    name: str
    measures: str
    text: Annotated[str, HIDDEN]
    points: Annotated[tuple[Params, ...], HIDDEN]
    mode: Mode = "streams"
    ranks: Annotated[int, HIDDEN] = 1


_PUSH = """
schedule push  # every rank to the next one, rows in pieces
param height = 64
param pieces = 1 where pieces >= 1
input  A[height, 4096] : bf16
output G[height, 4096] : bf16 unproven
queue dma { engine = copy  priority = high }
stage move on dma {
  for c in 0..pieces { copy G.rows(c of pieces) @ (rank + 1) % ranks <- A.rows(c of pieces) }
}
"""

_RECORDS = """
schedule records  # every rank to the next one, rows in pieces; small products there wait for each piece
param height = 64
param pieces = 1 where pieces >= 1
input   A[height, 4096] : bf16
input   B[64, 64]       : bf16
scratch G[height, 4096] : bf16
scratch H[pieces, 64]   : bf16
queue dma   { engine = copy  priority = high }
queue aside { engine = sm  priority = low }
stage move on dma {
  for c in 0..pieces { copy G.rows(c of pieces) @ (rank + 1) % ranks <- A.rows(c of pieces) }
}
stage take on aside {
  for c in 0..pieces { gemm H[c:c + 1] = G[c * height / pieces:c * height / pieces + 1, 0:64] * B }
}
"""

_INCAST = """
schedule incast  # every rank to the first one, at once
param height = 64
input   A[height, 4096]         : bf16
scratch G[height * ranks, 4096] : bf16
queue dma { engine = copy  priority = high }
stage move on dma {
  if rank > 0 { copy G.rows(rank of ranks) @ 0 <- A }
}
"""

_INSIDE = """
schedule within_gpu  # in a GPU's own memory, rows in pieces
param height = 64
param pieces = 1 where pieces >= 1
input  A[height, 4096] : bf16
output G[height, 4096] : bf16 unproven
queue dma { engine = copy }
stage move on dma {
  for c in 0..pieces { copy G.rows(c of pieces) <- A.rows(c of pieces) }
}
"""

_STORES = """
schedule stores  # to the next rank by loads and stores of multiprocessors
param height = 64
param width = 16
input  A[height, 4096] : bf16
output G[height, 4096] : bf16 unproven
queue wide { engine = sm }
stage move on wide with sms = width { copy G @ (rank + 1) % ranks <- A }
"""

_HOPS = """
schedule hops  # copies, each of which waits for the one before, from rank to rank
param height = 64
param hops = 8 where hops >= 1
input   A[height, 4096]              : bf16
scratch X[height * (hops + 1), 4096] : bf16
queue dma { engine = copy  priority = high }
stage begin on dma { if rank == 0 { copy X[0:height] <- A } }
stage move on dma {
  step s in 0..hops {
    if rank == s % ranks {
      copy X[height * (s + 1):height * (s + 2)] @ (rank + 1) % ranks <- X[height * s:height * (s + 1)]
    }
  }
}
"""

_LAUNCHES = """
schedule launches  # small products, one after another
param count = 8 where count >= 1
input  A[64, 64]         : bf16
input  B[64, 64]         : bf16
output C[64 * count, 64] : bf16 unproven
queue compute { engine = sm }
stage mm on compute {
  for i in 0..count { gemm C.rows(i of count) = A * B }
}
"""

_COPY_TURNS = """
schedule copy_turns  # copies by two queues of a GPU, each behind an event of the other queue
param height = 64
param turns = 8 where turns >= 1
input   A[height, 4096]               : bf16
scratch X[height * (turns + 1), 4096] : bf16
queue one { engine = copy }
queue two { engine = copy }
stage begin on one { copy X[0:height] <- A }
step s in 0..turns {
  stage odd on two { if s % 2 == 0 { copy X[height * (s + 1):height * (s + 2)] <- X[height * s:height * (s + 1)] } }
  stage even on one { if s % 2 == 1 { copy X[height * (s + 1):height * (s + 2)] <- X[height * s:height * (s + 1)] } }
}
"""

_KERNEL_TURNS = """
schedule kernel_turns  # small products by two queues of a GPU, each behind an event of the other queue
param turns = 8 where turns >= 1
input   A[64, 64]               : bf16
input   B[64, 64]               : bf16
scratch X[64 * (turns + 1), 64] : bf16
queue one { engine = sm }
queue two { engine = sm }
stage begin on one { gemm X[0:64] = A * B }
step s in 0..turns {
  stage odd on two { if s % 2 == 0 { gemm X[64 * s + 64:64 * s + 128] = X[64 * s:64 * s + 64] * B } }
  stage even on one { if s % 2 == 1 { gemm X[64 * s + 64:64 * s + 128] = X[64 * s:64 * s + 64] * B } }
}
"""

_PRODUCT = """
schedule product  # in pieces of rows, or of K, which are added up
param M = 4096
param N = 4096
param K = 4096
param pieces = 1 where pieces >= 1
param deep = 1 where deep >= 1
input  A[M, K] : bf16
input  B[K, N] : bf16
output C[M, N] : bf16 unproven
queue compute { engine = sm }
stage mm on compute {
  for c in 0..pieces, k in 0..deep {
    if k == 0 {
      gemm C.rows(c of pieces) = A.rows(c of pieces).cols(k of deep) * B.rows(k of deep)
    } else {
      gemm C.rows(c of pieces) += A.rows(c of pieces).cols(k of deep) * B.rows(k of deep)
    }
  }
}
"""

_BY_VENDOR = _PRODUCT.replace("schedule product", "schedule vendors_product").replace(
    "engine = sm }", "engine = sm  kernel = vendor }"
)

_AGAIN = """
schedule again  # a product as long as power lets it
param M = 8192
param N = 8192
param K = 8192
param times = 1
input  A[M, K] : bf16
input  B[K, N] : bf16
output C[M, N] : bf16 unproven
queue compute { engine = sm }
step i in 0..times {
  stage mm on compute { gemm C = A * B }
}
"""

_BESIDE = """
schedule beside  # a product and copies to the next rank that have nothing to do with one another
param M = 4096
param N = 4096
param K = 4096
param height = 64
param copies = 1
param products = 1
input   A[M, K]         : bf16
input   B[K, N]         : bf16
input   X[height, 4096] : bf16
scratch C[M, N]         : bf16
scratch G[height, 4096] : bf16
queue dma     { engine = copy  priority = high }
queue compute { engine = sm  priority = low }
stage move on dma {
  for c in 0..copies { copy G @ (rank + 1) % ranks <- X }
}
stage mm on compute {
  for i in 0..products { gemm C = A * B }
}
"""

_SUM = """
schedule sums  # of terms in a GPU's own memory
param height = 64
param terms = 2
input  X[terms, height, 4096] : bf16
output Y[height, 4096]        : bf16 unproven
queue compute { engine = sm }
stage add on compute { reduce Y = sum(X[[i for i in 0..terms]]) }
"""


def probes(smaller: int = 1) -> Iterator[Probe]:
    """All probes, in the order in which they run. `smaller` divides all sizes, for machines that are modelled or
    slow."""
    sizes = [size // smaller for size in (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)]
    middle = sizes[4]
    whole = tuple({"height": _height(size), "pieces": 1} for size in sizes)
    cut = tuple({"height": _height(middle), "pieces": pieces} for pieces in (4, 16, 64))
    yield Probe("push", "copies to the next rank by copy engines, of all ranks at once", _PUSH, whole + cut, ranks=2)
    yield Probe("push as a graph", "the same as nodes of a graph", _PUSH, whole[2:5] + cut, "graph", ranks=2)
    # NOTE pieces take longer than the products of the other queue, which follow events at some 5 µs each. They are
    # pushed, as in most schedules. Where each rank fetched its pieces and a product began behind each, a piece took
    # 11 µs longer on two H200, in place of 3; why is not known
    large = tuple({"height": _height(sizes[5]), "pieces": pieces} for pieces in (4, 16, 32))
    yield Probe("records", "copies to the next rank, with an event between each two of them", _RECORDS, large, ranks=2)
    yield Probe("incast", "copies of all ranks to one", _INCAST, ({"height": _height(middle)},), ranks=3)
    inside = tuple({"height": _height(size), "pieces": 1} for size in sizes[1:]) + cut[:2]
    yield Probe("inside", "copies in a GPU's memory", _INSIDE, inside)
    widths = ({"height": _height(middle // 2), "width": width} for width in (4, 8, 16, 32))
    yield Probe("stores", "copies to the next rank by multiprocessors", _STORES, tuple(widths), ranks=2)
    # NOTE copies of a size that schedules have: one of 128 bytes takes some 4 µs less beyond its bytes on an H200
    piece = {"height": _height(sizes[2])}
    hops = ({**piece, "hops": 4}, {**piece, "hops": 36})
    yield Probe("hops", "a copy behind another rank's", _HOPS, hops, ranks=2)
    yield Probe("hops as a graph", "the same from graph to graph", _HOPS, hops, "graph", ranks=2)
    turns = ({"turns": 4}, {"turns": 36})
    large = tuple({**piece, **turn} for turn in turns)
    yield Probe("copy turns", "a copy behind an event of another stream of the GPU", _COPY_TURNS, large)
    yield Probe("kernel turns", "a small kernel behind an event of another stream of the GPU", _KERNEL_TURNS, turns)
    counts = ({"count": 4}, {"count": 68})
    yield Probe("launches", "small kernels one after another", _LAUNCHES, counts)
    yield Probe("launches as a graph", "the same as nodes of a graph", _LAUNCHES, counts, "graph")
    yield Probe("product", "GEMMs of many shapes", _PRODUCT, tuple(_product(*shape, smaller) for shape in _SHAPES))
    library = tuple(_product(*shape, smaller) for shape in _VENDOR_SHAPES)
    yield Probe(VENDOR_PRODUCT, "the same by the vendor's library", _BY_VENDOR, library)
    pieces = tuple(_product(8192, 4096, 4096, smaller, pieces=n) for n in (2, 4, 8, 16))
    yield Probe("pieces of rows", "a GEMM whose rows are cut, a launch a piece", _PRODUCT, pieces)
    deep = tuple(_product(4096, 4096, 8192, smaller, deep=n) for n in (2, 4, 8, 16))
    yield Probe("pieces of K", "a GEMM whose K is cut, each piece added to the result", _PRODUCT, deep)
    sums = ({"height": _height(size), "terms": terms} for size in (sizes[2], middle) for terms in (2, 4, 8))
    yield Probe("sum", "sums of terms in a GPU's memory", _SUM, tuple(sums))
    yield Probe("beside", "a GEMM and copies at once, and each alone", _BESIDE, tuple(_pairs(smaller)), ranks=2)
    again = tuple({**_sizes(8192, 8192, 8192, smaller), "times": n} for n in (1, 100))
    yield Probe("again", "a GEMM once, and over and over", _AGAIN, again)


_SHAPES = (
    *((m, n, k) for m in (8192, 1024, 128, 16) for n, k in ((8192, 8192), (4096, 4096), (1280, 8192), (8192, 1024))),
    (4096, 4096, 8192),
    (5000, 3000, 2000),
)


VENDOR_PRODUCT = "vendor's product"
# That fill waves, sizes that fill none, few rows. NOTE where rows are few, the right operand is larger than L2: of a
# smaller one a run finds much there, from the run before
_VENDOR_SHAPES = (
    *((4096, 4096, 4096), (8192, 2560, 8192), (2048, 2560, 8192)),
    *((5000, 1000, 3000), (7001, 1496, 2040), (3000, 3000, 3000), (3000, 2304, 7168)),
    *((64, 7168, 8192), (16, 10240, 8192), (128, 10240, 8192)),
)


def _height(size: int) -> int:
    """Rows of so many bytes together."""
    return max(1, size // (2 * ROW))


def _sizes(m: int, n: int, k: int, smaller: int) -> dict[str, int]:
    return {name: max(16, extent // smaller) for name, extent in (("M", m), ("N", n), ("K", k))}


def _product(m: int, n: int, k: int, smaller: int, pieces: int = 1, deep: int = 1) -> dict[str, int]:
    return {**_sizes(m, n, k, smaller), "pieces": pieces, "deep": deep}


def _pairs(smaller: int) -> Iterator[Params]:
    """Each alone, and both; in some the copies take longer than the GEMM on today's machines."""
    height = _height(64 * MIB // smaller)
    for shape, copies in (((8192, 8192, 4096), 3), ((8192, 1024, 8192), 2), ((1024, 8192, 8192), 1)):
        for c, p in ((copies, 0), (0, 1), (copies, 1)):
            yield {**_sizes(*shape, smaller), "height": height, "copies": c, "products": p}
