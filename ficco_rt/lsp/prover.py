"""Runs the proofs of the language server in a separate process, which can be killed.

The process reads requests from its standard input and writes answers to its standard output, pickled. A newer request
for the same document ends the process that works on the older one.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import IO, Any

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..report.request import Request


@dataclass(slots=True)
class Answer:
    """What the proof of a document gave. For hovers: by the name of a value its size or shape, by that of a stage what
    it waits for, by the place of a statement what it does."""

    mistakes: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    stages: dict[str, list[str]] = field(default_factory=dict)
    statements: list[tuple[Span, list[str]]] = field(default_factory=list)


class Prover:
    """Hands requests to the process, the newest of each document, and its answers to `tell(name, version, answer)`, in
    a thread of its own."""

    def __init__(self, tell: Callable[[str, int, Answer], None]) -> None:
        self._tell = tell
        self._waiting: dict[str, tuple[int, Request]] = {}
        self._at: str | None = None  # the document that is at work
        self._process: subprocess.Popen[bytes] | None = None
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
                answer = _refused(request, "the process of the proof ended")
            if answer is not None:
                self._tell(name, version, answer)


def _started() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"import {__name__} as prover; prover.serve()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _asked(process: subprocess.Popen[bytes], request: Request) -> Answer | None:
    """None: the process was ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _send(request, process.stdin)
        found: Answer = pickle.load(process.stdout)
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    return found


def _send(value: object, stream: IO[bytes]) -> None:
    pickle.dump(value, stream)
    stream.flush()


def _refused(request: Request, why: str) -> Answer:
    """There is no proof, and the text is not to blame."""
    return Answer(warnings=(Diagnostic(Span(request.source.name, 1, 1, 1, 2), why),))


# ---------------------------------------------------------------- in the process


def prove(request: Request) -> Answer:
    """Diagnostics, warnings and facts of a schedule."""
    from ..errors import UsageError
    from ..report.job import compile_job

    try:
        return _facts(compile_job(request))
    except ScheduleError as error:
        return Answer(error.diagnostics)
    except UsageError as error:
        return _refused(request, str(error))


def _facts(job: Any) -> Answer:
    from ..graph.kinds import kind_of
    from ..report.schedule_facts import gather
    from ..report.wording import show_bytes, show_value
    from ..types import TYPES

    graph, answer = job.graph, Answer(warnings=job.warnings)
    answer.names = {name: f"= {show_value(value)}" for name, value in graph.params}
    sizes: dict[str, int] = {}
    for tensor in graph.tensors:
        sizes[tensor.name] = TYPES[tensor.dtype].bytes
        shape = " × ".join(map(str, tensor.shapes[0]))
        size = show_bytes(sizes[tensor.name] * prod(tensor.shapes[0]))
        answer.names[tensor.name] = f"{shape} of {tensor.dtype} on rank 0: {size}"
    for pair in gather(job).waits_for:
        because = ", ".join(dict.fromkeys(f"{b.tensor} ({b.hazard})" for b in pair.because))
        answer.stages.setdefault(pair.stage, []).append(f"waits for {pair.for_}, because of {because}")
    by_place: dict[Span, list[Any]] = {}
    for op in graph.ops:
        if op.where.rank == 0:
            by_place.setdefault(op.where.origin, []).append(op)
    for place, ops in by_place.items():
        lines = [f"rank 0: {len(ops)} × {kind_of(ops[0].body).word}"]
        for word, regions in (("writes", ops[0].writes), ("reads", ops[0].reads)):
            for region in regions:
                size = show_bytes(region.elements * sizes[region.tensor])
                lines.append(f"{word} {_shown(region)}: {size}")
        answer.statements.append((place, lines))
    return answer


def _shown(region: Any) -> str:
    from ..geometry.region import describe

    boxes = [describe(box) for box in region.boxes]
    more = f" and {len(boxes) - 1} more" if len(boxes) > 1 else ""
    return f"{region.tensor}@{region.rank} {boxes[0]}{more}"


def serve() -> None:
    """Answers requests until there are no more."""
    while True:
        try:
            request: Request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = prove(request)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end the editor's proofs
            answer = _refused(request, f"a bug of ficco: {error!r}")
        _send(answer, sys.stdout.buffer)
