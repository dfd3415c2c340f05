"""Starts processes that are a group of `torch.distributed` with gloo, on the CPU."""

from __future__ import annotations

import multiprocessing as mp
import tempfile
import time
import traceback
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection

LIMIT = 150.0  # seconds; a start takes some five


def together(size: int, function: str, *arguments: object, limit: float = LIMIT) -> None:
    """Calls a function `module.name` of this folder in each of `size` processes. What one raises is the failure."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends, processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe(duplex=False)
            started = context.Process(target=_process, args=(rank, size, folder, theirs, function, arguments))
            started.start()
            theirs.close()
            ends.append(mine)
            processes.append(started)
        until = time.monotonic() + limit
        try:
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


def _process(rank: int, size: int, folder: str, end: Connection, function: str, arguments: tuple[object, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    try:
        module, name = function.split(".")
        getattr(import_module(f"tests.torch.{module}"), name)(*arguments)
    except BaseException:  # noqa: BLE001 - it is told there
        end.send(traceback.format_exc())
        raise SystemExit(1) from None
    end.send("")
    dist.destroy_process_group()
