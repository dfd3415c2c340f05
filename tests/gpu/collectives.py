"""A schedule of all of NCCL's collectives."""

from __future__ import annotations

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.driver.registry import discover
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan

COLUMNS = 1024

EVERY = """schedule every
input   A[ROWS, COLUMNS] : DTYPE
output  G[ROWS * ranks, COLUMNS] : DTYPE
output  S[ROWS, COLUMNS] : DTYPE
output  R[ROWS / ranks, COLUMNS] : DTYPE
output  X[ROWS, COLUMNS] : DTYPE
computes G = all_gather(A, rows)
computes S = all_reduce(A)
computes R = reduce_scatter(A, rows)
computes X = all_to_all(A, rows)
queue vendor { engine = nccl  ASKED }
stage gather   on vendor { all_gather G <- A }
stage total    on vendor { all_reduce S <- A }
stage scatter  on vendor { reduce_scatter R <- A }
stage exchange on vendor { all_to_all X <- A }
"""
OUTPUTS = {"all_gather": "G", "all_reduce": "S", "reduce_scatter": "R", "all_to_all": "X"}


def every_plan(
    gpus: int,
    driver: str,
    rows: int,
    dtype: str = "bf16",
    asked: str = "",
    only: str = "",
    machine: Machine | None = None,
) -> Plan:
    """All four collectives, or one. `machine`: by default the GPUs of this process."""
    text = EVERY.replace("ROWS", str(rows)).replace("COLUMNS", str(COLUMNS)).replace("DTYPE", dtype)
    lines = text.replace("ASKED", asked).split("\n")
    if only:
        others = [name for kind, name in OUTPUTS.items() if kind != only]
        gone = tuple(f"{word} {name}" for name in others for word in ("output ", "computes"))
        lines = [li for li in lines if not li.startswith(gone) and not any(f" {name} <- A" in li for name in others)]
    machine = machine or discover(driver, gpus)  # type: ignore[arg-type]
    return compiler.plan_of(compiler.build(ficco_dsl.parse("\n".join(lines), "every.ficco"), gpus), machine)
