"""Options of the tests on GPUs, what each needs, and the ledger."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import ledger
from tests.gpu.here import here

NEEDS = ("gpu", "gpus2", "torch", "nccl", "nvmath")  # markers, in the order in which what is missing is told
BEGUN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu", "tests/gpu")
    group.addoption("--backend", choices=("cuda", "hip"), default="cuda", help="whose GPUs (cuda)")
    group.addoption("--ranks", type=int, default=0, metavar="N", help="ranks of schedules; they share GPUs if need be")
    group.addoption("--long", type=int, default=1, metavar="N", help="N times as many runs, replays, faults (1)")
    group.addoption("--ledger", type=Path, metavar="FILE", help="write the machine's line into this page's table")


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    return _backend(request.config)


@pytest.fixture
def gpus(backend: str) -> int:
    """How many are here."""
    return here(backend).gpus


@pytest.fixture
def long(request: pytest.FixtureRequest) -> int:
    """By which factor everything that repeats is to repeat more often."""
    return int(request.config.getoption("--long", 1))


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> int:
    """Of schedules: two, if nothing else is asked for."""
    return request.config.getoption("--ranks", 0) or 2


@pytest.fixture
def each(ranks: int, gpus: int) -> int:
    """Ranks that share a GPU."""
    return -(-ranks // gpus)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """The GPUs are this test's, also among the workers of pytest-xdist."""
    with (Path(tempfile.gettempdir()) / f"ficco-gpu-tests-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup(item: pytest.Item) -> None:
    backend = _backend(item.config)
    if backend == "cuda" or "backend" in getattr(item, "fixturenames", ()):
        lacks = here(backend).lacks
        for marker in (m for m in NEEDS if item.get_closest_marker(m)):
            if marker in lacks:
                pytest.skip(lacks[marker])
    else:
        pytest.skip("for NVIDIA GPUs alone")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The line of the ledger, where a test has run."""
    counts = {
        name: sum(_is_ours(report.nodeid) for kind in kinds for report in terminalreporter.stats.get(kind, ()))
        for name, kinds in {"passed": ["passed"], "failed": ["failed", "error"], "skipped": ["skipped"]}.items()
    }
    if counts["passed"] or counts["failed"]:
        line = ledger.entry(here(_backend(config)), counts, time.monotonic() - BEGUN)
        terminalreporter.write_line(line)
        if path := config.getoption("--ledger", None):
            ledger.write(path, line)


def _backend(config: pytest.Config) -> str:
    return str(config.getoption("--backend", "cuda"))


def _is_ours(name: str) -> bool:
    return name.startswith("tests/gpu/")
