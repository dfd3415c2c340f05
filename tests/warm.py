"""Programs in processes of their own that need no start of Python and no imports: a process that has imported the
command line forks for each of them. They end as interpreters do.

    warm.start("from ficco_rt.cli.main import ficco; ficco()", "check", "a.ficco").communicate()
"""

from __future__ import annotations

import ast
import atexit
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What commands need, except for what looks for a library as it is imported.
MODULES = ("ficco_rt.cli.main", "ficco_rt.cli.check", "ficco_rt.cli.run", "ficco_rt.exec.verify")
MOST = 1 << 17  # bytes of a request


class Process:
    """A program under way, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, server: socket.socket, request: bytes, data: bytes) -> None:
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  they are of a process
        self._told, theirs = socket.socketpair()
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        socket.send_fds(server, [request], [theirs.fileno(), reading, *(file.fileno() for file in self._files)])
        os.close(reading)
        theirs.close()
        self.pid = int(self._told.recv(20))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has written to its output and to its errors, when it has ended."""
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired("a program", timeout or 0.0)
        said = []
        for file in self._files:
            with file:
                file.seek(0)
                said.append(file.read().decode())
        return said[0], said[1]

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = int(self._told.recv(20))
            self._told.close()
        return self.returncode


def start(
    program: str,
    *words: str,
    data: bytes = b"",
    environment: Mapping[str, str] | None = None,
    modules: tuple[str, ...] = (),
) -> Process:
    """Run the text of a program with these arguments, in this folder. `data`: what it reads, no more than a pipe holds.
    `environment`: instead of ours; what Python reads of it when it starts has no effect. `modules` that it needs, too.
    """
    variables = dict(os.environ if environment is None else environment)
    request = repr((program, words, variables, os.getcwd())).encode()
    return Process(_server(variables.get("LD_LIBRARY_PATH", ""), modules), request, data)


@cache
def _server(libraries: str, modules: tuple[str, ...]) -> socket.socket:
    """Where to ask; another one for other `libraries`, of which the system's loader wants to know at once."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(theirs.fileno()), *modules],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'dsl'}", "LD_LIBRARY_PATH": libraries},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    atexit.register(lambda: (mine.close(), server.wait()))
    return mine


def _serve(control: socket.socket) -> str:
    """Fork for each request, and tell how children end. In a child: the program that it is to run."""
    under_way: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([control, *under_way], [], [])[0]:
            if ready is not control:
                child, told = under_way.pop(ready)
                os.close(ready)
                told.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                told.close()
                continue
            request, files, *_ = socket.recv_fds(control, MOST, 4)
            if not request:
                os._exit(0)  # nobody is left who asks
            child = os.fork()
            if not child:
                return _prepared(request, files, [control.detach(), *under_way])
            for file in files[1:]:
                os.close(file)
            told = socket.socket(fileno=files[0])
            told.send(b"%d" % child)
            under_way[os.pidfd_open(child)] = child, told


def _prepared(request: bytes, files: list[int], others: list[int]) -> str:
    program, words, environment, folder = ast.literal_eval(request.decode())
    for number, file in enumerate(files[1:]):
        os.dup2(file, number)
    for file in (*files, *others):
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["-c", *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return str(program)


if __name__ == "__main__":
    for name in (*MODULES, *sys.argv[2:]):
        import_module(name)
    gc.freeze()  # children need not look at what is there
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exec(_serve(socket.socket(fileno=int(sys.argv[1]))), {"__name__": "__main__"})
