"""Starts processes that are a group of `torch.distributed` with gloo, on the CPU. They are forks of a process that has
imported PyTorch and what the tests need, which takes seconds."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import runpy
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

LIMIT = 150.0  # seconds
PRELOADED = ["tests.torch.parts", "tests.torch.linear_cases", "torch._dynamo", "torch.testing._internal.optests"]


def together(size: int, function: str, *arguments: object) -> None:
    """Calls a function `module.name` of this folder in each of `size` processes. What one raises is the failure."""
    with tempfile.TemporaryDirectory() as folder:
        _started(size, _part, folder, function, arguments)


def launched(script: Path, *arguments: str) -> str:
    """Runs a program in two processes, as torchrun does. What they print; what one raises is the failure."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        _started(2, _program, folder, port, [str(script), *arguments])
        return "".join(path.read_text() for path in sorted(Path(folder).iterdir()))


def _started(size: int, what: Callable[..., None], *arguments: object) -> None:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ends, processes = [], []
    try:
        for rank in range(size):
            mine, theirs = context.Pipe(duplex=False)
            started = context.Process(target=_process, args=(theirs, what, rank, size, *arguments))
            started.start()
            theirs.close()
            ends.append(mine)
            processes.append(started)
        until = time.monotonic() + LIMIT
        told = [_told(end, until) for end in ends]
        for process in processes:
            process.join(max(1.0, until - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.join()
    wrong = [f"process {rank}: {text}" for rank, text in enumerate(told) if text]
    assert not wrong, "\n".join(wrong)
    assert not any(process.exitcode for process in processes), [process.exitcode for process in processes]


def _told(end: Connection, until: float) -> str:
    if not end.poll(max(0.0, until - time.monotonic())):
        return "no answer"
    try:
        return str(end.recv())
    except EOFError:
        return "ended without a word"


def _process(end: Connection, what: Callable[..., None], *arguments: object) -> None:
    gc.freeze()  # what is there need not be looked at
    try:
        what(*arguments)
    except BaseException:  # noqa: BLE001 - it is told there
        end.send(traceback.format_exc())
        raise SystemExit(1) from None
    end.send("")


def _part(rank: int, size: int, folder: str, function: str, arguments: tuple[object, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    module, name = function.split(".")
    getattr(import_module(f"tests.torch.{module}"), name)(*arguments)
    dist.destroy_process_group()


def _program(rank: int, size: int, folder: str, port: int, words: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in names.items()}})
    with open(f"{folder}/{rank}", "w") as said:
        os.dup2(said.fileno(), 1)
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        assert not end.code, end.code  # noqa: PT017
    sys.stdout.flush()
