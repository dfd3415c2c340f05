"""The table of mutations is well-formed; running it is by hand (`python -m tests.mutate`)."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

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


def test_the_page_of_testing_counts_the_rows_of_the_table() -> None:
    folder = ROOT / "docs" / "internals"
    rows = re.findall(r"^\| .+? \| (\w[\w ]*) \| `.+?` \|", (folder / "mutations.md").read_text(), re.MULTILINE)
    page = (folder / "testing.md").read_text()
    for kind, count in Counter(rows).items():
        assert f"| {kind} | {count} |" in page
    assert f"| all | {len(rows)} |" in page
    assert f"has these {len(rows)}." in page
