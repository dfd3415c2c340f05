"""Random pieces of matrices, and an interpreter of the tables of tiles that the tensor-core GEMMs read."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels import tiles
from ficco_rt.kernels.tile_table import Table


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


@st.composite
def addends(draw: st.DrawFn, m: int, n: int, step: int, dtypes: tuple[str, ...]) -> tuple[tiles.Addend, ...]:
    """Up to four addends of an m × n product, in up to four matrices; columns that start at multiples of 8."""
    found = []
    for _ in range(draw(st.integers(0, 4))):
        rows = draw(pieces(m, 1))
        columns = draw(pieces(-(-n // step) * step, step))
        *others, last = columns
        columns = (*others, Interval(last.start, last.stop - -n % step))
        address = (4 + draw(st.integers(0, 3))) << 20
        # one shape: addends that lie in one matrix name the same one
        found.append(
            tiles.Addend(
                tiles.MatrixOperand(tiles.Matrix(address, 4096, 4096, 4096), rows, columns),
                draw(st.sampled_from(dtypes)),
            )
        )
    return tuple(found)


def assert_addends(table: Table, work: tiles.MatrixWork, staged: bool) -> None:
    """Each element of the output has each of its addends once, if `staged` by one of its splits, else by all."""
    if not work.addends:
        assert len(table.tile_addends) == len(table.addends) == 0
        return
    assert len(table.tile_addends) == len(table.tiles)
    rows, columns = ({e: i for i, e in enumerate(flat(s).tolist())} for s in (work.out_rows, work.out_columns))
    places = [(t.operand.matrix, flat(t.operand.rows), flat(t.operand.columns)) for t in work.addends]
    for t, a in zip(table.tiles, table.tile_addends, strict=True):
        wanted = 0 if staged and t["split"] else len(places)
        assert a["count"] == wanted
        assert a["wait_count"] == (len(work.addend_waits) if wanted else 0)
        first = int(a["wait_first"])
        assert table.flags[first : first + int(a["wait_count"])].tolist() == list(work.addend_waits)[: 9 * wanted]
        if not t["rows"]:
            continue
        r, c = rows[int(t["out_row"])], columns[int(t["out_col"])]
        for record, (matrix, from_rows, from_columns) in zip(
            table.addends[int(a["first"]) : int(a["first"]) + int(a["count"])], places, strict=False
        ):
            assert table.matrices[record["matrix"]] == matrix
            high, wide = int(t["rows"]), int(t["cols"])
            assert from_rows[r : r + high].tolist() == list(range(record["row"], record["row"] + high))
            assert from_columns[c : c + wide].tolist() == list(range(record["col"], record["col"] + wide))


def assert_whole(
    table: Table, work: tiles.MatrixWork, left_transposed: bool, right_transposed: bool, step: int = tiles.DEPTH
) -> None:
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
            size = int(d["size"])
            assert -(-abs(size) // step) == n
            start = step * (n - 1) if size < 0 else 0  # of the last step, from which it goes backwards
            of_piece = [(int(d["left"]) - start + i, int(d["right"]) - start + i) for i in range(abs(size))]
            pairs = of_piece + pairs if size < 0 else pairs + of_piece
            left, at = left - n, at + 1
        if t["splits"] == 1:
            assert pairs == depth
        elif t["rows"] and t["cols"]:
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
