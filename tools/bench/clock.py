"""The one clock of all contestants: events on every GPU, around a run that begins on all of them together.

A worker that drives all GPUs gives it all devices, one that drives a single GPU just that one. Before a timed run
every GPU sleeps a little, so that the host can issue the run ahead of the device, and overwrites its L2; then the
GPUs meet, and each records its start. A GPU's time ends when all of its part of the run has.

Nothing of ficco_rt is imported: `tools.beside` uses this file beside any version of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

SLEEP = 4_000_000  # clock cycles, about 2 ms: more than any contestant takes to issue a run


def meeting(streams: Sequence[Any]) -> Callable[[], None]:
    """What makes the streams of one process meet: what follows on each begins when all have got there."""
    import torch

    met = [torch.cuda.Event() for _ in streams]

    def meet() -> None:
        for stream, event in zip(streams, met, strict=True):
            event.record(stream)
        for stream in streams:
            for event in met:
                stream.wait_event(event)

    return meet


class Clock:
    """`streams` has one a device; `meet` makes what follows on them begin when all GPUs have got there."""

    def __init__(self, streams: Sequence[Any], meet: Callable[[], None]) -> None:
        import torch

        self._torch = torch
        self._streams = streams
        self._meet = meet
        self._start, self._stop = ([torch.cuda.Event(enable_timing=True) for _ in streams] for _ in range(2))
        sizes = [2 * torch.cuda.get_device_properties(s.device).L2_cache_size for s in streams]
        self._waste = [
            torch.empty(size, dtype=torch.uint8, device=s.device) for s, size in zip(streams, sizes, strict=True)
        ]

    def time(self, run: Callable[[], None], times: int, finish: Callable[[], None]) -> list[float]:
        """Microseconds a run on each device: `times` runs between the events, one after the other.

        `finish` waits for the runs to end and tells what went wrong in them.
        """
        for stream, waste in zip(self._streams, self._waste, strict=True):
            with self._torch.cuda.stream(stream):
                self._torch.cuda._sleep(SLEEP)
                waste.zero_()
        self._meet()
        for stream, event in zip(self._streams, self._start, strict=True):
            event.record(stream)
        for _ in range(times):
            run()
        for stream, event in zip(self._streams, self._stop, strict=True):
            event.record(stream)
        finish()
        for event in self._stop:
            event.synchronize()
        return [1e3 * float(a.elapsed_time(b)) / times for a, b in zip(self._start, self._stop, strict=True)]

    def turn(
        self, run: Callable[[], None], finish: Callable[[], None], warmup: int, singles: int, loop: int
    ) -> tuple[list[list[float]], list[float]]:
        """What a contestant does at its turn: `warmup` runs, `singles` timed runs, a loop of `loop` runs; 0: none.

        The times of the singles, by device and run, and those of a run of the loop, by device.
        """
        for _ in range(warmup):
            run()
        finish()
        alone = [self.time(run, 1, finish) for _ in range(singles)]
        return [list(times) for times in zip(*alone, strict=True)], self.time(run, loop, finish) if loop else []
