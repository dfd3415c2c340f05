"""What tests of the command line share: two schedules, a command as a process, and how a command ended."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'dsl'}"}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # with it Python itself hides a pipe that breaks within a write

GOOD = """\
# All-gather, then one GEMM.
schedule small

param M = 64
param N = 32
param K = 48
type T = bf16

input A[M / ranks, K] : T
input B[K, N] : T
output C[M, N] : T
scratch G[M, K] : T

computes C = all_gather(A, rows) * B

queue dma { engine = copy }
queue compute { engine = sm }

stage gather on dma {
  for p in peers {
    copy G.rows(rank of ranks) @ p <- A
  }
  copy G.rows(rank of ranks) <- A
}
stage mm on compute {
  gemm C = G * B
}
"""
MISSING = GOOD.replace("  copy G.rows(rank of ranks) <- A\n", "")


@dataclass(frozen=True)
class Ending:
    code: int
    out: str
    err: str

    @property
    def record(self) -> Any:
        """The one JSON object on stdout."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


def command(name: str, *words: str) -> list[str]:
    """A command line for a process of its own."""
    return [sys.executable, "-c", f"from ficco_rt.cli.main import {name}; {name}()", *words]
