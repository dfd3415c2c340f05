"""Random cases of every kernel, and chains of products, against fp64."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import torch

from ficco_rt.kernels import tiles
from ficco_rt.kernels.sm90 import choice
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.kernels.tile_table import WHOLE_K, SplitK

from .case import TORCH, Case, draw_case
from .device import shared, sms
from .launch import Launch, build, compiled
from .product import operand
from .variants import Key, keys_of

SECONDS = 20  # after which a launch counts as hanging


def check_case(rng: random.Random, key: Key, most: int, source: Path | None) -> str | None:
    """One random case, run twice: sizes up to `most`, pieces, splits, accumulation, flags. What is wrong with it, or
    None."""
    case = draw_case(rng, key, most)
    launch = case.launch(source)
    what = case.told(launch)
    before: torch.Tensor | None = None
    for turn in range(2):
        run(case, launch, f"{what}: turn {turn}")
        wrong = misplaced(case)
        if wrong:
            return f"{what}: turn {turn}: {wrong}"
        bits = case.bits()
        if before is not None and not torch.equal(bits, before):
            return f"{what}: {int((bits != before).sum())} elements differ from the first turn's"
        before = bits
        wrong = "counters are not zero" if launch.left_counters() else inexact(case) or misflagged(case)
        if wrong:
            return f"{what}: turn {turn}: {wrong}"
    return None


def run(case: Case, launch: Launch, what: str) -> None:
    """One turn; its addends come while the kernel runs."""
    case.reset()
    torch.cuda.synchronize()
    launch()
    if case.added:
        case.added.come(case.flag[4])
    finish(what)


def finish(what: str) -> None:
    """Wait for the device. It failed, or does not end: that is printed, and the process ends with exit code 4."""
    end, until, why = torch.cuda.Event(), time.monotonic() + SECONDS, "it does not end"
    try:
        end.record()
        while not end.query():
            if time.monotonic() > until:
                break
            time.sleep(1e-5)
        else:
            torch.cuda.synchronize()  # other streams, too
            return
    except RuntimeError as e:
        why = str(e)
    print(f"check: {what}: {why}", flush=True)
    os._exit(4)  # NOTE an exit that waits for the device would not end either


def misplaced(case: Case) -> str | None:
    """What is NaN and should not be, or the other way round."""
    wrong = torch.isnan(case.out.double()) != torch.isnan(case.expect)
    if not wrong.any():
        return None
    return f"{int(wrong.sum())} elements missing or overwritten, the first {wrong.nonzero()[0].tolist()}"


def inexact(case: Case) -> str | None:
    """How far the numbers are off, if that is too far: in norm, and an element by the greatest one."""
    got, expect = case.out.double(), case.expect
    good = ~torch.isnan(expect)
    error = float((got[good] - expect[good]).norm() / expect[good].norm())
    signature = case.key.signature
    limit = 1e-3 if signature.tf32 else {"bf16": 3e-3, "fp16": 5e-4, "fp32": 1e-5}[signature.out_dtype]
    worst = float((got[good] - expect[good]).abs().max() / expect[good].abs().max())
    if error < limit and worst < 4 * limit:
        return None
    return f"relative error {error:.2e}, worst element {worst:.2e}"


def misflagged(case: Case) -> str | None:
    """The flags, if another is up or down than should be."""
    flags = case.flags.tolist()
    return f"flags {flags}" if flags != [1, 1, 1, 1, int(case.key.signature.addends)] else None


def check_chain(rng: random.Random, key: Key, source: Path | None) -> str | None:
    """Products of one launch each of which multiplies what the one before it made, waiting for the flag that this one
    raises. What is wrong, or None."""
    right_t = key.signature.right_transposed
    m, n, links = rng.randint(1, 600), rng.randint(1, 10) * 64, rng.randint(2, 5)
    t = TORCH[key.signature.dtype]
    chain = [torch.full((m, n), math.nan, device="cuda", dtype=t) for _ in range(links + 1)]
    chain[0][:] = torch.randn(m, n, device="cuda").to(t)
    right = (torch.randn(n, n, device="cuda") / math.sqrt(n)).to(t)
    right_store = right.T.contiguous() if right_t else right
    flags = torch.zeros(links, dtype=torch.int32, device="cuda")
    flag = [flags.data_ptr() + 4 * i for i in range(links)]
    r = operand(right_store)
    works = [
        tiles.MatrixWork(
            a.matrix, r.matrix, b.matrix, a.rows, a.columns, r.rows, r.columns, b.rows, b.columns, False,
            (flag[i - 1],) if i else (), (flag[i],),
        )
        for i, (a, b) in enumerate(pairwise(map(operand, chain)))
    ]  # fmt: skip
    stages = rng.randint(2, key.stages(shared(1) - 1024))
    splits, count = rng.choice((1, 1, 2)), rng.choice((sms(), 16, 4))
    # NOTE parts of the last wave would stand among each other, whatever work they are of; those of a work do not
    split_k = SplitK(works=(splits,) * links) if splits > 1 and isinstance(key.variant, sm90.Variant) else WHOLE_K
    launch = Launch(build(works, key, blocks=count, stages=stages, split_k=split_k), source)
    what = f"{key.entry} chain of {links} m={m} n={n} stages={stages} splits={splits} sms={count}"
    for turn in range(2):
        for out in chain[1:]:
            out.fill_(math.nan)
        flags[:] = 0
        torch.cuda.synchronize()
        launch()
        finish(f"{what}: turn {turn}")
        for i, (a, b) in enumerate(pairwise(chain)):
            expect = a.double() @ right.double()
            error = float((b.double() - expect).norm() / expect.norm())
            if not error < 3e-3:
                return f"{what}: turn {turn}: link {i}: relative error {error:.2e}"
        if not flags.all() or launch.left_counters():
            return f"{what}: turn {turn}: flags {flags.tolist()}, or counters are not zero"
    return None


@patch.object(choice, "LEVEL", 0)  # of little K, too
def check(kernel: str, seed: int, cases: int, most: int, only: str, source: Path | None) -> int:
    """How many random cases of the kernels that `only` names are wrong, which is printed."""
    keys = keys_of(kernel, only)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: compiled(source, key), keys))
    rng, failures = random.Random(seed), []
    torch.manual_seed(seed)
    for key in keys:
        for _ in range(cases):
            found = [check_case(rng, key, most, source)]
            s = key.signature
            if s.dtype == s.out_dtype and not s.left_transposed and not s.addends:
                found.append(check_chain(rng, key, source))
            failures += [failure for failure in found if failure]
    print(f"check: {len(keys)} kernels × {cases} random cases, seed {seed}: {len(failures)} failed", flush=True)
    for failure in failures[:12]:
        print("  " + failure)
    return len(failures)


def impatient(folder: Path) -> Path:
    """The Hopper kernel, but that no part of a tile waits for others: the last to come does what they leave."""
    sources = Path(shutil.copytree(sm90.SOURCE.parent, folder / "src"))
    header = sources / "sm90" / "split_k.cuh"
    text = header.read_text()
    changed = re.sub(r"PATIENCE = \d+", "PATIENCE = 0", text)
    assert changed != text
    header.write_text(changed)
    return sources / sm90.SOURCE.name
