"""The ledger of the tests on GPUs: a line for each machine, the latest one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.gpu import ledger
from tests.gpu.here import Here

ONE = Here(1, "NVIDIA H200", "580.159.04 (CUDA 13.0)")
TWO = Here(2, "NVIDIA H200", "580.159.04 (CUDA 13.0)")
COUNTS = {"passed": 60, "failed": 1, "skipped": 9}


def test_a_line_has_all_that_tells_runs_apart() -> None:
    line = ledger.entry(TWO, COUNTS, 412.6)
    cells = line.strip("| ").split(" | ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", cells[0])
    assert re.fullmatch(r"[0-9a-f]{8,}(-dirty)?|unknown", cells[1])
    assert cells[2:] == ["2 × NVIDIA H200", "580.159.04 (CUDA 13.0)", "60", "1", "9", "413"]
    assert line.count("|") == ledger.HEAD[0].count("|")


def test_each_machine_keeps_its_latest_line(tmp_path: Path) -> None:
    page = tmp_path / "ledger.md"
    page.write_text("\n".join(["# Title", "", "Text.", "", *ledger.HEAD, "", "More text."]) + "\n", encoding="utf-8")
    lines = [ledger.entry(machine, COUNTS, seconds) for machine, seconds in ((TWO, 1), (ONE, 2), (TWO, 3))]
    for line in lines:
        ledger.write(page, line)
    assert page.read_text(encoding="utf-8").split("\n") == [
        *("# Title", "", "Text.", "", *ledger.HEAD, lines[1], lines[2], "", "More text.", "")
    ]
    assert list(tmp_path.iterdir()) == [page]


def test_a_file_of_its_own_gets_a_table(tmp_path: Path) -> None:
    ledger.write(tmp_path / "new.md", line := ledger.entry(ONE, COUNTS, 2))
    assert (tmp_path / "new.md").read_text(encoding="utf-8").split("\n") == [*ledger.HEAD, line, ""]


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "ledger.md").read_text(encoding="utf-8")
    assert "\n".join(ledger.HEAD) in page
