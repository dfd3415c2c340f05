"""The GEMM for tensor cores since Ampere as a family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...machine.model import Device
from ..by_address import Compiled, configure, refusal, tables, wave
from ..family import Chosen, GemmRequest, KernelConfig, LaunchRequest, Tables
from ..gemm import MatrixGemm, gemm_of
from ..leaving import NO_ROOM, footprint, shapes
from ..occupancy import Limits, window
from ..pace import Pace
from ..room import Footprint, Shape
from ..tiles import DEPTH
from ..works import Work
from .choice import Choice, choose
from .cost import pace, splits
from .variants import LONGEST, SOURCE, VARIANTS, Variant, options, serves


@lru_cache(maxsize=4096)
def _chosen(
    rows: Sequence[int],
    columns: Sequence[int],
    k: int,
    sms: int,
    budgets: tuple[tuple[int, int], ...],
    exactly: bool,
    variants: tuple[Variant, ...] = VARIANTS,
) -> Choice | None:
    return choose(rows, columns, k, sms, dict(budgets), exactly, variants)


def _gemm(works: Sequence[Work]) -> MatrixGemm | str:
    gemm = gemm_of(works)
    if isinstance(gemm, str):
        return gemm
    return refusal(gemm.works, gemm.signature, LONGEST) or gemm


@dataclass(frozen=True, slots=True)
class Sm80:
    name: str = "sm80"
    source: str = SOURCE.name
    variants: tuple[Variant, ...] = VARIANTS

    def serves(self, arch: str) -> bool:
        return serves(arch)

    def footprints(self, limits: Limits) -> Sequence[Footprint]:
        return [footprint(v, v.smem(2)) for v in self.variants]

    def fits(self, request: GemmRequest) -> str | None:
        gemm = _gemm(request.works)
        return gemm if isinstance(gemm, str) else None

    def choose(self, request: GemmRequest, limits: Limits) -> Chosen | str:
        gemm = _gemm(request.works)
        if isinstance(gemm, str):
            return gemm
        left = window(request.residency, request.smem, limits)
        if isinstance(left, str):
            return left
        if request.leave:
            return self._leaving(gemm, request, limits)
        if request.residency is not None:
            budgets = {request.residency: left.most}
        elif request.smem is not None:
            budgets = {max(1, limits.smem_per_sm // (request.smem + limits.smem_reserved)): left.most}
        else:
            most = max(v.residency for v in self.variants)
            if request.sms not in (None, limits.sms) and not request.streamed:  # see `at_once`
                most = 1
            shares = {r: limits.smem_per_sm // r - limits.smem_reserved for r in range(1, most + 1)}
            budgets = {r: min(left.most, share) for r, share in shares.items()}
        exactly, sms = request.residency is not None, request.sms or limits.sms
        chosen = _chosen(gemm.rows, gemm.columns, gemm.depth, sms, tuple(budgets.items()), exactly)
        if chosen is None:
            return f"no variant fits {left.most} bytes of shared memory" + (
                f" and residency = {request.residency}" if exactly else ""
            )
        v = chosen.variant
        stages = v.stages(chosen.budget)
        smem = request.smem if request.smem is not None else max(v.smem(stages), left.least)
        return Chosen(self.name, v.name, (*v.tile, DEPTH), stages, smem, request.residency, request.sms)

    def _leaving(self, gemm: MatrixGemm, request: GemmRequest, limits: Limits) -> Chosen | str:
        """The variant that is fastest of those that leave room for others."""
        sms = request.sms or limits.sms
        best: tuple[Choice, Shape] | None = None
        for number, s in shapes(self.footprints(limits), request, limits):
            variant = self.variants[number]
            budgets = ((s.blocks, s.most if request.smem is None else request.smem),)
            found = _chosen(gemm.rows, gemm.columns, gemm.depth, sms, budgets, True, (variant,))
            if found is not None and (best is None or found.estimate < best[0].estimate):
                best = found, s
        if best is None:
            return NO_ROOM
        (chosen, s) = best
        v = chosen.variant
        stages = v.stages(chosen.budget)
        smem = request.smem if request.smem is not None else max(v.smem(stages), s.least)
        return Chosen(self.name, v.name, (*v.tile, DEPTH), stages, smem, request.residency, request.sms)

    def configure(self, request: LaunchRequest, limits: Limits) -> tuple[KernelConfig, ...] | str:
        gemm = _gemm(request.works)
        if isinstance(gemm, str):
            return gemm
        v = next(v for v in self.variants if v.name == request.kernel)
        stages = v.stages(request.smem)
        if stages < 2:
            return f"{v.name} does not fit {request.smem} bytes of shared memory"
        blocks = wave(v, request.smem, request.sms, limits)
        # works of a streamed launch come to an end one by one: none is the last wave
        tail = 1 if request.streamed else splits(v, gemm.rows, gemm.columns, gemm.depth, blocks)
        compiled = Compiled(self.name, self.source, options(v, gemm.signature, limits.arch), v)
        smem = max(request.smem, v.smem(stages))
        return (configure(compiled, gemm, request, limits, stages=stages, smem=smem, tail_splits=tail),)

    def pace(self, config: KernelConfig, device: Device, dtype: str) -> Pace:
        v = next(v for v in self.variants if v.name == config.kernel)
        return pace(v, config.blocks, config.stages, device, dtype)

    def tables(self, config: KernelConfig, works: Sequence[Work], resets: Sequence[int] = ()) -> Tables:
        return tables(config, works, next(v for v in self.variants if v.name == config.kernel))


SM80 = Sm80()
