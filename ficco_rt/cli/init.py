"""`ficco init`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ficco_dsl.diagnostics import ScheduleError
from ficco_dsl.parser import parse_syntax

from ..errors import UsageError
from ..files import shipped
from ..files.atomic import SCHEDULE, check_outputs, read_text, write_atomic
from ..report.wording import show_params

GPUS = 4  # of the commands that are named
FIRST = """\
# All-gather + GEMM: every rank multiplies its own rows while the other ranks' rows arrive.
#
# Change a line and run `ficco check` again: it says what is missing where. docs/language.md has all of the language.

schedule {name}

param M = 4096                      # rows of A over all ranks
param N = 4096                      # columns of B over all ranks
param K = 4096
param chunks = 2 where chunks >= 1  # pieces of a rank's rows

input   A[M / ranks, K] : bf16  # what each rank holds
input   B[K, N / ranks] : bf16
output  C[M, N / ranks] : bf16
scratch G[M, K]         : bf16  # where the other ranks' rows land

computes C = all_gather(A, rows) * B  # what is proven before anything runs

queue dma     {{ engine = copy  priority = high }}
queue compute {{ engine = sm    priority = low }}

stage gather on dma {{
  for c in 0..chunks, p in peers {{
    copy G.rows(rank of ranks, c of chunks) @ p <- A.rows(c of chunks)
  }}
}}
stage own on compute {{
  gemm C.rows(rank of ranks) = A * B
}}
stage rest on compute {{
  for c in 0..chunks {{
    gemm C.rows(peers of ranks, c of chunks) = G.rows(peers of ranks, c of chunks) * B
  }}
}}
"""


def init(file: str, like: str | None) -> int:
    """Write a first schedule, or a copy of a shipped one, and say what to do next. Nothing is overwritten."""
    check_outputs([(SCHEDULE, file)])
    path = Path(file)
    if path.exists():
        raise UsageError(f"{file}: is there already; name a new file, or remove that one")
    name = re.sub(r"\W", "_", path.stem, flags=re.ASCII)
    name = name if re.fullmatch(r"[A-Za-z_]\w*", name) and _free(name) else f"schedule_{name}"
    kept = ""
    if like is None:
        text = FIRST.format(name=name)
    else:
        source = shipped.find(like)
        kept = _kept(source)
        text = re.sub(r"^schedule \w+", f"schedule {name}", read_text(source), count=1, flags=re.MULTILINE)
    write_atomic(path, text)
    sys.stdout.write(
        f"{file}: written\n"
        f"  ficco check {file} --gpus {GPUS}      proves it\n"
        f"  ficco-run {file} --gpus {GPUS}        runs it, on virtual GPUs if there are none\n"
        f"  ficco explain {file} --gpus {GPUS}    says in words what it does\n"
        f"{kept}"
    )
    return 0


def _kept(source: Path) -> str:
    """A line on the parameters that the copy of a shipped schedule has from its text, and the schedule itself by rules;
    empty if no rule speaks of it."""
    from ..compiler import sizes
    from ..machine.profiles import DEFAULT, chosen
    from ..select.candidates import text_of
    from ..select.defaults import open_values

    name = shipped.shipped_name(source)
    given = open_values(source, GPUS, {}, chosen(DEFAULT, GPUS))
    if name is None or not given:
        return ""
    own = sizes(text_of(name), GPUS, {})
    keeps = show_params((value.param, own[value.param]) for value in given)
    gets = show_params((value.param, value.value) for value in given)
    return (
        f"On {GPUS} GPUs the copy has {keeps}, as its text says; {name} itself gets {gets} by rules, which "
        f"`ficco explain {name} --gpus {GPUS}` prints\n"
    )


def _free(name: str) -> bool:
    """Whether a schedule can be called so: words of the language cannot be names."""
    try:
        parse_syntax(FIRST.format(name=name), "")
    except ScheduleError:
        return False
    return True
