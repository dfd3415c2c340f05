"""Random sizes and pieces of a product."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80

from .variants import Variant

Pieces = tuple[Interval, ...]


@dataclass(frozen=True)
class Geometry:
    """A product of m × n × k, and the pieces that it takes of each dimension of its matrices, which are larger."""

    m: int
    n: int
    k: int
    total_m: int
    total_n: int
    total_k: int
    left_m: Pieces
    out_m: Pieces
    right_n: Pieces
    out_n: Pieces
    left_k: Pieces
    right_k: Pieces


def pieces(rng: random.Random, total: int, n: int, step: int, size: int) -> Pieces:
    """n disjoint pieces of `total`, in random order, that sum to `size`; edges at multiples of `step`."""
    units, room = size // step, total // step
    cuts = sorted(rng.sample(range(1, units), min(n, units) - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, units], strict=True)]
    slack = sorted(rng.randint(0, room - units) for _ in sizes)
    at, out = 0, []
    for s, shift in zip(sizes, slack, strict=True):
        out.append(Interval((at + shift) * step, (at + s + shift) * step))
        at += s
    rng.shuffle(out)
    return tuple(out)


def ragged(rng: random.Random, total: int, n: int, size: int, step: int = 8) -> Pieces:
    """As `pieces` at multiples of `step`, but that the last ends anywhere."""
    *others, last = pieces(rng, total, n, step, -(-size // step) * step)
    return (*others, Interval(last.start, last.stop - -size % step))


def draw_geometry(rng: random.Random, v: Variant, signature: Signature, most: int) -> Geometry:
    """Sizes up to `most`, in one to three pieces each, as the kernel can take them."""
    left_t = signature.left_transposed
    parts = [rng.randint(1, 3) for _ in range(6)]
    several = rng.random() < 0.4
    if isinstance(v, sm80.Variant):
        return _sm80_geometry(
            rng, parts, left_t, most, 8 if signature.access == 16 else signature.access // signature.item
        )
    return _sm90_geometry(rng, parts if several else [*parts[:4], 1, 1], 64 if several else 8, left_t, most)


def _sm80_geometry(rng: random.Random, parts: list[int], left_t: bool, most: int, step: int) -> Geometry:
    """Pieces along stored rows begin at multiples of `step`, and all end anywhere."""
    m, n, k = (rng.randint(1, most) for _ in range(3))
    total_m, total_n, total_k = (-(-size // step) * step + rng.randint(0, 9) * step for size in (m, n, k))
    at = 1 if not left_t else step
    left_m, out_m = ragged(rng, total_m, parts[0], m, at), ragged(rng, total_m, parts[1], m, at)
    right_n, out_n = ragged(rng, total_n, parts[2], n, step), ragged(rng, total_n, parts[3], n, step)
    left_k, right_k = ragged(rng, total_k, parts[4], k, step), ragged(rng, total_k, parts[5], k, step)
    return Geometry(m, n, k, total_m, total_n, total_k, left_m, out_m, right_n, out_n, left_k, right_k)


def _sm90_geometry(rng: random.Random, parts: list[int], depth: int, left_t: bool, most: int) -> Geometry:
    """Pieces of columns are of multiples of 8, but that rows of the product that lie along these end anywhere; pieces
    of K of multiples of `depth`."""
    m, n = rng.randint(1, most), rng.randint(1, most // 8) * 8
    k = rng.randint(2, max(2, most // 64)) * 64 if depth == 64 else rng.randint(1, most // 8) * 8
    total_m, total_n = (m + rng.randint(0, 90) + 7) // 8 * 8, n + rng.randint(0, 9) * 8
    total_k = k + rng.randint(0, 3) * 64
    if left_t:
        left_m, out_m = ragged(rng, total_m, parts[0], m), ragged(rng, total_m, parts[1], m)
    else:
        left_m, out_m = pieces(rng, total_m, parts[0], 1, m), pieces(rng, total_m, parts[1], 1, m)
    right_n, out_n = pieces(rng, total_n, parts[2], 8, n), pieces(rng, total_n, parts[3], 8, n)
    left_k, right_k = pieces(rng, total_k, parts[4], depth, k), pieces(rng, total_k, parts[5], depth, k)
    return Geometry(m, n, k, total_m, total_n, total_k, left_m, out_m, right_n, out_n, left_k, right_k)
