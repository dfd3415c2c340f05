"""Our GEMM beside cuBLAS (PyTorch's), in one run: correctness first, then interleaved timing.

    python -m tools.gemm_bench                  # check, then the table over tools/gemm_bench/shapes.json, both layouts
    python -m tools.gemm_bench --unseen 40      # the table over so many random sizes of --seed
    python -m tools.gemm_bench --explore        # every variant and split on every shape: what `choose` should say
    python -m tools.gemm_bench --odd            # few rows and sizes that fill no wave: widths, splits, stages; a table
    python -m tools.gemm_bench --odd --quick    # of these, the shapes and tiles that decide
    python -m tools.gemm_bench --odd --tries    # of these, the shapes that name what is tried beside the choice
    python -m tools.gemm_bench --late           # products of few rows that wait for a copy of all rows
    python -m tools.gemm_bench --sum            # terms that a GEMM adds to its product, beside a `reduce` behind it
    python -m tools.gemm_bench --unaligned      # rows at no multiples of 16 bytes, fp32, TF32: all tiles
    python -m tools.gemm_bench --check-only
    python -m tools.gemm_bench --types fp8      # scaled fp8 beside torch._scaled_mm; --scales 1x128 row tensor
    python -m tools.gemm_bench --kernel sm80    # the kernel for tensor cores since Ampere
    python -m tools.gemm_bench --beside old.cu  # another version of the source, timed in turn with this one
    python -m tools.gemm_bench --pieces 4       # a product in one launch of four works, that come one after another
    python -m tools.gemm_bench --pieces 4 --variants 128x160_c2,256x160   # of these variants alone

Needs one GPU, PyTorch and cuda-bindings; for the Hopper kernel a Hopper GPU. Inputs are fresh normal numbers and
rotate through more memory than L2 holds; each side is captured as a graph and replayed in turn with the other;
medians, and the spread (p10 – p90) as a share of the median. Ratio: cuBLAS's time over ours, so 1 is its rate and
more is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ficco_rt.kernels.sm80.family import SM80
from ficco_rt.kernels.sm90 import variants as sm90

from .arrivals import in_pieces
from .check import check, impatient
from .device import arch, sms
from .explore import explore
from .fp8 import bench as bench_fp8
from .fp8 import check as check_fp8
from .late import late
from .odd import former, odd, told
from .product import LAYOUTS, unseen
from .sums import sums
from .table import bench
from .unaligned import unaligned
from .variants import keys_of, named

GROUPS = ("large", "decode", "gradients", "odd", "late", "sum", "fp8", "unaligned")  # of shapes


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gemm_bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", choices=("sm90", "sm80"), default="sm90")
    parser.add_argument(
        "--beside", type=Path, help="another version of the kernel's source, timed beside on the same tables"
    )
    parser.add_argument("--shapes", type=Path, default=Path(__file__).with_name("shapes.json"))
    parser.add_argument("--group", choices=("large", "decode", "gradients"))
    parser.add_argument("--unseen", type=int, default=0, help="the table of so many random sizes: M from 1 to 8192")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=6, help="random cases a kernel in the check")
    parser.add_argument("--most", type=int, default=700, help="the greatest M, N and K of a random case, from 128")
    parser.add_argument(
        "--variants", default="", help="only what has one of these parts, with commas between, in its name"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--impatient", action="store_true", help="check the Hopper kernel with parts that do not wait")
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--explore", action="store_true")
    parser.add_argument("--odd", action="store_true", help="the group `odd` of --shapes, each result checked")
    parser.add_argument("--quick", action="store_true", help="of --odd, the shapes and tiles that decide: 40 s")
    parser.add_argument("--tries", action="store_true", help="of --odd, the shapes that name what is tried: 30 s")
    parser.add_argument("--late", action="store_true", help="time the group `late` of --shapes, each result checked")
    parser.add_argument("--sum", action="store_true", help="time the group `sum` of --shapes, each result checked")
    parser.add_argument("--unaligned", action="store_true", help="time the group `unaligned`, each result checked")
    parser.add_argument("--types", choices=("bf16", "fp8"), default="bf16", help="fp8: the group `fp8` of --shapes")
    parser.add_argument("--scales", nargs="*", choices=("1x128", "row", "tensor"), default=("1x128", "row", "tensor"))
    parser.add_argument(
        "--best", type=int, default=1, help="time so many of the variants estimated best, with --types fp8"
    )
    parser.add_argument("--deepgemm", type=Path, help="DeepGEMM's checkout, built: time it, too")
    parser.add_argument("--layouts", choices=("kn", "nk", "both"), default="kn", help="of the right operand, for --odd")
    parser.add_argument("--pieces", type=int, help="time a product in so many pieces that come one after another")
    parser.add_argument("--every", type=float, default=30.0, help="microseconds from a piece to the next")
    parser.add_argument("--size", type=int, nargs=3, default=(2048, 2560, 8192), help="M N K of --pieces")
    parser.add_argument("--bands", type=int, nargs="*", default=[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    if min(args.rounds, args.cases) < 1:
        parser.error("--rounds and --cases are numbers from 1")
    if min(args.bands, default=-1) < 0:
        parser.error("--bands are numbers of rows, or 0 for what the kernel takes")
    if args.most < 128:
        parser.error("--most is a number from 128")
    if (args.impatient or args.odd or args.late or args.sum or args.pieces is not None) and args.kernel != "sm90":
        parser.error("--impatient, --odd, --late, --sum and --pieces are for the Hopper kernel")
    if (args.quick or args.tries) and not args.odd:
        parser.error("--quick and --tries are for --odd")
    if args.quick and args.tries:
        parser.error("--quick or --tries, not both")
    if args.pieces is not None and not 2 <= args.pieces <= args.size[0]:
        parser.error("--pieces is a number from 2 to the rows of --size")
    if args.every <= 0 or min(args.size) < 1:
        parser.error("--every and --size are numbers greater than 0")
    whole = [v for v in sm90.VARIANTS if args.size[0] <= 256 or v.cluster > 1]  # that --pieces times
    whole = whole if args.pieces else [v for v in (*sm90.VARIANTS, *sm90.BESIDE, *sm90.ODD) if args.types == "fp8"]
    if not (any(named(v, args.variants) for v in whole) or (not whole and keys_of(args.kernel, args.variants))):
        parser.error(f"no variant's name has any part of --variants {args.variants}")
    try:
        args.shapes = _shapes(args.shapes)
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"--shapes {args.shapes} is no file of shapes: {error}")
    return args


def _shapes(path: Path) -> dict[str, list[dict[str, Any]]]:
    """By group. ValueError: a shape lacks its name or a size."""
    groups = {**{group: [] for group in GROUPS}, **json.loads(path.read_text())}
    for shape in (shape for group in GROUPS for shape in groups[group]):
        if not (isinstance(shape, dict) and "name" in shape and all(shape.get(d, 0) >= 1 for d in "mnk")):
            raise ValueError(f"{json.dumps(shape)} is no name with m, n and k, numbers from 1")
        if "was" in shape:
            former(shape["was"])
        for text in shape.get("tries", ()):
            told(text)
    return groups


def main(arguments: Sequence[str]) -> int:
    """Check and time; the process's exit code."""
    args = parse(arguments)
    needed = {"sm90": "a Hopper GPU", "sm80": "a GPU of Ampere or later"}[args.kernel]
    if not torch.cuda.is_available() or (arch() != sm90.ARCH if args.kernel == "sm90" else not SM80.serves(arch())):
        print(f"gemm_bench needs {needed}", file=sys.stderr)
        return 3
    torch.zeros(1, device="cuda")  # makes the context current
    print(f"{torch.cuda.get_device_name()}, {sms()} SMs, PyTorch {torch.__version__}, seed {args.seed}", flush=True)
    if args.types == "fp8":
        bad = 0 if args.no_check else check_fp8(args.seed, args.cases, args.variants)
        if bad or args.check_only:
            return 4 if bad else 0
        shapes = args.shapes["fp8"]
        return 4 if bench_fp8(
            shapes, args.scales, args.rounds, args.variants, args.best, args.deepgemm, args.json
        ) else 0  # fmt: skip
    if args.unaligned:
        return 4 if unaligned(args.shapes["unaligned"], args.rounds, args.variants) else 0
    if args.sum:
        return 4 if sums(args.shapes["sum"], args.rounds) else 0
    if args.late:
        return 4 if late(args.shapes["late"], min(args.rounds, 9)) else 0
    if args.odd:
        which = "quick" if args.quick else "tries" if args.tries else ""
        layouts = {"kn": LAYOUTS[:1], "nk": LAYOUTS[1:], "both": LAYOUTS}[args.layouts]
        return 4 if odd(args.shapes["odd"], layouts, args.rounds, args.variants, args.json, which) else 0
    with tempfile.TemporaryDirectory() as folder:
        source = impatient(Path(folder)) if args.impatient else None
        bad = 0 if args.no_check else check(args.kernel, args.seed, args.cases, args.most, args.variants, source)
    if args.check_only or bad:
        return 4 if bad else 0
    shapes = {g: args.shapes[g] if args.group in (None, g) else [] for g in ("large", "decode", "gradients")}
    if args.unseen:
        shapes = {group: [] for group in shapes} | {"unseen": unseen(args.unseen, args.seed)}
    if args.pieces:
        m, n, k = args.size
        return 4 if in_pieces(m, n, k, args.pieces, args.every, args.rounds, args.variants, args.beside) else 0
    if args.explore:
        explore(
            args.kernel, shapes, [g for g in ("large", "decode") if shapes[g]], args.bands, args.variants, args.json
        )
        return 0
    return 4 if bench(args.kernel, shapes, args.rounds, args.json, args.beside) else 0
