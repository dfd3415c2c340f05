"""The stand-in libraries as fixtures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ficco_rt.driver.gpu import binding, gpus
from ficco_rt.driver.gpu.workspace import GpuWorkspace
from ficco_rt.driver.registry import VENDORS
from ficco_rt.select import tune
from tests.cases import checked_in_few
from tests.mock import standin
from tests.mock.processes import Processes, kernels
from tests.quick import is_thinned


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled once for all of the session's processes."""
    monkeypatch.setenv("FICCO_CACHE", kernels())


@pytest.fixture(autouse=True)
def _nothing_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another test has left on its devices is not on those of this one."""
    monkeypatch.setattr(gpus, "_BLOCKED", set())


@pytest.fixture(autouse=True)
def _no_library_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GEMM of ours is made for the usual devices here, and another test may have brought the library."""
    monkeypatch.setattr(GpuWorkspace, "_vendors_turn", lambda driver: False)
    monkeypatch.setattr(tune, "has_gemms", lambda name: False)


@pytest.fixture(autouse=True)
def _few_checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_thinned(request.config.args, bool(request.config.option.keyword)):
        monkeypatch.setattr(binding, "checked", checked_in_few)


@pytest.fixture
def cuda() -> Iterator[standin.StandIn]:
    """libcuda.so.1, as freshly loaded; afterwards without devices, as other tests expect this machine to be."""
    yield from _fresh(standin.cuda())


@pytest.fixture
def hip() -> Iterator[standin.StandIn]:
    """libamdhip64.so, likewise."""
    yield from _fresh(standin.hip())


@pytest.fixture(params=sorted(VENDORS))
def library(request: pytest.FixtureRequest) -> Iterator[standin.StandIn]:
    """Either; `face` is the driver's name."""
    yield from _fresh(standin.of(request.param))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """As if PyTorch had been imported: its class of tensors."""
    from tests.mock.test_callers import Torch

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Torch))
    monkeypatch.setattr(Torch, "exports", 0)
    return Torch


@pytest.fixture(scope="session")
def _pairs() -> Iterator[dict[str, Processes]]:
    """HIP is an old runtime: words go as IPC memory, all else as file descriptors."""
    with Processes(2, "cuda") as cuda, Processes(2, "hip", "shared 1") as hip:
        yield {"cuda": cuda, "hip": hip}


@pytest.fixture(params=sorted(VENDORS))
def both(request: pytest.FixtureRequest, _pairs: dict[str, Processes]) -> Processes:
    """Two processes with a vendor's stand-in each, started once for all tests."""
    return _pairs[request.param]


@pytest.fixture
def cuda_pair(_pairs: dict[str, Processes]) -> Processes:
    return _pairs["cuda"]


@pytest.fixture
def hip_pair(_pairs: dict[str, Processes]) -> Processes:
    return _pairs["hip"]


def _fresh(library: standin.StandIn) -> Iterator[standin.StandIn]:
    library.reset()
    yield library
    library.reset("devices 0")
