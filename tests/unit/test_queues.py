"""What a caller says of a schedule's queues in place of its text."""

from __future__ import annotations

import pytest

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.errors import ScheduleError, UsageError
from ficco_rt.graph.overrides import written
from ficco_rt.report.settings import parse_settings

TEXT = """schedule said

param M = 64  # rows
type T = fp32

input  A[M, 16]   : T
output C[M, 16]   : T
output R[M, 16]   : T

computes C = A * A.rows(0 of M / 16)
computes R = all_reduce(A)

queue compute { engine = sm    priority = low }  # the product's
queue vendor  { engine = nccl }

stage mm on compute { gemm C = A * A.rows(0 of M / 16) }
stage share on vendor { all_reduce R <- A }
"""


def built(**given: object) -> tuple[dict[str, object], dict[str, object], object]:
    """What the queues ask for, and the graph's params."""
    graph = compiler.build(ficco_dsl.parse(TEXT, "said.ficco"), 2, given)
    compute, vendor = graph.queues
    r = compute.resources
    asked = {"priority": r.priority, "sms": r.sms, "smem": r.smem, "kernel": r.kernel}
    settings = vendor.collectives
    theirs = {"priority": vendor.resources.priority, "ctas": settings.ctas if settings else None}
    return asked, theirs, dict(graph.params)


def test_a_queue_says_what_the_caller_says() -> None:
    said = parse_settings(
        ("compute.sms=100", "compute.priority=high", "vendor.ctas = 8", "compute.smem=64 KiB", "M=32")
    )
    compute, vendor, params = built(**said)
    assert compute == {"priority": "high", "sms": 100, "smem": 65536, "kernel": None}
    assert vendor == {"priority": None, "ctas": 8}
    assert params == {"M": 32, "T": "fp32", "compute.sms": 100, "compute.priority": "high", "vendor.ctas": 8,
                      "compute.smem": 65536}  # fmt: skip
    assert built(**parse_settings(("compute.priority=none",)))[0]["priority"] is None
    assert built(kernel="vendor", **{"compute.sms": 3})[0] == {
        "priority": "low", "sms": 3, "smem": None, "kernel": "vendor"
    }  # fmt: skip
    assert built()[2] == {"M": 64, "T": "fp32"}
    for said, kind in (("8 sms", "sms"), ("nccl", "nccl"), ("64 KiB", "bytes")):
        graph = compiler.build(ficco_dsl.parse(TEXT, "said.ficco"), 2, parse_settings((f"compute.leave={said}",)))
        leave = graph.queues[0].resources.leave
        assert leave is not None
        assert leave.what == kind


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("comput.sms", 3, "comput.sms: schedule said has no queue 'comput'; did you mean compute?"),
        ("compute.sma", 3, "compute.sma: queue 'compute' has no attribute 'sma'; did you mean sms?"),
        ("compute.ctas", 3, "compute.ctas: queue 'compute' has no attribute 'ctas'; choose among priority, smem, "
         "residency, sms, leave, order, kernel, fast, scale"),
        ("compute.engine", "copy", "compute.engine: queue 'compute' has no attribute 'engine'; choose among priority, "
         "smem, residency, sms, leave, order, kernel, fast, scale"),
        ("vendor.priority", 3, "vendor.priority = 3: priority is high or normal or low, or none"),
        ("compute.leave", "8 blocks", "compute.leave = 8 blocks: leave is a whole number, such as 8 sms, or nccl, or "
         "none"),
        ("vendor.ctas", "high", "vendor.ctas = high: ctas is a whole number, or none"),
    ],
)  # fmt: skip
def test_what_no_queue_can_say(name: str, value: object, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        built(**{name: value})
    assert str(refused.value) == message


def test_a_number_out_of_range_is_told_at_the_queue() -> None:
    with pytest.raises(ScheduleError) as refused:
        built(**{"vendor.threads": 100})
    (told,) = refused.value.diagnostics
    assert (told.message, told.span.line) == ("threads = 100; it is a multiple of 32", 14)


def test_a_copy_of_the_text_says_it_and_keeps_its_comments() -> None:
    given = {"compute.sms": 100, "compute.priority": "none", "vendor.ctas": 8, "vendor.priority": "high", "M": 32}
    made = written(TEXT, "said.ficco", given)
    assert made.splitlines()[12:14] == [
        "queue compute { engine = sm    sms = 100 }  # the product's",
        "queue vendor  { engine = nccl  ctas = 8  priority = high }",
    ]
    assert "param M = 32  # rows\n" in made
    assert len(made.splitlines()) == len(TEXT.splitlines())
    graph = compiler.build(ficco_dsl.parse(made, "said.ficco"), 2, {})
    asked = compiler.build(ficco_dsl.parse(TEXT, "said.ficco"), 2, given)
    assert [(q.resources, q.collectives) for q in graph.queues] == [(q.resources, q.collectives) for q in asked.queues]
    assert written(made, "said.ficco", given) == made
