"""Ours in a process a GPU: the processes that the tool starts, or those that torchrun or mpirun has started.

Where a launcher has started them, each is a worker. The process of rank 0 starts one more, the director, which does
what the tool does elsewhere: it starts the other workers, asks them all, and prints the tables.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGKILL, signal
from typing import Any, NoReturn

import ficco_rt
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.process.group import Group

from .clock import Clock
from .data import OPERANDS, fill, operand, reference
from .executors import Executors, ask_for_connections
from .measure import PROCESSES, TWIN
from .ours import plan_for
from .peers import connect, switches
from .scenarios import Scenario
from .variants import Variant
from .workers import Crew, Side, answer

START = 60.0  # seconds for processes to find each other
LAUNCHERS = ("RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "MV2_",
             "MPI_", "HYDI_", "HYDRA_", "SLURM_")  # fmt: skip


class Member(Executors):
    """A `workers.Side` of one process and one GPU: a rank. `group`: None, if the tool has started the processes."""

    def __init__(self, rank: int, ranks: int, port: int, group: Group | None = None) -> None:
        ask_for_connections()
        switches()
        import torch

        self._rank = rank
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        self._dist = connect(rank, ranks, port)
        machine = discover("cuda", ranks, 1, ranks)
        super().__init__(ranks, [device], machine, group or Group(self._dist.group.WORLD))
        torch.cuda.set_stream(self._streams[0])
        self._token = torch.zeros(1, device=device)
        self._meet()
        self._clock = Clock(self._streams, self._meet)

    def _meet(self) -> None:
        self._dist.all_reduce(self._token)

    def about(self) -> dict[str, str]:
        return {"processes": f"{self._ranks}, a GPU each"}

    def load(self, scenario: Scenario, keys: Sequence[str] = ()) -> dict[str, str | None]:
        """The contestants of these keys, which one process has measured, as their twins. Others write into the result
        of an all-reduce, so its memory is of the kind that can always be shared."""
        self.begin(scenario)
        if scenario.collective == "all_reduce":
            shape = scenario.shapes(self._ranks)["C"]
            self._tensors["C"] = [self._torch.from_dlpack(ficco_rt.empty(shape, "bf16", group=self._group))]
        answer: dict[str, str | None] = {}
        for label in dict.fromkeys(key.rpartition(" ")[0] for key in keys):
            variant = Variant.of_label(scenario.operation, label)
            answer |= self.add(variant, partial(plan_for, variant, scenario, self.machine, self._ranks))
        self._contestants = {TWIN + key: self._contestants[key] for key in keys if key in self._contestants}
        return {TWIN + key: answer[key] for key in keys}

    def data(self, seed: int) -> None:
        scenario, layouts = self._scenario, self._scenario.layouts(self._ranks)
        (device,) = self._devices
        for name in OPERANDS:
            fill(self._tensors[name][0], name, self._rank, scenario.k, seed)
        a, b = (partial(operand(layouts, scenario.k, seed, device), name) for name in OPERANDS)
        asked = scenario.collective, layouts["C"][0], self._ranks, self._rank
        self._reference = [reference(*asked, a, b, device, scenario.transb)]
        self._wait()


# ---- under a launcher


class Joined(Crew):
    """The processes of a launcher, which have come to a listener; they are not started again."""

    def __init__(self, name: str, listener: Listener, size: int, **settings: Any) -> None:
        self._listener, self._size = listener, size
        self._failed = False
        super().__init__(name, Member, (), **settings)

    def _start(self) -> None:
        found: dict[int, tuple[Connection, int]] = {}
        while len(found) < self._size:
            pipe = self._listener.accept()
            place, process = pipe.recv()
            found[place] = pipe, process
        self._pipes = [found[place][0] for place in range(self._size)]
        self._ids = [found[place][1] for place in range(self._size)]

    def _answers(self, method: str, timeout: float) -> list[Any]:
        try:
            return super()._answers(method, timeout)
        except DeviceError:
            self._failed = True
            raise

    def end(self) -> None:
        """End the processes, if one has failed: another may wait for it for ever. NOTE then the launcher ends all that
        it has started, the director too."""
        self.close()
        for process in self._ids if self._failed else ():
            with suppress(ProcessLookupError):
                os.kill(process, SIGKILL)


def launched(
    direct: Callable[[Callable[..., Crew]], int], group: Group, make: Callable[..., Side] = Member
) -> NoReturn:
    """The life of a process that a launcher has started. `direct` is the tool, which is given what makes the crew of
    the launched processes; its exit code is that of the first process. Raises UsageError, DeviceError."""
    here = {"host": socket.gethostname(), "folder": "", "token": "", "port": 0}
    director = None
    if group.rank == 0:
        folder = tempfile.mkdtemp(prefix="ficco-bench.")
        here |= {"folder": folder, "token": secrets.token_hex(16), "port": free_port()}
        director = get_context("spawn").Process(target=_direct, args=(direct, here, group.size))
        director.start()
    told = [json.loads(data) for data in group.exchange(json.dumps(here).encode(), START, "the bench")]
    hosts = sorted({one["host"] for one in told})
    if len(hosts) > 1:
        raise UsageError(f"--processes measures the GPUs of one machine; the processes are on {', '.join(hosts)}")
    first = told[0]
    pipe = come(Path(first["folder"]) / "bench", bytes.fromhex(first["token"]))
    if pipe is not None:
        pipe.send((group.rank, os.getpid()))
        signal(SIGINT, SIG_IGN)  # Ctrl-C is the director's to handle
        answer(pipe, make, (group.rank, group.size, first["port"], group))
        pipe.close()
    code = 0
    if director is not None:
        director.join()
        code = director.exitcode or 0
    _leave(group, code)


def _direct(direct: Callable[[Callable[..., Crew]], int], here: dict[str, Any], size: int) -> None:
    """The life of the director. What it starts must not take itself for a process of the launcher."""
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        del os.environ[name]
    place = Path(here["folder"]) / "bench"
    made: list[Joined] = []
    try:
        with Listener(str(place), "AF_UNIX", authkey=bytes.fromhex(here["token"])) as listener:
            code = direct(partial(_join, made, listener, size))
    finally:
        sys.stdout.flush()
        shutil.rmtree(place.parent, ignore_errors=True)
        for crew in made:
            crew.end()
    sys.exit(code)


def _join(made: list[Joined], listener: Listener, size: int, **settings: Any) -> Joined:
    made.append(Joined(PROCESSES, listener, size, **settings))
    return made[-1]


def come(place: Path, token: bytes) -> Connection | None:
    """To the director, when it is there; None: it has ended already. Raises DeviceError."""
    until = time.monotonic() + START
    while place.parent.exists():
        try:
            return Client(str(place), "AF_UNIX", authkey=token)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise DeviceError(f"the process that directs the bench did not come within {START:.0f} s") from None
            time.sleep(0.1)
        except (OSError, EOFError):
            return None
    return None


def _leave(group: Group, code: int) -> NoReturn:
    """NOTE the teardown of communicators can hang; MPI wants to be ended all the same, and may lose an exit code that
    it is not told."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        group.abandon(code)
    elif "mpi4py.MPI" in sys.modules:
        sys.modules["mpi4py.MPI"].Finalize()
    os._exit(code)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
