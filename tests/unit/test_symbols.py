"""Where names are declared and used: every name of a text that means something, and nothing else."""

from __future__ import annotations

import re

import pytest

from ficco_dsl.parser import parse_syntax
from ficco_dsl.symbols import Occurrence, occurrences
from ficco_rt.files import shipped

TEXT = """\
schedule names

param M = 64
param deep = [[i * j for j in 0..M] for i in 0..2]
type T = bf16

input  A[2, M] : T
output C[2, M] : T

computes C[i] = A[i] within T for i in 0..2

queue dma { engine = copy }

kernel dma(read x, write y, int i) from "k.cu" entry "k" { grid = [ceil(cols(x), i)] }

step i in 0..2 {
  stage M on dma after M {
    let k = i
    for j in 0..k, i2 in 0..j {
      copy C[j].cols(k of deep[i]) <- A[j].cols(k of deep[i2])
    }
    launch dma(A[k], C, k)
  }
}
"""


def named(text: str) -> list[Occurrence]:
    found = list(occurrences(parse_syntax(text, "x.ficco")))
    for o in found:
        line = text.splitlines()[o.span.line - 1]
        assert line[o.span.column - 1 : o.span.end_column - 1] == o.symbol.name
    return found


def places(name: str, what: str) -> list[list[int]]:
    """Lines of the occurrences of each symbol of a name, the declaration's first."""
    by: dict[object, list[int]] = {}
    for o in named(TEXT):
        if (o.symbol.name, o.symbol.what) == (name, what):
            by.setdefault(o.symbol.span, []).append(o.span.line)
    return [lines for span, lines in by.items()]


@pytest.mark.parametrize(
    ("name", "what", "lines"),
    [
        ("M", "param", [[3, 4, 7, 8]]),
        ("M", "stage", [[17, 17]]),
        ("T", "type", [[5, 7, 8, 10]]),
        ("dma", "queue", [[12, 17]]),
        ("dma", "kernel", [[14, 22]]),
        ("i", "loop variable", [[4, 4], [10, 10, 10], [16, 18, 20]]),
        ("i", "argument", [[14, 14]]),
        ("x", "argument", [[14, 14]]),
        ("j", "loop variable", [[4, 4], [19, 19, 20, 20]]),
        ("k", "let", [[18, 19, 20, 20, 22, 22]]),
        ("deep", "param", [[4, 20, 20]]),
        ("C", "output", [[8, 10, 20, 22]]),
    ],
)
def test_names_mean_what_their_scope_says(name: str, what: str, lines: list[list[int]]) -> None:
    assert sorted(places(name, what)) == sorted(lines)


def test_a_name_lives_in_its_block() -> None:
    let = next(o.symbol for o in named(TEXT) if o.symbol.what == "let")
    assert (let.lives.line, let.lives.end_line) == (18, 23)
    loop = next(o.symbol for o in named(TEXT) if o.symbol.name == "i2")
    assert (loop.lives.line, loop.lives.end_line) == (19, 21)


def test_names_that_nothing_declares_are_none() -> None:
    assert [o.symbol.name for o in named("schedule s\nqueue q { engine = sm }\nstage a on p { gemm X = Y * Z }\n")] == [
        "q",
        "a",
    ]


@pytest.mark.parametrize("entry", shipped.entries(), ids=lambda e: e.name)
def test_all_names_of_shipped_schedules(entry: shipped.ShippedSchedule) -> None:
    text = entry.path.read_text(encoding="utf-8")
    found = named(text)
    names = {o.symbol.name for o in found}
    bare = re.sub(r"#.*|\"[^\"]*\"", "", text)
    written = [
        m for m in re.findall(r"(?<![\w)\]]\.)\b[A-Za-z_]\w*\b(?!\()", bare) if m in names
    ]  # a stage may be called as a function is
    assert len(found) == len(written)
    assert all(sum(o.declares for o in found if o.symbol == symbol) == 1 for symbol in {o.symbol for o in found})
