"""The page on which the processes of a group say what they do, and by which the others see that they live."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ficco_rt.driver.gpu.board import MOST, SIZE, Board
from ficco_rt.process.descriptors import made

RUNS = 3


@pytest.fixture
def page() -> Iterator[int]:
    file = made(SIZE)
    yield os.dup(file)  # NOTE to close another descriptor of the file would give the lock back
    os.close(file)


@contextmanager
def living(page: int, size: int, body: Callable[[Board], None]) -> Iterator[Callable[[], None]]:
    """A process at place 1, which has done this and lives; what is given kills it."""
    ready, done = os.pipe()
    process = os.fork()
    if not process:
        try:
            board = Board(os.dup(page), 1, range(size))
            body(board)
            os.write(done, b".")
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(done)
    ended: list[int] = []

    def end() -> None:
        if not ended:
            os.kill(process, signal.SIGKILL)
            ended.append(os.waitpid(process, 0)[0])

    try:
        assert os.read(ready, 1) == b"."
        yield end
    finally:
        os.close(ready)
        end()


def runs(board: Board) -> None:
    for _ in range(RUNS):
        board.issues()
        board.ends()
    board.issues()
    board.say("waits")


def test_a_killed_process_is_seen_at_once(page: int) -> None:
    board = Board(page, 0, range(2))
    with living(page, 2, runs) as end:
        board.issues()
        assert board.gone() == []
        (line,) = board.lines()
        assert line.startswith("process 1 waits for the end of run 4, since ")
        assert line.endswith("; 4 runs issued, 3 seen to end (this process, 0, has issued 1: all run the same)")
        end()
        assert board.gone() == [1]
        assert board.lines()[0].startswith("process 1 is gone; when it ended: it waits for the end of run 4, since ")
    board.close()


def test_a_process_that_has_closed_its_executor_is_not_gone(page: int) -> None:
    board = Board(page, 0, range(2))
    with living(page, 2, Board.close) as end:
        assert board.gone() == []
        assert board.lines()[0].startswith("process 1 has closed its executor, since ")
        end()
        assert board.gone() == []
    board.close()
    board.close()


def test_processes_have_slots_of_their_own(page: int) -> None:
    board = Board(page, MOST - 1, range(MOST))
    with living(page, MOST, runs) as end:
        board.issues()
        board.ends()
        said = board.said(MOST - 1)
        assert (said.doing, said.issued, said.ended) == ("idles", 1, 1)
        assert (board.said(1).doing, board.said(1).issued, board.said(1).ended) == ("waits", RUNS + 1, RUNS)
        assert 0 <= board.said(1).ago < 60
        assert len(board.lines()) == MOST - 1
        end()
        assert 1 in board.gone()
        assert MOST - 1 not in board.gone()
    board.close()
