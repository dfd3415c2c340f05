"""The kernels that there are: variants by type, layout, and with addends or without."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm80.family import SM80
from ficco_rt.kernels.sm90 import choice, cost
from ficco_rt.kernels.sm90 import variants as sm90

Variant = sm80.Variant | sm90.Variant


@dataclass(frozen=True)
class Key:
    """One kernel."""

    variant: Variant
    signature: Signature

    @property
    def entry(self) -> str:
        return self.signature.entry(self.variant.name)

    @property
    def exists(self) -> bool:
        """Whether there is such a kernel: the Hopper one's addends and output are of the operands' type, and
        transposed tiles have no transposed left operand."""
        v, s = self.variant, self.signature
        if isinstance(v, sm80.Variant):
            return SM80.takes(v, s)
        if v.swapped and s.left_transposed:
            return False
        return v.takes(s) and not (s.addends and s.dtype != s.out_dtype)

    def stages(self, smem: int) -> int:
        """The deepest pipeline that so much shared memory holds."""
        v = self.variant
        if not isinstance(v, sm90.Variant):
            return v.stages(smem)
        return v.stages(smem, self.signature.right_transposed, self.signature.scaling)


def variants_of(kernel: str) -> tuple[Variant, ...]:
    return (*sm90.VARIANTS, *sm90.ODD) if kernel == "sm90" else sm80.VARIANTS


def odd_of(m: int, n: int, k: int, sms: int, right_t: bool) -> list[sm90.Variant]:
    """Of the Hopper kernel's tiles of any height or width the twelve that are estimated fastest."""
    found = choice.worthwhile(sm90.ODD, [m], [n], sms, right_t)
    return sorted(found, key=lambda v: cost.alone(v, [m], [n], k, sms, 0, True, cost.LINES, right_t))[:12]


def adds_up(v: Variant) -> bool:
    """Whether it can add to what its output holds."""
    return isinstance(v, sm80.Variant) or not v.swapped


def most_splits(v: Variant, rows: int, n: int, k: int, groups: int) -> int:
    """Into how many parts K of the last wave may be cut: of a product of so many rows, by `groups` clusters at once."""
    tail = math.ceil(rows / v.tile[0] / v.cluster) * math.ceil(n / v.tile[1]) % groups
    return max(1, min(16, groups // tail if tail else 1, k // 256))


def parts_worth_a_try(v: Variant, *most: int) -> list[int]:
    """1 and these, or the one number of parts that the variant is made for."""
    return [v.parts] if isinstance(v, sm90.Variant) and v.parts > 1 else sorted({1, *(max(1, n) for n in most)})


def named(v: Variant, only: str) -> bool:
    """Whether any of the parts of names that were asked for is in the variant's."""
    return any(part in v.name for part in only.split(","))


def keys_of(kernel: str, only: str) -> list[Key]:
    """Of all variants the bf16 kernels, of some those of other types too; whose names have what was asked for, without
    that some of any height or width."""
    free = set() if only else {*sm90.ODD} - {*sm90.ODD[::16]}
    variants = [v for v in variants_of(kernel) if v not in free]
    keys = [
        Key(v, Signature("bf16", "bf16", lt, rt, addends))
        for v in variants for lt in (False, True) for rt in (False, True) for addends in (False, True)
    ]  # fmt: skip
    others = (("fp16", "fp16", False, True), ("bf16", "fp32", False, False), ("fp16", "fp32", False, True))
    # the last of each kind, too
    kinds = {
        (v.throttled, v.pingpong, v.swapped, v.staging) if isinstance(v, sm90.Variant) else (): v for v in variants
    }
    for v in dict.fromkeys((variants[0], variants[3], min(variants, key=lambda v: v.tile), *kinds.values())):
        keys += [Key(v, Signature(*other, addends)) for other in others for addends in (False, True)]
    if kernel == "sm80":  # fp32, TF32 and what is not aligned, in a layout of each tile
        ways = [("bf16", 2, False), ("bf16", 4, False), ("fp32", 16, False), ("fp32", 4, False)]
        ways += [("fp32", 16, True), ("fp32", 4, True)]
        for i, v in enumerate(sm80.VARIANTS):
            for j, (dtype, access, tf32) in enumerate(ways):
                turned = i + j & 1 > 0, i + j & 2 > 0
                keys.append(Key(v, Signature(dtype, dtype, *turned, j % 3 == 1, access=access, tf32=tf32)))
        last = sm80.VARIANTS[-1]
        keys += [Key(last, Signature("bf16", "fp32", lt, True, access=2)) for lt in (False, True)]
    return [key for key in keys if any(part in key.entry for part in only.split(",")) and key.exists]
