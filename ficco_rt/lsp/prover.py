"""Runs the proofs of the language server in a separate process, which can be killed: `python -m ficco_rt.lsp.prover`.

The process reads requests and writes answers as JSON, one a line. A newer request for the same document ends the
process that works on the older one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, TypeAlias

Answer: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A document's text, and what binds its sizes."""

    path: str
    text: str
    ranks: int
    settings: tuple[str, ...] = ()
    machine: str | None = None


class Prover:
    """Hands requests to the process, the newest of each document, and its answers to `tell(name, version, answer)`, in
    a thread of its own."""

    def __init__(self, tell: Callable[[str, int, Answer], None]) -> None:
        self._tell = tell
        self._waiting: dict[str, tuple[int, Request]] = {}
        self._at: str | None = None  # the document that is at work
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False  # the process was ended while it was at work
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="ficco lsp prover", daemon=True)
        self._thread.start()

    def submit(self, name: str, version: int, request: Request) -> None:
        with self._changed:
            self._waiting[name] = (version, request)
            self._stop(name)
            self._changed.notify()

    def forget(self, name: str) -> None:
        with self._changed:
            self._waiting.pop(name, None)
            self._stop(name)

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._stop(self._at)
            self._changed.notify()
        self._thread.join(5)
        if self._process is not None:
            self._process.kill()

    def _stop(self, name: str | None) -> None:
        if name is not None and self._at == name and self._process is not None:
            self._process.kill()
            self._stopped = True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if self._ended:
                    return
                name = next(iter(self._waiting))
                version, request = self._waiting.pop(name)
                self._process = process = self._process or _started()
                self._at, self._stopped = name, False
            answer = _asked(process, request)
            with self._changed:
                stopped, self._at = self._stopped, None
                if stopped or answer is None:  # NOTE a process that is being ended still takes requests
                    process.kill()
                    process.wait()
                    self._process = None
            if answer is None and not stopped:
                answer = {"proven": False, "diagnostics": [], "warnings": [], "usage": "the process of the proof ended"}
            if answer is not None:
                self._tell(name, version, answer)


def _started() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ficco_rt.lsp.prover"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")


def _asked(process: subprocess.Popen[str], request: Request) -> Answer | None:
    """None: the process was ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(asdict(request)) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except OSError:
        return None
    found: Answer | None = json.loads(line) if line else None
    return found


# ---------------------------------------------------------------- in the process


def prove(request: Request) -> Answer:
    """Diagnostics, warnings and facts of a schedule."""
    from ficco_dsl.diagnostics import ScheduleError

    from ..errors import UsageError
    from ..files.records import plain
    from ..report.job import compile_job
    from ..report.request import Request as Asked
    from ..report.request import Source
    from ..report.sources import diagnostic_records

    source = Source(request.path, request.path, request.text.encode(), False, {request.path: request.text})
    try:
        asked = Asked(source, request.ranks, tuple(request.settings), request.machine)
        job = compile_job(asked)
    except ScheduleError as error:
        return {"proven": False, "diagnostics": plain(diagnostic_records(error.diagnostics)), "warnings": []}
    except UsageError as error:
        return {"proven": False, "diagnostics": [], "warnings": [], "usage": str(error)}
    warnings = plain(diagnostic_records(job.warnings))
    return {"proven": job.proven, "diagnostics": [], "warnings": warnings, **_facts(job)}


def _facts(job: Any) -> dict[str, Any]:
    """What hovers show: by the name of a value its size or shape, by that of a stage what it waits for, by the place of
    a statement what it does."""
    from ..graph.kinds import kind_of
    from ..report.schedule_facts import gather
    from ..report.wording import show_bytes, show_value
    from ..types import TYPES

    graph, told = job.graph, gather(job)
    names = {name: f"= {show_value(value)}" for name, value in graph.params}
    stages: dict[str, list[str]] = {}
    statements: list[dict[str, Any]] = []
    sizes: dict[str, int] = {}
    for tensor in graph.tensors:
        sizes[tensor.name] = TYPES[tensor.dtype].bytes
        shape = " × ".join(map(str, tensor.shapes[0]))
        size = show_bytes(sizes[tensor.name] * prod(tensor.shapes[0]))
        names[tensor.name] = f"{shape} of {tensor.dtype} on rank 0: {size}"
    for pair in told.waits_for:
        because = ", ".join(dict.fromkeys(f"{b.tensor} ({b.hazard})" for b in pair.because))
        stages.setdefault(pair.stage, []).append(f"waits for {pair.for_}, because of {because}")
    by_place: dict[tuple[int, ...], list[Any]] = {}
    for op in graph.ops:
        if op.where.rank == 0:
            span = op.where.origin
            by_place.setdefault((span.line, span.column, span.end_line, span.end_column), []).append(op)
    for place, ops in by_place.items():
        lines = [f"rank 0: {len(ops)} × {kind_of(ops[0].body).word}"]
        for word, regions in (("writes", ops[0].writes), ("reads", ops[0].reads)):
            for region in regions:
                size = show_bytes(region.elements * sizes[region.tensor])
                lines.append(f"{word} {_shown(region)}: {size}")
        statements.append({"place": place, "lines": lines})
    return {"names": names, "stages": stages, "statements": statements}


def _shown(region: Any) -> str:
    from ..geometry.region import describe

    boxes = [describe(box) for box in region.boxes]
    more = f" and {len(boxes) - 1} more" if len(boxes) > 1 else ""
    return f"{region.tensor}@{region.rank} {boxes[0]}{more}"


def serve(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        given: Mapping[str, Any] = json.loads(line)
        try:
            answer = prove(Request(**given))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end the editor's proofs
            answer = {"proven": False, "diagnostics": [], "warnings": [], "usage": f"a bug of ficco: {error!r}"}
        yield json.dumps(answer)


if __name__ == "__main__":
    for answered in serve(iter(sys.stdin)):
        sys.stdout.write(answered + "\n")
        sys.stdout.flush()
