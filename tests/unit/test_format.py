"""The formatter: one layout, nothing lost, nothing changed by a second pass."""

from __future__ import annotations

import random
import time

import pytest

from ficco_dsl import ScheduleError, format_text
from ficco_dsl.grammar import tokens
from ficco_dsl.parser import parse_syntax

UGLY = """\
# head


schedule x   #c

param M=4096 where M>0 and(M+1)%2==-1
param chunks    = [ 4 , 2,[i*2 for i in 0 .. 4 ] [0] ,-1 ]  # pieces
param S = 96KiB
type  T=bf16
input A[M/ranks,K]:T # a
input Bee[K,N/ranks] :T
scratch G[M,K]: T unproven  # G
output CCC [M] : T


computes C[i]=all_gather(A,rows)*B [i]
 for i in 0..2
queue dma{engine=copy,priority=high}
queue compute   {engine=sm   priority = low } # q
queue long {

  # c in queue
    engine = copy # x
  priority =
   high

}
kernel k( read x,write y , int n ) from "a.cu" entry "k" { grid=[1,2] host="f.py:fn"
block=256 }
stage gather on dma
 streamed   {
  for c in 0..chunks,p in peers{
# comment
    copy G.rows(rank of ranks,
        c of chunks)@ p<-A.rows ( c of chunks ) # trailing
    copy G[ : , 0:4 ,a+1: ] @ (rank+1)%ranks <- A # other

    # last
  }
}
stage rest on q   after gather , b with sms=120 smem=96 KiB { gemm C=A .T*B if not(a){ let n=- 1 - -x }else
if b { } else {
launch k(A,-1,n
, 3
) with sms = 3
}
}
step i in 0..2 { stage mm on compute { gemm C +=
A *
B
reduce Y=sum(A,B @p) all_gather X<-Y gemm C=A*B.T+sum( C,Y @p)
gemm C=A*B
+sum(Y)
} }
stage a on dma { for c in 0..chunks { for p in peers { copy G <- A }
                                               copy G <- A } }
stage b on dma
{
let x = a
- 1
copy G <- A  # one
copy GG[x] <- A  # two
let y = x
copy G <- A  # three
}
# end"""

NEAT = """\
# head

schedule x  #c

param M = 4096 where M > 0 and (M + 1) % 2 == -1
param chunks = [4, 2, [i * 2 for i in 0..4][0], -1]  # pieces
param S = 96 KiB
type T = bf16
input   A[M / ranks, K]   : T                        # a
input   Bee[K, N / ranks] : T
scratch G[M, K]           : T unproven               # G
output  CCC[M]            : T

computes C[i] = all_gather(A, rows) * B[i]
    for i in 0..2
queue dma     { engine = copy, priority = high }
queue compute { engine = sm  priority = low }  # q
queue long {
  # c in queue
  engine = copy  # x
  priority =
      high
}
kernel k(read x, write y, int n) from "a.cu" entry "k" { grid = [1, 2]  host = "f.py:fn"
  block = 256 }
stage gather on dma
    streamed {
  for c in 0..chunks, p in peers {
    # comment
    copy G.rows(rank of ranks,
      c of chunks) @ p <- A.rows(c of chunks)  # trailing
    copy G[:, 0:4, a + 1:] @ (rank + 1) % ranks <- A  # other

    # last
  }
}
stage rest on q after gather, b with sms = 120  smem = 96 KiB { gemm C = A.T * B if not (a) { let n = -1 - -x } else
  if b { } else {
    launch k(A, -1, n
      , 3
    ) with sms = 3
  }
}
step i in 0..2 { stage mm on compute { gemm C +=
    A *
    B
  reduce Y = sum(A, B @ p) all_gather X <- Y gemm C = A * B.T + sum(C, Y @ p)
  gemm C = A * B
      + sum(Y)
} }
stage a on dma { for c in 0..chunks { for p in peers { copy G <- A }
  copy G <- A } }
stage b on dma
{
  let x = a
      - 1
  copy G <- A      # one
  copy GG[x] <- A  # two
  let y = x
  copy G <- A  # three
}
# end
"""


def test_layout() -> None:
    assert format_text(UGLY, "x.ficco") == NEAT


def test_empty_blocks_and_unary_signs() -> None:
    text = "stage a on q{for i in -1..- n{}if(a)-(b)>-1{}}"
    assert format_text(text, "x.ficco") == "stage a on q { for i in -1..-n { } if (a) - (b) > -1 { } }\n"


@pytest.mark.parametrize("place", ["p", "(p + 1) % ranks", "ranks - p", "p // 2"])
def test_a_rank_before_the_sign_is_no_attribute(place: str) -> None:
    neat = f"stage a on q with sms = 4  smem = 8 {{ gemm G @ {place} = A * B with sms = n  smem = 8 }}\n"
    assert format_text(neat.replace("  ", " ").replace(" = ", "="), "x.ficco") == neat


def test_lines_too_long_are_in_no_column() -> None:
    long = "x" * 120
    text = f"param a = 1 # one\nparam {long} = 1 # long\nparam bcd = 1 # two\n"
    assert format_text(text, "x.ficco") == (f"param a = 1    # one\nparam {long} = 1  # long\nparam bcd = 1  # two\n")


def test_mistakes_of_syntax_are_reported_and_names_are_not() -> None:
    with pytest.raises(ScheduleError, match=r"^x\.ficco:1:10: expected an expression, found the end of the file$"):
        format_text("param x = ", "x.ficco")
    assert format_text("param x=y", "x.ficco") == "param x = y\n"


def relaid(text: str, chance: random.Random, lines: bool) -> str:
    """`text` with other blanks between its tokens; with `lines`, with other line breaks and comments too."""
    out, end = "", 0
    for i, token in enumerate(tokens(text)):
        assert token.start_pos is not None
        assert token.end_pos is not None
        gap = text[end : token.start_pos]
        if lines:
            gap = chance.choice([" ", " ", " ", "  ", "\n", "\n\n\n", f" # note {i}\n", f"\n\t# note {i}\n"])
        elif gap.strip(" ") == "":  # the blanks of a line
            gap = " " * chance.randrange(1, 4)
        out += gap + token
        end = token.end_pos
    return out + (chance.choice(["", "\n", " # end", "\n\n"]) if lines else text[end:])


@pytest.mark.parametrize("seed", range(60))
def test_any_layout(seed: int) -> None:
    chance = random.Random(seed)
    text = relaid(UGLY, chance, lines=True)
    neat = format_text(text, "x.ficco")
    assert parse_syntax(neat, "x.ficco") == parse_syntax(text, "x.ficco")
    assert format_text(neat, "x.ficco") == neat
    assert comments(neat) == comments(text)
    assert "\n\n\n" not in neat
    assert neat.endswith("\n")
    assert not neat.endswith("\n\n")
    assert all(line == line.rstrip() for line in neat.splitlines())
    assert format_text(relaid(text, chance, lines=False), "x.ficco") == neat


def comments(text: str) -> list[str]:
    return [line[line.index("#") :].rstrip() for line in text.splitlines() if "#" in line]


@pytest.mark.parametrize(
    "text",
    [
        "param a = 1 # x\n" * 10_000,
        "input A[" + "1" * 18 + " + 1" * 40 + "] : T # x\n" + "input B[2] : T # x\n" * 6_000,
        "param a = [" + "1,\n" * 20_000 + "1]",
        "param a = 1 # " + "x" * 500_000 + "\n" + "param b = 1 # x\n" * 10_000,
    ],
)
def test_a_large_file_is_laid_out_soon(text: str) -> None:
    begin = time.process_time()
    assert len(format_text(text, "x.ficco")) < 4 * len(text)
    assert time.process_time() - begin < 5
