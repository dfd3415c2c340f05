"""Multiplies the value of a claim by vectors without computing the value: (A · B) · x is A · (B · x).

If a product of integers is right, the product of the result with any vector is right, too. If a row is wrong, a random
vector shows it, except with probability 1/65,537 (Freivalds, "Probabilistic machines can use less running time", 1977).
This check takes one pass over the operands and the result, and no matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..driver.api import Array
from ..graph.ir import Added, Applied, ClaimValue, Combined, Operand, Product
from .reference import Inputs, cuts, extent, take

LARGEST = 2**15  # of a vector's elements; sums of 2³² products of such with integers up to 8 are exact in float64
ROWS = 2**10  # that are widened at a time


def vectors(value: ClaimValue, seed: int) -> list[Array]:
    """A random vector for each rank's value, as a matrix of one column."""
    rng = np.random.default_rng((seed, 1))
    shapes = extent(value).shapes
    return [rng.integers(-LARGEST, LARGEST, (s[-1], 1), endpoint=True).astype(np.float64) for s in shapes]


def project(value: ClaimValue, by: Sequence[Array], inputs: Inputs) -> list[Array]:
    """Each rank's value, a matrix, times the rank's matrix in `by`, in float64."""
    match value:
        case Operand(regions=regions, transposed=transposed):
            parts = [np.atleast_2d(take(inputs[r.tensor][r.rank], r)) for r in regions]
            return [times(p.T if transposed else p, x) for p, x in zip(parts, by, strict=True)]
        case Product(left=left, right=right):
            return project(left, project(right, by, inputs), inputs)
        case Added(left=left, right=right):
            return [a + b for a, b in zip(project(left, by, inputs), project(right, by, inputs), strict=True)]
        case Applied():
            raise ValueError(f"a product with {value.function} is no product of its arguments")
        case Combined():
            return _combined(value, by, inputs)


def times(matrix: Array, by: Array) -> Array:
    """matrix · by, in float64, some rows at a time."""
    result = np.empty((matrix.shape[0], by.shape[1]))
    for at in range(0, len(matrix), ROWS):
        np.matmul(matrix[at : at + ROWS].astype(np.float64), by, out=result[at : at + ROWS])
    return result


def _combined(value: Combined, by: Sequence[Array], inputs: Inputs) -> list[Array]:
    """Rank r's value is made of parts P_s of the operands of all ranks s: their sum, or they stand side by side. So
    each operand is multiplied once, by all that ranks need of it, next to each other."""
    ranks = range(len(by))
    shapes = extent(value.operand).shapes
    lengths = [s[value.axis] for s in shapes]
    pieces = cuts(value)
    summed = value.kind in ("all_reduce", "reduce_scatter")

    def part(s: int, r: int) -> tuple[int, int]:
        """Where what rank r takes of rank s's operand lies in it, along the axis."""
        return (0, lengths[s]) if value.kind in ("all_reduce", "all_gather") else (pieces[s][r], pieces[s][r + 1])

    def place(s: int, r: int) -> tuple[int, int]:
        """Where it comes to lie in rank r's value."""
        start, stop = part(s, r)
        at = 0 if summed else sum(b - a for a, b in (part(before, r) for before in range(s)))
        return at, at + stop - start

    def factor(s: int, r: int) -> Array:
        """What rank s's operand is multiplied by for rank r."""
        if value.axis == 0:
            return by[r]
        padded = np.zeros((shapes[s][1], by[r].shape[1]))
        padded[slice(*part(s, r))] = by[r][slice(*place(s, r))]
        return padded

    widths = np.cumsum([0, *(x.shape[1] for x in by)])
    found = project(value.operand, [np.hstack([factor(s, r) for r in ranks]) for s in ranks], inputs)
    results = []
    for r in ranks:
        mine = [found[s][:, widths[r] : widths[r + 1]] for s in ranks]
        if value.axis == 0:
            mine = [m[slice(*part(s, r))] for s, m in enumerate(mine)]
        results.append(sum(mine[1:], mine[0]) if summed or value.axis == 1 else np.vstack(mine))
    return results
