"""The table of a sweep: one row for each trial and scenario, in a file that grows row by row and is always valid.

A row is one line of the file, CSV or JSON by the file's name, and one write. So an interrupted sweep leaves a valid
table, except perhaps for an incomplete last line, which readers skip.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, TypeAlias

from ..errors import UsageError
from ..files.atomic import FileKind, read_text, write_atomic
from ..files.records import PAIRS, Count, Micros, Reader, derived, plain
from .scenarios import Settings, Value, read_value, written  # noqa: F401  Value: the type of a setting names it

TABLE = FileKind("table", (".csv", ".json"))
FORMAT = 1
_BEFORE = ("operation", "scenario", "ranks", "machine")
_AFTER = ("schedule", "params", "time_us", "serial_us", "ideal_us", "speedup", "share", "problem", "made")
_TIMES = ("time_us", "serial_us", "ideal_us")
_HEAD = f'{{"ficco_explore": {FORMAT}, "rows": [\n'
_TAIL = "\n]}\n"

Case: TypeAlias = tuple[str, str, Settings, int, str]  # operation, scenario, sizes, ranks, machine
Key: TypeAlias = tuple[str, str, Settings, int, str, str, Settings]


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule with its params on a scenario and a machine. Times are modelled microseconds; null: not compiled.

    scenario: The sizes' name.
    serial_us: Of the operation: all of it computed, then moved.
    ideal_us: Of the operation: the longer of computing and moving.
    problem: Why there is no time; empty: there is one.
    made: A digest of what made the row: this version, the machine's values, the schedule's text.
    speedup: serial ÷ time.
    share: ideal ÷ time.
    """

    operation: str
    scenario: str
    sizes: Annotated[Settings, PAIRS]
    ranks: Count
    machine: str
    schedule: str
    params: Annotated[Settings, PAIRS]
    time: Micros | None
    serial: Micros | None
    ideal: Micros | None
    problem: str
    made: str

    @property
    def key(self) -> Key:
        """What the row is of."""
        sizes = tuple(sorted(self.sizes))
        return self.operation, self.scenario, sizes, self.ranks, self.machine, self.schedule, self.params

    @property
    def case(self) -> Case:
        """What is done, and where."""
        return self.operation, self.scenario, self.sizes, self.ranks, self.machine

    @derived
    def speedup(self) -> float | None:
        """Times as fast as serial."""
        return self.serial / self.time if self.serial and self.time else None

    @derived
    def share(self) -> float | None:
        """The fraction of the ideal that is reached."""
        return self.ideal / self.time if self.ideal and self.time else None

    @property
    def label(self) -> str:
        """`streamed chunks=4`."""
        return " ".join([self.schedule.rpartition("/")[2], *(f"{n}={written(v)}" for n, v in self.params)])


def read(path: Path | str) -> list[Row]:
    """The rows of a table; a torn last line is left out. Raises UsageError."""
    text = read_text(path)
    return _read_json(text, path) if _is_json(path) else _read_csv(text, path)


def _is_json(path: Path | str) -> bool:
    return Path(path).suffix.lower() == ".json"


def _read_json(text: str, path: Path | str) -> list[Row]:
    head, _, rest = text.partition("\n")
    if not text:
        return []
    if f"{head}\n" != _HEAD:
        raise UsageError(f"{path}: is no table of `ficco explore`, or one of another version; name another file")
    rows = []
    lines = rest.rstrip().split("\n")
    for number, line in enumerate(lines, 2):
        if line in ("", "]}"):
            continue
        try:
            data = json.loads(line.removesuffix(","))
        except (ValueError, RecursionError) as error:
            if number == len(lines) + 1:  # torn
                continue
            raise UsageError(f"{path}:{number}: is no row of a table: {error}") from error
        rows.append(_row(data, f"{path}:{number}"))
    return rows


def _read_csv(text: str, path: Path | str) -> list[Row]:
    whole = text[: text.rfind("\n") + 1]  # a torn last line has no end
    lines = csv.reader(io.StringIO(whole, newline=""))
    try:
        header = next(lines, None)
        if header is None:
            return []
        if tuple(header[: len(_BEFORE)]) != _BEFORE or tuple(header[-len(_AFTER) :]) != _AFTER:
            raise UsageError(f"{path}:1: is no table of `ficco explore`; name another file")
        sizes = header[len(_BEFORE) : -len(_AFTER)]
        return [
            _row(_of_cells(dict(zip(header, cells, strict=True)), sizes), f"{path}:{lines.line_num}") for cells in lines
        ]
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{path}:{lines.line_num}: is no row of a table: {error}") from error


def _row(data: object, place: str) -> Row:
    row: Row = Reader(place, way_out="; name another file").read(Row, data, "row")
    return row


def _of_cells(cells: Mapping[str, str], sizes: Sequence[str]) -> dict[str, object]:
    """The row of a CSV as JSON has it. Raises ValueError."""
    params = (text.partition("=") for text in cells["params"].split())
    numbers = {name: float(cells[name]) if cells[name] else None for name in _TIMES}
    return {
        **{name: cells[name] for name in (*_BEFORE, *_AFTER)},
        **numbers,
        "ranks": int(cells["ranks"]),
        "sizes": {n: plain(read_value(cells[n])) for n in sizes if cells[n]},
        "params": {n: plain(read_value(v)) for n, _, v in params},
    }


class TableFile:
    """A table that grows. It begins with `rows`, whatever the file held, and takes each further row in one write.

    Raises UsageError: the file cannot be written, or another sweep writes to it.
    """

    def __init__(self, path: Path | str, rows: Iterable[Row], names: Sequence[str]) -> None:
        self._path, self._json, self._names = path, _is_json(path), tuple(names)
        head = _HEAD if self._json else self._csv([*_BEFORE, *self._names, *_AFTER])
        self._between, self._tail = (",\n", _TAIL) if self._json else ("", "")
        body = self._between.join(map(self._line, rows))
        self._empty = not body
        with _locked(path):
            write_atomic(path, head + body + self._tail)
        self._file = os.open(path, os.O_RDWR)
        _lock(self._file, path)
        self._end = os.fstat(self._file).st_size - len(self._tail)

    def __enter__(self) -> TableFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)

    def add(self, rows: Iterable[Row]) -> None:
        """Appends rows, each in one write."""
        for row in rows:
            line = ("" if self._empty else self._between) + self._line(row)
            self._empty = False
            data = (line + self._tail).encode()
            try:
                if os.pwrite(self._file, data, self._end) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise UsageError(f"{self._path}: cannot be written: {reason}") from error
            self._end += len(data) - len(self._tail)

    def _line(self, row: Row) -> str:
        record = plain(row)
        if self._json:
            return json.dumps(record)
        sizes = {name: written(value) for name, value in row.sizes}
        flat = {**record, "params": " ".join(f"{n}={written(v)}" for n, v in row.params)}
        cells = [*(flat[n] for n in _BEFORE), *(sizes.get(n, "") for n in self._names), *(flat[n] for n in _AFTER)]
        return self._csv(cells)

    @staticmethod
    def _csv(cells: Sequence[object]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(["" if cell is None else cell for cell in cells])
        return text.getvalue()


def size_names(rows: Iterable[Settings]) -> tuple[str, ...]:
    """The columns of a table for these sizes."""
    return tuple(dict.fromkeys(name for sizes in rows for name, _ in sizes))


@contextmanager
def _locked(path: Path | str) -> Iterator[None]:
    """While the table is made anew: no sweep that has the old file open goes on writing to it."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:  # not there yet, or told by whoever writes it
        yield
        return
    try:
        _lock(file, path)
        yield
    finally:
        os.close(file)


def _lock(file: int, path: Path | str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"{path}: another sweep writes to this table; wait for it, or name another file") from error
    except OSError:  # a file system without locks
        return
