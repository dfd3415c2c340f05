"""The error of a driver call that was refused, and a way to release resources when any of the releases may be refused,
too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...errors import DeviceError, Span


class Refused(DeviceError):
    """A driver call that gave `code`. Who made the call names device, command and place while the error passes by."""

    def __init__(self, call: str, code: str, what: str = "", advice: str = "") -> None:
        super().__init__(call, code, what, advice)
        self.call = call
        self.code = code
        self.what = what  # what the call was for
        self.advice = advice
        self.device = ""
        self.command = ""  # of the plan
        self.place: Span | None = None  # of the command, in the schedule

    def __str__(self) -> str:
        where = f"{self.place.place}: " if self.place is not None else ""
        of = ", ".join(part for part in (self.command, self.what, self.device) if part)
        advice = f": {self.advice}" if self.advice else ""
        return f"{where}{self.call}{f' ({of})' if of else ''}: {self.code}{advice}"


def coded(code: int | None, dtype: str, library: str, advice: str) -> int:
    """A type's code in a library. Refused: it has none."""
    if code is None:
        raise Refused(library, f"has no code for {dtype}", advice=advice)
    return code


class concerning:
    """Context manager: errors of refused calls name this device and this command of the plan. The innermost one counts.
    NOTE a class, as each run comes here: a generator costs four times as much."""

    __slots__ = ("_command", "_device", "_place")

    def __init__(self, device: object = "", command: str = "", place: Span | None = None) -> None:
        self._device, self._command, self._place = device, command, place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refused):
            concerns(error, self._device, self._command, self._place)


def concerns(error: Refused, device: object = "", command: str = "", place: Span | None = None) -> None:
    error.device = error.device or str(device)
    if not error.command:
        error.command, error.place = command, place


class undo_on_error:
    """Context manager: if the body fails, also by Ctrl-C, `undo` releases what was made. The first error is the one to
    raise."""

    __slots__ = ("_arguments", "_undo")

    def __init__(self, undo: Callable[..., object], *arguments: Any) -> None:
        self._undo, self._arguments = undo, arguments

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            with suppress(DeviceError):
                self._undo(*self._arguments)


class Closing:
    """Releases several things one after another. An error or Ctrl-C does not prevent the other releases; the first
    error is raised at the end of the `with` block, or by `end`."""

    def __init__(self) -> None:
        self._first: DeviceError | KeyboardInterrupt | None = None

    def __call__(self, function: Callable[..., object], *arguments: Any, of: object = "") -> None:
        """`of`: the device that a refused call concerns."""
        try:
            with concerning(of):
                function(*arguments)
        except (DeviceError, KeyboardInterrupt) as error:
            self._first = self._first or error

    def __enter__(self) -> Closing:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.end()

    def end(self) -> None:
        """DeviceError, KeyboardInterrupt: the first."""
        if self._first is not None:
            raise self._first
