"""The kernels that there are: variants by type, layout, and with terms or without."""

from __future__ import annotations

from typing import NamedTuple

from ficco_rt.kernels import sm80, sm90, tiles

Variant = sm80.Variant | sm90.Variant


class Key(NamedTuple):
    """One kernel."""

    variant: Variant
    dtype: str
    out_dtype: str
    left_t: bool
    right_t: bool
    terms: bool

    @property
    def entry(self) -> str:
        return tiles.entry_of(self.variant.name, *self[1:])

    @property
    def exists(self) -> bool:
        """Whether there is such a kernel: the Hopper one's terms and output are of the operands' type."""
        v = self.variant
        return isinstance(v, sm80.Variant) or (
            v.stores(self.out_dtype) and not (self.terms and self.dtype != self.out_dtype)
        )


def variants_of(kernel: str) -> tuple[Variant, ...]:
    return sm90.VARIANTS if kernel == "sm90" else sm80.VARIANTS


def named(v: Variant, only: str) -> bool:
    """Whether any of the parts of names that were asked for is in the variant's."""
    return any(part in v.name for part in only.split(","))


def keys_of(kernel: str, only: str) -> list[Key]:
    """Of all variants the bf16 kernels, of some those of other types too; whose names have what was asked for."""
    variants = variants_of(kernel)
    lefts = (False,) if kernel == "sm90" else (False, True)
    keys = [
        Key(v, "bf16", "bf16", lt, rt, terms)
        for v in variants for lt in lefts for rt in (False, True) for terms in (False, True)
    ]  # fmt: skip
    others = (("fp16", "fp16", False, True), ("bf16", "fp32", False, False), ("fp16", "fp32", False, True))
    # the last of each kind, too
    kinds = {(v.paced, v.pingpong, v.staging) if isinstance(v, sm90.Variant) else (): v for v in variants}
    for v in dict.fromkeys((variants[0], variants[3], min(variants, key=lambda v: v.tile), *kinds.values())):
        keys += [Key(v, *other, terms) for other in others for terms in (False, True)]
    return [key for key in keys if any(part in key.entry for part in only.split(",")) and key.exists]
