"""Mutants of types: the tensors of shipped schedules in other types than they were written with. The proof refuses
them, or the run is right up to the rounding of the output's type, with inputs so large that a range too small shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ficco_dsl.nodes import Schedule
from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import ScheduleError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.reference import evaluate, take
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from ficco_rt.types import TYPES, numpy_dtype
from tests import cases

RANKS = 3
# of inputs and outputs
BOUNDARIES = (("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "fp32"), ("bf16", "fp32"), ("fp16", "fp32"))


def mutants(schedule: Schedule) -> Iterator[Schedule]:
    """Other types at the boundary, and of what lies between: all of it, or one tensor."""
    scratch = [t.name for t in schedule.tensors if t.kind == "scratch"]
    groups = [set(scratch), *({name} for name in scratch if len(scratch) > 1)]
    chosen: dict[tuple[str, ...], None] = {}
    for given, made in BOUNDARIES:
        kinds = {"input": given, "output": made, "scratch": given}
        for group, between in product(groups, TYPES):
            chosen[tuple(between if t.name in group else kinds[t.kind] for t in schedule.tensors)] = None
    for types in chosen:
        tensors = zip(schedule.tensors, types, strict=True)
        yield replace(schedule, tensors=tuple(replace(tensor, dtype=dtype) for tensor, dtype in tensors))


def right(plan: Plan) -> bool:
    """Products reach 10⁶ where the output's type does, which fp16 does not hold."""
    rng = np.random.default_rng(0)
    made = next(t.dtype for t in plan.tensors if t.kind == "output")
    scale = 4 if made == "fp16" else 200
    inputs = {
        t.name: [(rng.random(shape) * scale).astype(numpy_dtype(t.dtype)) for shape in t.shapes]
        for t in plan.tensors
        if t.kind == "input"
    }
    with Executor(plan) as executor:
        for name, arrays in inputs.items():
            for rank, array in enumerate(arrays):
                executor.write(name, rank, array)
        executor.poison()
        executor.run()
        for claim in plan.claims:
            for target, wanted in zip(claim.targets, evaluate(claim.value, inputs), strict=True):
                got = take(executor.read(target.tensor, target.rank).astype(np.float64), target)
                if not np.all(np.abs(got - wanted) <= 4 * RANKS * TYPES[made].unit_roundoff * np.abs(wanted)):
                    return False
    return True


# NOTE types of `quantized` are scaled: none of BOUNDARIES fits them
@pytest.mark.parametrize("operation", sorted({name.partition("/")[0] for name in cases.SCHEDULES} - {"quantized"}))
def test_refused_or_right(operation: str) -> None:
    seen: Counter[str] = Counter()
    for name in cases.SCHEDULES:
        if name.partition("/")[0] != operation:
            continue
        sizes = cases.sizes(name, RANKS, even=True) | cases.few_chunks(name)
        del sizes["T"]
        for mutant in mutants(cases.schedule(name)):
            try:
                plan = plan_of(build(mutant, RANKS, sizes), profile("h200-switch", RANKS))
            except ScheduleError as refused:
                by_types = all("is made of" in d.message for d in refused.diagnostics)
                seen["of a type that the claim does not admit" if by_types else "of an op's rule"] += 1
                continue
            seen["right"] += 1
            assert right(plan), (name, [(t.name, t.dtype) for t in mutant.tensors])
    assert seen["right"]
    assert seen["of an op's rule"]
    if operation in ("gemm_rs", "gemm_ar"):
        assert seen["of a type that the claim does not admit"]
