"""The kernel family of tensor cores since Ampere: `src/sm80_gemm.cu`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...machine.model import Device
from ..by_address import AddressFamily, Way
from ..family import GemmRequest, KernelConfig
from ..gemm_launch import MatrixGemm
from ..occupancy import Limits, Window
from ..pace import Pace
from ..signature import Signature
from ..target import compute_capability
from . import cost
from .variants import LONGEST, SOURCE, VARIANTS, Variant


class Sm80(AddressFamily[Variant]):
    name = "sm80"
    source = SOURCE.name
    variants = VARIANTS
    instructions = "mma.sync, cp.async"
    longest = LONGEST
    dtypes = ("bf16", "fp16", "fp32")
    accesses = (16, 4, 2)

    def serves(self, arch: str) -> bool:
        return (compute_capability(arch) or 0) >= 80

    def made_for(self, arch: str) -> bool:
        """Later tensor cores need other instructions."""
        return 80 <= (compute_capability(arch) or 0) < 89

    def reached(self, device: Device, dtype: str) -> float:
        return cost.reached(device, dtype)

    def takes(self, v: Variant, signature: Signature) -> bool:
        """What goes through registers leaves less room for sums."""
        return signature.access == 16 or v.residency > 3 or (signature.access == 4 and v.residency < 3)

    def ways(self, left: Window, request: GemmRequest, limits: Limits) -> Iterator[Way[Variant]]:
        """As many blocks share a multiprocessor as are asked for, or as their shared memory lets, or any number."""
        if request.residency is not None:
            budgets = {request.residency: left.most}
        elif request.smem is not None:
            budgets = {max(1, limits.smem_per_sm // (request.smem + limits.smem_reserved)): left.most}
        else:
            most = max(v.residency for v in self.variants)
            if request.streamed or request.sms not in (None, limits.sms):  # see `at_once`
                most = 1
            shares = {r: limits.smem_per_sm // r - limits.smem_reserved for r in range(1, most + 1)}
            budgets = {r: min(left.most, share) for r, share in shares.items()}
        for v in self.variants:
            for shared, budget in budgets.items():
                if request.residency is None or v.residency >= shared:
                    yield Way(v, min(shared, v.residency), left.least, budget)

    def estimate(
        self, way: Way[Variant], rows: Sequence[int], columns: Sequence[int], k: int, sms: int, arch: str
    ) -> tuple[float, int]:
        v, of = way.variant, way.signature
        reached = cost.rate(v, way.residency, way.stages, of) / cost.slower(of, v.warps * way.residency)
        return cost.alone(v, way.residency, rows, columns, k, sms * way.residency, reached, of.step)

    def splits(self, v: Variant, gemm: MatrixGemm, sms: int, blocks: int, smem: int, arch: str) -> int:
        of = gemm.signature
        reached = 1.0 / cost.slower(of, v.warps * max(1, blocks // sms))
        return cost.alone(v, 1, gemm.rows, gemm.columns, gemm.depth, blocks, reached, of.step)[1]

    def pace(self, config: KernelConfig, device: Device, dtype: str) -> Pace:
        tf32 = "-DTF32=1" in config.options
        of = Signature(dtype, dtype, False, False, access=config.alignment, tf32=tf32)
        return cost.pace(self.variant(config.kernel), config.blocks, config.stages, device, of)


SM80 = Sm80()
