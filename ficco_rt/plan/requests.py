"""A launch's products as the families of GEMM kernels are asked about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..graph import ir
from ..kernels import mfma, sm80, sm90, tiles
from ..kernels.catalogue import GemmRequest
from .products import Products

Refusal: TypeAlias = Callable[[Sequence[tiles.Work], str, str, bool, bool], str | None]  # a family's, of works


@dataclass(frozen=True, slots=True)
class Flags:
    """What a work waits for and signals."""

    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Products:
    """The products of a launch. `reason` says why no tuned kernel takes them, whichever family it is of."""

    works: tuple[tiles.Work, ...]
    dtype: str
    out_dtype: str
    turned: tuple[bool, bool]  # stored transposed: left, right
    reason: str | None

    def refused(self, serves: bool, arch: str, refusal: Refusal, works: Sequence[tiles.Work]) -> str | None:
        if not serves:
            return f"it does not run on {arch}"
        return self.reason or refusal(works, self.dtype, self.out_dtype, *self.turned)


class Requests:
    """Of one graph on devices of one architecture."""

    def __init__(self, graph: ir.Graph, products: Products, arch: str) -> None:
        self._products = products
        self._dtypes = {t.name: t.dtype for t in graph.tensors}
        self._shapes = {t.name: t.shapes for t in graph.tensors}
        self._arch = arch

    def key(self, rank: int, gemms: Sequence[ir.Gemm]) -> tuple[object, ...]:
        """Alike for products that no family can tell from each other: ranks take the same parts of equal tensors, and
        the graph holds each part's axes once."""
        key: tuple[object, ...] = ()
        for g in gemms:
            shapes = tuple(self._shapes[r.tensor][r.rank] for r in (g.left, g.right, g.out))
            key += (g.left.tensor, g.right.tensor, g.out.tensor, shapes, g.left_transposed, g.right_transposed)
            key += (id(g.left.axes), id(g.right.axes), id(g.out.axes))
            key += (g.out.rank != rank, *((a.tensor, id(a.axes)) for a in g.addends))
        return key

    def family(self, gemms: Sequence[ir.Gemm]) -> str:
        """The first family that does not refuse the products, whatever they wait for."""
        arch, found = self._arch, self._found(gemms, [Flags()] * len(gemms), alone=True)
        if found.refused(arch == sm90.ARCH, arch, sm90.refusal, found.works) is None:
            return "sm90"
        if found.refused(sm80.serves(arch), arch, sm80.refusal, found.works) is None:
            return "sm80"
        if found.refused(arch in mfma.ARCHS, arch, mfma.refusal, found.works) is None:
            return "mfma"
        return "naive"

    def request(
        self,
        rank: int,
        gemms: Sequence[ir.Gemm],
        flags: Sequence[Flags],
        private: Collection[int],
        asked: ir.Resources,
        *,
        alone: bool,
        streamed: bool,
        arrival: float,
    ) -> GemmRequest:
        """Which kernel is best for these products. `private`: flags that nothing outside the launch waits for; `alone`:
        the launch holds nothing else; `arrival`: µs until the last operand has come, see `Arrivals`."""
        arch, found = self._arch, self._found(gemms, flags, alone)
        merged = [] if found.reason else tiles.in_registers(found.works, found.turned, private)
        not_sm90 = found.refused(arch == sm90.ARCH, arch, sm90.refusal, merged)
        hopper = not_sm90 is None and asked.smem is None and asked.residency is None
        not_sm80 = found.refused(sm80.serves(arch), arch, sm80.refusal, found.works) if not hopper else None
        first = gemms[0]
        rows = [g.out.axes[g.out.kept[0]].segments for g in gemms]
        depth = first.left.shape[0 if first.left_transposed else 1]
        phases: tuple[sm90.Phase, ...] = ()
        if not_sm90 is None:
            rows, depth = [w.out_rows for w in merged], tiles.depth_of(merged, found.turned)
            phases = sm90.phases(merged, depth, arrival) if arrival else ()
        return GemmRequest(
            arch=arch,
            dtype=found.dtype,
            smem=asked.smem,
            residency=asked.residency,
            sms=asked.sms,
            rows=tuple(s.size for segments in rows for s in segments),
            columns=tuple(s.size for s in first.out.axes[first.out.kept[1]].segments),
            phases=phases,
            depth=depth,
            right_transposed=first.right_transposed,
            terms=max(len(g.addends) for g in gemms),
            paced=_throttled(rank, gemms, found.out_dtype, streamed),
            not_sm90=not_sm90,
            not_sm80="the Hopper kernel takes it" if hopper else not_sm80,
            not_mfma=found.refused(arch in mfma.ARCHS, arch, mfma.refusal, found.works),
        )

    def _found(self, gemms: Sequence[ir.Gemm], flags: Sequence[Flags], alone: bool) -> _Products:
        made = [self._products.work(g, f.waits, f.signals) for g, f in zip(gemms, flags, strict=True)]
        works = tuple(w for w in made if w is not None)
        kinds = {
            (self._dtypes[g.left.tensor], self._dtypes[g.out.tensor], (g.left_transposed, g.right_transposed))
            for g in gemms
        }
        reason = None
        if not alone:
            reason = "the launch holds sums or copies as well"
        elif len(kinds) > 1:
            reason = "works differ in types or layout"
        elif len(works) < len(made):
            reason = "an operand's columns are not side by side"
        first = gemms[0]
        types = self._dtypes[first.left.tensor], self._dtypes[first.out.tensor]
        return _Products(works, *types, (first.left_transposed, first.right_transposed), reason)


def _throttled(rank: int, gemms: Sequence[ir.Gemm], out_dtype: str, streamed: bool) -> bool | None:
    """Stores at peers are; those of a streamed stage end too late for whom they are signalled."""
    if out_dtype == "fp32":
        return False
    return True if any(g.out.rank != rank for g in gemms) else False if streamed else None
