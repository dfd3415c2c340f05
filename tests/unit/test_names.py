"""Static checks of a schedule: every message with its place."""

from __future__ import annotations

import time

import pytest

from ficco_dsl import ScheduleError, parse

HEAD = """\
schedule s
param n = 4
type T = bf16
input A[n, n] : T
output C[n, n] : T
scratch G[n, n] : T
computes C = A * A
queue d { engine = copy }
queue q { engine = sm }
queue v { engine = nccl }
kernel k(read x, write y, int z) from "k.cu" entry "k"
"""
STAGE = "\nstage a on d { copy G <- A }\n"

# Line 12 of a schedule -> what is said
MISTAKES = [
    (
        "param m = n + x",
        "x.ficco:12:15: unknown name 'x'",
    ),
    (
        "param m = nn",
        ("x.ficco:12:11: unknown name 'nn'\n  help: did you mean 'n'?"),
    ),
    (
        "param n = 3",
        ("x.ficco:12:7: param 'n' is declared already\n  note: x.ficco:2:7: param 'n' is declared here"),
    ),
    (
        "param rank = 3",
        "x.ficco:12:7: 'rank' is built in and cannot be a param",
    ),
    (
        "param min = 3",
        "x.ficco:12:7: 'min' is a built-in function and cannot be a param",
    ),
    (
        "param bf16 = 3",
        "x.ficco:12:7: 'bf16' is a built-in type and cannot be a param",
    ),
    (
        "param C = 3",
        ("x.ficco:12:7: param 'C' is declared already\n  note: x.ficco:5:8: output 'C' is declared here"),
    ),
    (
        "queue d { engine = copy }",
        ("x.ficco:12:7: queue 'd' is declared already\n  note: x.ficco:8:7: queue 'd' is declared here"),
    ),
    (
        'kernel k() from "a" entry "b"',
        ("x.ficco:12:8: kernel 'k' is declared already\n  note: x.ficco:11:8: kernel 'k' is declared here"),
    ),
    (
        "param a = a",
        "x.ficco:12:7: param 'a' refers to itself",
    ),
    (
        "param a = b param b = c + 1 param c = a",
        "x.ficco:12:7: params refer to each other in a circle: a -> b -> c -> a",
    ),
    (
        "param a = rank",
        (
            "x.ficco:12:11: 'rank' differs from rank to rank; a param does not\n"
            "  help: use it in a tensor's shape or in a stage"
        ),
    ),
    (
        "param a = len(peers)",
        (
            "x.ficco:12:15: 'peers' differs from rank to rank; a param does not\n"
            "  help: use it in a tensor's shape or in a stage"
        ),
    ),
    (
        "param a = rows(A)",
        "x.ficco:12:16: a param cannot use rows(A): shapes are made from params",
    ),
    (
        "param a = A",
        "x.ficco:12:11: 'A' is an input, not a number or a list",
    ),
    (
        "param a = min",
        ("x.ficco:12:11: 'min' is a function\n  help: write min(a, b, ...) or min(list)"),
    ),
    (
        "param a = T",
        "x.ficco:12:11: 'T' is a type, not a number or a list",
    ),
    (
        "param a = [n for n in 0..2]",
        (
            "x.ficco:12:18: loop variable 'n' hides the param of that name\n"
            "  note: x.ficco:2:7: param 'n' is declared here\n"
            "  help: rename it"
        ),
    ),
    (
        "param a = [i for rank in all]",
        ("x.ficco:12:12: unknown name 'i'\nx.ficco:12:18: 'rank' is built in and cannot be a loop variable"),
    ),
    (
        "param a = foo(3)",
        "x.ficco:12:11: unknown function 'foo'",
    ),
    (
        "param a = revrsed([1])",
        ("x.ficco:12:11: unknown function 'revrsed'\n  help: did you mean 'reversed'?"),
    ),
    (
        "param a = len(1, 2)",
        ("x.ficco:12:11: len() does not take 2 arguments\n  help: write len(list)"),
    ),
    (
        "param a = ceil(1)",
        ("x.ficco:12:11: ceil() does not take 1 argument\n  help: write ceil(a, b)"),
    ),
    (
        "param a = part(4, 2)",
        "x.ficco:12:19: part() takes a piece: part(extent, i of n)",
    ),
    (
        "param a = len(0 of 2)",
        ("x.ficco:12:15: len() takes no piece\n  help: write len(list); 'of' belongs to regions and part()"),
    ),
    (
        "param a = min()",
        ("x.ficco:12:11: min() does not take 0 arguments\n  help: write min(a, b, ...) or min(list)"),
    ),
    (
        "param a = ceil(0 of 2, 1)",
        ("x.ficco:12:16: ceil() takes no piece\n  help: write ceil(a, b); 'of' belongs to regions and part()"),
    ),
    (
        "type U = bf17",
        ("x.ficco:12:10: unknown type 'bf17'\n  help: the types are bf16, fp16, fp32, fp8_e4m3 or fp8_e5m2"),
    ),
    (
        "input D[n] : U",
        "x.ficco:12:14: 'D' is of unknown type 'U'",
    ),
    (
        "input D[m] : T",
        "x.ficco:12:9: unknown name 'm'",
    ),
    (
        "input D[rows(X)] : T",
        "x.ficco:12:14: unknown tensor 'X'",
    ),
    (
        "input D[rows(3)] : T",
        "x.ficco:12:14: rows() takes the name of a tensor",
    ),
    (
        "input D[n] : T unproven",
        "x.ficco:12:1: unproven is for outputs; 'D' is an input",
    ),
    (
        "scratch D[n] : T unproven",
        "x.ficco:12:1: unproven is for outputs; 'D' is a scratch",
    ),
    (
        "output D[n] : T",
        (
            "x.ficco:12:8: output 'D' has no computes line\n"
            "  help: add: computes D = ..., or write unproven after its type"
        ),
    ),
    (
        "output D[n] : T unproven computes D = A",
        (
            "x.ficco:12:26: 'D' has a computes line and is unproven\n"
            "  note: x.ficco:12:8: output 'D' is declared here\n"
            "  help: drop the word unproven, or the computes line"
        ),
    ),
    (
        "computes A = A",
        "x.ficco:12:10: computes is for outputs; 'A' is an input",
    ),
    (
        "computes X = A",
        "x.ficco:12:10: unknown tensor 'X'",
    ),
    (
        "computes C = A",
        ("x.ficco:12:1: 'C' has two computes lines\n  note: x.ficco:7:1: the first computes line"),
    ),
    (
        "computes C[0] = A",
        ("x.ficco:12:1: 'C' has two computes lines\n  note: x.ficco:7:1: the first computes line"),
    ),
    (
        "output D[2, n] : T computes D[i] = A for n in 0..2",
        (
            "x.ficco:12:31: unknown name 'i'\n"
            "x.ficco:12:42: loop variable 'n' hides the param of that name\n"
            "  note: x.ficco:2:7: param 'n' is declared here\n"
            "  help: rename it"
        ),
    ),
    (
        "output D[n] : T computes D.T = A",
        "x.ficco:12:26: .T on the target of computes: only operands of gemm and claims are transposed",
    ),
    (
        "output D[n] : T computes D = A.T * all_to_all(X, rows of cnts)",
        ("x.ficco:12:47: unknown tensor 'X'\nx.ficco:12:58: unknown name 'cnts'"),
    ),
    (
        "queue w { engine = gpu }",
        "x.ficco:12:20: engine is copy, sm or nccl, not 'gpu'",
    ),
    (
        "queue w { engine = 3 }",
        "x.ficco:12:11: engine is copy, sm or nccl",
    ),
    (
        "queue w { }",
        ("x.ficco:12:7: queue 'w' has no engine\n  help: write engine = copy, sm or nccl"),
    ),
    (
        "queue w { engine = sm sm = 3 }",
        ("x.ficco:12:23: queue 'w' has no attribute 'sm'\n  help: did you mean 'sms'?"),
    ),
    (
        "queue w { engine = sm priority = hi order = atuo }",
        (
            "x.ficco:12:34: priority is high, normal or low, not 'hi'\n"
            "  help: did you mean 'high'?\n"
            "x.ficco:12:45: order is text or auto, not 'atuo'\n"
            "  help: did you mean 'auto'?"
        ),
    ),
    (
        'queue w { engine = sm smem = "3" }',
        "x.ficco:12:23: smem is a number, not a string",
    ),
    (
        "queue w { engine = sm sms = copy }",
        "x.ficco:12:29: sms is a number, not the word 'copy'",
    ),
    (
        "queue w { engine = sm engine = sm }",
        ("x.ficco:12:23: 'engine' is given twice\n  note: x.ficco:12:11: the first time"),
    ),
    (
        "queue w { engine = sm smem = n * 4 KiB sms = m residency = rank }",
        "x.ficco:12:46: unknown name 'm'",
    ),
    (
        "queue w { engine = sm foo = 1 }",
        (
            "x.ficco:12:23: queue 'w' has no attribute 'foo'\n"
            "  help: it may have engine, priority, smem, residency, sms, leave, order, kernel, fast or scale"
        ),
    ),
    (
        'kernel j(read x, int x, int rank) from "a" entry "b"',
        (
            "x.ficco:12:22: kernel 'j' has two arguments 'x'\n"
            "x.ficco:12:29: 'rank' is built in and cannot be an argument's name"
        ),
    ),
    (
        'kernel j(read x, int m) from "a" entry "b" { grid = [rows(x), m, x] block = n host = 3 smem = rows(A) }',
        (
            "x.ficco:12:66: argument 'x' is a region, not a number\n"
            "  help: rows(x) and cols(x) are numbers\n"
            'x.ficco:12:79: host is a string: host = "file.py:function"'
        ),
    ),
    (
        'kernel j() from "a" entry "b" { sms = 3 }',
        ("x.ficco:12:33: kernel 'j' has no attribute 'sms'\n  help: it may have host, grid, block or smem"),
    ),
    (
        'kernel j() from "a" entry "b" { host = "a:b" grid = rows(zz) }',
        "x.ficco:12:58: unknown tensor 'zz'",
    ),
    (
        "stage a on e { copy G <- A }",
        "x.ficco:12:12: stage 'a' is on unknown queue 'e'",
    ),
    (
        "scratch H[rows(J)] : T scratch J[cols(J)] : T",
        (
            "x.ficco:12:16: rows(J) in a shape: 'J' has none yet\n"
            "  help: declare 'J' further up\n"
            "x.ficco:12:39: cols(J) in a shape: 'J' has none yet\n"
            "  help: declare 'J' further up"
        ),
    ),
    (
        "stage a on d streamed { copy G <- A }",
        (
            "x.ficco:12:12: stage 'a' is streamed, which needs a queue with engine sm\n"
            "  note: x.ficco:8:7: queue 'd' has engine copy"
        ),
    ),
    (
        "stage a on d after b { copy G <- A } stage b on d { copy G <- A }",
        (
            "x.ficco:12:20: stage 'b' is not before stage 'a'\n"
            "  help: after names a stage that stands earlier in the text"
        ),
    ),
    (
        "stage a on d after a, zz { copy G <- A }",
        ("x.ficco:12:20: stage 'a' cannot come after itself\nx.ficco:12:23: unknown stage 'zz'"),
    ),
    (
        "stage ab on d { copy G <- A } stage b on d after aa, ab { copy G <- A }",
        "x.ficco:12:50: unknown stage 'aa'",
    ),
    (
        "stage a on d { copy G <- A } stage a on d { copy G <- A }",
        ("x.ficco:12:36: stage 'a' is declared already\n  note: x.ficco:12:7: stage 'a' is declared here"),
    ),
    (
        "stage a on d { }",
        ("x.ficco:12:7: stage 'a' has no statements\n  help: fill it, or delete it"),
    ),
    (
        "stage a on d with engine = sm, prority = high { copy G <- A }",
        (
            "x.ficco:12:19: stage 'a' has no attribute 'engine'\n"
            "  help: a queue has one engine; use a queue of the other engine\n"
            "x.ficco:12:32: stage 'a' has no attribute 'prority'\n"
            "  help: did you mean 'priority'?"
        ),
    ),
    (
        "step i in 0..2 { }",
        ("x.ficco:12:1: the step has no stages\n  help: put stages into it, or delete it"),
    ),
    (
        "step i in 0..2 { stage a on d { for i in 0..2 { copy G <- A } } } "
        "step i in 0..2 { stage b on d { copy G <- A[i:] } }",
        (
            "x.ficco:12:37: loop variable 'i' hides the loop variable of that name\n"
            "  note: x.ficco:12:6: loop variable 'i' is declared here\n"
            "  help: rename it"
        ),
    ),
    (
        "stage a on d { gemm G = A * A }",
        (
            "x.ficco:12:16: gemm runs on engine sm; queue 'd' has engine copy\n"
            "  note: x.ficco:8:7: queue 'd' is declared here"
        ),
    ),
    (
        "stage a on v { reduce G = sum(A) }",
        (
            "x.ficco:12:16: reduce runs on engine sm; queue 'v' has engine nccl\n"
            "  note: x.ficco:10:7: queue 'v' is declared here"
        ),
    ),
    (
        "stage a on q { all_reduce G <- A }",
        (
            "x.ficco:12:16: all_reduce runs on engine nccl; queue 'q' has engine sm\n"
            "  note: x.ficco:9:7: queue 'q' is declared here"
        ),
    ),
    (
        "stage a on d { launch k(A, G, 3) reduce G = sum(A) }",
        (
            "x.ficco:12:16: launch runs on engine sm; queue 'd' has engine copy\n"
            "  note: x.ficco:8:7: queue 'd' is declared here\n"
            "x.ficco:12:34: reduce runs on engine sm; queue 'd' has engine copy\n"
            "  note: x.ficco:8:7: queue 'd' is declared here"
        ),
    ),
    (
        "stage a on v { all_gather G <- A @ 1 all_reduce A <- G.T}",
        (
            "x.ficco:12:36: '@' cannot stand on the source of all_gather\n"
            "x.ficco:12:49: 'A' is an input and cannot be written\n"
            "  note: x.ficco:4:7: input 'A' is declared here\n"
            "  help: write to a scratch\n"
            "x.ficco:12:54: .T on the source of all_reduce: only operands of gemm and claims are transposed"
        ),
    ),
    (
        "stage a on d { copy G @ 1 <- A @ 2 }",
        (
            "x.ficco:12:16: '@' stands on both sides of the copy; one of them is this rank's\n"
            "  help: a rank pushes (@ on the left) or pulls (@ on the right)"
        ),
    ),
    (
        "stage a on q { gemm G @ 1 = A @ 2 * A.T @ 3 }",
        (
            "x.ficco:12:33: '@' cannot stand on an operand of gemm\n"
            "  help: a gemm reads its operands on its own rank; copy first\n"
            "x.ficco:12:43: '@' cannot stand on an operand of gemm\n"
            "  help: a gemm reads its operands on its own rank; copy first"
        ),
    ),
    (
        "stage a on q { gemm G.T = A * A }",
        "x.ficco:12:21: .T on the result of gemm: only operands of gemm and claims are transposed",
    ),
    (
        "stage a on q { launch k(A @ 1, G.T, 3) }",
        (
            "x.ficco:12:29: '@' cannot stand on an argument of launch\n"
            "x.ficco:12:32: .T on an argument of launch: only operands of gemm and claims are transposed"
        ),
    ),
    (
        "stage a on q { reduce G @ 0 = sum(A @ 1, A.T) }",
        (
            "x.ficco:12:27: '@' cannot stand on the result of reduce\n"
            "x.ficco:12:42: .T on a term of reduce: only operands of gemm and claims are transposed"
        ),
    ),
    (
        "stage a on q { gemm G = A * A + sum(A @ x, B.rows(0 of 2).T) }",
        (
            "x.ficco:12:41: unknown name 'x'\n"
            "x.ficco:12:44: unknown tensor 'B'\n"
            "x.ficco:12:44: .T on a term of gemm: only operands of gemm and claims are transposed"
        ),
    ),
    (
        "stage a on d { copy G <- A.T copy A <- G }",
        (
            "x.ficco:12:26: .T on a copy: only operands of gemm and claims are transposed\n"
            "x.ficco:12:35: 'A' is an input and cannot be written\n"
            "  note: x.ficco:4:7: input 'A' is declared here\n"
            "  help: write to a scratch"
        ),
    ),
    (
        "stage a on q { gemm A = A * A reduce A = sum(G) launch k(G, A, 3) "
        "launch k(A, G, G) launch k(3, G, 3) launch k(A, G) launch kk(A) launch k(B, GG, 3) }",
        (
            "x.ficco:12:21: 'A' is an input and cannot be written\n"
            "  note: x.ficco:4:7: input 'A' is declared here\n"
            "  help: write to a scratch\n"
            "x.ficco:12:38: 'A' is an input and cannot be written\n"
            "  note: x.ficco:4:7: input 'A' is declared here\n"
            "  help: write to a scratch\n"
            "x.ficco:12:61: 'A' is an input and cannot be written\n"
            "  note: x.ficco:4:7: input 'A' is declared here\n"
            "  help: write to a scratch\n"
            "x.ficco:12:82: argument 'z' of kernel 'k' is an int, not a region\n"
            "x.ficco:12:94: argument 'x' of kernel 'k' is a region to read, not a number\n"
            "x.ficco:12:103: kernel 'k' takes 3 arguments, not 2\n"
            "  note: x.ficco:11:8: kernel 'k' is declared here\n"
            "x.ficco:12:125: unknown kernel 'kk'\n"
            "  help: did you mean 'k'?\n"
            "x.ficco:12:140: unknown tensor 'B'\n"
            "x.ficco:12:143: unknown tensor 'GG'\n"
            "  help: did you mean 'G'?"
        ),
    ),
    (
        "stage a on d { copy H <- n copy g <- rank }",
        (
            "x.ficco:12:21: unknown tensor 'H'\n"
            "x.ficco:12:26: 'n' is a param, not a tensor\n"
            "x.ficco:12:33: unknown tensor 'g'\n"
            "  help: did you mean 'G'?\n"
            "x.ficco:12:38: 'rank' is a number or a set, not a tensor"
        ),
    ),
    (
        "stage a on d { for c in 0..m { copy G[c] <- A[c] } copy G[c] <- A }",
        ("x.ficco:12:28: unknown name 'm'\nx.ficco:12:59: unknown name 'c'"),
    ),
    (
        "stage a on d { for c in 0..2, c in 0..2 { copy G <- A } }",
        (
            "x.ficco:12:31: loop variable 'c' hides the loop variable of that name\n"
            "  note: x.ficco:12:20: loop variable 'c' is declared here\n"
            "  help: rename it"
        ),
    ),
    (
        "stage a on d { for n in 0..2 { for all in 0..2 { copy G <- A } } }",
        (
            "x.ficco:12:20: loop variable 'n' hides the param of that name\n"
            "  note: x.ficco:2:7: param 'n' is declared here\n"
            "  help: rename it\n"
            "x.ficco:12:36: 'all' is built in and cannot be a loop variable"
        ),
    ),
    (
        "stage a on d { let x = 3 let x = x if x == 3 { let y = x copy G <- A } copy G[y] <- A }",
        (
            "x.ficco:12:30: let 'x' hides the let of that name\n"
            "  note: x.ficco:12:20: let 'x' is declared here\n"
            "  help: rename it\n"
            "x.ficco:12:79: unknown name 'y'"
        ),
    ),
    (
        "stage a on d { for c in 0..2 { copy G <- A with foo = 1, sms = c } copy G <- A with engine = copy }",
        (
            "x.ficco:12:49: copy has no attribute 'foo'\n"
            "  help: it may have priority, smem, residency, sms, leave, order, kernel, fast or scale\n"
            "x.ficco:12:85: copy has no attribute 'engine'\n"
            "  help: a queue has one engine; use a queue of the other engine"
        ),
    ),
    (
        "stage a on d { copy G.rows(x of y) @ z <- A[u:v, :w] }",
        (
            "x.ficco:12:28: unknown name 'x'\n"
            "x.ficco:12:33: unknown name 'y'\n"
            "x.ficco:12:38: unknown name 'z'\n"
            "x.ficco:12:45: unknown name 'u'\n"
            "x.ficco:12:47: unknown name 'v'\n"
            "x.ficco:12:51: unknown name 'w'"
        ),
    ),
    (
        "stage a on d { copy G.rows(A of n) <- A }",
        "x.ficco:12:28: 'A' is an input, not a number or a list",
    ),
]

RIGHT = [
    "param a = b param b = 3",
    "param a = [i for i in all]",
    "param a = part(4, 0 of 2)",
    "input D[part(n, rank of ranks)] : T",
    "input D[rows(A)] : T",
    "output D[n] : T unproven",
    "output D[2, n] : T computes D[i] = A for i in 0..2",
    "stage a on q streamed { gemm G = A * A }",
    "param a = b where a > 0 and a < len([1, 2]) param b = ceil(n, 3) // max(1, 2)",
    'kernel j(read x, int m) from "a" entry "b" { grid = [rows(x), m]  block = n  host = "f.py:f"  smem = rows(A) }',
    "stage a on q with priority = low { for p in reversed(peers) { copy G @ p <- A with smem = p * 1 KiB } }",
    "stage a on q { launch k(A[0], G.rows(rank of ranks), n) gemm C += A.T * A[0:2, :] }",
    "stage a on v { all_reduce G <- A } stage b on d after a { copy G <- A }",
    "stage sum on q { reduce G = sum(A, A @ 1) }",
    "step i in 0..2 { stage a on d { copy G[i] <- A } step j in 0..i { stage b on d after a { copy G[i] <- A[j] } } }",
    "stage a on d { if rank == 0 { let x = 1 copy G[x] <- A } else { let x = 2 copy G[x] <- A } }",
]


def said(text: str) -> str:
    with pytest.raises(ScheduleError) as caught:
        parse(text, "x.ficco")
    return str(caught.value)


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_mistake(line: str, message: str) -> None:
    assert said(HEAD + line + ("" if "stage" in line else STAGE)) == message


@pytest.mark.parametrize("line", RIGHT)
def test_right(line: str) -> None:
    parse(HEAD + line + ("" if "stage" in line else STAGE), "x.ficco")


def test_no_schedule_line() -> None:
    text = "queue d { engine = copy } input A[4] : bf16 scratch G[4] : bf16" + STAGE
    assert said(text) == "x.ficco:1:1: the schedule has no name\n  help: begin the file with: schedule NAME"


def test_no_stage() -> None:
    assert said("schedule s") == ("x.ficco:1:1: the schedule has no stage\n  help: add: stage NAME on QUEUE { ... }")


def test_all_mistakes_stand_in_the_order_of_the_text() -> None:
    text = "schedule s\nparam a = x\nstage a on q { copy G <- A }\nqueue q { engine = gpu }"
    assert said(text).splitlines() == [
        "x.ficco:2:11: unknown name 'x'",
        "x.ficco:3:21: unknown tensor 'G'",
        "x.ficco:3:26: unknown tensor 'A'",
        "x.ficco:4:20: engine is copy, sm or nccl, not 'gpu'",
    ]


def test_params_in_many_circles() -> None:
    text = "param a = b param b = a param c = a param d = d + c param e = 1 param f = e"
    assert said(HEAD + text + STAGE) == (
        "x.ficco:12:7: params refer to each other in a circle: a -> b -> a\nx.ficco:12:43: param 'd' refers to itself"
    )


def test_a_large_wrong_schedule_is_answered_soon() -> None:
    lines = [f"param p{i} = p{i + 1} + q{i}" for i in range(10_000)]
    begin = time.process_time()
    diagnostics = said(HEAD + "\n".join(lines) + STAGE).splitlines()
    assert len(diagnostics) == 100
    assert diagnostics[0] == "x.ficco:12:17: unknown name 'q0'"
    assert time.process_time() - begin < 5
