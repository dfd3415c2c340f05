"""Processes of a group on the stand-in, each with a library of its own: started once, asked for many things.

    with Processes(2) as both:
        answers = both.ask("shipped", "ag_gemm/streamed", …)   # what each has answered: a value, or an error's text

Whatever a process does it does in a `Worker`, whose methods can be asked for. Each question has a group of its own, so
that an error in one spoils no other. Processes fork a child for what is asked `once`, which may be killed.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as ready
from pathlib import Path
from typing import Any

from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.mock import standin
from tests.mock.standin import Face
from tests.mock.worker import Worker
from tests.pipes import between


def claimed(name: str) -> Plan:
    """What two processes' outputs are compared with: a plan of the schedule as they run it."""
    sizes = cases.sizes(name, 2, True) | cases.few_chunks(name)
    return plan_of(build(cases.schedule(name), 2, sizes), profile("h200-switch", 2))


def kernels() -> str:
    """Where all processes of a session find their compiled kernels."""
    folder = Path(tempfile.gettempdir()) / f"ficco-standin-{os.getuid()}-kernels"
    return os.environ.get("FICCO_CACHE") or str(folder)


def _serve(place: int, pipes: Sequence[Connection | None], face: Face, settings: str, control: Connection) -> None:
    """Import once what all children need, fork them, and say which one was killed."""
    os.environ["FICCO_CACHE"] = kernels()
    standin.of(face)
    import_module({"cuda": "cuda.bindings.driver", "hip": "hip"}[face])
    for name in ("ficco_rt.exec.verify", "ficco_rt.cli.main", "ficco_rt.cli.run", "tests.cases"):
        import_module(name)
    steady: Connection | None = None
    while True:
        try:
            question, more, once, asked = control.recv()
        except EOFError:
            os._exit(0)
        child = 0
        asking = None if once else steady
        if asking is None:
            asking, theirs = mp.Pipe()
            child = os.fork()
            if not child:
                asking.close()
                _answer(theirs, lambda *given: Worker(place, pipes, face, *given))
            theirs.close()
        asking.send((question, f"{settings}; {more}", *asked))
        try:
            control.send(asking.recv())
        except EOFError:
            control.send("gone")
        if once:
            asking.close()
            os.waitpid(child, 0)
        else:
            steady = asking


def _answer(asked: Connection, worker_of: Callable[[int, str], Worker]) -> None:
    """A child's life."""
    code = 1
    try:
        while True:
            question, settings, name, arguments = asked.recv()
            worker = worker_of(question, settings)
            try:
                asked.send(getattr(worker, name)(*arguments))
            except (DeviceError, UsageError) as error:
                asked.send(f"{type(error).__name__}: {error}{' LEFT ' + worker.left() if worker.left() else ''}")
    except EOFError:
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


class Processes:
    """So many of them, with a vendor's stand-in each that is set so for every question. See the module. They are
    started when they are first asked."""

    def __init__(self, count: int, face: Face = "cuda", settings: str = "") -> None:
        self.face = face
        self._count, self._settings = count, settings
        self._question = 0
        self._controls: list[Connection] = []
        self._started: list[Any] = []

    def _start(self) -> None:
        context = mp.get_context("spawn")
        pipes = between(self._count)
        for place in range(self._count):
            mine, theirs = context.Pipe()
            self._started.append(
                context.Process(
                    target=_serve, args=(place, pipes[place], self.face, self._settings, theirs), daemon=True
                )
            )
            self._started[-1].start()
            theirs.close()
            self._controls.append(mine)
        for pipe in (pipe for of in pipes for pipe in of if pipe is not None):
            pipe.close()

    def _end(self) -> None:
        for control in self._controls:
            control.close()
        for process in self._started:
            process.join(10)
            process.kill()
        self._controls.clear()
        self._started.clear()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ask(
        self, name: str, *arguments: object, settings: str = "", limit: float = 60.0, once: bool = False
    ) -> list[Any]:
        """What each process has answered; "gone" if it was killed."""
        if not self._started:
            self._start()
        self._question += 1
        for control in self._controls:
            control.send((self._question, settings, once, (name, arguments)))
        found: list[Any] = ["no answer"] * len(self._controls)
        waiting = dict(enumerate(self._controls))
        while waiting:
            came = ready(list(waiting.values()), timeout=limit)
            if not came:
                break
            for place in [p for p, control in waiting.items() if control in came]:
                found[place] = waiting.pop(place).recv()
        return found
