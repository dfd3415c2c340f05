"""The fast subset: its marker, its files, what the docs say of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import quick

ROOT = Path(__file__).parents[2]


def test_files_of_the_folders_belong_by_themselves(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("quick")
    assert quick.is_quick(ROOT / "tests" / "unit" / "test_new.py")
    assert not quick.is_quick(ROOT / "tests" / "fuzz" / "test_fuzz.py")
    for name in quick.QUICK:
        assert (ROOT / "tests" / name).exists(), name
    for name in quick.SLOW:
        file, _, test = name.partition("::")
        path = ROOT / "tests" / file
        assert re.search(rf"^def {test or '.*'}\(", path.read_text(encoding="utf-8"), re.MULTILINE), name
        assert not quick.is_quick(path, test), name
        assert quick.is_quick(path) == bool(test), name


def test_the_marker_is_declared_and_told_of(pytestconfig: pytest.Config) -> None:
    assert any(line.startswith("quick: ") for line in pytestconfig.getini("markers"))
    for page in ("tests/README.md", "CONTRIBUTING.md"):
        assert "pytest -m quick -n auto -q" in (ROOT / page).read_text(encoding="utf-8"), page


def test_no_other_file_is_imported_for_it() -> None:
    other, folder = ROOT / "tests" / "fuzz" / "test_fuzz.py", ROOT / "tests" / "fuzz"
    assert quick.ignored(other, "quick")
    assert not quick.ignored(other, "not quick")
    assert not quick.ignored(folder, "quick")
    assert not quick.ignored(Path(__file__), "quick")


def test_a_run_of_all_tests_thins_costly_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, every in quick.THINNED.items():
        file, _, test = name.partition("::")
        path, variants = ROOT / "tests" / file, [f"{test}[{i}]" for i in range(60)]
        assert re.search(rf"^def {test}\(", path.read_text(encoding="utf-8"), re.MULTILINE), name
        out = [quick.left_out(path, test, variant) for variant in variants]
        assert 0.3 * 60 / every < out.count(False) < 2 * 60 / every, name
    assert not quick.left_out(Path(__file__), "test_a_run_of_all_tests_thins_costly_ones", "1")
    monkeypatch.delenv("FICCO_ALL", raising=False)
    assert quick.is_thinned([str(ROOT / "tests")], False)
    assert not quick.is_thinned([str(ROOT)], True)
    assert not quick.is_thinned([__file__], False)
    monkeypatch.setenv("FICCO_ALL", "1")
    assert not quick.is_thinned([str(ROOT)], False)
