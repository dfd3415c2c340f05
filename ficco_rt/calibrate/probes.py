"""The probes, which are small schedules that each measure one cost, and the sizes at which they are run.

Each is a text in the schedule language, in the folder `schedules`. So a probe is compiled, checked and run like users'
schedules, by the same driver calls and kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from ficco_dsl.nodes import Schedule

from .. import compiler
from ..files.records import HIDDEN
from ..graph.overrides import by_library

KIB, MIB = 1024, 1024**2
ROW = 4096  # elements of 2 bytes in a row of what is copied

Params: TypeAlias = Mapping[str, int]
Mode: TypeAlias = Literal["streams", "graph"]


@dataclass(frozen=True, slots=True)
class Probe:
    """`measures` says in words what the probe measures. `file`: its schedule, in the folder `schedules`. `points`: the
    params of each run, the most informative first. `ranks`: the least number of ranks. `vendor`: whether products are
    by the vendor's library. `types`: the schedule's types, and how it stores weights, where they are not the usual
    ones."""

    name: str
    measures: str
    file: Annotated[str, HIDDEN]
    points: Annotated[tuple[Params, ...], HIDDEN]
    mode: Mode = "streams"
    ranks: Annotated[int, HIDDEN] = 1
    vendor: Annotated[bool, HIDDEN] = False
    types: Annotated[Mapping[str, object], HIDDEN] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """The syntax tree of the file."""
        return by_library(schedule(self.file)) if self.vendor else schedule(self.file)


_FOLDER = Path(__file__).with_name("schedules")


def schedule(name: str) -> Schedule:
    """A schedule of the folder."""
    return compiler.load(_FOLDER / f"{name}.ficco")


def probes(smaller: int = 1) -> Iterator[Probe]:
    """All probes, in the order in which they run. `smaller` divides all sizes, for machines that are modelled or
    slow."""
    sizes = [size // smaller for size in (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)]
    middle = sizes[4]
    whole = tuple({"height": _height(size), "pieces": 1} for size in sizes)
    cut = tuple({"height": _height(middle), "pieces": pieces} for pieces in (4, 16, 64))
    yield Probe("push", "copies to the next rank by copy engines, of all ranks at once", "push", whole + cut, ranks=2)
    yield Probe("push as a graph", "the same as nodes of a graph", "push", whole[2:5] + cut, "graph", ranks=2)
    # NOTE pieces take longer than the products of the other queue, which follow events at some 5 µs each. They are
    # pushed, as in most schedules. Where each rank fetched its pieces and a product began behind each, a piece took
    # 11 µs longer on two H200, in place of 3; why is not known
    large = tuple({"height": _height(sizes[5]), "pieces": pieces} for pieces in (4, 16, 32))
    yield Probe("records", "copies to the next rank, with an event between each two of them", "records", large, ranks=2)
    yield Probe("incast", "copies of all ranks to one", "incast", ({"height": _height(middle)},), ranks=3)
    inside = tuple({"height": _height(size), "pieces": 1} for size in sizes[1:]) + cut[:2]
    yield Probe("inside", "copies in a GPU's memory", "within_gpu", inside)
    widths = ({"height": _height(middle // 2), "width": width} for width in (4, 8, 16, 32))
    yield Probe("stores", "copies to the next rank by multiprocessors", "stores", tuple(widths), ranks=2)
    # NOTE copies of a size that schedules have: one of 128 bytes takes some 4 µs less beyond its bytes on an H200
    piece = {"height": _height(sizes[2])}
    hops = ({**piece, "hops": 4}, {**piece, "hops": 36})
    yield Probe("hops", "a copy behind another rank's", "hops", hops, ranks=2)
    yield Probe("hops as a graph", "the same from graph to graph", "hops", hops, "graph", ranks=2)
    turns = ({"turns": 4}, {"turns": 36})
    large = tuple({**piece, **turn} for turn in turns)
    yield Probe("copy turns", "a copy behind an event of another stream of the GPU", "copy_turns", large)
    yield Probe("kernel turns", "a small kernel behind an event of another stream of the GPU", "kernel_turns", turns)
    counts = ({"count": 4}, {"count": 68})
    yield Probe("launches", "small kernels one after another", "launches", counts)
    yield Probe("launches as a graph", "the same as nodes of a graph", "launches", counts, "graph")
    yield Probe("product", "GEMMs of many shapes", "product", tuple(_product(*shape, smaller) for shape in _SHAPES))
    library = tuple(_product(*shape, smaller) for shape in _VENDOR_SHAPES)
    yield Probe(VENDOR_PRODUCT, "the same by the vendor's library", "product", library, vendor=True)
    fp8 = tuple(_product(*shape, smaller) for shape in _FP8_SHAPES)
    for name, left, right in FP8_PRODUCTS:
        types = {"T": f"fp8_e4m3 scaled {left}", "Weight": f"fp8_e4m3 scaled {right}", "Sum": "bf16", "transb": 1}
        yield Probe(name, f"the same of fp8, scaled {left}", "product", fp8, types=types)
    pieces = tuple(_product(8192, 4096, 4096, smaller, pieces=n) for n in (2, 4, 8, 16))
    yield Probe("pieces of rows", "a GEMM whose rows are cut, a launch a piece", "product", pieces)
    deep = tuple(_product(4096, 4096, 8192, smaller, deep=n) for n in (2, 4, 8, 16))
    yield Probe("pieces of K", "a GEMM whose K is cut, each piece added to the result", "product", deep)
    sums = ({"height": _height(size), "terms": terms} for size in (sizes[2], middle) for terms in (2, 4, 8))
    yield Probe("sum", "sums of terms in a GPU's memory", "sums", tuple(sums))
    yield Probe("beside", "a GEMM and copies at once, and each alone", "beside", tuple(_pairs(smaller)), ranks=2)
    again = tuple({**_sizes(8192, 8192, 8192, smaller), "times": n} for n in (1, 100))
    yield Probe("again", "a GEMM once, and over and over", "again", again)


_SHAPES = (
    *((m, n, k) for m in (8192, 1024, 128, 16) for n, k in ((8192, 8192), (4096, 4096), (1280, 8192), (8192, 1024))),
    (4096, 4096, 8192),
    (5000, 3000, 2000),
)


FP8_PRODUCTS = (("fp8 by rows", "row", "row"), ("fp8 by blocks", "1x128", "128x128"))
_FP8_SHAPES = ((8192, 8192, 8192), (8192, 4096, 4096), (4096, 4096, 8192), (8192, 1280, 8192), (128, 8192, 8192))

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
