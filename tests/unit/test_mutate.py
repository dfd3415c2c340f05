"""The table of mutations is well-formed; running it is by hand (`python -m tests.mutate`)."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import pytest

from tests.mutate import BY_HAND, Result, summary
from tests.mutations import Mutation, read

MUTATIONS = read()
ROOT = Path(__file__).resolve().parents[2]


def test_there_are_many_and_each_has_a_name() -> None:
    assert len(MUTATIONS) >= 48
    assert {m.kind for m in MUTATIONS} == {"decision", "driver", "vendor", "kernel source"}
    assert [name for name, count in Counter(m.name for m in MUTATIONS).items() if count > 1] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_each_changes_one_place(mutation: Mutation) -> None:
    assert (ROOT / "ficco_rt" / mutation.path).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new


def test_each_names_tests_that_there_are() -> None:
    for mutation in MUTATIONS:
        assert mutation.tests
        for test in mutation.tests:
            assert (ROOT / shlex.split(test)[0]).is_file(), mutation.name


def test_a_run_is_summed_up_as_the_page_of_testing_has_it() -> None:
    decision, driver = (next(m for m in MUTATIONS if m.kind == kind) for kind in ("decision", "driver"))
    caught = [
        Result(
            decision, "the device plan's check, in `tests/unit/test_double_buffering.py::test_two_writers`", "", 1.0
        ),
        Result(decision, "golden device plans", "", 1.0),
        Result(driver, "`tests/mock/test_requests.py::test_requests`", "", 1.0),
        Result(driver, f"{BY_HAND}: `a command`", "", 1.0),
        Result(driver, "", "", 1.0),
    ]
    head, line, *counted, survived = summary(caught).splitlines()
    assert counted == [
        "| decision | 2 | 1 | 1 | 0 | 0 | 0 |",
        "| driver | 3 | 0 | 0 | 1 | 1 | 1 |",
        "| all | 5 | 1 | 1 | 1 | 1 | 1 |",
    ]
    assert survived == f"survived: {driver.path}: {driver.name}"
    page = (ROOT / "docs" / "internals" / "testing.md").read_text(encoding="utf-8")
    assert f"{head}\n{line}\n" in page
    for kind in {m.kind for m in MUTATIONS}:
        assert f"\n| {kind} |" in page
