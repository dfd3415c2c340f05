"""No file makes the compiler run for long or fill the memory: the worst that we could think of, each refused (or
compiled) by a process of its own within set limits.

With FICCO_FUZZ the limits are those of the default FICCO_MAX_OPS, else of a twentieth of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pytest

import ficco_dsl
from ficco_dsl.diagnostics import Span
from ficco_rt import compiler
from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import codec
from ficco_rt.plan.ir import CopyAsync, Transfer
from tests import cases, warm

FULL = "FICCO_FUZZ" in os.environ
OPS = 500_000 if FULL else 25_000
SECONDS = 120 if FULL else 30  # of one processor; a slow one
GIGABYTES = 2.0 if FULL else 0.4

CHILD = """\
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
from ficco_rt.cli.main import execute
code = execute("ficco", sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
# NOTE not ru_maxrss: it counts what the parent held when this process was forked
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("USED", peak / 1e6, used.ru_utime + used.ru_stime)
sys.exit(code)
"""


@dataclass(frozen=True)
class Bomb:
    text: str
    says: str | None  # None: it compiles
    ranks: int = 1


FRAME = """\
schedule bomb
{params}
input   X[{rows}, 65536] : fp32
output  Y[{rows}, 65536] : fp32 unproven
scratch Z[{rows}, 65536] : fp32
{declarations}
queue dma { engine = copy }
queue auto { engine = copy order = auto }
queue sm { engine = sm }
stage first on dma { copy Y <- X copy Z <- X }
{stages}
"""
PROVEN = """\
schedule bomb
input   A[{rows}, 64] : fp32
input   B[64, 64] : fp32
output  C[{rows}, 64] : fp32
scratch P[64, 64] : fp32
scratch Q[64, 64] : fp32
computes C = A * B
queue q { engine = sm }
stage all on q { {body} }
"""


def fill(text: str, **parts: str) -> str:
    """`text` with its parts, and `<OPS/4>` as a number."""
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return re.sub("<OPS/([0-9]+)>", lambda m: str(OPS // int(m[1])), text)


def stage(body: str, queue: str = "sm", **parts: str) -> str:
    """A schedule with one more stage."""
    return stages(f"stage last on {queue} {{ {body} }}", **parts)


def stages(text: str, params: str = "", declarations: str = "", rows: str = "65536") -> str:
    return fill(FRAME, params=params, declarations=declarations, stages=text, rows=rows)


def proven(body: str, rows: str = "64") -> str:
    return fill(PROVEN, body=body, rows=rows)


def many(template: str, count: int) -> str:
    """Lines with {i} and {j}, the number of this and of the next."""
    return "\n".join(template.replace("{i}", str(i)).replace("{j}", str(i + 1)) for i in range(count))


LISTS = "the lists of this schedule have more than"
STATEMENTS = "the schedule expands to more than"
MEET = "meet in more than"
TERMS = "the proof meets sums of more than"
STEPS = "compiling this takes more than"
LENGTH = "the most is 65536"
NESTED_IFS = "if c < 0 { copy Y[0] <- X[0] } " * 5000
LONG_LIST = ", ".join(["0" + "".join(f" + {i}" for i in range(40))] * 500)
DOUBLED = "reduce Q = sum(P, P) reduce P = sum(Q, Q)"

LIST_BOMBS = {
    "lists that hold a list twice": Bomb(
        stages("", params="param l0 = [1, 1]\n" + many("param l{j} = [l{i}, l{i}]", 60)), "lists nest more than 4 deep"
    ),
    "lists of long lists": Bomb(stages("", params="param a = [[i for i in 0..60000] for j in 0..60000]"), LISTS),
    "lists of ranges": Bomb(stages("", params="param a = [0..60000 for j in 0..60000]"), LISTS),
    "a list in every turn": Bomb(
        stage("for c in 0..<OPS/2> { let a = [i for i in 0..60000] copy Y[0] <- X[0] }"), LISTS
    ),
    "a set turned round": Bomb(stage("for c in reversed(0..999999999999999999) { copy Y[0] <- X[0] }"), STATEMENTS),
    "sets compared": Bomb(stage("let a = 0..999999999999999999 if a != reversed(a) { copy Y[0] <- X[0] }"), None),
    "the length of a set": Bomb(
        stage("let a = -999999999999999999..999999999999999999 if len(a) > 3 { copy Y[0] <- X[0] }"), None
    ),
    "shares without end": Bomb(stage("let a = 0..1000000000000 copy Y.rows(0 of a) <- X"), LENGTH),
    "long shares in every turn": Bomb(
        stage(
            "for c in 0..<OPS/2> { copy Y.rows(c % 60000 of a) <- X.rows(c % 60000 of a) }",
            params="param a = 1..60001",
        ),
        LISTS,
    ),
}
REGION_BOMBS = {
    "a set of pieces": Bomb(stage("copy Y.rows(0..1000000000 of 1000000000) <- X"), LENGTH),
    "rows times columns": Bomb(
        stage("copy Y.rows(reversed(0..60000) of 65536).cols(reversed(0..60000) of 65536) <- Y"), "separate pieces"
    ),
    "pieces of pieces": Bomb(
        stage("copy Y.rows(reversed(0..2000) of 2000, reversed(0..2000) of 2000) <- Y"), "the most pieces is 65536"
    ),
    "many pieces many times": Bomb(
        stage("for c in 0..<OPS/2> { copy Y.rows(reversed(0..65000) of 65536) <- Z.rows(0..65000 of 65536) }"),
        "the lists of this schedule have more than",
    ),
    "terms of a sum": Bomb(stage("reduce Y[0] = sum(X.rows(0..1000000000 of 1000000000)[0])"), LENGTH),
}
LOOP_BOMBS = {
    "ten million": Bomb(stage("for c in 0..10000000 { copy Y[0] <- X[0] }"), STATEMENTS),
    "loops in loops": Bomb(
        stage("for a in 0..1000 { for b in 0..1000 { for c in 0..1000 { copy Y[0] <- X[0] } } }"), STEPS
    ),
    "conditions in loops": Bomb(stage(f"for c in 0..<OPS/2> {{ {NESTED_IFS} }}"), STATEMENTS),
    "long statements in loops": Bomb(
        stage(f"for c in 0..<OPS/2> {{ let x = [{LONG_LIST}] copy Y[0] <- X[0] }}"), STATEMENTS
    ),
    "steps": Bomb(stage("step c in 0..10000000 { copy Y[0] <- X[0] }"), STATEMENTS),
    "steps of stages": Bomb(stages("step c in 0..10000000 { stage s on sm { copy Y[0] <- X[0] } }"), STATEMENTS),
    "a loop on many ranks": Bomb(stage("for c in 0..100000 { copy Y[0] <- X[0] }"), "operations over all ranks", 500),
}
DECLARATION_BOMBS = {
    "params on many ranks": Bomb(stages("", params=many("param p{i} = {i}", 20_000)), "names over all ranks", 1024),
    "tensors on many ranks": Bomb(stages("", declarations=many("scratch T{i}[4] : fp32", 7000)), "more than", 1024),
    "claims": Bomb(
        stage(
            "copy Z[0] <- X[0]", declarations="computes Y.rows(i of 65536) = X.rows(i of 65536) for i in 0..65536"
        ).replace("unproven", ""),
        None if FULL else "the regions of the schedule have more than",
    ),
    "queues": Bomb(
        stages(
            many("stage a{i} on q{i} { copy Y[{i}] @ (rank + 1) % ranks <- Z[{i}] }", 3000),
            declarations=many("queue q{i} { engine = copy }", 3000),
        ),
        "clocks of more than",
        max(2, OPS // 12_000),
    ),
    "stages after stages": Bomb(
        stages(
            many("stage a{i} on dma { copy Y[{i}] <- X[{i}] }", 3000)
            + f"stage z on sm after {', '.join(f'a{i}' for i in range(3000))} "
            + "{ for c in 0..<OPS/3> { copy Z[c % 60000] <- X[0] } }"
        ),
        STEPS,
    ),
}
ACCESS_BOMBS = {
    "rows, then columns": Bomb(
        stage(
            "for i in 0..<OPS/5> { copy Y.rows(i of <OPS/5>) <- X.rows(i of <OPS/5>) } "
            "for j in 0..<OPS/5> { copy Y.cols(j of <OPS/5>) <- X.cols(j of <OPS/5>) }"
        ),
        MEET,
    ),
    "one write after all reads": Bomb(
        stages(
            "stage more on dma { for c in 0..<OPS/4> { copy Y[c % 60000] <- Z[0] } } stage end on dma { copy Z <- X }"
        ),
        None,
    ),
    "all writes after all reads": Bomb(
        stages(
            "stage more on dma { for c in 0..<OPS/3> { copy Y[c % 60000] <- Z[0] } } "
            "stage end on dma { for c in 0..<OPS/20> { copy Z[0, c : c + 1] <- X[0, 0 : 1] } }"
        ),
        MEET,
    ),
    "a port for all": Bomb(
        stage(
            "for c in 0..<OPS/40> { if rank > 0 { copy Z[(rank - 1) * <OPS/40> + c, 0:9] @ 0 <- X[0, 0:9] } }",
            "auto",
            rows="<OPS/1>",
        ),
        None,
        8,
    ),
    "a stage that streams all": Bomb(
        stages(
            "stage w on sm streamed { for c in 0..<OPS/16> { reduce Z[c, 0:4] = sum(X[c, 0:4]) } } "
            "stage e on dma { for c in 0..<OPS/16> { copy Y[c, 0:4] <- Z[c, 0:4] } }",
            rows="<OPS/1>",
        ),
        None,
    ),
    "copies of many runs": Bomb(
        stage(
            "copy V[0:40, 0:2000000, 0:3, 0:1] <- U[0:40, 0:2000000, 1:4, 1:2]",
            declarations="input U[40, 2000000, 4, 2] : fp32 scratch V[40, 2000000, 4, 2] : fp32",
        ),
        "runs of memory",
    ),
}
PROOF_BOMBS = {
    "a product doubled": Bomb(proven(f"gemm P = A * B for i in 0..100 {{ {DOUBLED} }} reduce C = sum(P)"), TERMS),
    "a copy doubled": Bomb(proven(f"reduce P = sum(A) for i in 0..<OPS/5> {{ {DOUBLED} }} gemm C = P * B"), STEPS),
    "a product of doubled copies": Bomb(
        proven(f"reduce P = sum(A) for i in 0..40 {{ {DOUBLED} }} gemm C = P * B"), TERMS
    ),
    "one product over and over": Bomb(proven("for i in 0..<OPS/5> { gemm C += A * B }"), TERMS),
    "all pieces wrong": Bomb(
        proven("for i in 0..<OPS/4> { gemm C.rows(i of <OPS/4>) = A.rows(<OPS/4> - 1 - i of <OPS/4>) * B }", "<OPS/4>"),
        "lacks",
    ),
    "all reads too early": Bomb(
        stage(
            many("copy Y[{i}, 0:4] <- U[{i}]", 4000) + " for c in 0..<OPS/8> { copy U[c % 60000] <- X[0, 0:4] }",
            "dma",
            declarations="scratch U[65536, 4] : fp32",
        ),
        "which nothing has written",
    ),
}
BOMBS = {
    **LIST_BOMBS,
    **REGION_BOMBS,
    **LOOP_BOMBS,
    **DECLARATION_BOMBS,
    **ACCESS_BOMBS,
    **PROOF_BOMBS,
}


@pytest.mark.parametrize("name", cases.few(list(BOMBS), len(BOMBS) // 2, date.today().toordinal() % 2))
def test_schedule(name: str, tmp_path: Path) -> None:
    bomb = BOMBS[name]
    path = tmp_path / "bomb.ficco"
    path.write_text(bomb.text, encoding="utf-8")
    within_limits([str(path), "--gpus", str(bomb.ranks)], bomb.says)


def within_limits(arguments: list[str], says: str | None) -> None:
    """Run `ficco check`; what it says, and that it stays within the limits."""
    environment = {**os.environ, "FICCO_MAX_OPS": str(OPS)}
    done = warm.start(CHILD.format(seconds=SECONDS), "check", *arguments, environment=environment)
    out, err = done.communicate(60 * SECONDS)
    assert "USED" in out, f"ended with {done.returncode}: out of time or memory\n{err[-2000:]}"
    gigabytes, seconds = map(float, out.split("USED")[1].split())
    print(f"{gigabytes:.2f} GB, {seconds:.1f} s")
    assert gigabytes < GIGABYTES
    assert done.returncode == (1 if says else 0), err[-2000:]
    assert (says or "") in err, err[:2000]


# ---------------------------------------------------------------- stored plans


def stored(transfers: list[Transfer]) -> str:
    """A plan of one stream that does these transfers between X and Z."""
    schedule = ficco_dsl.parse(stages(""), "bomb.ficco")
    plan = compiler.plan_of(compiler.build(schedule, 1), profile("h200-switch", 1))
    commands = tuple(CopyAsync((t,), "first") for t in transfers)
    return codec.to_json(replace(plan, streams=(replace(plan.streams[0], commands=commands),)))


def part(tensor: str, rows: Iterable[Interval], columns: Iterable[Interval]) -> Region:
    return Region(tensor, 0, (Axis(tuple(rows)), Axis(tuple(columns))))


def crossing() -> str:
    """Row after row, then column after column."""
    cuts = [Interval(i, i + 1) for i in range(OPS // 20)]
    all_of = [Interval(0, 65536)]
    regions = [([i], all_of) for i in cuts] + [(all_of, [i]) for i in cuts]
    return stored([Transfer(part("Z", *r), part("X", *r), i, HERE) for i, r in enumerate(regions)])


def scattered() -> str:
    """Regions of many pieces, in few words."""
    every_other = [Interval(2 * i, 2 * i + 1) for i in range(250)]
    column = [Interval(0, 1)]
    text = stored([Transfer(part("Z", every_other, column), part("X", every_other, column), 0, HERE)])
    data = json.loads(text)
    command = json.dumps(data["streams"][0]["commands"][0])
    data["streams"][0]["commands"] = []
    for i in range(OPS // 5000):
        new = json.loads(command)
        for side in ("dst", "src"):
            new["transfers"][0][side][3] = [[2 * j + i * 600, 2 * j + i * 600 + 1] for j in range(250)]
        data["streams"][0]["commands"].append(new)
    return json.dumps(data)


HERE = Span("bomb.ficco", 1, 1, 1, 1)
PLANS = {
    "rows and columns": (crossing, "meet in more than"),
    "scattered regions": (scattered, "more than"),
    "nested": (lambda: "[" * 1_000_000, "nested too deeply"),
    "nested claims": (lambda: '{"ficco_plan": 1, "params": ' + "[" * 900 + "]" * 900 + "}", "missing"),
    "digits": (lambda: '{"ficco_plan": ' + "9" * 1_000_000 + "}", "thousands of digits"),
}


@pytest.mark.parametrize("name", PLANS)
def test_plan(name: str, tmp_path: Path) -> None:
    make, says = PLANS[name]
    path = tmp_path / "bomb.json"
    path.write_text(make(), encoding="utf-8")
    within_limits([str(path)], says)
