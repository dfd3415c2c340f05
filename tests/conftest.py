"""Options and fixtures that every group of tests shares."""

from __future__ import annotations

import difflib
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import quick

# Before numpy is imported, here and in the processes that tests start: the matrices are small, and threads of linear
# algebra that wait for work spin, which takes half of the processor's time from the other workers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Every worker and every process that a test starts would compile all sources again: where the caller's shell wants no
# bytecode beside them, it is kept in a folder of its own.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault(
        "PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir()) / f"ficco-bytecode-{os.getuid()}")
    )
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Tests wait for processes and time limits, in which another worker goes on."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """A worker with nothing left takes tests of another one."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return quick.ignored(collection_path, config.option.markexpr)


def pytest_itemcollected(item: pytest.Item) -> None:
    if quick.is_quick(item.path, getattr(item, "originalname", item.name)):
        item.add_marker(pytest.mark.quick)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not quick.is_thinned(config.args, bool(config.option.keyword)):
        return
    out = [i for i in items if quick.left_out(i.path, getattr(i, "originalname", i.name), i.name)]
    if out:
        config.hook.pytest_deselected(items=out)
        gone = set(out)
        items[:] = [i for i in items if i not in gone]


def pytest_collection_finish() -> None:
    """Thousands of collected tests live until the end: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def golden(update_golden: bool) -> Callable[[Path, str], None]:
    """Compare a text with a golden file, or write it with `--update-golden`."""

    def compare(path: Path, text: str) -> None:
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"{path} does not exist; pytest --update-golden writes it"
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), "golden", "now", lineterm="", n=2)
            pytest.fail(f"{path} differs (pytest --update-golden accepts it)\n" + "\n".join(list(lines)[:60]))

    return compare


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No switch of the caller's shell changes a result."""
    for name in ("FICCO_DEBUG", "FICCO_MAX_OPS", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
