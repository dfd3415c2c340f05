"""Our GEMM beside cuBLAS (PyTorch's), in one run: correctness first, then interleaved timing.

    python tools/gemm_bench.py                  # check, then the table over tools/gemm_shapes.json, both layouts
    python tools/gemm_bench.py --explore        # every variant and split on every shape: what `choose` should say
    python tools/gemm_bench.py --check-only
    python tools/gemm_bench.py --kernel sm80    # the kernel for tensor cores since Ampere
    python tools/gemm_bench.py --beside old.cu  # another version of the source, timed in turn with this one
    python tools/gemm_bench.py --pieces 4       # a product in one launch of four works, that come one after another
    python tools/gemm_bench.py --pieces 4 --variants 128x160_c2,256x160   # of these variants alone

Needs one GPU, PyTorch and cuda-bindings; for the Hopper kernel a Hopper GPU. Inputs are fresh normal numbers and
rotate through more memory than L2 holds; each side is captured as a graph and replayed in turn with the other;
medians, and the spread (p10 – p90) as a share of the median. Ratio: cuBLAS's time over ours, so 1 is its rate and
more is faster.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import random
import re
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "dsl")]

try:
    import torch
    from cuda.bindings import driver as cu
except ImportError as error:
    sys.stderr.write(f"{Path(sys.argv[0]).stem} needs PyTorch and cuda-bindings: {error}\n")
    sys.exit(3)

from ficco_rt.kernels import compiler, sm80, sm90, tiles
from ficco_rt.region import Interval

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LAYOUTS = ((False, "B[K,N]"), (True, "B[N,K]"))
SMEM = 232448 - 1024  # what a block may ask for beside the Hopper kernel's static barriers
Variant = sm80.Variant | sm90.Variant
_functions: dict[tuple[object, ...], Any] = {}


def call(name: str, *args: Any) -> Any:
    code, *values = getattr(cu, name)(*args)
    if code != cu.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{name}: {code.name}")
    return values[0] if len(values) == 1 else values


def arch() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def compiled(source: Path | None, *key: Any) -> bytes:
    module = sm80 if isinstance(key[0], sm80.Variant) else sm90
    return compiler.compile_file(source or module.SOURCE, module.options(*key[:5], arch(), *key[5:])).code


def function(source: Path | None, *key: Any) -> Any:
    """The loaded kernel of (variant, dtype, out dtype, left transposed, right transposed[, terms])."""
    if (source, *key) not in _functions:
        module = call("cuModuleLoadData", compiled(source, *key))
        f = call("cuModuleGetFunction", module, sm90.entry(*key).encode())
        most = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
        size = min(SMEM, most)
        call("cuFuncSetAttribute", f, cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, size)
        _functions[source, *key] = f
    return _functions[source, *key]


def shared(blocks: int) -> int:
    """The most shared memory of each of `blocks` blocks on a multiprocessor."""
    properties = torch.cuda.get_device_properties(0)
    share = properties.shared_memory_per_multiprocessor // blocks - 1024
    return int(min(share, properties.shared_memory_per_block_optin))


def encode(m: sm90.TensorMap) -> bytes:
    kind = {
        "bf16": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        "fp16": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "fp32": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    }[m.dtype]
    made = call(
        "cuTensorMapEncodeTiled",
        kind,
        2,
        m.address,
        [cu.cuuint64_t(d) for d in m.dims],
        [cu.cuuint64_t(m.pitch)],
        [cu.cuuint32_t(b) for b in m.box],
        [cu.cuuint32_t(1)] * 2,
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(int(made.getPtr()), 128)


class Launch:
    """A launch's table on the device, and its launch on PyTorch's current stream."""

    def __init__(self, made: sm80.Launch | sm90.Launch, *key: Any, source: Path | None = None) -> None:
        table = made.table
        self.function = function(source, made.variant, *key)
        self.constants = torch.frombuffer(bytearray(table.constants), dtype=torch.uint8).cuda()
        self.scratch = torch.zeros(max(256, table.scratch_bytes), dtype=torch.uint8, device="cuda")
        places = (self.constants.data_ptr(), self.scratch.data_ptr())
        if isinstance(made, sm90.Launch):
            block, cluster = made.parameters(*places, [encode(m) for m in made.maps]), made.variant.cluster
        else:
            block, cluster = made.parameters(*places), 1
        raw = (ctypes.c_uint8 * (len(block) + 64))()
        base = -(-ctypes.addressof(raw) // 64) * 64
        ctypes.memmove(base, block, len(block))
        self.keep = (raw, (ctypes.c_void_p * 1)(base))
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = made.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = made.variant.threads, 1, 1
        config.sharedMemBytes = made.smem
        if cluster > 1:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = cu.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        self.config = config

    def __call__(self) -> None:
        self.config.hStream = torch.cuda.current_stream().cuda_stream
        call("cuLaunchKernelEx", self.config, self.function, ctypes.addressof(self.keep[1]), 0)


def matrix(t: torch.Tensor) -> tiles.Matrix:
    return tiles.Matrix(t.data_ptr(), t.shape[0], t.shape[1], t.stride(0))


def operand(t: torch.Tensor) -> tiles.Operand:
    return tiles.Operand(matrix(t), whole(t.shape[0]), whole(t.shape[1]))


def whole(n: int) -> tuple[Interval, ...]:
    return (Interval(0, n),)


@dataclass(frozen=True)
class Choice:
    """What to run a product of whole matrices with."""

    variant: Variant
    splits: int
    residency: int = 1

    def __str__(self) -> str:
        shared = f"@{self.residency}" if self.residency > 1 else ""
        return f"{self.variant.name[10:]}{shared}/{self.splits}"


def chosen(kernel: str, m: int, n: int, k: int, right_t: bool) -> Choice:
    if kernel == "sm90":
        hopper = sm90.choose([m], [n], k, sms(), right_t)
        return Choice(hopper.variant, hopper.tail_splits)
    found = sm80.choose([m], [n], k, sms(), {r: shared(r) for r in (1, 2, 3, 4)})
    assert found is not None
    return Choice(found.variant, found.tail_splits, found.residency)


def build(
    works: list[tiles.Work], v: Variant, *key: Any, count: int, splits: int, **more: Any
) -> sm80.Launch | sm90.Launch:
    """A launch on `count` multiprocessors (`sm80`: of so many blocks) of (dtype, out dtype, left, right transposed), K
    of the last wave's tiles in `splits` parts."""
    if isinstance(v, sm90.Variant):
        return sm90.build(works, v, *key, sms=count, cuts=tiles.Cuts(tail=splits), **more)
    return sm80.build(works, v, *key, blocks=count, tail_splits=splits, **more)


def plain(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, right_t: bool, choice: Choice,
    band: int | None = None, source: Path | None = None, terms: tuple[tiles.Term, ...] = (),
) -> Launch:  # fmt: skip
    """c = a · b + terms over whole matrices."""
    m, k = a.shape
    n = c.shape[1]
    work = tiles.Work(matrix(a), matrix(b), matrix(c), whole(m), whole(k), whole(b.shape[0]), whole(b.shape[1]),
                      whole(m), whole(n), terms=terms)  # fmt: skip
    v = choice.variant
    stages = v.stages(SMEM if isinstance(v, sm90.Variant) else shared(choice.residency), right_t)
    key = ("bf16", "bf16", False, right_t)
    count = sms() * choice.residency
    made = build([work], v, *key, count=count, stages=stages, splits=choice.splits, band=band)
    return Launch(made, *key, *((True,) if terms else ()), source=source)


def sms() -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


# ---------------------------------------------------------------- correctness


def pieces(rng: random.Random, total: int, n: int, step: int, size: int) -> tuple[Interval, ...]:
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


def ragged(rng: random.Random, total: int, n: int, size: int) -> tuple[Interval, ...]:
    """As `pieces` at multiples of 8, but that the last ends anywhere."""
    *others, last = pieces(rng, total, n, 8, -(-size // 8) * 8)
    return (*others, Interval(last.start, last.stop - -size % 8))


def index(spans: tuple[Interval, ...]) -> torch.Tensor:
    return torch.cat([torch.arange(s.start, s.stop) for s in spans]).cuda()


class Addends:
    """Random terms, whose numbers come while the kernel runs: NaN before, and outside their pieces for good."""

    def __init__(self, rng: random.Random, key: tuple[Any, ...], out: torch.Tensor, out_m: Any, out_n: Any) -> None:
        v, dtype, out_dtype, left_t, *_ = key
        m, n = (sum(s.size for s in spans) for spans in (out_m, out_n))
        self.total = torch.zeros(m, n, dtype=torch.float64, device="cuda")
        self.out = out_dtype == dtype and rng.random() < 0.3  # what is there is a term too
        terms = [tiles.Term(tiles.Operand(matrix(out), out_m, out_n), out_dtype)] if self.out else []
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(rng.randint(1, 3)):
            kind = dtype if isinstance(v, sm90.Variant) else rng.choice((out_dtype, "fp32"))
            high, wide = (-(-size // 8) * 8 + rng.randint(0, 9) * 8 for size in (m, n))
            count = rng.randint(1, 2)  # terms that lie in one matrix, below each other
            device = torch.full((high * count, wide), math.nan, device="cuda", dtype=TORCH[kind])
            host = torch.full((high * count, wide), math.nan, dtype=TORCH[kind]).pin_memory()
            for i in range(count):
                rows = ragged(rng, high, rng.randint(1, 2), m) if left_t else pieces(rng, high, rng.randint(1, 2), 1, m)
                columns = ragged(rng, wide, rng.randint(1, 2), n)
                rows = tuple(Interval(s.start + i * high, s.stop + i * high) for s in rows)
                data = torch.randn(m, n).to(TORCH[kind])
                if rng.random() < 0.3:  # stays where it is
                    data[rng.randrange(m), rng.randrange(n)] = math.nan
                host[torch.meshgrid(index(rows).cpu(), index(columns).cpu(), indexing="ij")] = data
                self.total += data.cuda().double()
                terms.append(tiles.Term(tiles.Operand(matrix(device), rows, columns), kind))
            self.copies.append((device, host))
        self.terms = tuple(terms)
        self.side = torch.cuda.Stream()

    def __str__(self) -> str:
        return "terms " + " ".join(f"{t.dtype} {t.operand.rows} {t.operand.columns}" for t in self.terms)

    def leave(self) -> None:
        """No number has come yet."""
        for device, _ in self.copies:
            device.fill_(math.nan)

    def come(self, flag: int) -> None:
        """Copy engines bring the numbers, and raise the flag behind them."""
        with torch.cuda.stream(self.side):
            for device, host in self.copies:
                device.copy_(host, non_blocking=True)
        call("cuStreamWriteValue32", self.side.cuda_stream, flag, 1, 0)


def check_case(rng: random.Random, key: tuple[Any, ...], most: int, source: Path | None) -> str | None:
    """One random case: sizes up to `most`, pieces, splits, accumulation, flags. What is wrong with it, or None."""
    v, dtype, out_dtype, left_t, right_t, with_terms = key
    parts = [rng.randint(1, 3) for _ in range(6)]
    several = rng.random() < 0.4
    if isinstance(v, sm80.Variant):
        m, n, k = (rng.randint(1, most) for _ in range(3))
        total_m, total_n, total_k = (-(-size // 8) * 8 + rng.randint(0, 9) * 8 for size in (m, n, k))
        if left_t:
            left_m, out_m = ragged(rng, total_m, parts[0], m), ragged(rng, total_m, parts[1], m)
        else:
            left_m, out_m = pieces(rng, total_m, parts[0], 1, m), pieces(rng, total_m, parts[1], 1, m)
        right_n, out_n = ragged(rng, total_n, parts[2], n), ragged(rng, total_n, parts[3], n)
        left_k, right_k = ragged(rng, total_k, parts[4], k), ragged(rng, total_k, parts[5], k)
    else:
        m, n = rng.randint(1, most), rng.randint(1, most // 8) * 8
        k = rng.randint(2, max(2, most // 64)) * 64 if several else rng.randint(1, most // 8) * 8
        total_m, total_n = (m + rng.randint(0, 90) + 7) // 8 * 8, n + rng.randint(0, 9) * 8
        total_k = k + rng.randint(0, 3) * 64
        left_m, out_m = pieces(rng, total_m, parts[0], 1, m), pieces(rng, total_m, parts[1], 1, m)
        right_n, out_n = pieces(rng, total_n, parts[2], 8, n), pieces(rng, total_n, parts[3], 8, n)
        if several:
            left_k, right_k = pieces(rng, total_k, parts[4], 64, k), pieces(rng, total_k, parts[5], 64, k)
        else:
            left_k, right_k = pieces(rng, total_k, 1, 8, k), pieces(rng, total_k, 1, 8, k)
    t = TORCH[dtype]
    # outside the pieces of K all is NaN: it must not reach a sum
    left = torch.full((total_m, total_k), math.nan, device="cuda", dtype=t)
    right = torch.full((total_k, total_n), math.nan, device="cuda", dtype=t)
    left[:, index(left_k)] = torch.randn(total_m, k, device="cuda").to(t)
    right[index(right_k)] = torch.randn(k, total_n, device="cuda").to(t)
    accumulate = not with_terms and rng.random() < 0.4
    rows, columns = index(left_m), index(right_n)
    product = left[rows][:, index(left_k)].double() @ right[index(right_k)][:, columns].double()
    left_store, right_store = (left.T.contiguous() if left_t else left), (right.T.contiguous() if right_t else right)
    out = torch.full((total_m, total_n), math.nan, device="cuda", dtype=TORCH[out_dtype])
    at = torch.meshgrid(index(out_m), index(out_n), indexing="ij")
    start = torch.randn(m, n, device="cuda").to(out.dtype)
    expect = torch.full((total_m, total_n), math.nan, device="cuda", dtype=torch.float64)
    added = Addends(rng, key, out, out_m, out_n) if with_terms else None
    from_start = accumulate or (added is not None and added.out)
    expect[at] = product + start.double() if from_start else product
    if added:
        expect[at] += added.total
    flags = torch.tensor([1, 1, 0, 0, 0], dtype=torch.int32, device="cuda")
    flag = [flags.data_ptr() + 4 * i for i in range(5)]
    work = tiles.Work(
        matrix(left_store), matrix(right_store), matrix(out),
        left_k if left_t else left_m, left_m if left_t else left_k,
        right_n if right_t else right_k, right_k if right_t else right_n,
        out_m, out_n, accumulate, tuple(flag[:2]), tuple(flag[2:4]), added.terms if added else (),
        (flag[4],) if added else (),
    )  # fmt: skip
    stages = rng.randint(2, v.stages(shared(1) - 1024, right_t))
    splits = rng.choice((1, 1, 2, 5))
    count = rng.choice((sms(), 16, 4))
    made = build([work], v, dtype, out_dtype, left_t, right_t, count=count, stages=stages, splits=splits)
    launch = Launch(made, *key[1:], source=source)
    what = (
        f"{sm90.entry(*key)} m={m} n={n} k={k} of {total_m} {total_n} {total_k} += {accumulate} stages={stages} "
        f"splits={splits} sms={count} tiles={len(made.table.tiles)} rows {left_m}→{out_m} columns {right_n}→{out_n} "
        f"K {left_k} {right_k} {added or ''}"
    )
    before = torch.empty(0)
    for turn in range(2):
        out.fill_(math.nan)
        if from_start:
            out[at] = start
        if added:
            added.leave()
        flags[2:] = 0
        torch.cuda.synchronize()
        launch()
        if added:
            added.come(flag[4])
        try:
            torch.cuda.synchronize()
        except RuntimeError as e:  # nothing works after it
            raise SystemExit(f"check: {what}: turn {turn}: {e}") from e
        got = out.double()
        wrong = torch.isnan(got) != torch.isnan(expect)
        if wrong.any():
            first = wrong.nonzero()[0].tolist()
            return f"{what}: turn {turn}: {int(wrong.sum())} elements missing or overwritten, the first {first}"
        good = ~torch.isnan(expect)
        bits = out.view(torch.int32 if out_dtype == "fp32" else torch.int16).clone()
        if turn and not torch.equal(bits, before):
            return f"{what}: {int((bits != before).sum())} elements differ from the first turn's"
        before = bits
        if launch.scratch[: made.table.counter_bytes].any():
            return f"{what}: turn {turn}: counters are not zero"
        error = float((got[good] - expect[good]).norm() / expect[good].norm())
        limit = {"bf16": 3e-3, "fp16": 5e-4, "fp32": 1e-5}[out_dtype]
        worst = float((got[good] - expect[good]).abs().max() / expect[good].abs().max())
        if not error < limit or not worst < 4 * limit:
            return f"{what}: turn {turn}: relative error {error:.2e}, worst element {worst:.2e}"
        if flags.tolist() != [1, 1, 1, 1, int(with_terms)]:
            return f"{what}: turn {turn}: flags {flags.tolist()}"
    return None


def impatient(folder: Path) -> Path:
    """The Hopper kernel, but that no part of a tile waits for others: the last to come does what they leave."""
    text = sm90.SOURCE.read_text()
    changed = re.sub(r"PATIENCE = \d+", "PATIENCE = 0", text)
    assert changed != text
    source = folder / sm90.SOURCE.name
    source.write_text(changed)
    return source


def check_chain(rng: random.Random, key: tuple[Any, ...], source: Path | None) -> str | None:
    """Products of one launch each of which multiplies what the one before it made, waiting for the flag that this one
    raises. What is wrong, or None."""
    v, dtype, _, _, right_t, _ = key
    m, n, links = rng.randint(1, 600), rng.randint(1, 10) * 64, rng.randint(2, 5)
    t = TORCH[dtype]
    chain = [torch.full((m, n), math.nan, device="cuda", dtype=t) for _ in range(links + 1)]
    chain[0][:] = torch.randn(m, n, device="cuda").to(t)
    right = (torch.randn(n, n, device="cuda") / math.sqrt(n)).to(t)
    right_store = right.T.contiguous() if right_t else right
    flags = torch.zeros(links, dtype=torch.int32, device="cuda")
    flag = [flags.data_ptr() + 4 * i for i in range(links)]
    works = [
        tiles.Work.of(operand(a), operand(right_store), operand(b), False, (flag[i - 1],) if i else (), (flag[i],))
        for i, (a, b) in enumerate(pairwise(chain))
    ]
    stages = rng.randint(2, v.stages(shared(1) - 1024, right_t))
    splits, count = rng.choice((1, 1, 2)), rng.choice((sms(), 16, 4))
    # NOTE parts of the last wave would stand among each other, whatever work they are of; those of a work do not
    if isinstance(v, sm90.Variant):
        cuts = tiles.Cuts(works=(splits,) * links)
        made: sm80.Launch | sm90.Launch = sm90.build(works, v, *key[1:5], sms=count, stages=stages, cuts=cuts)
    else:
        made = sm80.build(works, v, *key[1:5], blocks=count, stages=stages)
    launch = Launch(made, *key[1:], source=source)
    what = f"{sm90.entry(*key)} chain of {links} m={m} n={n} stages={stages} splits={splits} sms={count}"
    for turn in range(2):
        for out in chain[1:]:
            out.fill_(math.nan)
        flags[:] = 0
        torch.cuda.synchronize()
        launch()
        try:
            torch.cuda.synchronize()
        except RuntimeError as e:  # nothing works after it
            raise SystemExit(f"check: {what}: turn {turn}: {e}") from e
        for i, (a, b) in enumerate(pairwise(chain)):
            expect = a.double() @ right.double()
            error = float((b.double() - expect).norm() / expect.norm())
            if not error < 3e-3:
                return f"{what}: turn {turn}: link {i}: relative error {error:.2e}"
        if not flags.all() or launch.scratch[: made.table.counter_bytes].any():
            return f"{what}: turn {turn}: flags {flags.tolist()}, or counters are not zero"
    return None


def named(v: Variant, only: str) -> bool:
    """Whether any of the parts of names that were asked for is in the variant's."""
    return any(part in v.name for part in only.split(","))


def exists(v: Variant, dtype: str, out_dtype: str, left_t: bool, right_t: bool, terms: bool) -> bool:
    """Whether there is such a kernel: the Hopper one's terms and output are of the operands' type."""
    return isinstance(v, sm80.Variant) or (v.stores(out_dtype) and not (terms and dtype != out_dtype))


def check(kernel: str, seed: int, cases: int, most: int, only: str, source: Path | None) -> int:
    variants: tuple[Variant, ...] = sm90.VARIANTS if kernel == "sm90" else sm80.VARIANTS
    lefts = (False,) if kernel == "sm90" else (False, True)
    keys: list[tuple[Any, ...]] = [
        (v, "bf16", "bf16", lt, rt, terms)
        for v in variants for lt in lefts for rt in (False, True) for terms in (False, True)
    ]  # fmt: skip
    others = (("fp16", "fp16", False, True), ("bf16", "fp32", False, False), ("fp16", "fp32", False, True))
    # the last of each kind, too
    kinds = {(v.paced, v.pingpong, v.staging) if isinstance(v, sm90.Variant) else (): v for v in variants}
    for v in dict.fromkeys((variants[0], variants[3], min(variants, key=lambda v: v.tile), *kinds.values())):
        keys += [(v, *other, terms) for other in others for terms in (False, True)]
    keys = [key for key in keys if any(part in sm90.entry(*key) for part in only.split(",")) and exists(*key)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: compiled(source, *key), keys))
    rng, failures = random.Random(seed), []
    torch.manual_seed(seed)
    for key in keys:
        for _ in range(cases):
            found = [check_case(rng, key, most, source)]
            if key[1] == key[2] and not key[3] and not key[5]:
                found.append(check_chain(rng, key, source))
            failures += [failure for failure in found if failure]
    print(f"check: {len(keys)} kernels × {cases} random cases, seed {seed}: {len(failures)} failed", flush=True)
    for failure in failures[:12]:
        print("  " + failure)
    return len(failures)


# ---------------------------------------------------------------- timing


def sets(m: int, n: int, k: int, right_t: bool) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Operands that together are several times L2, at least two."""
    size = 2 * (m * k + k * n + m * n)
    count = max(2, min(24, math.ceil(300e6 / size)))
    out = []
    for _ in range(count):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(*((n, k) if right_t else (k, n)), device="cuda", dtype=torch.bfloat16)
        out.append((a, b, torch.full((m, n), math.nan, device="cuda", dtype=torch.bfloat16)))
    return out


def graph(calls: list[Any]) -> torch.cuda.CUDAGraph:
    for c in calls:
        c()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for c in calls:
            c()
    return g


def times(graphs: list[torch.cuda.CUDAGraph], each: int, rounds: int) -> list[list[float]]:
    """Microseconds a call, of each graph of `each` calls, replayed in turn."""
    marks = []
    for r in range(rounds + 2):
        order = list(range(len(graphs)))
        if r % 2:
            order.reverse()
        for i in order:
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            graphs[i].replay()
            b.record()
            if r >= 2:
                marks.append((i, a, b))
    torch.cuda.synchronize()
    out: list[list[float]] = [[] for _ in graphs]
    for i, a, b in marks:
        out[i].append(a.elapsed_time(b) * 1e3 / each)
    return out


def sampled_error(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, right_t: bool) -> float:
    rows = torch.tensor(sorted({0, a.shape[0] - 1, *torch.randint(a.shape[0], (30,)).tolist()}), device="cuda")
    if torch.isnan(c).any():
        return math.nan
    ref = a[rows].double() @ (b.T if right_t else b).double()
    return float((c[rows].double() - ref).norm() / ref.norm())


def spread(ts: list[float]) -> float:
    s = sorted(ts)
    return (s[int(0.9 * (len(s) - 1))] - s[int(0.1 * (len(s) - 1))]) / median(s) * 100


def bench(kernel: str, shapes: dict[str, Any], rounds: int, out: Path | None, beside: Path | None) -> int:
    bad, rows = 0, []
    print(f"{'shape':20} {'m':>6} {'n':>6} {'k':>6} {'layout':7} {'kernel':24} {'ours µs':>9} {'cublas':>9} "
          f"{'ratio':>6} {'TFLOP/s':>8} {'spread %':>9} {'error':>8}")  # fmt: skip
    for group in ("large", "decode"):
        for shape in shapes[group]:
            for right_t, layout in LAYOUTS:
                m, n, k = shape["m"], shape["n"], shape["k"]
                choice = chosen(kernel, m, n, k, right_t)
                data = sets(m, n, k, right_t)
                ours = [plain(a, b, c, right_t, choice) for a, b, c in data]
                ours[0]()
                torch.cuda.synchronize()
                error = sampled_error(*data[0], right_t)
                bad += not error < 3e-3
                theirs = [partial(torch.mm, a, b.T if right_t else b, out=c) for a, b, c in data]
                graphs = [graph(ours), graph(theirs)]
                if beside:
                    graphs.append(graph([plain(a, b, c, right_t, choice, source=beside) for a, b, c in data]))
                t = times(graphs, len(data), rounds)
                mine, cublas = median(t[0]), median(t[1])
                row = {
                    "group": group, "name": shape["name"], "m": m, "n": n, "k": k, "right_t": right_t,
                    "kernel": str(choice), "us": mine, "cublas_us": cublas,
                    "ratio": cublas / mine, "tflops": 2e-6 * m * n * k / mine, "error": error,
                    "spread": (spread(t[0]), spread(t[1])),
                }  # fmt: skip
                rows.append(row)
                print(f"{row['name']:20} {m:6} {n:6} {k:6} {layout:7} {row['kernel']:24} {mine:9.1f} {cublas:9.1f} "
                      f"{row['ratio']:6.3f} {row['tflops']:8.1f} {spread(t[0]):4.1f}/{spread(t[1]):4.1f} {error:8.1e}"
                      + (f"  beside {cublas / median(t[2]):.3f}" if beside else ""), flush=True)  # fmt: skip
                del data, ours, theirs, graphs
        ratios = [r["ratio"] for r in rows if r["group"] == group]
        if ratios:
            print(f"{group}: geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}, "
                  f"lowest {min(ratios):.3f}\n")  # fmt: skip
    if out:
        out.write_text(json.dumps(rows, indent=1))
    return bad


def candidates(kernel: str, m: int, n: int, k: int, only: str) -> list[Choice]:
    """Variants and splits worth a try."""
    found = []
    variants: tuple[Variant, ...] = sm90.VARIANTS if kernel == "sm90" else sm80.VARIANTS
    for v in variants:
        if (
            not named(v, only)
            or (m > 64 and v.tile[0] == 64)
            or (m <= 64 and v.tile[0] > 64)
            or (m > 256 and v.tile[1] < 128)
        ):
            continue
        for residency in range(1, v.residency + 1) if isinstance(v, sm80.Variant) else (1,):
            cluster = v.cluster if isinstance(v, sm90.Variant) else 1
            groups = sms() * residency // cluster
            tail = math.ceil(m / v.tile[0] / cluster) * math.ceil(n / v.tile[1]) % groups
            most = max(1, min(16, groups // tail if tail else 1, k // 256))
            found += [Choice(v, splits, residency) for splits in sorted({1, most, max(1, most // 2)})]
    return found


def explore(
    kernel: str, shapes: dict[str, Any], groups: list[str], bands: list[int], only: str, out: Path | None
) -> None:
    """Every variant and split beside cuBLAS; the best five of each shape."""
    found = []
    for group in groups:
        for shape in shapes[group]:
            for right_t, layout in LAYOUTS:
                m, n, k = shape["m"], shape["n"], shape["k"]
                data = sets(m, n, k, right_t)
                tries, names = [], []
                for choice in candidates(kernel, m, n, k, only):
                    for band in bands if m > 256 else [0]:
                        tries.append([plain(a, b, c, right_t, choice, band or None) for a, b, c in data])
                        names.append(f"{choice}" + (f"/band{band}" if band else ""))
                theirs = [partial(torch.mm, a, b.T if right_t else b, out=c) for a, b, c in data]
                t = times([graph(theirs), *map(graph, tries)], len(data), 5)
                cublas = median(t[0])
                order = sorted(zip((cublas / median(x) for x in t[1:]), names, strict=True), reverse=True)
                found.append({"name": shape["name"], "right_t": right_t, "cublas_us": cublas, "tries": order})
                print(f"{shape['name']:20} {layout} cublas {cublas:8.1f} µs {2e-6 * m * n * k / cublas:6.1f} TFLOP/s  "
                      + "  ".join(f"{name} {r:.3f}" for r, name in order[:6])
                      + f"  (chosen: {chosen(kernel, m, n, k, right_t)})", flush=True)  # fmt: skip
    if out:
        out.write_text(json.dumps(found, indent=1))


# ---------------------------------------------------------------- works that come one after another


class Arrivals:
    """Flags that a stream raises one after another, `every` microseconds: behind copies from the host, which take that
    long and no multiprocessor."""

    def __init__(self, count: int, every: float) -> None:
        self.flags = torch.ones(count, dtype=torch.int32, device="cuda")
        self.side = torch.cuda.Stream()
        self.host = torch.zeros(1 << 25, dtype=torch.uint8).pin_memory()
        self.device = torch.zeros(1 << 25, dtype=torch.uint8, device="cuda")
        self.size = 1 << 22
        for _ in range(4):
            self.size = min(1 << 25, max(4096, int(self.size * every / self._took())))
        self.every = self._took()

    def _took(self) -> float:
        with torch.cuda.stream(self.side):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(1_000_000)
            a.record()
            self._issue(i % len(self.flags) for i in range(8))
            b.record()
        torch.cuda.synchronize()
        return float(a.elapsed_time(b)) * 1e3 / 8

    def _issue(self, flags: Iterable[int]) -> None:
        """On `side`, which is current."""
        for i in flags:
            self.device[: self.size].copy_(self.host[: self.size], non_blocking=True)
            call("cuStreamWriteValue32", self.side.cuda_stream, self.flags.data_ptr() + 4 * i, 1, 0)

    def time(self, launch: Launch) -> float:
        """Microseconds from the first copy's start to the launch's end; both begin together."""
        torch.cuda.synchronize()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flags[1:] = 0
        torch.cuda._sleep(1_000_000)  # until all is issued
        a.record()
        self.side.wait_event(a)
        launch()
        b.record()
        with torch.cuda.stream(self.side):
            self._issue(range(1, len(self.flags)))
        torch.cuda.synchronize()
        return float(a.elapsed_time(b)) * 1e3


def in_pieces(m: int, n: int, k: int, count: int, every: float, rounds: int, only: str, beside: Path | None) -> int:
    """A product whose rows come in equal pieces, in one launch, by every variant and cut; beside cuBLAS's whole one."""
    bad = 0
    comes = Arrivals(count, every)
    cut = [Interval(m * i // count, m * (i + 1) // count) for i in range(count)]
    print(f"{m} × {n} × {k} in {count} pieces, one every {comes.every:.1f} µs")
    print(f"{'layout':7} {'kernel':24} {'all there µs':>12} {'one by one':>10}" + "      beside" * bool(beside))
    for right_t, layout in LAYOUTS:
        data = sets(m, n, k, right_t)
        late = [sm90.Phase((s.size,), every * i, every * i) for i, s in enumerate(cut)]
        chosen = sm90.choose([s.size for s in cut], [n], k, sms(), right_t, late=late)
        rows: list[tuple[str, list[list[Launch]]]] = []
        for v in sm90.VARIANTS:
            tiles_of = math.ceil(cut[0].size / v.tile[0] / v.cluster) * math.ceil(n / v.tile[1])
            most = max(1, min(16, sms() // v.cluster // tiles_of, k // 256))
            for splits in sorted({1, most}):
                if not named(v, only) or (m > 256 and v.cluster == 1):
                    continue
                launches: list[list[Launch]] = []
                for source in (None, beside) if beside else (None,):
                    launches.append([])
                    for a, b, c in data:
                        works = [
                            tiles.Work(matrix(a), matrix(b), matrix(c), (s,), whole(k), whole(b.shape[0]),
                                       whole(b.shape[1]), (s,), whole(n),
                                       waits=(comes.flags.data_ptr() + 4 * i,) if i else ())
                            for i, s in enumerate(cut)
                        ]  # fmt: skip
                        key = ("bf16", "bf16", False, right_t)
                        made = sm90.build(works, v, *key, sms=sms(), stages=v.stages(SMEM, right_t),
                                          cuts=tiles.Cuts(works=(splits,) * count))  # fmt: skip
                        launches[-1].append(Launch(made, *key, source=source))
                mark = " chosen" if v == chosen.variant else ""
                rows.append((f"{v.name[10:]}/{splits}{mark}", launches))
        theirs = [partial(torch.mm, a, b.T if right_t else b, out=c) for a, b, c in data]
        comes.flags[:] = 1
        for name, launches in rows:
            for _, _, c in data:
                c.fill_(math.nan)
            for launch in launches[0] * 2:
                launch()
            torch.cuda.synchronize()
            errors = [sampled_error(*each, right_t) for each in data]
            if not all(e < 3e-3 for e in errors):
                bad += 1
                print(f"{layout} {name}: relative error {max(errors):.1e}")
        everything = [each for _, launches in rows for each in launches]
        t = times([graph(theirs), *map(graph, everything)], len(data), rounds)
        one = [[comes.time(each[r % len(data)]) for r in range(rounds)] for each in everything]
        print(f"{layout} {'cuBLAS, whole':24} {median(t[0]):12.1f}")
        width = len(rows[0][1])
        for i, (name, _) in enumerate(rows):
            here = range(i * width, (i + 1) * width)
            print(f"{layout} {name:24} " + "  ".join(f"{median(t[j + 1]):12.1f} {median(one[j]):10.1f}" for j in here),
                  flush=True)  # fmt: skip
        del data, theirs, rows, everything
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", choices=("sm90", "sm80"), default="sm90")
    parser.add_argument("--beside", type=Path, help="another version of the kernel's source, timed beside")
    parser.add_argument("--shapes", type=Path, default=Path(__file__).with_name("gemm_shapes.json"))
    parser.add_argument("--group", choices=("large", "decode"))
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
    parser.add_argument("--pieces", type=int, help="time a product in so many pieces that come one after another")
    parser.add_argument("--every", type=float, default=30.0, help="microseconds from a piece to the next")
    parser.add_argument("--size", type=int, nargs=3, default=(2048, 2560, 8192), help="M N K of --pieces")
    parser.add_argument("--bands", type=int, nargs="*", default=[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.most < 128:
        parser.error("--most is a number from 128")
    if (args.impatient or args.pieces is not None) and args.kernel != "sm90":
        parser.error("--impatient and --pieces are for the Hopper kernel")
    if args.pieces is not None and not 2 <= args.pieces <= args.size[0]:
        parser.error("--pieces is a number from 2 to the rows of --size")
    if args.every <= 0 or min(args.size) < 1:
        parser.error("--every and --size are numbers greater than 0")
    needed = {"sm90": "a Hopper GPU", "sm80": "a GPU of Ampere or later"}[args.kernel]
    if not torch.cuda.is_available() or (arch() != sm90.ARCH if args.kernel == "sm90" else not sm80.serves(arch())):
        print(f"gemm_bench needs {needed}", file=sys.stderr)
        return 3
    torch.zeros(1, device="cuda")  # makes the context current
    print(f"{torch.cuda.get_device_name()}, {sms()} SMs, PyTorch {torch.__version__}, seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        source = impatient(Path(folder)) if args.impatient else None
        bad = 0 if args.no_check else check(args.kernel, args.seed, args.cases, args.most, args.variants, source)
    if args.check_only or bad:
        return 4 if bad else 0
    shapes = json.loads(args.shapes.read_text())
    if args.group:
        shapes = {g: shapes[g] if g == args.group else [] for g in ("large", "decode")}
    if args.pieces:
        m, n, k = args.size
        return 4 if in_pieces(m, n, k, args.pieces, args.every, args.rounds, args.variants, args.beside) else 0
    if args.explore:
        explore(
            args.kernel, shapes, [g for g in ("large", "decode") if shapes[g]], args.bands, args.variants, args.json
        )
        return 0
    return 4 if bench(args.kernel, shapes, args.rounds, args.json, args.beside) else 0


if __name__ == "__main__":
    sys.exit(main())
