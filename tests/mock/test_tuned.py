"""The tuned kernels' tables on the stand-in: what the driver packs for them is what they need."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Command, Launch, Plan
from tests import cases
from tests.mock.standin import StandIn

HOPPER = "devices 4; arch sm_90; sms 12"
SMEM = 200 << 10
SEEDS = 10


def compiled(name: str, ranks: int, sizes: dict[str, object]) -> Plan:
    return plan_of(build(cases.schedule(name), ranks, sizes), discover("cuda", ranks))


def kernels(plan: Plan) -> set[str]:
    return {c.kernel for s in plan.streams for c in s.commands if isinstance(c, Launch)}


def right(cuda: StandIn, plan: Plan, seeds: int = SEEDS) -> None:
    with Executor(plan, "cuda", timeout=30) as executor:
        for executor.graph in (False, True):
            for seed in range(seeds):
                cuda.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
                result = verified_run(executor, seed=seed, values="exact")
                assert result.ok, f"seed {seed}, graph {executor.graph}: {result.worst}"
    assert not cuda.violations()
    assert not cuda.live()


@pytest.mark.parametrize("name", [n for n in cases.SCHEDULES if not n.startswith("a2a")])
def test_every_schedule_with_the_hopper_gemm(cuda: StandIn, name: str) -> None:
    cuda.reset(HOPPER)
    plan = compiled(name, 3, cases.sizes(name, 3, True) | cases.few_chunks(name) | {"T": "bf16"})
    assert any(k.startswith("sm90_gemm") for k in kernels(plan))
    right(cuda, plan)


@pytest.mark.parametrize("variant", ["sm90_gemm_128x128_c2", "sm90_gemm_128x160_c2"])
@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/streamed"])
def test_other_tiles_in_clusters(cuda: StandIn, name: str, variant: str) -> None:
    """Such work is large; smaller work is done just as rightly."""
    cuda.reset("devices 2; arch sm_90; sms 12")
    plan = compiled(name, 2, {"M": 384, "N": 320, "K": 128, "T": "bf16", "chunks": 2})
    swapped = Counter[str]()

    def swap(command: Command) -> Command:
        if not isinstance(command, Launch) or not command.kernel.startswith("sm90_gemm"):
            return command
        swapped[command.kernel] += 1
        return replace(command, kernel=variant, attributes=replace(command.attributes, smem=SMEM))

    streams = tuple(replace(s, commands=tuple(map(swap, s.commands))) for s in plan.streams)
    assert swapped
    right(cuda, replace(plan, streams=streams), seeds=2)


def test_k_cut_in_parts_for_the_last_wave(cuda: StandIn) -> None:
    """Few tiles and a deep K: parts of K are added by who comes last."""
    cuda.reset("devices 2; arch sm_90; sms 16")
    plan = compiled("ag_gemm/serial", 2, {"M": 64, "N": 128, "K": 4096, "T": "bf16"})
    right(cuda, plan, seeds=3)
