"""On which multiprocessors blocks were: of streamed launches in any traced run, of all launches where that is asked."""

from __future__ import annotations

from typing import Any

import pytest

from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.gpu.modules import Modules
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.trace.model import Launched
from tests.gpu import test_block_fit as room_check
from tests.mock.standin import StandIn
from tests.mock.test_launches import planned


def launched(library: StandIn, schedule: str, mark_all: bool, monkeypatch: pytest.MonkeyPatch) -> list[Launched]:
    """Of a traced run. What was loaded says which builds of the kernels ran."""
    entries: list[str] = []
    own = Modules.own

    def loaded(self: Modules, source: str, entry: str, *rest: Any) -> Any:
        entries.append(entry)
        return own(self, source, entry, *rest)

    monkeypatch.setattr(Modules, "own", loaded)
    plan = planned(library, schedule, "arch sm_75" if library.face == "cuda" else "arch gfx90a")
    with Executor(plan, library.face, timeout=30) as executor:
        assert isinstance(executor.driver, GpuDriver)
        if mark_all:
            executor.driver._binder.mark_all = True
        assert verified_run(executor, seed=1, values="exact").rel_err == 0
        assert not any(entry.startswith("marked_") for entry in entries)
        executor.traced = True
        assert verified_run(executor, seed=1, values="exact").rel_err == 0
        kinds = ("launch",) if mark_all else ("gemm", "copy", "reduce")  # a launch that tells of its works is a span
        found = [s.launched for s in executor.trace.spans if s.launched is not None and s.kind in kinds]
    assert any(entry.startswith("marked_") for entry in entries) == mark_all
    return found


def test_the_check_for_gpus(cuda: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    """Its two parts that need no stand-ins of blocks: on libraries that stand in for the driver's and cuBLASLt."""
    pytest.importorskip("nvmath.bindings.cublasLt")
    cuda.gemms()
    cuda.reset("devices 1; arch sm_90; gemm 168 150000")
    machine = discover("cuda", 1)
    assert room_check.plain_part(machine, (64, 64, 64))
    told = capsys.readouterr().out
    assert told.startswith("nothing asked: sm90_gemm_")
    assert "promised" in told
    assert "leave = 64 KiB: " in told
    assert room_check.vendor_part(machine, ((64, 64, 64),))
    told = capsys.readouterr().out
    assert "64 × 64 × 64, leave = 16 KiB: runs\n" in told
    assert "64 × 64 × 64, leave = 100 KiB: refused: " in told
    assert "WRONG" not in told


def test_launches_that_wait_for_nothing_tell_of_their_blocks_where_that_is_asked(
    cuda: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = launched(cuda, "ag_gemm/serial", False, monkeypatch)
    assert plain
    assert {how.reached for how in plain} == {None}
    told = launched(cuda, "ag_gemm/serial", True, monkeypatch)
    assert [how.reached for how in told] == [1] * len(plain)
