"""What the proof accepts though it is written unusually, and the words in which it refuses."""

from __future__ import annotations

import gc
import itertools
import random
import re
from collections import Counter
from dataclasses import replace

import pytest

import ficco_dsl
from ficco_dsl.diagnostics import Span
from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import ScheduleError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.files import shipped
from ficco_rt.geometry.region import Axis, Interval
from ficco_rt.graph import ir, trail
from ficco_rt.graph.bags import LEAF, Bags
from ficco_rt.graph.budget import PROOF_TERMS, Budget
from ficco_rt.graph.prove import Proof, meaning, prove
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from tests import cases


def compiled(text: str, ranks: int = 2, machine: str = "h200-switch") -> Plan:
    return plan_of(build(ficco_dsl.parse(f"schedule x\n{text}", "x.ficco"), ranks), profile(machine, ranks))


def right(plan: Plan) -> bool:
    with Executor(plan, order="adversarial") as executor:
        return verified_run(executor, values="exact").ok


def refusal(text: str, ranks: int = 2) -> list[str]:
    with pytest.raises(ScheduleError) as caught:
        compiled(text, ranks)
    return [d.message for d in caught.value.diagnostics]


QUEUES = "queue dma { engine = copy }\nqueue sm { engine = sm }\n"


@pytest.mark.parametrize(
    "body",
    [
        "for i in 0..4 { copy C[i] <- A[i] }",
        "for i in 0..4 { copy C[i:i + 1] <- A[i:i + 1] }",
        "for j in 0..6 { copy C.cols(j of 6) <- A.cols(j of 6) }",
        "for i in 0..4, j in 0..6 { copy C[i, j] <- A[i, j] }",
        "for i in 0..4 { copy C.rows(i of 4) <- A.rows(i of 4) }",
    ],
)
def test_a_tensor_copied_by_index_is_the_tensor(body: str) -> None:
    text = f"input A[4, 6] : fp32\noutput C[4, 6] : fp32\ncomputes C = A\n{QUEUES}stage s on dma {{ {body} }}"
    assert right(compiled(text))


def test_an_index_that_names_two_is_refused() -> None:
    """Texts and stored plans cannot say it; a graph can hold it, and its shape would fit."""
    text = f"""schedule x
input A[6] : fp32
scratch X[3, 6] : fp32
output C[6] : fp32
computes C = A
{QUEUES}stage s on dma {{ copy X[1] <- A  copy C <- X[1] }}"""
    graph = build(ficco_dsl.parse(text, "x.ficco"), 1)
    prove(graph)
    first, *rest = graph.ops
    copy = first.body
    assert isinstance(copy, ir.Copy)
    two = Axis((Interval(1, 3),), dropped=True)
    wrong = replace(first, body=replace(copy, dst=replace(copy.dst, axes=(two, *copy.dst.axes[1:]))))
    with pytest.raises(ScheduleError) as caught:
        prove(replace(graph, ops=(wrong, *rest)))
    assert [d.message for d in caught.value.diagnostics] == [
        "X@0[1, 0:6]: an index of dimension 0 names 2 elements (rank 0)"
    ]


def test_operands_filled_by_index_multiply_as_one() -> None:
    text = f"""
input A[4, 6] : fp32
input B[6, 4] : fp32
output C[4, 4] : fp32
scratch X[4, 6] : fp32
scratch Y[6, 4] : fp32
computes C = A * B
{QUEUES}
stage fill on dma {{
  for i in 0..4 {{ copy X[i] <- A[i] }}
  for k in 0..6 {{ copy Y[k] <- B[k] }}
}}
stage mm on sm {{ gemm C = X * Y }}
"""
    assert right(compiled(text))


def test_rows_in_the_wrong_order_are_refused() -> None:
    text = f"input A[4, 6] : fp32\noutput C[4, 6] : fp32\ncomputes C = A\n{QUEUES}"
    (message,) = refusal(text + "stage s on dma { for i in 0..4 { copy C[i] <- A[3 - i] } }")
    assert message == (
        "C@0 rows 0, columns 0–5 (last written by stage 's' on rank 0): "
        "lacks A@0 rows 0, columns 0–5; has besides A@0 rows 3, columns 0–5"
    )


def test_a_wrong_transpose_is_called_by_its_name() -> None:
    text = f"input A[4, 4] : fp32\ninput B[4, 4] : fp32\noutput C[4, 4] : fp32\ncomputes C = A * B\n{QUEUES}"
    (message,) = refusal(text + "stage s on sm { gemm C = A * B.T }", 1)
    assert message.endswith("has besides A@0 rows 0–3, columns 0–3 × B@0.T rows 0–3, columns 0–3")
    (message,) = refusal(text + "stage s on sm { gemm C = A.T * B }", 1)
    assert message.endswith("has besides A@0.T rows 0–3, columns 0–3 × B@0 rows 0–3, columns 0–3")


def test_an_unproven_output_is_written_all_the_same() -> None:
    text = f"input A[4, 6] : fp32\noutput C[8, 6] : fp32 unproven\n{QUEUES}"
    assert refusal(text + "stage s on dma { copy C.rows(0 of 2) <- A }") == [
        "C@0 rows 4–7, columns 0–5: nothing writes them"
    ]


def test_twice_is_not_once() -> None:
    text = f"input A[4, 4] : fp32\ninput B[4, 4] : fp32\noutput C[4, 4] : fp32\ncomputes C = A * B\n{QUEUES}"
    (message,) = refusal(text + "stage s on sm { gemm C = A * B  gemm C += A * B }", 1)
    assert "has once too often A@0 rows 0–3, columns 0–3 × B@0 rows 0–3, columns 0–3" in message


DOUBLE = f"""
param iters = 4
input  A[iters, 8, 8] : fp32
input  B[8, 8] : fp32
output H[iters, 8, 8] : fp32
scratch X[2, 8, 8] : fp32
computes H[i] = A[i] * B for i in 0..iters
{QUEUES}
queue other {{ engine = sm }}
step i in 0..iters {{
  stage bring on dma {{ for c in 0..2 {{ copy X[i % 2].rows(c of 2) <- A[i].rows(c of 2) }} }}
  stage mm on sm streamed LIMIT {{ for c in ORDER {{ gemm H[i].rows(c of 2) = X[i % 2].rows(c of 2) * B }} }}
}}
"""


@pytest.mark.parametrize("order", ["0..2", "reversed(0..2)"])
@pytest.mark.parametrize("limit", ["", "with sms = 64"])
@pytest.mark.parametrize("machine", ["h200-switch", "mi300x-mesh", "h200-ring"])
def test_iterations_over_two_buffers_with_a_streamed_stage(machine: str, limit: str, order: str) -> None:
    """Flags go from works of one launch to copies and on to works of the next."""
    assert right(compiled(DOUBLE.replace("LIMIT", limit).replace("ORDER", order), 2, machine))


def test_streamed_stages_on_two_queues_of_one_device() -> None:
    text = f"""
input A[8, 8] : fp32
output C[8, 8] : fp32
output D[8, 8] : fp32
scratch X[8, 8] : fp32
scratch Y[8, 8] : fp32
computes C = A * A
computes D = A * A
{QUEUES}
queue other {{ engine = sm }}
stage bring on dma {{ copy X <- A  copy Y <- A }}
stage one on sm streamed {{ gemm C = X * X }}
stage two on other streamed {{ gemm D = Y * Y }}
"""
    assert right(compiled(text))


SCATTER = f"""
param chunks = 2
input   A[24, 4] : fp32
input   B[4, 6] : fp32
output  C[24 / ranks, 6] : fp32
scratch P[24, 6] : fp32
scratch S[24, 6] : fp32
computes C = reduce_scatter(A * B, rows)
{QUEUES}
stage mm on sm {{ for c in 0..chunks, p in peers {{
  gemm P.rows(p of ranks, c of chunks) = A.rows(p of ranks, c of chunks) * B }} }}
stage scatter on dma {{ for c in 0..chunks, p in peers {{
  copy S.rows(rank of ranks, c of chunks) @ p <- P.rows(p of ranks, c of chunks) }} }}
"""


@pytest.mark.parametrize(
    "own",
    [
        "on sm { gemm C = A.rows(rank of ranks) * B + sum(S.rows(peers of ranks)) }",
        "on sm { for c in 0..2 { gemm C.rows(c of 2) = A.rows(rank of ranks, c of 2) * B"
        " + sum(S.rows(peers of ranks, c of 2)) } }",
        "on sm streamed { for c in 0..2 { gemm C.rows(c of 2) = A.rows(rank of ranks, c of 2) * B"
        " + sum(S.rows(peers of ranks, c of 2)) } }",
        "on sm { gemm C = A.rows(rank of ranks).cols(0..2 of 3) * B.rows(0..2 of 3)"
        "        gemm C = A.rows(rank of ranks).cols(2 of 3) * B.rows(2 of 3) + sum(C, S.rows(peers of ranks)) }",
        "on sm { gemm C = A.rows(rank of ranks) * B + sum(P.rows(rank of ranks) @ peers) }",
    ],
)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_product_and_what_has_come_in_one_statement(own: str, ranks: int) -> None:
    assert right(compiled(f"{SCATTER}stage own {own}", ranks))


@pytest.mark.parametrize("name", ["gemm_rs/ring", "gemm_rs/stationary_c"])
def test_sums_over_ranks_cost_what_their_operations_do(name: str) -> None:
    """Four times the ranks are 16 times the operations; each costs a few terms more, not four times as many."""

    def cost(ranks: int) -> float:
        sizes = {"M": 16 * ranks, "N": 16, "K": ranks} | cases.few_chunks(name)
        graph = build(cases.schedule(name), ranks, sizes)
        return proof_cost(graph) / len(graph.ops)

    assert cost(16) < 1.5 * cost(4)


def proof_cost(graph: ir.Graph) -> int:
    """Pieces and terms that a proof pays for."""
    proof = Proof(graph.tensors, graph.claims, meaning(graph))
    budgets = (proof.algebra._cells, proof.algebra._terms)
    before = sum(budget.left for budget in budgets)
    assert not proof.mistaken()
    return before - sum(budget.left for budget in budgets)


def test_a_bag_has_one_form_whatever_it_was_made_of() -> None:
    rng = random.Random(0)
    bags = Bags(Budget(PROOF_TERMS), Span("", 1, 1, 1, 1))
    for size in (1, LEAF, LEAF + 1, 100):
        numbers = [rng.randrange(size) for _ in range(2 * size)]  # some of them twice
        things = [bags.one(n, 1) for n in numbers]
        at_once = bags.union(things)
        one_by_one, halves = things[0], list(things)
        for thing in things[1:]:
            one_by_one = bags.union([one_by_one, thing])
        while len(halves) > 1:
            rng.shuffle(halves)
            halves = [bags.union(halves[i : i + 2]) for i in range(0, len(halves), 2)]
        assert at_once is one_by_one is halves[0]
        assert dict(at_once.entries()) == Counter(numbers)
        assert at_once.size == len(set(numbers))
        assert bags.union(things[1:]) is not at_once
        assert dict(bags.union([at_once, at_once]).entries()) == Counter(2 * numbers)
    assert bags.union([bags.one(0, (Interval(0, 4),)), bags.one(0, (Interval(4, 6),))]) is bags.one(
        0, (Interval(0, 6),)
    )


def test_terms_from_different_places_may_be_added_in_any_order() -> None:
    text = f"""
input X[4 * ranks, 6] : fp32
output C[4, 6] : fp32
scratch S[ranks, 4, 6] : fp32
computes C = all_reduce(X.rows(rank of ranks))
{QUEUES}
stage share on dma {{ for p in all {{ copy S[rank] @ p <- X.rows(rank of ranks) }} }}
stage add on sm {{ reduce C = sum(S[ORDER]) }}
"""
    for order in ("all", "reversed(all)", "[(rank + i) % ranks for i in all]"):
        assert right(compiled(text.replace("ORDER", order), 3))
    (message,) = refusal(text.replace("ORDER", "[0, 1, 1]"), 3)
    assert message.startswith(
        "C@0 rows 0–3, columns 0–5 (last written by stage 'add' on rank 0): "
        "lacks X@2 rows 8–11, columns 0–5; has once too often X@1 rows 4–7, columns 0–5"
    )


TYPED = f"""
input  X[4, 6] : IN
output Y[4, 6] : OUT
scratch H[4, 6] : BETWEEN
scratch W[4, 6] : fp32
computes Y = X
{QUEUES}
stage a on sm {{ reduce W = sum(X)  reduce H = sum(W) }}
stage b on sm {{ reduce W = sum(H)  reduce Y = sum(W) }}
"""


@pytest.mark.parametrize(
    ("given", "between", "made", "lost"),
    [
        ("fp32", "bf16", "fp32", "bf16 keeps 8 binary digits of 24"),
        ("fp32", "fp16", "fp32", "fp16 ends at 65504 and keeps 11 binary digits of 24"),
        ("fp32", "fp16", "bf16", "fp16 ends at 65504"),
        ("fp32", "bf16", "fp16", "bf16 keeps 8 binary digits of 11"),
        ("bf16", "fp16", "fp32", "fp16 ends at 65504 and keeps 11 binary digits of 24"),
        ("bf16", "bf16", "fp32", None),  # it is a bf16 value from the start
        ("fp16", "fp16", "fp32", None),
        ("fp32", "bf16", "bf16", None),  # the claim's own type
        ("fp32", "fp32", "bf16", None),
    ],
)
def test_types_between_hold_what_the_claim_s_type_holds(given: str, between: str, made: str, lost: str | None) -> None:
    text = TYPED.replace("IN", given).replace("BETWEEN", between).replace("OUT", made)
    if lost is None:
        compiled(text)
        return
    where = f"stage 'a' stores in H, which is {between}, what Y@0 rows 0–3, columns 0–5 is made of: "
    assert refusal(text) == [where + lost]
    compiled(text.replace("computes Y = X", f"computes Y = X within fp32, {between}"))


def test_products_of_rounded_factors_and_sums_of_rounded_parts_are_rounded() -> None:
    text = f"""
input  A[4, 8] : fp32
input  B[8, 6] : fp32
output Y[4, 6] : fp32
scratch L[4, 8] : bf16
scratch L2[4, 8] : fp32
scratch P[4, 6] : bf16
scratch P2[4, 6] : fp32
computes Y = A * B
{QUEUES}
"""
    factor = "stage a on sm { reduce L = sum(A)  reduce L2 = sum(L)  gemm Y = L2 * B }"
    (message,) = refusal(text + factor)
    assert message.startswith("stage 'a' stores in L, which is bf16, what Y@0 rows 0–3, columns 0–5 is made of")
    part = (
        "stage a on sm { gemm P2 = A.cols(0 of 2) * B.rows(0 of 2)  reduce P = sum(P2)"
        "  gemm Y = A.cols(1 of 2) * B.rows(1 of 2) + sum(P2) }"
    )
    compiled(text + part)
    (message,) = refusal(text + part.replace("+ sum(P2)", "").replace(" }", "  reduce Y = sum(Y, P) }"))
    assert message.startswith("stage 'a' stores in P, which is bf16, what Y@0 rows 0–3, columns 0–5 is made of")


def test_an_indexed_claim_admits_types_for_each_member() -> None:
    text = f"""
type S = bf16
input  X[2, 4, 6] : fp32
output Y[2, 4, 6] : fp32
scratch H[4, 6] : S
computes Y[i] = X[i] WITHIN for i in 0..2
{QUEUES}
step i in 0..2 {{ stage a on sm {{ reduce H = sum(X[i])  reduce Y[i] = sum(H) }} }}
"""
    with pytest.raises(ScheduleError) as caught:
        compiled(text.replace("WITHIN", ""))
    help = caught.value.diagnostics[0].help
    assert help == "make H fp32, or admit the rounding: end the claim with 'within bf16'"
    assert compiled(text.replace("WITHIN", "within S")).claims[0].text == "Y[…] = X[…] within bf16"


def test_what_a_compilation_made_is_gone_with_it() -> None:
    """A circle of the proof's or the check's tables would live until Python searches all its memory for circles."""
    graph = build(cases.schedule("ag_gemm/hetero_fused_1d"), 4, {"M": 4096, "chunks": 2})
    machine = profile("h200-switch", 4)
    plan_of(graph, machine)
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        plan_of(graph, machine)
        assert gc.collect() < 100
    finally:
        if was:
            gc.enable()


@pytest.mark.parametrize(
    ("name", "right", "wrong", "sizes"),
    [
        ("ag_gemm/hetero_fused_1d", "A.rows(c of chunks)", "A.rows(0 of chunks)", {}),
        ("ag_gemm/uniform_fused_2d", "@ p <- A.cols(c of chunks)", "@ p <- A.cols(0 of chunks)", {}),
        ("gemm_ar/overlapped", "P.rows(p of ranks, c of chunks)\n", "P.rows(p of ranks, 0 of chunks)\n", {}),
        ("gemm_rs/serial", "<- P.rows(p of ranks)", "<- P.rows(rank of ranks)", {}),
        ("gemm_rs/ring", "<- P.rows((rank - s)", "<- P.rows((rank + s)", {}),
        ("a2a_gemm/hierarchical", "<- X.rows(e of counts[rank], c", "<- X.rows(e of counts[rank], 0", {"node": 2}),
    ],
)
def test_a_copy_of_a_wrong_piece_is_shown(
    name: str, right: str, wrong: str, sizes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake is told where the output is made: the copy that brought the wrong piece is shown beside it."""
    text = shipped.find(name).read_text(encoding="utf-8")
    assert text.count(right) == 1
    line = text[: text.index(right)].count("\n") + 1
    graph = build(ficco_dsl.parse(text.replace(right, wrong), "x.ficco"), 4, sizes)
    with pytest.raises(ScheduleError) as caught:
        prove(graph)
    first = caught.value.diagnostics[0]
    assert first.span.line != line
    (note,) = [note for note in first.notes if note.span is not None and note.span.line == line]
    assert re.fullmatch(r"stage '.+' on rank \d copies .+@\d rows .+ to .+@\d rows .+ here", note.text)
    monkeypatch.setattr(trail, "MOST_LOOKS", 0)
    with pytest.raises(ScheduleError) as caught:
        prove(graph)
    assert caught.value.diagnostics[0].message == first.message
    assert len(caught.value.diagnostics[0].notes) == 1  # the claim


LAYOUTS = """
param a = 0 param b = 0 param c = 0
input   A[24, K]           : bf16 transposed if a == 1
input   B[K, 16]           : bf16 transposed if b == 1
output  C[24 / ranks, 16]  : bf16 transposed if c == 1
output  D[24, 16]          : bf16 transposed if c == 1
output  E[24 * ranks, 16]  : bf16 transposed if c == 1
scratch P[ranks, 24, 16]   : bf16 transposed if c == 1
scratch W[ranks, K, 16]    : bf16 transposed if b == 1
param K = 40
computes C = reduce_scatter(A * B, rows)
computes D = all_to_all(A * B, rows)
computes E = all_gather(A * B, rows)
queue dma { engine = copy }
queue compute { engine = sm }
stage give on dma { for p in all { copy W[rank] @ p <- B } }
stage mm on compute {
  gemm P[rank] = A.cols(0 of 2) * B.rows(0 of 2)
  gemm P[rank] += A.cols(1 of 2) * W[rank].rows(1 of 2)
}
stage share on dma {
  for p in all {
    copy D.rows(rank of ranks) @ p <- P[rank].rows(p of ranks)
    copy E.rows(rank of ranks) @ p <- P[rank]
    if p != rank { copy P[rank] @ p <- P[rank] }
  }
}
stage add on compute {
  gemm C = A.rows(rank of ranks) * B + sum(P[peers].rows(rank of ranks))
}
"""


@pytest.mark.parametrize("layout", [*itertools.product((0, 1), repeat=3)])
def test_a_text_means_the_same_however_tensors_are_stored(layout: tuple[int, ...]) -> None:
    graph = build(ficco_dsl.parse(f"schedule x\n{LAYOUTS}", "x.ficco"), 2, dict(zip("abc", layout, strict=True)))
    prove(graph)
    plan = plan_of(graph, profile("h200-switch", 2))
    shapes = {t.name: t.shapes[0] for t in plan.tensors}
    a, b, c = layout
    assert shapes["A"] == ((40, 24) if a else (24, 40))
    assert shapes["W"] == ((2, 16, 40) if b else (2, 40, 16))
    assert shapes["E"] == ((16, 48) if c else (48, 16))
    assert right(plan)


def test_what_is_stored_transposed_may_not_be_swapped() -> None:
    text = """
    input  B[64, 16] : bf16 transposed
    output C[64, 64] : bf16
    computes C = B * B.T
    queue q { engine = sm }
    stage s on q { gemm C.cols(1 of 2) = B * B.rows(1 of 2).T gemm C.cols(0 of 2) = B * B.rows(1 of 2).T }
    """
    (message,) = refusal(text, 1)
    assert "lacks B@0.T rows 0–15, columns 0–63 × B@0 rows 0–15, columns 0–31" in message
