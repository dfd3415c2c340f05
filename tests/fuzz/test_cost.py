"""What random programs cost, briefly (`python -m tests.fuzz.cost` goes on for longer), and programs that once ran for
minutes or hours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.cost import Worker, too_dear
from tests.fuzz.costly import Program, program

OPS = 12_500  # a fortieth of the default
SEEDS = (100, 101, 102, 103, 105, 106)
HEAD = """schedule b
input X[64, 64] : fp32
output Y[64, 64] : fp32 unproven
scratch Z[64, 64] : fp32
queue dma { engine = copy }
queue sm { engine = sm }
"""
FIRST = "stage first on dma { copy Y <- X copy Z <- X }\n"
LONG = f"max({', '.join(['rank * 0 + 1'] * 500)})"
NESTED = "all_to_all(" * 60 + "X" + ", rows)" * 60
QUEUES = "".join(f"queue q{i} {{ engine = sm  sms = max({', '.join(['rank * 0 + 1'] * 50)}) }}\n" for i in range(100))
EIGHT = "(a*3)%8, 0:8, (b*5)%8, 0:8, (c*3)%8, (d*7)%8, (e*5)%8, (f*3)%8"
ONCE_HUNG = {
    "shares walked at every turn": (
        "param L = [1 for i in 0..65000]\n",
        "stage s on dma { for c in 0..400000 { if part(65000, 3 of L) < 0 { copy Y <- X } } }",
        1,
    ),
    "a stage's attribute compiled at every turn": (
        "",
        f"step i in 0..12000 {{ stage a on sm with sms = {LONG} {{ copy Z <- X }} }}",
        1,
    ),
    "stages looked for at every turn": (
        "",
        f"step i in 0..12000 {{ stage a on sm after {', '.join(['first'] * 10)} {{ copy Z <- X }} }}",
        1,
    ),
    "attributes of queues on many ranks": (QUEUES, "", 64),
    "a batch of many copies": ("", "stage s on dma { for c in 0..12000 { copy Z[c % 64] <- X[c % 64] } }", 1),
}
TEXTS = {
    **{what: (HEAD + declared + FIRST + stages, ranks) for what, (declared, stages, ranks) in ONCE_HUNG.items()},
    "collectives nested in a claim": (
        "schedule b\ninput X[4 * ranks, 4] : fp32\noutput Y[4 * ranks, 4] : fp32\n"
        f"computes Y = {NESTED}\nqueue q {{ engine = sm }}\nstage s on q {{ copy Y <- X }}\n",
        64,
    ),
    "eight dimensions cut in pieces": (
        "schedule b\ninput X[8,8,8,8,8,8,8,8] : fp32\noutput Y[8,8,8,8,8,8,8,8] : fp32\ncomputes Y = X\n"
        "queue q { engine = copy }\nstage s on q { for a in 0..8, b in 0..8, c in 0..8, d in 0..8, e in 0..2 "
        f"{{ let f = e copy Y[{EIGHT}] <- X[{EIGHT}] }} }}\n",
        1,
    ),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker(OPS)
    yield made
    made.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_answered_soon(worker: Worker, seed: int) -> None:
    made = program(seed, OPS)
    cost = worker.cost(made)
    assert too_dear(cost, OPS, made.ranks) is None, f"seed {seed}: {cost}\n{str(made)[:3000]}"


@pytest.mark.parametrize("what", TEXTS)
def test_what_once_hung_is_answered_soon(worker: Worker, what: str) -> None:
    text, ranks = TEXTS[what]
    made = Program(text, ("ficco-run", "FILE", "--backend", "sim", "--gpus", str(ranks)), ranks)
    cost = worker.cost(made)
    assert too_dear(cost, OPS, ranks) is None, cost
    assert cost.code in (0, 1), cost
