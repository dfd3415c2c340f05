"""Random pieces of matrices, and an interpreter of the tables of tiles that the tensor-core GEMMs read."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ficco_rt.kernels import tiles
from ficco_rt.region import Interval


@st.composite
def pieces(draw: st.DrawFn, size: int, step: int) -> tuple[Interval, ...]:
    """Disjoint pieces that sum to `size`, in any order; edges at multiples of `step`."""
    units = size // step
    cuts = sorted(draw(st.sets(st.integers(1, units - 1), max_size=3))) if units > 1 else []
    at, out = 0, []
    for a, b in zip([0, *cuts], [*cuts, units], strict=True):
        at += draw(st.integers(0, 3))
        out.append(Interval(at * step, (at + b - a) * step))
        at += b - a
    return tuple(draw(st.permutations(out)))


def flat(spans: tuple[Interval, ...]) -> np.ndarray:
    return np.concatenate([np.arange(s.start, s.stop) for s in spans])


def matrix(address: int, rows: tuple[Interval, ...], columns: tuple[Interval, ...]) -> tiles.Matrix:
    high, wide = max(s.stop for s in rows), max(s.stop for s in columns)
    return tiles.Matrix(address, high, wide, -(-wide // 8) * 8)


def assert_whole(table: tiles.Table, work: tiles.Work, left_transposed: bool, right_transposed: bool) -> None:
    """Every element of the work's output is made once, from its row of the left and its column of the right operand,
    over all of K."""
    # where each element of the output must come from
    left_axis = work.left_columns if left_transposed else work.left_rows
    right_axis = work.right_rows if right_transposed else work.right_columns
    rows = dict(zip(flat(work.out_rows).tolist(), flat(left_axis).tolist(), strict=True))
    columns = dict(zip(flat(work.out_columns).tolist(), flat(right_axis).tolist(), strict=True))
    left_depth, right_depth = tiles.depths_of(work, left_transposed, right_transposed)
    depth = list(zip(flat(left_depth).tolist(), flat(right_depth).tolist(), strict=True))
    made = np.zeros((work.out.rows, work.out.columns), int)
    slots: dict[int, int] = {}
    seen: dict[tuple[int, int], list[tuple[int, list[tuple[int, int]]]]] = {}
    for t in table.tiles:
        r = np.arange(t["rows"]) + t["out_row"]
        c = np.arange(t["cols"]) + t["out_col"]
        assert [rows[i] for i in r.tolist()] == list(range(t["left_row"], t["left_row"] + t["rows"]))
        assert [columns[i] for i in c.tolist()] == list(range(t["right_col"], t["right_col"] + t["cols"]))
        assert t["k_blocks"] > 0
        if t["split"] == 0:
            made[np.ix_(r, c)] += 1
        pairs: list[tuple[int, int]] = []
        left, at = int(t["k_blocks"]), int(t["k_first"])
        while left:
            d = table.depths[at]
            n = int(d["blocks"])
            assert 0 < n <= left
            assert -(-int(d["size"]) // tiles.DEPTH) == n
            pairs += [(int(d["left"]) + i, int(d["right"]) + i) for i in range(int(d["size"]))]
            left, at = left - n, at + 1
        if t["splits"] == 1:
            assert pairs == depth
        elif t["rows"]:
            seen.setdefault((int(t["out_row"]), int(t["out_col"])), []).append((int(t["split"]), pairs))
            assert slots.setdefault(int(t["slot"]), int(t["out_row"]) << 32 | int(t["out_col"])) == (
                int(t["out_row"]) << 32 | int(t["out_col"])
            )
        assert t["splits"] == 1 or t["slot"] + t["splits"] <= table.partials
    for parts in seen.values():
        parts.sort()
        assert [s for s, _ in parts] == list(range(len(parts)))
        assert [p for _, pairs in parts for p in pairs] == depth
    wanted = np.zeros_like(made)
    wanted[np.ix_(flat(work.out_rows), flat(work.out_columns))] = 1
    assert np.array_equal(made, wanted)
