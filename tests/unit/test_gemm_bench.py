"""`tools/gemm_bench`, what of it needs no PyTorch: the kernels that are checked, random geometry, what is missing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import variants as sm90
from tests import warm
from tools.gemm_bench.geometry import Pieces, draw_geometry
from tools.gemm_bench.variants import keys_of, named, variants_of

ROOT = Path(__file__).resolve().parents[2]
MOST = 300


@pytest.mark.parametrize("kernel", ["sm80", "sm90"])
def test_every_variant_is_checked_in_each_layout_with_terms_and_without(kernel: str) -> None:
    keys = keys_of(kernel, "")
    assert len(set(keys)) == len(keys)
    wanted = {
        (v, lt, rt, s)
        for v in variants_of(kernel) for lt in (0, 1) for rt in (0, 1) for s in (0, 1)
        if v not in sm90.ODD or v in sm90.ODD[::16]
        if not (isinstance(v, sm90.Variant) and ((s and not v.adds) or (lt and v.swapped)))
    }  # fmt: skip
    kinds = [(k.variant, k.signature) for k in keys if k.signature.access == 16 and k.signature.dtype != "fp32"]
    assert {(v, *s.transposed, s.addends) for v, s in kinds if s.dtype == s.out_dtype == "bf16"} == wanted
    assert {(s.dtype, s.out_dtype) for _, s in kinds} == {
        ("bf16", "bf16"), ("bf16", "fp32"), ("fp16", "fp16"), ("fp16", "fp32")
    }  # fmt: skip
    assert all(k.entry.startswith(k.variant.name) for k in keys)


def test_what_was_asked_for_is_any_part_of_a_name() -> None:
    keys = keys_of("sm90", "128x160_c2,256x160")
    assert {k.variant for k in keys} == {
        v for v in (*sm90.VARIANTS, *sm90.ODD) if "128x160_c2" in v.name or "256x160" in v.name
    }
    assert all(named(k.variant, "128x160_c2,256x160") for k in keys)
    assert not keys_of("sm90", "nothing")


def test_odd_shapes_name_what_was_chosen_before() -> None:
    shapes = json.loads((ROOT / "tools" / "gemm_bench" / "shapes.json").read_text())["odd"]
    names = {v.name for v in sm90.VARIANTS}
    assert len({shape["name"] for shape in shapes}) == len(shapes)
    for shape in shapes:
        tile, splits = shape["was"].split("/")
        assert f"sm90_gemm_{tile}" in names
        assert int(splits) >= 1
        assert set(shape.get("pad", "")) <= set("ABC")
        assert isinstance(shape.get("tries", []), list)
    assert any(shape.get("quick") for shape in shapes)


@pytest.mark.parametrize("kernel", ["sm80", "sm90"])
def test_pieces_lie_apart_inside_their_matrix_where_the_kernel_takes_them(kernel: str) -> None:
    rng = random.Random(5)
    for key in keys_of(kernel, ""):
        for _ in range(20):
            g = draw_geometry(rng, key.variant, key.signature, MOST)
            assert 1 <= min(g.m, g.n, g.k) <= max(g.m, g.n, g.k) <= MOST, g
            for size, total, *sides in (
                (g.m, g.total_m, g.left_m, g.out_m),
                (g.n, g.total_n, g.right_n, g.out_n),
                (g.k, g.total_k, g.left_k, g.right_k),
            ):
                for spans in sides:
                    assert sum(s.size for s in spans) == size, g
                    assert apart(spans, total), g
            # along stored rows accesses are of 16 bytes, or of what the kernel is compiled for
            s, rows = key.signature, (g.left_m, g.out_m) if key.signature.left_transposed else ()
            step = 8 if s.access == 16 else s.access // s.item
            assert all(
                span.start % step == 0 for spans in (*rows, g.right_n, g.out_n, g.left_k, g.right_k) for span in spans
            ), g


def apart(spans: Pieces, total: int) -> bool:
    """Whether no two overlap, and none is empty or goes beyond."""
    ordered = sorted(spans, key=lambda s: s.start)
    edges = [0, *(edge for s in ordered for edge in (s.start, s.stop)), total]
    return all(a <= b for a, b in pairwise(edges)) and all(s.size > 0 for s in spans)


def test_a_seed_means_the_same_geometry_for_good() -> None:
    g = draw_geometry(random.Random(1), sm90.VARIANTS[0], Signature("bf16", "bf16", False, False), 700)
    assert (g.m, g.n, g.k, g.total_m, g.total_n, g.total_k) == (484, 672, 392, 512, 680, 584)
    assert g.out_m == (Interval(477, 503), Interval(441, 471), Interval(12, 440))
    g = draw_geometry(random.Random(1), sm80.VARIANTS[0], Signature("bf16", "bf16", True, False), 700)
    assert (g.m, g.n, g.k, g.total_m, g.total_n, g.total_k) == (484, 668, 389, 512, 680, 448)
    assert g.right_k == (Interval(64, 440), Interval(0, 13))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("runpy.run_module('tools.gemm_bench', run_name='__main__')", "gemm_bench needs PyTorch and cuda-bindings: "),
        ("runpy.run_path('tools/gemm_bench', run_name='__main__')", "gemm_bench needs PyTorch and cuda-bindings: "),
    ],
)
def test_without_pytorch_the_answer_is_a_line_and_exit_code_3(run: str, message: str) -> None:
    code = f"import runpy, sys; sys.modules['torch'] = None; {run}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--cases 0", "--rounds and --cases are numbers from 1"),
        ("--rounds -1", "--rounds and --cases are numbers from 1"),
        ("--bands 4 -1", "--bands are numbers of rows"),
        ("--quick", "--quick and --tries are for --odd"),
        ("--odd --quick --tries", "--quick or --tries, not both"),
        ("--kernel sm80 --late", "--impatient, --odd, --late, --sum and --pieces are for the Hopper kernel"),
        ("--most 100", "--most is a number from 128"),
        ("--variants nothing", "no variant's name has any part of --variants nothing"),
        ("--pieces 4 --variants fp16", "no variant's name has any part of --variants fp16"),
        ("--shapes nowhere.json", "--shapes nowhere.json is no file of shapes: "),
        ("--shapes README.md", "--shapes README.md is no file of shapes: "),
        ("--shapes SHAPES", """{"name": "x", "m": 0, "n": 8, "k": 8} is no name with m, n and k, numbers from 1"""),
    ],
)
def test_wrong_options_are_told_before_a_gpu_is_asked_for(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shapes = tmp_path / "shapes.json"
    shapes.write_text('{"large": [{"name": "x", "m": 0, "n": 8, "k": 8}]}')
    code = (
        "import runpy, sys, unittest.mock as mock; sys.modules['torch'] = mock.MagicMock(); "
        "runpy.run_module('tools.gemm_bench', run_name='__main__', alter_sys=True)"
    )
    given = [str(shapes) if a == "SHAPES" else a for a in arguments.split()]
    process = warm.start(code, *given)
    _, told = process.communicate()
    assert process.returncode == 2
    assert message in told.splitlines()[-1]
