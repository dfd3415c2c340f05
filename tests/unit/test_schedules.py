"""The shipped schedules as texts: laid out, introduced, warned of nothing that they could mend."""

from __future__ import annotations

import pytest

import ficco_dsl
import ficco_rt
from ficco_rt import compiler
from ficco_rt.errors import ScheduleError
from ficco_rt.exec.ideal import ideal
from ficco_rt.files import shipped
from ficco_rt.graph import ir
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.lint import incast
from tests import cases

WANTED = {
    "ag_gemm": {
        "serial", "shard_p2p", "shard_ring", "uniform_fused_1d", "hetero_fused_1d", "hetero_unfused_1d",
        "uniform_fused_2d", "streamed", "tapered", "stationary_a",
    },
    "gemm_rs": {"serial", "shard", "chunked", "relay", "ring", "streamed", "tapered", "stationary_c"},
    "gemm_ar": {"serial", "overlapped", "streamed"},
    "a2a_gemm": {"serial", "overlapped"},
}  # fmt: skip


def test_the_library_is_whole() -> None:
    assert {f"{folder}/{name}" for folder, names in WANTED.items() for name in names} <= set(cases.SCHEDULES)


@pytest.mark.parametrize("entry", shipped.entries(), ids=lambda e: e.name)
def test_a_schedule_says_what_it_is(entry: shipped.ShippedSchedule) -> None:
    """A title, when it is right, its source; the name is that of the file."""
    text = entry.path.read_text(encoding="utf-8")
    assert ficco_dsl.format_text(text, str(entry.path)) == text
    assert len(entry.title) > 20
    assert entry.title.endswith(".")
    head = " ".join(text.split("schedule ", 1)[0].replace("#", " ").split())
    assert "Source: " in head
    assert entry.right.startswith("Right ")
    assert cases.schedule(entry.name).name == entry.name.replace("/", "_")


@pytest.mark.parametrize("ranks", [3, 8])
@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_no_shipped_schedule_sends_two_to_one(name: str, ranks: int) -> None:
    graph = compiler.build(cases.schedule(name), ranks, cases.sizes(name, ranks, even=True))
    assert list(incast(graph, profile("h200-switch", ranks))) == []


def sent(name: str, ranks: int, **sizes: int) -> int:
    """Elements that a rank sends to others."""
    graph = compiler.build(cases.schedule(name), ranks, {**sizes, "T": "bf16"})
    copies = [op.body for op in graph.ops if isinstance(op.body, ir.Copy)]
    return sum(copy.src.elements for copy in copies if copy.src.rank == 0 != copy.dst.rank)


def test_stationary_schedules_send_what_their_texts_say() -> None:
    """Less than the others where M is large."""
    r, m, n, k = 4, 16384, 6144, 4096
    assert sent("ag_gemm/stationary_a", r, M=m, N=n, K=k) == (r - 1) * (k * n // r + m // r * n // r)
    assert sent("ag_gemm/streamed", r, M=m, N=n, K=k) == (r - 1) * (m // r * k)
    assert sent("gemm_rs/stationary_c", r, M=m, N=n, K=k) == (r - 1) * (m // r * k // r + k // r * n)
    assert sent("gemm_rs/relay", r, M=m, N=n, K=k) == (r - 1) * (m // r * n)
    assert sent("ag_gemm/stationary_a", r, M=m, N=n, K=k) < sent("ag_gemm/streamed", r, M=m, N=n, K=k)
    assert sent("gemm_rs/stationary_c", r, M=m, N=n, K=k) < sent("gemm_rs/relay", r, M=m, N=n, K=k)


@pytest.mark.parametrize("name", [n for n in cases.SCHEDULES if n.startswith(("ag_gemm", "gemm_rs"))])
def test_a_size_that_does_not_divide_is_a_clear_error(name: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        compiler.build(cases.schedule(name), 4, {"M": 10})
    messages = [d.message for d in caught.value.diagnostics]
    assert any("10 / 4 is not a whole number" in m or "M = 10 breaks its check: M % ranks == 0" in m for m in messages)


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_no_schedule_is_faster_than_ideal(name: str) -> None:
    """The model's times against the yardstick that reports show, of small work and of a layer's."""
    machine = profile("h200-switch", 4)
    params = {p.name for p in cases.schedule(name).params}
    for size in (128, 8192):
        sizes = {p: size for p in ("M", "N", "K") if p in params} | ({"iters": 3} if "iters" in params else {})
        plan = ficco_rt.compile(name, 4, machine, **sizes)
        assert ficco_rt.simulate(plan, machine).duration >= ideal(plan, machine).ideal * (1 - 1e-9)
