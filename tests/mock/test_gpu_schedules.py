"""`tests/gpu/schedules` on the stand-in: the table, a row that fails, GPUs that are lost."""

from __future__ import annotations

import re

import pytest

from tests.gpu import schedules
from tests.mock.standin import ILLEGAL_ADDRESS, StandIn

SMALL = ("small", 2, 1, "a2a_gemm/")  # three schedules at five sizes
NAMES = ["a2a_gemm/hierarchical", "a2a_gemm/overlapped", "a2a_gemm/serial"] * 5
ONE = ("small", 2, 1, "a2a_gemm/serial")  # one of them


def lines(text: str) -> list[list[str]]:
    """The table's rows, word by word."""
    return [line.split() for line in text.splitlines() if "_gemm/" in line]


@pytest.mark.parametrize(("library", "devices"), [("cuda", 1), ("hip", 2)], indirect=["library"])
def test_all_right(library: StandIn, devices: int, capsys: pytest.CaptureFixture[str]) -> None:
    library.set(f"devices {devices}")
    assert schedules.right(library.face, *SMALL)
    out = capsys.readouterr().out
    assert [(row[0], row[-1]) for row in lines(out)] == [(name, "ok") for name in NAMES]
    assert re.search(r"\n15 of 15 rows right; \d+ s: compiling", out)
    assert not library.live()
    assert not library.violations()


def test_parts_make_the_whole(cuda: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    cuda.set("devices 2")
    found = []
    for number in (7, 8, 9):
        assert schedules.right("cuda", *SMALL, (number, 3))
        out = capsys.readouterr().out
        assert f"\n{len(lines(out))} of {len(lines(out))} rows right" in out
        found.append([tuple(row[:3]) for row in lines(out)])
    assert [len(part) for part in found] == [5, 5, 5]
    assert sorted(name for part in found for name, *_ in part) == sorted(NAMES)
    assert len({row for part in found for row in part}) == 15


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("corrupt 1", "FAILED: C of rank "),
        (f"fail cuMemcpyDtoH 1 {ILLEGAL_ADDRESS}", "FAILED: "),
    ],
)
def test_a_failing_row_does_not_keep_others_from_being_run(
    cuda: StandIn, fault: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda.set("devices 2")
    inject(cuda, fault, 3, monkeypatch)
    assert not schedules.right("cuda", *ONE)
    out = capsys.readouterr().out
    table = [line for line in out.splitlines() if "_gemm/" in line]
    assert [line.endswith("ok") for line in table] == [n != 2 for n in range(5)]
    assert says in table[2]
    assert "\n4 of 5 rows right; " in out
    assert not cuda.live()


def test_a_row_that_does_not_end_fails_alone(
    cuda: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda.set("devices 2")
    inject(cuda, "stop 3", 3, monkeypatch)
    assert not schedules.right("cuda", *ONE, timeout=0.5)
    out = capsys.readouterr().out
    assert re.search(r"FAILED: .* within 0\.5\d* s \(--timeout\)", out)
    assert "\n4 of 5 rows right; " in out


def test_lost_gpus_end_the_table(
    cuda: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda.set("devices 2")
    inject(cuda, f"lose 40 {ILLEGAL_ADDRESS}", 3, monkeypatch)
    assert not schedules.right("cuda", *SMALL)
    out = capsys.readouterr().out
    assert "the GPUs run nothing any more in this process: no further row is begun\n" in out
    assert "\n2 of 3 rows right, 12 not run; " in out


def inject(cuda: StandIn, fault: str, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault comes in the row of this number."""
    begin = schedules.Checker.check
    begun = 0

    def check(checker: schedules.Checker, of: schedules.Row) -> schedules.Facts:
        nonlocal begun
        begun += 1
        if begun == row:
            cuda.set(fault)
        return begin(checker, of)

    monkeypatch.setattr(schedules.Checker, "check", check)
