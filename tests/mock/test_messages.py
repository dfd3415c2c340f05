"""Copies by NCCL and RCCL on the stand-in: messages, some of them empty, right on streams and in graphs."""

from __future__ import annotations

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from tests import cases
from tests.gpu import test_nodes
from tests.mock.standin import StandIn

NAMES = [name for name in cases.SCHEDULES if name.endswith("/hierarchical")]


@pytest.mark.parametrize(("ranks", "node", "even"), [(2, 1, True), (4, 2, False)])
@pytest.mark.parametrize("name", NAMES)
def test_messages_of_the_library_are_right(library: StandIn, name: str, ranks: int, node: int, even: bool) -> None:
    sizes = cases.sizes(name, ranks, even) | cases.few_chunks(name) | {"node": node}
    for seed in range(2):
        library.reset(f"devices {ranks}; sms 132; nccl 22809; seed {seed}; query_steps 3000")
        machine = discover(library.face, ranks)  # type: ignore[arg-type]
        made = plan_of(build(cases.schedule(name), ranks, sizes), machine)
        with Executor(made, library.face, machine=machine, timeout=60, collectives="library") as executor:  # type: ignore[arg-type]
            for executor.graph, executor.traced in ((False, False), (True, False), (False, True)):
                assert verified_run(executor, values="exact").ok
            assert library.collectives() > 0
        assert (library.live(), library.violations()) == ({}, "")


def test_the_tool_for_gpus_finds_them_right(library: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    library.reset("devices 2; sms 132; nccl 22809; query_steps 3000")
    machine = discover(library.face, 2)  # type: ignore[arg-type]
    small = {"M": 32, "N": 16, "K": 32, "T": "fp32", "counts": [[3, 5], [4, 2]]}
    assert test_nodes.right(machine, 1, library.face, small, repeats=1)  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["right"] * 12
    assert (library.live(), library.violations()) == ({}, "")
