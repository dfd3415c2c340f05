"""The kernel family of AMD's matrix cores: `src/mfma_gemm.hip`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import UsageError
from ...machine.model import Device
from ..by_address import AddressFamily, Way
from ..family import GemmRequest, KernelConfig, LaunchRequest
from ..gemm_launch import MatrixGemm
from ..occupancy import Limits, Window
from ..pace import Pace
from . import cost
from .variants import ARCHS, LONGEST, SOURCE, STAGES, VARIANTS, Variant


class Mfma(AddressFamily[Variant]):
    name = "mfma"
    source = SOURCE.name
    variants = VARIANTS
    instructions = "MFMA"
    longest = LONGEST
    memory = "LDS"

    def serves(self, arch: str) -> bool:
        return arch in ARCHS

    def ways(self, left: Window, request: GemmRequest, limits: Limits) -> Iterator[Way[Variant]]:
        least = left.least if request.smem is None else request.smem
        for v in self.variants:
            if v.residency >= (request.residency or 1):
                yield Way(v, cost.sharing(v, max(v.smem(STAGES), least)), least, left.most)

    def estimate(
        self, way: Way[Variant], rows: Sequence[int], columns: Sequence[int], k: int, sms: int, arch: str
    ) -> tuple[float, int]:
        return cost.alone(way.variant, way.residency, rows, columns, k, sms, arch)

    def splits(self, v: Variant, gemm: MatrixGemm, sms: int, blocks: int, smem: int, arch: str) -> int:
        return cost.alone(v, cost.sharing(v, smem), gemm.rows, gemm.columns, gemm.depth, sms, arch)[1]

    def budget(self, v: Variant, request: LaunchRequest) -> int:
        """The pipeline depth is fixed (STAGES)."""
        return max(v.smem(STAGES), request.smem)

    def configure(self, request: LaunchRequest, limits: Limits) -> tuple[KernelConfig, ...] | str:
        """Raises UsageError if the architecture lacks the kernel's instructions: their times, by which K is split, are
        unknown there."""
        if not self.serves(limits.arch):
            raise UsageError(
                f"the plan has kernel {request.kernel}, whose instructions {limits.arch} does not have; compile the "
                "schedule for the machine that it runs on"
            )
        return super().configure(request, limits)

    def pace(self, config: KernelConfig, device: Device, dtype: str) -> Pace:
        return cost.pace(self.variant(config.kernel), config.blocks, device, dtype)


MFMA = Mfma()
