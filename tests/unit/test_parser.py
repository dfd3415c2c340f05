"""Text to syntax tree: every construct becomes its node, and the stored tables are the grammar's."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from ficco_dsl import Span, grammar, parse, parse_bytes
from ficco_dsl.nodes import (
    Attribute,
    Binary,
    Binding,
    Call,
    ClaimCollective,
    ClaimProduct,
    Comprehension,
    Computes,
    For,
    If,
    Int,
    Item,
    KernelDecl,
    KernelParam,
    Let,
    ListOf,
    Name,
    Param,
    Part,
    Pieces,
    Range,
    RegionRef,
    Schedule,
    Slice,
    StageDecl,
    StageStep,
    Statement,
    Step,
    Subscript,
    TensorDecl,
    TypeName,
    Unary,
)
from ficco_dsl.parser import parse_syntax
from ficco_dsl.verbs import Collective, Copy, Gemm, Launch, Reduce

AT = Span("x.ficco", 1, 1, 1, 1)  # takes no part in equality

AG_GEMM = """\
schedule ag_gemm_hetero_unfused_1d      # FiCCO: own shard first, every remote piece its own GEMM, cut along rows

param M = 4096                          # rows of A over all ranks
param N = 4096
param K = 4096
param chunks = ranks                    # pieces of a shard: one level deeper than sharding
type  T = bf16

input   A[M / ranks, K] : T
input   B[K, N / ranks] : T             # `B[N / ranks, K]` with `B.T` in the gemm for weights stored that way
output  C[M, N / ranks] : T
scratch G[M, K]         : T             # where the other ranks' rows land

computes C = all_gather(A, rows) * B

queue dma     { engine = copy  priority = high }
queue compute { engine = sm    priority = low }

stage gather on dma {
  for c in 0..chunks, p in peers {
    copy G.rows(rank of ranks, c of chunks) @ p <- A.rows(c of chunks)
  }
}
stage own on compute {
  gemm C.rows(rank of ranks) = A * B
}
stage rest on compute {
  for c in 0..chunks, p in reversed(peers) {
    gemm C.rows(p of ranks, c of chunks) = G.rows(p of ranks, c of chunks) * B
  }
}
"""


def name(text: str) -> Name:
    return Name(text, AT)


def num(value: int) -> Int:
    return Int(value, AT)


def region(tensor: str, *accessors: Pieces | Subscript, transposed: bool = False, at: object = None) -> RegionRef:
    return RegionRef(tensor, accessors, transposed, at, AT)  # type: ignore[arg-type]


def rows(index: object, whole: object) -> Pieces:
    return Pieces("rows", (Part(index, whole, AT),), AT)  # type: ignore[arg-type]


def value(text: str) -> object:
    (param,) = parse_syntax(f"param v = {text}", "x.ficco").params
    return param.value


def statement(text: str) -> Statement:
    (stage,) = parse_syntax(f"input A[1] : T input G[1] : T stage s on q {{ {text} }}", "x.ficco").program
    assert isinstance(stage, StageDecl)
    (only,) = stage.body
    return only


# ---------------------------------------------------------------- what parses


def test_a_whole_schedule() -> None:
    schedule = parse(AG_GEMM, "x.ficco")
    assert schedule.name == "ag_gemm_hetero_unfused_1d"
    assert schedule.path == "x.ficco"
    assert [p.name for p in schedule.params] == ["M", "N", "K", "chunks"]
    assert schedule.types == (TypeName("T", "bf16", None, AT),)
    per_rank = Binary("/", name("M"), name("ranks"), AT)
    assert schedule.tensors[0] == TensorDecl("input", "A", (per_rank, name("K")), "T", None, False, False, AT)
    gathered = ClaimCollective("all_gather", region("A"), "rows", None, AT)
    assert schedule.claims == (Computes(region("C"), ClaimProduct(gathered, region("B"), AT), (), None, AT),)
    assert schedule.queues[0].attributes == (
        Attribute("engine", name("copy"), AT),
        Attribute("priority", name("high"), AT),
    )
    gather, own, rest = schedule.program
    assert isinstance(gather, StageDecl)
    chunk = Part(name("c"), name("chunks"), AT)
    mine = Pieces("rows", (Part(name("rank"), name("ranks"), AT), chunk), AT)
    copy = Copy(region("G", mine, at=name("p")), region("A", Pieces("rows", (chunk,), AT)), (), AT)
    domain = Range(num(0), name("chunks"), AT)
    loop = For((Binding("c", domain, AT), Binding("p", name("peers"), AT)), (copy,), AT)
    assert gather == StageDecl("gather", "dma", False, (), (), (loop,), AT)
    assert isinstance(own, StageDecl)
    target = region("C", rows(name("rank"), name("ranks")))
    assert own.body == (Gemm(target, region("A"), region("B"), False, (), (), AT),)
    assert isinstance(rest, StageDecl)
    assert str(rest.span) == "x.ficco:27:1"


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("96 KiB", num(96 * 1024)),
        ("2MiB", num(2 << 20)),
        ("1_000", num(1000)),
        ("1 - 2 - 3", Binary("-", Binary("-", num(1), num(2), AT), num(3), AT)),
        ("1 + 2 * -n", Binary("+", num(1), Binary("*", num(2), Unary("-", name("n"), AT), AT), AT)),
        ("7 // 2 % 3", Binary("%", Binary("//", num(7), num(2), AT), num(3), AT)),
        ("(1 + 2) * 3", Binary("*", Binary("+", num(1), num(2), AT), num(3), AT)),
        (
            "not a == 1 and b or c",
            Binary(
                "or",
                Binary("and", Unary("not", Binary("==", name("a"), num(1), AT), AT), name("b"), AT),
                name("c"),
                AT,
            ),
        ),
        ("0..n + 1", Range(num(0), Binary("+", name("n"), num(1), AT), AT)),
        ("[4, 2, [1]]", ListOf((num(4), num(2), ListOf((num(1),), AT)), AT)),
        ("[]", ListOf((), AT)),
        ("[1, 2,]", ListOf((num(1), num(2)), AT)),
        (
            "[i * 2 for i in 0..4]",
            Comprehension(Binary("*", name("i"), num(2), AT), "i", Range(num(0), num(4), AT), AT),
        ),
        ("xs[1][2]", Item(Item(name("xs"), num(1), AT), num(2), AT)),
        ("reversed(peers)", Call("reversed", (name("peers"),), AT)),
        ("sum(xs) + rows(A)", Binary("+", Call("sum", (name("xs"),), AT), Call("rows", (name("A"),), AT), AT)),
        ("part(M, rank of ranks)", Call("part", (name("M"), Part(name("rank"), name("ranks"), AT)), AT)),
    ],
)
def test_expressions(text: str, node: object) -> None:
    assert value(text) == node


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (
            "copy G @ (rank + s) % ranks <- A[0:4, :, 2:, :n, 3]",
            Copy(
                region("G", at=Binary("%", Binary("+", name("rank"), name("s"), AT), name("ranks"), AT)),
                region(
                    "A",
                    Subscript(
                        (
                            Slice(num(0), num(4), AT),
                            Slice(None, None, AT),
                            Slice(num(2), None, AT),
                            Slice(None, name("n"), AT),
                            num(3),
                        ),
                        AT,
                    ),
                ),
                (),
                AT,
            ),
        ),
        ("copy G <- A @ p", Copy(region("G"), region("A", at=name("p")), (), AT)),
        (
            "gemm G += A.T * A.rows(0..2 of [4, 2])[1].cols(all of 2).T with sms = 3, order = auto",
            Gemm(
                region("G"),
                region("A", transposed=True),
                region(
                    "A",
                    rows(Range(num(0), num(2), AT), ListOf((num(4), num(2)), AT)),
                    Subscript((num(1),), AT),
                    Pieces("cols", (Part(name("all"), num(2), AT),), AT),
                    transposed=True,
                ),
                True,
                (),
                (Attribute("sms", num(3), AT), Attribute("order", name("auto"), AT)),
                AT,
            ),
        ),
        (
            "gemm G = A * A.T + sum(G, A @ 1) with sms = 2",
            Gemm(
                region("G"),
                region("A"),
                region("A", transposed=True),
                False,
                (region("G"), region("A", at=num(1))),
                (Attribute("sms", num(2), AT),),
                AT,
            ),
        ),
        (
            "reduce G = sum(A, A @ 1) with sms = 2 smem = 1 KiB",
            Reduce(
                region("G"),
                (region("A"), region("A", at=num(1))),
                (Attribute("sms", num(2), AT), Attribute("smem", num(1024), AT)),
                AT,
            ),
        ),
        ("reduce_scatter G <- A", Collective("reduce_scatter", region("G"), region("A"), (), AT)),
        ("let n = [1]", Let("n", ListOf((num(1),), AT), AT)),
        ("step s in 1..ranks { }", Step(Binding("s", Range(num(1), name("ranks"), AT), AT), (), AT)),
        (
            "if a < 1 { } else if b { let c = 1 } else { let d = 2 }",
            If(
                Binary("<", name("a"), num(1), AT),
                (),
                (If(name("b"), (Let("c", num(1), AT),), (Let("d", num(2), AT),), AT),),
                AT,
            ),
        ),
        (
            "launch k(A, A[1], A.T, xs[1], A.rows(0 of 2) @ p, H, 3)",
            Launch(
                "k",
                (
                    region("A"),
                    region("A", Subscript((num(1),), AT)),
                    region("A", transposed=True),
                    Item(name("xs"), num(1), AT),
                    region("A", rows(num(0), num(2)), at=name("p")),
                    name("H"),
                    num(3),
                ),
                (),
                AT,
            ),
        ),
        ("launch k()", Launch("k", (), (), AT)),
    ],
)
def test_statements(text: str, node: Statement) -> None:
    assert statement(text) == node


def test_a_tensor_may_be_declared_after_the_launch_that_takes_it() -> None:
    schedule = parse_syntax("step i in 0..2 { stage s on q { launch k(A[i], b[i]) } } input A[2] : T", "x.ficco")
    (step,) = schedule.program
    assert isinstance(step, StageStep)
    (stage,) = step.body
    assert stage.body == (
        Launch("k", (region("A", Subscript((name("i"),), AT)), Item(name("b"), name("i"), AT)), (), AT),
    )


def test_declarations() -> None:
    schedule = parse_syntax(
        """
        param M = 4 where (M + 1) *
           2 > 0  # even
        output C[2] : T unproven
        computes C[i] = reduce_scatter(A[i] * all_to_all(B, rows of ns), rows) * (A.T * B) within bf16, T for i in 0..2
        queue dma { engine = copy, smem = 2 }
        kernel k(read x, write y, update z, int n) from "k.cu" entry "k" { grid = [1, 2] host = "f.py:f" }
        kernel none() from "none.cu" entry "none"
        stage a on dma after b, c streamed with sms = 1 { }
        """,
        "x.ficco",
    )
    check = Binary(">", Binary("*", Binary("+", name("M"), num(1), AT), num(2), AT), num(0), AT)
    assert schedule.params == (Param("M", num(4), check, "(M + 1) * 2 > 0", AT),)
    assert schedule.params[0].check_text == "(M + 1) * 2 > 0"
    assert schedule.tensors[0].unproven
    shuffled = ClaimCollective("all_to_all", region("B"), "rows", name("ns"), AT)
    row = Subscript((name("i"),), AT)
    scattered = ClaimCollective("reduce_scatter", ClaimProduct(region("A", row), shuffled, AT), "rows", None, AT)
    claim = ClaimProduct(scattered, ClaimProduct(region("A", transposed=True), region("B"), AT), AT)
    binding = Binding("i", Range(num(0), num(2), AT), AT)
    assert schedule.claims == (Computes(region("C", row), claim, ("bf16", "T"), binding, AT),)
    assert schedule.kernels == (
        KernelDecl(
            "k",
            (
                KernelParam("read", "x", AT),
                KernelParam("write", "y", AT),
                KernelParam("update", "z", AT),
                KernelParam("int", "n", AT),
            ),
            "k.cu",
            "k",
            (Attribute("grid", ListOf((num(1), num(2)), AT), AT), Attribute("host", "f.py:f", AT)),
            AT,
        ),
        KernelDecl("none", (), "none.cu", "none", (), AT),
    )
    assert schedule.program == (
        StageDecl("a", "dma", True, (name("b"), name("c")), (Attribute("sms", num(1), AT),), (), AT),
    )


def test_spans_end_where_the_text_ends() -> None:
    copy = statement("copy G.rows(0 of 2)\n @ 1 <- A")
    assert isinstance(copy, Copy)
    assert copy.dst.span == Span("x.ficco", 1, 51, 2, 5)
    assert copy.src.span == Span("x.ficco", 2, 9, 2, 10)
    assert copy.span == Span("x.ficco", 1, 46, 2, 10)


def test_windows_line_ends_and_a_byte_order_mark() -> None:
    data = b"\xef\xbb\xbf" + AG_GEMM.replace("\n", "\r\n").encode()
    assert parse_bytes(data, "x.ficco") == parse(AG_GEMM, "x.ficco")


def test_deep_is_fine_up_to_the_limit() -> None:
    assert value(" + ".join(["1"] * 60))
    assert value("(" * 60 + "1" + ")" * 60) == num(1)


# ---------------------------------------------------------------- the tables


def test_stored_tables_belong_to_the_grammar() -> None:
    """If this fails: python -c "from ficco_dsl import grammar; grammar.write_tables()"."""
    with open(grammar._TABLES, encoding="utf-8") as file:
        stored = json.load(file)
    key = grammar._grammar_key()
    assert stored["key"]["grammar"] == key["grammar"]
    if stored["key"]["lark"] != key["lark"]:
        pytest.skip("another lark: the parser is built from its grammar")
    fresh = json.loads(grammar.tables_text())
    assert fresh["data"]["options"] == stored["data"]["options"]
    assert len(fresh["data"]["parser"]["parser"]["states"]) == len(stored["data"]["parser"]["parser"]["states"])


def test_without_stored_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parse(AG_GEMM, "x.ficco")
    monkeypatch.setattr(grammar, "_TABLES", "/nowhere")
    grammar.load_parser.cache_clear()
    try:
        assert parse(AG_GEMM, "x.ficco") == expected
    finally:
        grammar.load_parser.cache_clear()


def test_the_grammar_has_no_conflicts(caplog: pytest.LogCaptureFixture) -> None:
    import lark

    with caplog.at_level("DEBUG", logger=lark.logger.name), open(grammar._GRAMMAR, encoding="utf-8") as file:
        lark.Lark(file.read(), parser="lalr", lexer="basic", debug=True)
    assert "onflict" not in caplog.text


def test_importing_the_package_loads_no_lark() -> None:
    code = "import sys, ficco_dsl; sys.exit('lark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_threads_do_not_meet() -> None:
    results: dict[int, Schedule] = {}

    def work(i: int) -> None:
        for _ in range(5):
            results[i] = parse(AG_GEMM, f"{i}.ficco")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {str(s.program[0].span) for s in results.values()} == {f"{i}.ficco:19:1" for i in range(4)}
