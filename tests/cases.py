"""The schedules and sizes that every feature is tested on. A new schedule joins by being shipped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from ficco_dsl.nodes import Schedule
from ficco_rt import compiler
from ficco_rt.device.check import checked
from ficco_rt.device.ir import DevicePlan
from ficco_rt.exec.reference import evaluate
from ficco_rt.files import shipped
from ficco_rt.geometry.rows import Rows
from ficco_rt.graph.overrides import by_library as by_vendor
from ficco_rt.select.sized import _ROWS
from ficco_rt.types import ELEMENT_TYPES

RANKS = (1, 2, 3, 4, 7, 8)
ALL = bool(os.environ.get("FICCO_ALL"))  # all cases of tests that else take a few of them
_Case = TypeVar("_Case")
SCHEDULES = tuple(e.name for e in shipped.entries())
ONE_TYPE = tuple(n for n in SCHEDULES if not n.startswith("quantized/"))  # in which inputs and outputs have the type T
FLOATS = tuple(t.name for t in ELEMENT_TYPES if not t.quantised)


@cache
def schedule(name: str) -> Schedule:
    return compiler.load(shipped.find(name))


@cache
def by_library(name: str) -> Schedule:
    """A shipped schedule whose products the vendor's library makes."""
    return by_vendor(compiler.load(shipped.find(name)))


def sizes(name: str, ranks: int, even: bool) -> dict[str, object]:
    """Small sizes of a shipped schedule. Even ones divide among ranks and chunks; the others divide among ranks
    only, where the text asks for it: pieces then differ by one, and some may be empty. Weights of the others are stored
    transposed, and a bias is added."""
    declared = {p.name for p in schedule(name).params}
    chosen: dict[str, object] = {"M": 16 * ranks, "N": 8 * ranks, "K": 16 * ranks, "T": "fp32"}
    if not even:
        chosen |= {"M": 5 * ranks, "N": 3 * ranks, "K": 7 * ranks, "transb": 1, "bias": 1}
    chosen |= short(name)
    if "counts" in declared:
        counts = [[(3 if even else 1) * (1 + (s + 2 * e) % 4) for e in range(ranks)] for s in range(ranks)]
        chosen |= {"counts": counts, "N": 5, "K": 7}
    return {k: v for k, v in chosen.items() if k in declared or k == "T"}


SCALED_OPERATIONS = ("ag_gemm", "ag_gemm_kept", "gemm_rs", "gemm_ar", "a2a_gemm")
SCALED = tuple(n for n in SCHEDULES if n.partition("/")[0] in SCALED_OPERATIONS)
SCALINGS = (("1x128", "128x128"), ("row", "row"), ("tensor", "row"), ("row", "tensor"))


def scaled(name: str, ranks: int, turn: int) -> dict[str, object]:
    """Small sizes of a shipped schedule with scaled operands, others at each turn."""
    left, right = SCALINGS[0 if name.endswith("_2d") else turn % len(SCALINGS)]
    dtypes = [("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e4m3"), ("fp8_e4m3", "fp8_e5m2")][turn % 3]
    types = {"T": f"{dtypes[0]} scaled {left}", "Weight": f"{dtypes[1]} scaled {right}"}
    deep = 256 if name.endswith("_2d") else 160
    each = deep * ranks if name.startswith(("gemm_rs", "gemm_ar")) else deep
    found = sizes(name, ranks, even=turn % 2 == 0) | few_chunks(name) | {"K": each, "transb": 1, **types}
    if name.endswith("_2d"):
        found["chunks"] = 2
    return found | {"Sum": ("bf16", "fp16", "fp32")[turn % 3]}


def rows(operation: str, ranks: int, planned: int, m: int) -> Rows:
    """The rows of an operation's tensors, where a rank has m."""
    return Rows(planned, m, {name: ranks if of_all else 1 for name, of_all in _ROWS[operation][0].items()})


def sized(operation: str, ranks: int, m: int, n: int, k: int) -> dict[str, object]:
    """The sizes of an operation for m rows of a rank."""
    return {"N": n, "K": k, **_ROWS[operation][1](m, ranks)}


def numbers(
    operation: str, ranks: int, m: int, n: int, k: int, seed: int, most: int = 2, **sizes: object
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Inputs with m rows a rank, of whole numbers up to `most`, and outputs of NaN; and what these must hold."""
    rng, planned = np.random.default_rng(seed), max(m, 1)
    named = sized(operation, ranks, planned, n, k) | sizes
    graph = compiler.build(schedule(f"{operation}/serial"), ranks, named)
    shapes = {t: [rows(operation, ranks, planned, m).shape(t.name, s) for s in t.shapes] for t in graph.tensors}
    given = {
        t.name: [rng.integers(-most, most + 1, shape).astype(np.float32) for shape in of_ranks]
        for t, of_ranks in shapes.items()
        if t.kind == "input"
    }
    wanted = {
        claim.targets[0].tensor: [value.astype(np.float32) for value in evaluate(claim.value, given)]
        for claim in graph.claims
    }
    spoilt = {name: [np.full(w.shape, np.nan, np.float32) for w in values] for name, values in wanted.items()}
    return given | spoilt, wanted


def checked_in_few(plan: DevicePlan) -> DevicePlan:
    """`checked` in one of three cases, for runs on the stand-in: it takes half of their time, and has its own tests."""
    taken = plan.crowded or crc32(f"{plan.plan_hash} {plan.mode}".encode()) % 3 == 0
    return checked(plan) if taken else plan


def few_chunks(name: str) -> dict[str, object]:
    """Params that keep a schedule's plan small."""
    declared = {p.name for p in schedule(name).params}
    if "iters" in declared:
        return short(name)
    return {"chunks": 3} if "chunks" in declared else {}


def short(name: str) -> dict[str, object]:
    """Two iterations, one behind the other, of a schedule that has iterations: every wait between two is there."""
    return {"iters": 2, "buffers": 1} if "iters" in {p.name for p in schedule(name).params} else {}


def once(name: str) -> dict[str, object]:
    """As `short`, but each buffer is made once: an iteration that makes it again would hide what went wrong before."""
    return {"iters": 2, "buffers": 2} if short(name) else {}


def few(cases: Sequence[_Case], count: int, turn: int) -> Sequence[_Case]:
    """So many of the cases, others at each turn; with FICCO_ALL all of them."""
    if ALL or count >= len(cases):
        return cases
    step = len(cases) // count
    return [cases[(turn + i * step) % len(cases)] for i in range(count)]
