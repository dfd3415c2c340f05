"""Works of kernels on views made by hand."""

from __future__ import annotations

from ficco_rt.geometry.region import Region
from ficco_rt.graph.functions import FUNCTIONS, FunctionName
from ficco_rt.graph.ir import Copy, Gemm, Reduce
from ficco_rt.kernels.works import View, WorkOf

Flags = tuple[int, ...]


def product(
    out: View, left: View, right: View, left_t: bool = False, right_t: bool = False, accumulate: bool = False,
    addends: tuple[View, ...] = (), waits: Flags = (), signals: Flags = (), function: FunctionName | None = None,
) -> WorkOf[Gemm]:  # fmt: skip
    """With a function that takes a factor, the last addend is the factor."""
    regions = out.region, left.region, right.region
    added, factor = _factor(addends, function)
    body = Gemm(*regions, left_t, right_t, accumulate, added, function, factor)
    return WorkOf(body, (out, left, right, *((out,) if accumulate else addends)), waits, signals)


def total(
    out: View, terms: tuple[View, ...], waits: Flags = (), signals: Flags = (), function: FunctionName | None = None
) -> WorkOf[Reduce]:
    added, factor = _factor(terms, function)
    return WorkOf(Reduce(out.region, added, function, factor), (out, *terms), waits, signals)


def _factor(views: tuple[View, ...], function: FunctionName | None) -> tuple[tuple[Region, ...], Region | None]:
    regions = tuple(view.region for view in views)
    return (regions[:-1], regions[-1]) if function and FUNCTIONS[function].factor else (regions, None)


def copied(dst: View, src: View, waits: Flags = (), signals: Flags = ()) -> WorkOf[Copy]:
    return WorkOf(Copy(dst.region, src.region), (dst, src), waits, signals)
