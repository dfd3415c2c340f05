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
FLAGS, MINE, THEIRS = (
    40,
    5,
    20,
)  # semaphores that are reset, more than lanes; semaphores that others signal; semaphores of others
FORCED = 1


class Semaphores:
    """The semaphores of a device and of those that it meets, as numbers of 32 bits."""

    def __init__(self, kernel: nvidia.Kernel, runs: int, theirs: int = THEIRS) -> None:
        self.kernel = kernel
        self.runs = np.array([runs], np.uint32)
        self.flags = np.ones(FLAGS, np.uint32)
        self.mine = np.full(MINE, runs, np.uint32)
        self.theirs = np.full(theirs, runs, np.uint32)

    def barrier(self, seed: int, *steps: Step) -> str:
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
    def signals(self) -> list[Step]:
        return [Step(address(self.theirs, i), 1, KINDS["signal"]) for i in range(len(self.theirs))]

    @property
    def waits(self) -> list[Step]:
        return [Step(address(self.mine, i), 1, KINDS["wait"]) for i in range(2)] + [
            Step(address(self.mine, 2), MINE - 2, KINDS["wait"])
        ]


def address(semaphores: np.ndarray, i: int = 0) -> int:
    return int(semaphores.ctypes.data) + 4 * i


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> nvidia.Kernel:
    return nvidia.Kernel(
        tmp_path_factory.mktemp("device_barrier"),
        KERNELS / device_barrier.SOURCE,
        (),
        device_barrier.ENTRY,
        "BarrierList",
    )


RUNS = [0, 2, WRAP // 2 - 2, WRAP - 4, WRAP - 2]  # before the run: the last ones wrap around


@pytest.mark.parametrize("runs", RUNS)
def test_devices_wait_for_the_count_of_the_run(runs: int, kernel: nvidia.Kernel) -> None:
    """Others come in any order, some a run later; behind the reset is what they see with a semaphore that is
    signalled."""
    now, nothing = (runs + 2) % WRAP, np.zeros(FLAGS, np.uint32)
    for seed in SEEDS:
        semaphores = Semaphores(kernel, runs)
        kernel.forget()
        kernel.region(address(semaphores.flags), 4 * FLAGS, 4)
        for i in range(MINE):  # one is a whole run ahead, and more
            kernel.raises(i, address(semaphores.mine, i), (now + 2 * (i == 0)) % WRAP)
        for i in range(THEIRS):
            kernel.promises(
                address(semaphores.theirs, i), address(semaphores.flags), 4 * FLAGS, 1, 4 * FLAGS, address(nothing)
            )
        assert (
            semaphores.barrier(seed, semaphores.count, semaphores.reset, *semaphores.signals, *semaphores.waits) == ""
        ), f"seed {seed}"
        assert semaphores.runs[0] == now
        assert not semaphores.flags.any()
        assert (semaphores.theirs == now).all()


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("late", range(MINE))
def test_a_device_does_not_go_on_before_all_others_have_come(runs: int, late: int, kernel: nvidia.Kernel) -> None:
    semaphores = Semaphores(kernel, runs)
    kernel.forget()
    semaphores.mine[:] = (runs + 2) % WRAP
    semaphores.mine[late] = runs  # it tells of the run before
    assert (
        semaphores.barrier(0, semaphores.count, *semaphores.signals, *semaphores.waits) == "the launch comes to a stop"
    )


def test_a_meeting_that_does_not_count_takes_the_count_of_the_one_before(kernel: nvidia.Kernel) -> None:
    semaphores = Semaphores(kernel, 6)
    kernel.forget()
    assert semaphores.barrier(0, semaphores.count) == ""
    semaphores.mine[:] = 8
    assert semaphores.barrier(0, semaphores.reset, *semaphores.signals, *semaphores.waits) == ""
    assert (semaphores.runs[0], set(semaphores.theirs.tolist())) == (8, {8})


def test_a_long_list_of_steps_is_several_launches(kernel: nvidia.Kernel) -> None:
    semaphores = Semaphores(kernel, 6, theirs=3 * device_barrier.MOST)
    kernel.forget()
    semaphores.mine[:] = 8
    steps = (semaphores.count, semaphores.reset, *semaphores.signals, *semaphores.waits)
    assert len(steps) > 3 * device_barrier.MOST
    assert semaphores.barrier(0, *steps) == ""
    assert (semaphores.runs[0], set(semaphores.theirs.tolist())) == (8, {8})


def test_nobody_waits_for_semaphores_that_are_forced_up(kernel: nvidia.Kernel) -> None:
    """Nor does anybody who meets a device whose count was forced up, until all semaphores are cleared."""
    semaphores = Semaphores(kernel, 600)
    kernel.forget()
    semaphores.mine[:] = FORCED
    assert semaphores.barrier(0, semaphores.count, *semaphores.waits) == ""
    semaphores = Semaphores(kernel, 600)
    semaphores.runs[:] = FORCED
    assert semaphores.barrier(0, semaphores.count, *semaphores.signals) == ""
    assert (semaphores.theirs % 2 == 1).all()
