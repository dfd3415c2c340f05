"""`ficco watch`: every save is proven, checked and modelled; a wrong schedule is answered, and the watch goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ficco_rt.cli import watch
from tests.unit.command_line import GOOD, MISSING, Ending
from tests.unit.test_page import Page


class Saves:
    """Steps between the looks of a watch, in place of its pause; after the last one somebody presses Ctrl-C."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps: Iterator[Callable[[], object]] = iter(steps)

    def __call__(self, _: float) -> None:
        step = next(self.steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda *steps: monkeypatch.setattr(watch.time, "sleep", Saves(*steps))


def test_every_save_is_answered(run: Callable[..., Ending], here: Path, saves: Callable[..., None]) -> None:
    file, page = here / "good.ficco", here / "live.html"
    pages: list[Page] = []

    def keep() -> None:
        pages.append(Page(page.read_text(encoding="utf-8")))

    def replace(text: str) -> None:  # as editors do: another file under the name
        new = here / "new"
        new.write_text(text)
        new.rename(file)

    saves(
        keep,
        lambda: replace(MISSING),
        keep,
        file.unlink,  # an editor is about to put the new one there
        lambda: replace(GOOD.replace("K = 48", "K = 96")),
        keep,
        lambda: None,  # nothing was saved
    )
    ending = run("ficco", "watch", "good.ficco", "--gpus", "2", "-o", "live.html")
    assert ending.code == 130
    assert ending.err.endswith("ficco: interrupted\n")
    looks = re.split(r"^\d\d:\d\d:\d\d good\.ficco\n", ending.out, flags=re.MULTILINE)[1:]
    assert [look.startswith("small: All-gather, then one GEMM.\n") for look in looks] == [True, False, True]
    assert "rank 0      dma │" in looks[0]
    assert "  before   " not in looks[0]
    assert re.search(r"^  before   \S+ µs; this takes [+-]\S+ %$", looks[2], re.MULTILINE)
    assert "nothing has written" in ending.err
    right, wrong, again = pages
    assert all(kept.data["watched"] for kept in pages)
    assert right.titles[1] == again.titles[1] == "At a glance"
    assert wrong.titles[1] == "good.ficco is wrong; what was right before stands below"
    assert "nothing has written" in wrong.text("wrong")
    assert wrong.text("why") == right.text("why")
    assert "K = 96" in again.text("why")


def test_a_schedule_may_be_wrong_from_the_start(
    run: Callable[..., Ending], here: Path, saves: Callable[..., None]
) -> None:
    (here / "bad.ficco").write_text("schedule x\nparam M=!\n")
    saves()
    ending = run("ficco", "watch", "bad.ficco", "-o", "live.html")
    assert ending.code == 130
    assert "bad.ficco:2:9: " in ending.err
    page = Page((here / "live.html").read_text(encoding="utf-8"))
    assert page.titles == ["bad.ficco", "bad.ficco is wrong; what was right before stands below"]
    assert page.data == {"runs": [], "watched": True}


def test_a_file_that_is_gone_is_told(run: Callable[..., Ending], here: Path, saves: Callable[..., None]) -> None:
    """Once, and not while an editor puts another file there; the same file may come back."""
    file, page = here / "good.ficco", here / "live.html"
    pages: list[Page] = []

    def nothing() -> None: ...

    saves(
        lambda: file.rename(here / "aside"),
        *[nothing] * watch.GONE,
        lambda: pages.append(Page(page.read_text(encoding="utf-8"))),
        *[nothing] * watch.GONE,
        lambda: (here / "aside").rename(file),
        nothing,
    )
    ending = run("ficco", "watch", "good.ficco", "--gpus", "2", "-o", "live.html")
    gone = "good.ficco: the file is gone; the watch goes on when it is back, Ctrl-C ends it"
    assert ending.err.count(f"ficco watch: {gone}\n") == ending.err.count("is gone") == 1
    looks = re.split(r"^\d\d:\d\d:\d\d good\.ficco\n", ending.out, flags=re.MULTILINE)[1:]
    assert [look.startswith("small: All-gather, then one GEMM.\n") for look in looks] == [True, False, True]
    assert gone in pages[0].text("wrong")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.ficco"], "there is no schedule 'none.ficco'"),
        (["/dev/null"], "/dev/null: cannot be saved again; watch takes a file"),
        (["good.ficco", "--set", "Q=1"], "Q"),
        (["good.ficco", "--machine", "nowhere"], "nowhere"),
        (["good.ficco", "-o", "x.svg"], "x.svg: a report page's name ends in .html"),
    ],
)
def test_what_no_save_can_mend_ends_it(run: Callable[..., Ending], here: Path, words: list[str], message: str) -> None:
    ending = run("ficco", "watch", *words)
    assert ending.code == 2
    assert message in ending.err
