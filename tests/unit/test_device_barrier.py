"""The kernel by which devices meet, thread by thread on the CPU, in a memory order as weak as PTX's."""

from __future__ import annotations

import numpy as np
import pytest

from ficco_rt.kernels import device_barrier
from ficco_rt.kernels.device_barrier import KINDS, Step
from ficco_rt.kernels.kernel_compiler import KERNELS
from tests.simt import nvidia

SEEDS = range(8)
WRAP = 1 << 32
FLAGS, MINE, THEIRS = 40, 5, 20  # words that are reset, more than lanes; words that others raise; words of others
FORCED = 1


class Words:
    """The words of a device and of those that it meets, as numbers of 32 bits."""

    def __init__(self, kernel: nvidia.Kernel, runs: int, theirs: int = THEIRS) -> None:
        self.kernel = kernel
        self.runs = np.array([runs], np.uint32)
        self.flags = np.ones(FLAGS, np.uint32)
        self.mine = np.full(MINE, runs, np.uint32)
        self.theirs = np.full(theirs, runs, np.uint32)

    def meet(self, seed: int, *steps: Step) -> str:
        for first in range(0, len(steps), device_barrier.MOST):
            argument = device_barrier.argument(address(self.runs), steps[first : first + device_barrier.MOST])
            told = self.kernel(argument, 1, device_barrier.THREADS, seed)
            if told:
                return told
        return ""

    @property
    def count(self) -> Step:
        return Step(address(self.runs), 1, KINDS["count"])

    @property
    def reset(self) -> Step:
        return Step(address(self.flags), FLAGS, KINDS["reset"])

    @property
    def raises(self) -> list[Step]:
        return [Step(address(self.theirs, i), 1, KINDS["raise"]) for i in range(len(self.theirs))]

    @property
    def waits(self) -> list[Step]:
        return [Step(address(self.mine, i), 1, KINDS["wait"]) for i in range(2)] + [
            Step(address(self.mine, 2), MINE - 2, KINDS["wait"])
        ]


def address(words: np.ndarray, i: int = 0) -> int:
    return int(words.ctypes.data) + 4 * i


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> nvidia.Kernel:
    return nvidia.Kernel(
        tmp_path_factory.mktemp("meet"), KERNELS / device_barrier.SOURCE, (), device_barrier.ENTRY, "MeetList"
    )


RUNS = [0, 2, WRAP // 2 - 2, WRAP - 4, WRAP - 2]  # before the run: the last ones wrap around


@pytest.mark.parametrize("runs", RUNS)
def test_devices_wait_for_the_count_of_the_run(runs: int, kernel: nvidia.Kernel) -> None:
    """Others come in any order, some a run later; behind the reset is what they see with a word that is raised."""
    now, nothing = (runs + 2) % WRAP, np.zeros(FLAGS, np.uint32)
    for seed in SEEDS:
        words = Words(kernel, runs)
        kernel.forget()
        kernel.region(address(words.flags), 4 * FLAGS, 4)
        for i in range(MINE):  # one is a whole run ahead, and more
            kernel.raises(i, address(words.mine, i), (now + 2 * (i == 0)) % WRAP)
        for i in range(THEIRS):
            kernel.promises(address(words.theirs, i), address(words.flags), 4 * FLAGS, 1, 4 * FLAGS, address(nothing))
        assert words.meet(seed, words.count, words.reset, *words.raises, *words.waits) == "", f"seed {seed}"
        assert words.runs[0] == now
        assert not words.flags.any()
        assert (words.theirs == now).all()


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("late", range(MINE))
def test_a_device_does_not_go_on_before_all_others_have_come(runs: int, late: int, kernel: nvidia.Kernel) -> None:
    words = Words(kernel, runs)
    kernel.forget()
    words.mine[:] = (runs + 2) % WRAP
    words.mine[late] = runs  # it tells of the run before
    assert words.meet(0, words.count, *words.raises, *words.waits) == "the launch comes to a stop"


def test_a_meeting_that_does_not_count_takes_the_count_of_the_one_before(kernel: nvidia.Kernel) -> None:
    words = Words(kernel, 6)
    kernel.forget()
    assert words.meet(0, words.count) == ""
    words.mine[:] = 8
    assert words.meet(0, words.reset, *words.raises, *words.waits) == ""
    assert (words.runs[0], set(words.theirs.tolist())) == (8, {8})


def test_a_long_list_of_steps_is_several_launches(kernel: nvidia.Kernel) -> None:
    words = Words(kernel, 6, theirs=3 * device_barrier.MOST)
    kernel.forget()
    words.mine[:] = 8
    steps = (words.count, words.reset, *words.raises, *words.waits)
    assert len(steps) > 3 * device_barrier.MOST
    assert words.meet(0, *steps) == ""
    assert (words.runs[0], set(words.theirs.tolist())) == (8, {8})


def test_nobody_waits_for_words_that_are_forced_up(kernel: nvidia.Kernel) -> None:
    """Nor does anybody who meets a device whose count was forced up, until all words are cleared."""
    words = Words(kernel, 600)
    kernel.forget()
    words.mine[:] = FORCED
    assert words.meet(0, words.count, *words.waits) == ""
    words = Words(kernel, 600)
    words.runs[:] = FORCED
    assert words.meet(0, words.count, *words.raises) == ""
    assert (words.theirs % 2 == 1).all()
