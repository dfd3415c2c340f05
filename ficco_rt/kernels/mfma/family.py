"""The GEMM of AMD's matrix cores as a family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...machine.model import Device
from ..by_address import Compiled, configure, refusal, tables
from ..family import Chosen, GemmRequest, KernelConfig, LaunchRequest, Tables
from ..gemm import MatrixGemm, gemm_of
from ..leaving import NO_ROOM, footprint, shapes
from ..occupancy import Limits, window
from ..pace import Pace
from ..room import Footprint
from ..works import Work
from .choice import Choice, choose
from .cost import pace, splits
from .variants import ARCHS, LONGEST, SOURCE, STAGES, VARIANTS, Variant, options

_chosen = lru_cache(maxsize=4096)(choose)


def _gemm(works: Sequence[Work]) -> MatrixGemm | str:
    gemm = gemm_of(works)
    if isinstance(gemm, str):
        return gemm
    return refusal(gemm.works, gemm.signature, LONGEST) or gemm


@dataclass(frozen=True, slots=True)
class Mfma:
    name: str = "mfma"
    source: str = SOURCE.name
    variants: tuple[Variant, ...] = VARIANTS

    def serves(self, arch: str) -> bool:
        return arch in ARCHS

    def fits(self, request: GemmRequest) -> str | None:
        gemm = _gemm(request.works)
        return gemm if isinstance(gemm, str) else None

    def footprints(self, limits: Limits) -> Sequence[Footprint]:
        return [footprint(v, v.smem) for v in self.variants]

    def choose(self, request: GemmRequest, limits: Limits) -> Chosen | str:
        gemm = _gemm(request.works)
        if isinstance(gemm, str):
            return gemm
        left = window(request.residency, request.smem, limits)
        if isinstance(left, str):
            return left
        if request.leave:
            return self._leaving(gemm, request, limits)
        least, sms = left.least if request.smem is None else request.smem, request.sms or limits.sms
        chosen = _chosen(
            gemm.rows, gemm.columns, gemm.depth, sms, limits.arch, least=least, most=left.most,
            residency=request.residency,
        )  # fmt: skip
        if chosen is None:
            return f"no variant fits {left.most} bytes of LDS" + (
                f" and residency = {request.residency}" if request.residency is not None else ""
            )
        v = chosen.variant
        return Chosen(self.name, v.name, (*v.tile, v.step), STAGES, max(v.smem, least), request.residency, request.sms)

    def _leaving(self, gemm: MatrixGemm, request: GemmRequest, limits: Limits) -> Chosen | str:
        """The variant that is fastest of those that leave room for others."""
        sms = request.sms or limits.sms
        best: tuple[Choice, int] | None = None
        for number, s in shapes(self.footprints(limits), request, limits):
            v = self.variants[number]
            smem = max(v.smem, s.least) if request.smem is None else request.smem
            found = _chosen(
                gemm.rows, gemm.columns, gemm.depth, sms, limits.arch, least=smem, most=smem, residency=s.blocks,
                variants=(v,),
            )  # fmt: skip
            if found is not None and (best is None or found.estimate < best[0].estimate):
                best = found, smem
        if best is None:
            return NO_ROOM
        v, smem = best[0].variant, best[1]
        return Chosen(self.name, v.name, (*v.tile, v.step), STAGES, smem, request.residency, request.sms)

    def configure(self, request: LaunchRequest, limits: Limits) -> tuple[KernelConfig, ...] | str:
        gemm = _gemm(request.works)
        if isinstance(gemm, str):
            return gemm
        v = next(v for v in self.variants if v.name == request.kernel)
        smem = max(v.smem, request.smem)
        # works of a streamed launch come to an end one by one: none is the last wave
        streamed, sms = request.streamed, request.sms
        tail = 1 if streamed else splits(v, gemm.rows, gemm.columns, gemm.depth, sms, limits.arch, smem)
        compiled = Compiled(self.name, self.source, options(v, gemm.signature, limits.arch), v)
        return (configure(compiled, gemm, request, limits, stages=STAGES, smem=smem, tail_splits=tail),)

    def pace(self, config: KernelConfig, device: Device, dtype: str) -> Pace:
        v = next(v for v in self.variants if v.name == config.kernel)
        return pace(v, config.blocks, device, dtype)

    def tables(self, config: KernelConfig, works: Sequence[Work], resets: Sequence[int] = ()) -> Tables:
        return tables(config, works, next(v for v in self.variants if v.name == config.kernel))


MFMA = Mfma()
