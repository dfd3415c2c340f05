"""Collectives of the vendor's library: what a queue asks of it."""

from __future__ import annotations

from dataclasses import replace

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.graph.ir import CollectiveSettings
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.check import check
from ficco_rt.plan.codec import content_hash, from_json, to_json
from ficco_rt.plan.ir import Plan
from ficco_rt.plan.prove import prove
from ficco_rt.plan.text import to_text

TEXT = """
schedule asked
param M = 64
param some = 8
input   A[M, 16] : bf16
output  G[M * ranks, 16] : bf16
output  S[M, 16] : bf16
computes G = all_gather(A, rows)
computes S = all_reduce(A)
queue vendor {{ engine = nccl {asked} }}
stage gather on vendor {{ all_gather G <- A }}
stage total on vendor {{ all_reduce S <- A }}
"""


def plan_of(asked: str = "", ranks: int = 2) -> Plan:
    schedule = ficco_dsl.parse(TEXT.format(asked=asked), "asked.ficco")
    return compiler.plan_of(compiler.build(schedule, ranks), profile("h200-switch", ranks))


def test_a_queue_asks_and_the_plan_carries_it() -> None:
    plain, asking = plan_of(), plan_of("ctas = some threads = 256")
    assert {stream.collectives for stream in asking.streams} == {CollectiveSettings(8, 256)}
    assert "rank 1 stream vendor (nccl, normal, ctas 8, threads 256)" in to_text(asking)
    assert from_json(to_json(asking)) == asking
    assert '"collectives"' not in to_json(plain)  # plans of others keep their text and hash
    assert content_hash(plain) != content_hash(asking)


def test_what_is_asked_changes_no_value() -> None:
    """All else of the plan is the same, so that one proof holds for both."""
    plain, asking = plan_of(), plan_of("ctas = 0")
    assert replace(asking, streams=tuple(replace(s, collectives=None) for s in asking.streams)) == plain
    prove(asking, check(asking))
