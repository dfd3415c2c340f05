"""What was proven is kept between processes, and taken only as this user's ficco has written it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from ficco_rt import compiler
from ficco_rt.files import private, store
from ficco_rt.files.store import Store
from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.graph.ir import Span
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from tests import cases

VALUE = Region("A", 1, (Axis((Interval(0, 4), Interval(8, 12))), Axis((Interval(2, 3),), dropped=True)))
KEY = ("ag_gemm", 4)


@pytest.fixture
def kept(tmp_path: Path) -> Store:
    """With one entry."""
    found = Store(tmp_path / "plans")
    assert found.get(KEY, Region) is None
    found.put(KEY, VALUE)
    assert found.get(KEY, Region) == VALUE
    return found


def entry(kept: Store) -> Path:
    (path,) = kept.folder.glob("*.entry")
    return path


def test_a_value_reads_back_with_what_it_derives(kept: Store) -> None:
    found = kept.get(KEY, Region)
    assert found is not None
    assert (found.shape, found.boxes, found.kept) == (VALUE.shape, VALUE.boxes, VALUE.kept)
    assert kept.get(KEY, Span) is None
    assert kept.get(("ag_gemm", 8), Region) is None
    assert {path.stat().st_mode & 0o777 for path in kept.folder.iterdir()} == {0o600}
    assert kept.folder.stat().st_mode & 0o777 == 0o700


def test_what_somebody_else_has_written_is_made_again(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path, secret = entry(kept), kept.folder / "secret"
    data = path.read_bytes()
    for at in (0, 20, 50, len(data) - 1):  # the form, the keyed hash, the content
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert kept.get(KEY, Region) is None, at
    for part in (b"", data[:40], data[:-1]):
        path.write_bytes(part)
        assert kept.get(KEY, Region) is None
    kept.put(KEY, VALUE)
    assert kept.get(KEY, Region) == VALUE
    kept.put("another", VALUE.on(2))  # entries that were exchanged
    (other,) = {*kept.folder.glob("*.entry")} - {path}
    os.replace(other, path)
    assert kept.get(KEY, Region) is None
    kept.put(KEY, VALUE)
    path.chmod(0o644)
    assert kept.get(KEY, Region) is None
    path.chmod(0o600)
    assert kept.get(KEY, Region) == VALUE
    with monkeypatch.context() as foreign:
        foreign.setattr(private.os, "geteuid", lambda: os.getuid() + 1)
        assert kept.get(KEY, Region) is None
    with monkeypatch.context() as newer:
        newer.setattr(store, "sources", lambda: "another version")
        assert kept.get(KEY, Region) is None
    secret.write_bytes(os.urandom(32))
    assert kept.get(KEY, Region) is None
    secret.unlink()
    assert kept.get(KEY, Region) is None
    kept.put(KEY, VALUE)
    assert kept.get(KEY, Region) == VALUE


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("evil",)


def test_nothing_but_values_is_read_or_written(kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    secret, name = (kept.folder / "secret").read_bytes(), entry(kept).stem
    data = pickle.dumps(Evil())
    private.publish(entry(kept), store._head(secret, name, data) + data)
    assert kept.get(KEY, Region) is None
    for value in (len, (lambda: 0), Evil(), Path("x")):
        kept.put("value", value)
    assert not (tmp_path / "evil").exists()
    assert len([*kept.folder.glob("*.entry")]) == 1


def test_the_oldest_entries_go(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    size = entry(kept).stat().st_size
    monkeypatch.setattr(store, "MOST", 4 * size)
    monkeypatch.setattr(store, "EVERY", 1)
    for number in range(6):
        kept.put(number, VALUE)
        for path in kept.folder.glob("*.entry"):
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))  # clocks of files are coarse
    assert [number for number in range(6) if kept.get(number, Region)] == [2, 3, 4, 5]
    assert kept.get(KEY, Region) is None

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("the folder is no longer to be written")

    monkeypatch.setattr(Path, "unlink", refused)
    kept.put(6, VALUE)
    assert [number for number in range(7) if kept.get(number, Region)] == [2, 3, 4, 5, 6]


def test_a_folder_in_place_of_an_entry_is_none(kept: Store) -> None:
    path = entry(kept)
    path.unlink()
    path.mkdir()
    assert kept.get(KEY, Region) is None
    kept.put(KEY, VALUE)
    assert kept.get(KEY, Region) is None


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = Store(tmp_path / "file" / "plans")
    below.put(KEY, VALUE)
    assert below.get(KEY, Region) is None


def test_every_file_of_the_package_counts(tmp_path: Path) -> None:
    names = {path.name for path in store._files()}
    assert {"check.py", "sm90_gemm.cu", "oneshot.ficco", "grammar.lark", "parser.py"} <= names
    assert not any(name.endswith(".pyc") for name in names)


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_plans_read_back(name: str, kept: Store) -> None:
    graph = compiler.build(cases.schedule(name), 2, cases.sizes(name, 2, even=True))
    plan = compiler.plan_of(graph, profile("h200-switch", 2))
    kept.put(name, plan)
    assert kept.get(name, Plan) == plan
