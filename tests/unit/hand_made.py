"""Works of kernels on views made by hand."""

from __future__ import annotations

from ficco_rt.graph.ir import Copy, Gemm, Reduce
from ficco_rt.kernels.works import View, WorkOf

Flags = tuple[int, ...]


def product(
    out: View, left: View, right: View, left_t: bool = False, right_t: bool = False, accumulate: bool = False,
    addends: tuple[View, ...] = (), waits: Flags = (), signals: Flags = (),
) -> WorkOf[Gemm]:  # fmt: skip
    regions = out.region, left.region, right.region
    body = Gemm(*regions, left_t, right_t, accumulate, tuple(view.region for view in addends))
    return WorkOf(body, (out, left, right, *((out,) if accumulate else addends)), waits, signals)


def total(out: View, terms: tuple[View, ...], waits: Flags = (), signals: Flags = ()) -> WorkOf[Reduce]:
    return WorkOf(Reduce(out.region, tuple(term.region for term in terms)), (out, *terms), waits, signals)


def copied(dst: View, src: View, waits: Flags = (), signals: Flags = ()) -> WorkOf[Copy]:
    return WorkOf(Copy(dst.region, src.region), (dst, src), waits, signals)
