"""Measures settings of `ficco shape` in a process of their own. NCCL and RCCL read the number of threads of their
blocks once a process, so settings with another number than this process has need another process.

That process runs its own baselines, whose collectives have the same number of threads. It sends each row as soon as the
row is measured.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ..errors import DeviceError, NumbersError, ScheduleError, UsageError
from ..graph.overrides import NOTHING
from .shaping import Row, Setting, told

_LEAVE = 10.0  # seconds that a process gets to end once its rows are there


class Sweep(Protocol):
    """What measures a setting; its baselines are there inside of `ready`."""

    def ready(self) -> AbstractContextManager[None]: ...

    def row(self, setting: Setting) -> Row: ...


def measured_in_process(made: Callable[[], Sweep], settings: Sequence[Setting]) -> Iterator[Row]:
    """The rows of the settings, measured in another process, in which `made` makes the sweep. If the process ends too
    early, the rows that it has not sent say so, and have no digest."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=measured, args=(theirs, made, list(settings)))
    process.start()
    theirs.close()
    try:
        for number, one in enumerate(settings):
            try:
                row = ours.recv()
            except EOFError:
                process.join(_LEAVE)
                words = f"the process for these threads ended with code {process.exitcode}"
                yield from (Row(tuple(lost.items()), problem=words) for lost in settings[number:])
                return
            yield Row(tuple(one.items()), problem=row) if isinstance(row, str) else row
        process.join(_LEAVE)
    finally:
        ours.close()
        if process.is_alive():
            process.terminate()
            process.join()


def measured(rows: Connection, made: Callable[[], Sweep], settings: Sequence[Setting]) -> None:
    """Runs in the other process. A text in place of a row is why there is none."""
    try:
        sweep = made()
        with sweep.ready():
            for one in settings:
                rows.send(sweep.row(one))
    except (ScheduleError, UsageError, DeviceError, NumbersError) as error:
        for _ in settings:
            rows.send(told(error))
    except (BrokenPipeError, KeyboardInterrupt):  # nobody listens any more; it is the other process that tells
        return
    finally:
        rows.close()


def by_threads(
    said: Mapping[str, object], settings: Sequence[Setting]
) -> dict[tuple[tuple[str, object], ...], list[Setting]]:
    """Groups settings by the numbers of threads that they set, together with what all settings have in common; settings
    that set no more than that come first."""
    found: dict[tuple[tuple[str, object], ...], list[Setting]] = {threads_said(said): []}
    for one in settings:
        found.setdefault(threads_said({**said, **one}), []).append(one)
    return found


def threads_said(setting: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    """The threads of the library's blocks that a setting sets, by queue."""
    return tuple(
        sorted((name, value) for name, value in setting.items() if name.endswith(".threads") and value != NOTHING)
    )
