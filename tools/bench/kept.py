"""Measurements as they are kept: one JSON value of a run, a row for everything that was measured once.

    {"version": 2, "complete": true, "about": {"source": …, "date": …, "command": …, "gpus": "4 × NVIDIA H200", …},
     "settings": {…}, "rows": [
      {"operation": "ag_gemm", "name": "qkv70b_8k", "M": 8192, "N": 10240, "K": 8192, "ranks": 4, "on_two": false,
       "schedule": "ag_gemm/streamed", "params": {"chunks": 4}, "mode": "streams",
       "single": {"median": 460.7, "p10": 459.0, "p90": 462.1, "samples": 9}, "loop": {…}}, …]}

Times are microseconds, of a single run and of a run back to back; where only the median is known, it stands alone.
`schedule` is a shipped schedule, a peer (`nccl`, `asynctp`, `nccl-ce`, `cublasmp`), `limit gemm` or `limit copies`.
`mode` is `graph`, `streams` (a peer's or a limit's: `calls`) or null, where the source does not tell it. `transb` is 1
where the weight was stored transposed; `scales`: those of fp8. `on_two`: two GPUs stood for the ranks. `processes`: how
many ran ours, if more than one did. `screening`: measured once, before the rounds of the fastest. `failed` says why
there is no time.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ficco_rt.errors import UsageError
from ficco_rt.files.atomic import read_text, write_atomic

from .measure import OURS, PROCESSES, TWIN, Entry, Row, Settings
from .scenarios import OPERATIONS, SCALES, Scenario
from .stats import Spread
from .variants import MODES, Variant

VERSION = 2
FOLDER = Path(__file__).with_name("measured")
PEER_MODES = ("calls", "graph")
FACTS = ("source", "date", "command", "gpus")  # what `about` tells at least


@dataclass(frozen=True, slots=True)
class Figure:
    """Microseconds: the median, and its spread where it is known."""

    median: float
    p10: float | None = None
    p90: float | None = None
    samples: int | None = None

    @classmethod
    def of(cls, spread: Spread) -> Figure:
        return cls(spread.median, spread.p10, spread.p90, spread.samples)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row: what was measured, and how long it took."""

    scenario: Scenario
    ranks: int
    on_two: bool
    schedule: str
    params: tuple[tuple[str, object], ...]
    mode: str | None
    single: Figure | None = None
    loop: Figure | None = None
    screening: bool = False
    rel_err: float | None = None
    failed: str | None = None
    processes: int = 1  # that ran ours
    kernels: str = ""  # that made it (`made_by`), where that is known

    @property
    def ours(self) -> bool:
        """Whether a shipped schedule was measured, not a peer or the limit."""
        return "/" in self.schedule

    @property
    def variant(self) -> Variant:
        return Variant(self.schedule, self.params)

    @property
    def place(self) -> tuple[object, ...]:
        """What is compared with one another: the operation, its sizes, and what it ran on."""
        s = self.scenario
        return (s.operation, s.m, s.n, s.k, s.transb, s.scales, self.ranks, self.on_two, self.processes)

    @property
    def key(self) -> tuple[object, ...]:
        """What a measurement of the same thing has in common with this one."""
        return (*self.place, self.schedule, json.dumps(dict(self.params), sort_keys=True), self.mode)

    @property
    def label(self) -> str:
        params = self.variant.label.split(" ", 1)[1:] if self.ours else ()
        return " ".join(filter(None, (self.schedule.rpartition("/")[2], *params, self.mode)))


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of measurements."""

    about: Mapping[str, str]
    rows: tuple[Measurement, ...]
    settings: Mapping[str, object]
    complete: bool = True


def command(arguments: Sequence[str]) -> str:
    """How the run was asked for."""
    return shlex.join(["python", "-m", "tools.bench", *arguments])


def of_run(rows: Sequence[Row], settings: Settings, about: Mapping[str, str], complete: bool) -> Kept:
    """All that the bench has measured."""
    found = tuple(_measurement(row, key, entry, settings) for row in rows for key, entry in row.entries.items())
    return Kept(dict(about), found, asdict(settings), complete)


def _measurement(row: Row, key: str, entry: Entry, settings: Settings) -> Measurement:
    screening = entry.single is None and entry.failed is None and entry.screened is not None
    single, loop = (None if found is None else Figure.of(found) for found in (entry.single, entry.loop))
    if screening and entry.screened is not None:
        single = Figure(entry.screened)
    if entry.side in (OURS, PROCESSES) and key != PROCESSES:
        label, _, mode = key.removeprefix(TWIN).rpartition(" ")
        variant = Variant.of_label(row.scenario.operation, label)
        schedule, params = variant.schedule, variant.parameters
    else:
        schedule, mode = (key.removesuffix(" graph"), "graph") if key.endswith(" graph") else (key, "calls")
        params = ()
    return Measurement(
        scenario=row.scenario,
        ranks=settings.ranks,
        on_two=row.of_two is not None,
        schedule=schedule,
        params=params,
        mode=mode,
        single=single,
        loop=loop,
        screening=screening,
        rel_err=entry.rel_err if entry.rel_err is not None and math.isfinite(entry.rel_err) else None,
        failed=entry.failed,
        processes=settings.ranks if entry.side == PROCESSES else 1,
    )


# ---- files


def write(path: Path, kept: Kept) -> None:
    """The whole file or nothing."""
    write_atomic(path, text(kept))


def text(kept: Kept) -> str:
    """A file's text, a line a row: rows that are added later are lines that are added."""
    head = {"version": VERSION, "complete": kept.complete, "about": dict(kept.about), "settings": dict(kept.settings)}
    lines = json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    rows = ",\n  ".join(json.dumps(_record(row), ensure_ascii=False, allow_nan=False) for row in kept.rows)
    return f'{lines},\n "rows": [\n  {rows}\n ]\n}}\n' if rows else f'{lines},\n "rows": []\n}}\n'


def _record(row: Measurement) -> dict[str, object]:
    s = row.scenario
    found: dict[str, object] = {
        "operation": s.operation, "name": s.name, "M": s.m, "N": s.n, "K": s.k, "ranks": row.ranks,
        "on_two": row.on_two, "schedule": row.schedule, "params": dict(row.params), "mode": row.mode,
    }  # fmt: skip
    if s.transb:
        found["transb"] = s.transb
    if s.scales:
        found["scales"] = s.scales
    for name, figure in (("single", row.single), ("loop", row.loop)):
        if figure is not None:
            known = {k: _rounded(v) for k, v in asdict(figure).items() if v is not None}
            found[name] = known if len(known) > 1 else known["median"]
    if row.screening:
        found["screening"] = True
    if row.processes > 1:
        found["processes"] = row.processes
    if row.kernels:
        found["kernels"] = row.kernels
    for name, value in (("rel_err", row.rel_err), ("failed", row.failed)):
        if value is not None:
            found[name] = value
    return found


def _rounded(value: float) -> float:
    """To ten nanoseconds: clocks of devices tell no less."""
    return round(value, 2) if isinstance(value, float) else value


def read(path: Path | str) -> Kept:
    """A file of measurements. Raises UsageError with the place of what is wrong."""
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: is nested too deep to be measurements") from error
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list) or not isinstance(data.get("about"), dict):
        raise UsageError(f"{path}: wanted measurements, as python -m tools.bench --json writes them")
    if data.get("version") != VERSION:
        raise UsageError(f"{path}: has version {json.dumps(data.get('version'))}; version {VERSION} is read")
    about = data["about"]
    missing = [name for name in FACTS if not isinstance(about.get(name), str)]
    if missing:
        raise UsageError(f"{path}: about: '{missing[0]}' is missing or no text")
    rows = tuple(_row(row, f"{path}: rows[{i}]") for i, row in enumerate(data["rows"]))
    facts = {name: str(value) for name, value in about.items()}
    settings = data.get("settings")
    return Kept(facts, rows, settings if isinstance(settings, dict) else {}, data.get("complete") is not False)


def files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files meant: each itself, of a folder all .json in it. Raises UsageError: a folder has none."""
    for path in paths:
        found = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not found:
            raise UsageError(f"{path}: there are no .json files in it")
        yield from found


def _row(row: object, where: str) -> Measurement:
    if not isinstance(row, dict):
        raise UsageError(f"{where}: wanted an object")
    operation = _of(row, "operation", str, where)
    if operation not in OPERATIONS:
        raise UsageError(f"{where}: operation '{operation}' is not known; there are {', '.join(OPERATIONS)}")
    m, n, k = sizes = [_of(row, name, int, where) for name in ("M", "N", "K")]
    ranks = _of(row, "ranks", int, where)
    if min(*sizes, ranks) < 1:
        raise UsageError(f"{where}: M, N, K and ranks are whole numbers from 1")
    mode, params = row.get("mode"), _of(row, "params", dict, where)
    if mode not in (None, *MODES, *PEER_MODES):
        raise UsageError(f"{where}: mode is one of {', '.join(MODES)}, calls, null; it is {json.dumps(mode)}")
    failed, error, scales = row.get("failed"), row.get("rel_err"), row.get("scales", "")
    if scales not in ("", *SCALES):
        raise UsageError(f"{where}: scales are {' or '.join(SCALES)}; it is {json.dumps(scales)}")
    return Measurement(
        scenario=Scenario(operation, _of(row, "name", str, where), m, n, k, int(row.get("transb") == 1), scales),
        ranks=ranks,
        on_two=_of(row, "on_two", bool, where),
        schedule=_of(row, "schedule", str, where),
        params=tuple(params.items()),
        mode=mode,
        single=_figure(row.get("single"), f"{where}: single"),
        loop=_figure(row.get("loop"), f"{where}: loop"),
        screening=row.get("screening") is True,
        rel_err=error if isinstance(error, float) else None,
        failed=failed if isinstance(failed, str) else None,
        processes=_of({"processes": 1} | row, "processes", int, where),
        kernels=_of({"kernels": ""} | row, "kernels", str, where),
    )


def _of(row: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = row.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{where}: {name} must be of type {kind.__name__}; it is {json.dumps(value)}")
    return value


def _figure(value: object, where: str) -> Figure | None:
    if value is None:
        return None
    if _positive(value):
        return Figure(value)
    if not isinstance(value, dict) or not _positive(value.get("median")):
        raise UsageError(f"{where}: wanted microseconds, or an object with their median")
    spread = [value.get(name) for name in ("p10", "p90", "samples")]
    if not all(v is None or _positive(v) for v in spread):
        raise UsageError(f"{where}: p10, p90 and samples are numbers above 0")
    p10, p90, samples = spread
    return Figure(value["median"], p10, p90, samples)


def _positive(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
