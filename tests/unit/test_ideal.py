"""Serial and ideal of an operation: the same for all its schedules, shared by ranks that share a GPU, never beaten."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import ficco_dsl
import ficco_rt
from ficco_rt import compiler
from ficco_rt.exec.ideal import best_way, ideal, ideal_of
from ficco_rt.exec.operation import Exchange, Multiplication, Operation, operation_of
from ficco_rt.files import shipped
from ficco_rt.graph.ir import CollectiveKind
from ficco_rt.machine.durations import collective_time
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from ficco_rt.sim.simulate import simulate
from tests import cases

OPERATIONS = sorted(shipped.operations())
RATE, MEMORY = 1e6, 1e4  # operations and bytes a microsecond of the machine below
MINE = """
schedule mine
param X = 128
type E = fp32
input  L[X / ranks, 96] : E
input  W[96, 64 / ranks] : E
output Y[X, 64 / ranks] : E
scratch Z[X, 96] : E
computes Y = all_gather(L, rows) * WWITHIN
queue q { engine = copy }
queue m { engine = sm }
stage g on q { for p in all { copy Z.rows(rank of ranks) @ p <- L } }
stage s on m { gemm Y = Z * W }
"""


@cache
def machine(kind: str = "switch", ranks: int = 4) -> Machine:
    """Costs that a test can add up."""
    known = profile("h200-switch", ranks)
    device = replace(known.device, gemm_rate=(("fp32", RATE), ("bf16", RATE)), memory_rate=MEMORY, launch_time=3.0)
    links = replace(known.links, kind=kind, rate=10.0, copy_time=2.0, signal_time=1.0)
    return replace(known, name="by hand", device=device, links=links)


def compiled(name: str, ranks: int = 4, **sizes: object) -> Plan:
    return compiler.plan_of(compiler.build(cases.schedule(name), ranks, sizes), machine(ranks=ranks))


def mine(ranks: int = 4, within: str = "", text: str = MINE) -> Plan:
    text = text.replace("WITHIN", within)
    return compiler.plan_of(compiler.build(ficco_dsl.parse(text, "mine.ficco"), ranks, {}), machine(ranks=ranks))


def operation(plan: Plan) -> Operation:
    found = operation_of(plan)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", OPERATIONS)
def test_all_schedules_of_an_operation_have_the_same_yardsticks(kind: str) -> None:
    ranks = 4
    plans = [
        compiled(name, ranks, **cases.sizes(name, ranks, even=True) | cases.few_chunks(name))
        for name in cases.SCHEDULES
        if name.startswith(f"{kind}/")
    ]
    assert len(plans) > 1
    assert len({operation(plan) for plan in plans}) == 1
    for topology in ("switch", "mesh", "ring"):
        for each in (1, 2):
            found = {ideal(plan, machine(topology), each) for plan in plans}
            assert len(found) == 1
            (one,) = found
            assert one.of == "operation"
            assert 0 < one.ideal <= one.serial


def test_a_users_own_schedule_has_the_yardsticks_of_its_operation() -> None:
    assert operation(mine()) == operation(compiled("ag_gemm/streamed", M=128, N=64, K=96, T="fp32"))
    assert operation(mine()) != operation(compiled("ag_gemm/streamed", M=128, N=64, K=96, T="bf16"))


def test_what_is_not_claimed_is_measured_by_its_own_work() -> None:
    text = MINE.replace("computes Y = all_gather(L, rows) * WWITHIN\n", "").replace(
        "ranks] : E\nscratch", "ranks] : E unproven\nscratch"
    )
    plan = mine(text=text)
    assert operation_of(plan) is None
    assert ideal(plan, machine()).of == "plan"
    shared = ideal(plan, machine(), 4)
    assert shared.communication_alone == 0
    assert shared.compute_alone - 3 == pytest.approx(4 * (ideal(plan, machine()).compute_alone - 3))


def test_what_two_claims_gather_is_sent_once() -> None:
    """Also where one of them reads it transposed."""
    for name, kinds in (
        ("ag_gemm_kept", ["all_gather"]),
        ("gemm_rs_backward", ["all_gather"]),
        ("ag_gemm_backward", ["reduce_scatter", "all_gather"]),
    ):
        usual = operation(compiled(f"{name}/serial", M=64, N=64, K=64)).usual
        assert [exchange.kind for exchange in usual.exchanges] == kinds, name
        assert len(usual.multiplications) == 1 + name.endswith("backward")


def test_serial_and_ideal_of_a_gather() -> None:
    plan = compiled("ag_gemm/serial", M=4096, N=64, K=64, T="fp32")
    one = operation(plan)
    assert one.usual.steps == (
        Exchange("all_gather", (1024 * 64,) * 4, 4, 4),
        Multiplication(((4096, 16, 64),) * 4, "fp32", "fp32"),
    )
    # the rows stay: three shards of B come, and go 1024 × 16 of the result to each peer
    assert best_way(one, machine()) == one.ways[1]
    found = ideal(plan, machine())
    assert found.ideal_by == "sending B and products in place of A"
    assert found.communication_alone == 2 + 4 * (3 * 64 * 16 + 3 * 1024 * 16) / 10
    operands = 4 * (1024 * 64 + 64 * 64 + 1024 * 64)
    assert found.compute_alone == 3 + operands / MEMORY
    # serial: launch, three steps, three shards of A; then all of A, a shard of B and of C through memory, and a launch
    whole = 4 * (4096 * 64 + 64 * 16 + 4096 * 16)
    assert found.serial == pytest.approx(3 + 3 + 4 * 3 * 1024 * 64 / 10 + 3 + whole / MEMORY)


def test_ranks_that_share_a_gpu_share_the_ideal() -> None:
    """The arithmetic of all is one GPU's, and a link passes what goes from GPU to GPU, once."""
    one = operation(compiled("gemm_rs/serial", 4, M=1024, N=1024, K=4096, T="fp32"))
    product = 2 * 1024 * 1024 * 1024 / RATE
    alone, pairs, all_on_one = (ideal_of(one, machine(), n) for n in (1, 2, 4))
    assert alone.compute_alone == pytest.approx(3 + product)
    assert pairs.compute_alone == pytest.approx(3 + 2 * product)
    assert all_on_one.compute_alone == pytest.approx(3 + 4 * product)
    assert alone.communication_alone == 2 + 4 * 3 * 256 * 1024 / 10
    assert pairs.communication_alone == 2 + 4 * 2 * 256 * 1024 / 10  # the sums of two ranks, of the peers' two shards
    assert all_on_one.communication_alone == 0
    assert all_on_one.serial == all_on_one.compute_alone
    uneven = one.usual.exchanges[0].pairs(3)  # ranks 0–2 on one GPU, rank 3 on the other
    assert sum(n for (src, _), n in uneven.items() if src < 3) == 256 * 1024
    assert sum(n for (src, _), n in uneven.items() if src == 3) == 3 * 256 * 1024
    tokens = operation(compiled("a2a_gemm/serial", 4, N=64, K=64, T="fp32")).usual.exchanges[0]
    assert {(s // 2, d // 2) for s, d in tokens.pairs(2)} == {(0, 1), (1, 0)}
    assert len(tokens.pairs(2)) == 8  # what is another thing for each rank goes to each


def test_links_of_topologies() -> None:
    one = operation(compiled("gemm_ar/serial", 4, M=64, N=64, K=64, T="fp32"))
    part = 4 * 16 * 64  # bytes of a quarter of the product
    assert ideal_of(one, machine("switch")).communication_alone == 2 + 2 * 3 * part / 10
    assert ideal_of(one, machine("mesh")).communication_alone == 2 + 2 * part / 10
    assert ideal_of(one, machine("ring")).communication_alone == 2 + 2 * 3 * part / 2 / 10


@pytest.mark.parametrize(("within", "least"), [("", 4), (" within bf16", 2)])
def test_a_claim_says_how_few_bytes_may_go(within: str, least: int) -> None:
    (gather,) = operation(mine(within=within)).usual.exchanges
    assert (gather.item, gather.least) == (4, least)


TALL = {"ag_gemm": {"M": 65536, "N": 1024, "K": 1024}, "gemm_rs": {"M": 65536, "N": 2048, "K": 1024}}


@pytest.mark.parametrize("kind", sorted(TALL))
def test_what_sends_something_smaller_does_not_beat_the_ideal(kind: str) -> None:
    """The usual way would be no limit for it."""
    name = {"ag_gemm": "ag_gemm/stationary_a", "gemm_rs": "gemm_rs/stationary_c"}[kind]
    node = profile("h200-switch", 4)
    plan = ficco_rt.compile(name, 4, node, **TALL[kind])
    one, time = operation(plan), ficco_rt.simulate(plan, node).duration
    assert best_way(one, node) == one.ways[1]
    sent = {"ag_gemm": "sending B and products in place of A", "gemm_rs": "sending A and B in place of products"}
    assert (one.usual.by, ideal_of(one, node).ideal_by) == ("", sent[kind])
    assert ideal_of(Operation(4, (one.usual,)), node).ideal > time > ideal_of(one, node).ideal


def test_claims_that_share_a_value_pay_for_it_once() -> None:
    text = MINE.replace(
        "queue q", "input V[96, 32] : E\noutput U[X, 32] : E\ncomputes U = all_gather(L, rows) * V\nqueue q", 1
    ).replace("gemm Y = Z * W", "gemm Y = Z * W  gemm U = Z * V")
    usual = operation(mine(text=text)).usual
    assert (len(usual.exchanges), len(usual.multiplications)) == (1, 2)


@pytest.mark.parametrize(("name", "kind"), [("ag_gemm", "all_gather"), ("gemm_rs", "reduce_scatter")])
def test_serial_between_nodes_is_the_vendors_collective(name: str, kind: CollectiveKind) -> None:
    """It brings what comes from another node into a node once, by all of its ports; so no schedule beats the ideal."""
    ranks, m, n, k = 16, 2048, 16384, 4096
    nodes = profile("h200-nodes", ranks)
    sizes = {"M": m, "N": n, "K": k, "node": 8, "chunks": 1}
    plan = compiler.plan_of(compiler.build(cases.schedule(f"{name}/hierarchical"), ranks, sizes), nodes)
    found, moved = ideal(plan, nodes), 2 * m * (k if kind == "all_gather" else n)
    assert found.serial == pytest.approx(found.compute_alone + collective_time(nodes, kind, moved), rel=1e-6)
    assert found.ideal <= simulate(plan, nodes).duration
