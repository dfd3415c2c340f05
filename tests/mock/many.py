"""A model's operations, each of many numbers of rows, bound for each of its layers.

    python -m tests.mock.many                # Llama-70B on eight stand-in GPUs; once more, warm from the store
    python -m tests.mock.many --complete     # as if every binding had run, too

It prints seconds of processor time, the memory of a GPU by kind, and what the stand-in has counted. FICCO_CACHE names
the store's folder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import ficco_rt as ficco
from ficco_rt.driver.api import DeviceArray
from ficco_rt.driver.gpu.workspace import GpuWorkspace
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.workspace import Workspace
from ficco_rt.types import TYPES
from tests.mock import standin

RANKS, LAYERS = 8, 80
ROWS = (*range(16, 513, 16), *range(1024, 8193, 1024))
OPERATIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("ag_gemm", {"N": 10240, "K": 8192}),
    ("gemm_rs", {"N": 8192, "K": 8192}),
    ("ag_gemm", {"N": 57344, "K": 8192}),
    ("gemm_rs", {"N": 8192, "K": 28672}),
)
ROOM = 3 << 30  # bytes of a rank, in which the tensors of all layers lie


def opened(
    workspace: Workspace, operations: Sequence[tuple[str, Mapping[str, object]]], rows: Sequence[int]
) -> Iterator[Executor]:
    """An executor for each operation and number of rows of all ranks."""
    for name, sizes in operations:
        buckets = sorted({m // workspace.ranks for m in rows})
        made = ficco.Operation(workspace, name, max_m=buckets[-1], buckets=buckets, **sizes)
        made.warm()
        yield from map(made.executor, buckets)


def bind(executor: Executor, rooms: Sequence[int], layer: int) -> None:
    """A layer's tensors, each at an address of its own. Nothing runs: they may overlap those of other layers."""
    at = [room + 4096 * layer for room in rooms]
    given = {}
    for tensor in executor.plan.tensors:
        for rank, shape in enumerate(tensor.shapes if tensor.kind != "scratch" else ()):
            given[tensor.name, rank] = DeviceArray(at[rank], shape, tensor.dtype)
            at[rank] += -(-TYPES[tensor.dtype].bytes * prod(shape) // 256) * 256
    executor.bind_at(given)


def rooms(workspace: Workspace, size: int) -> list[int]:
    """Memory of each rank for tensors."""
    shared = workspace.shared
    assert isinstance(shared, GpuWorkspace)
    gpus = shared.gpus
    return [gpus.alloc(gpus.device(rank), size, "tensors", "tensors") for rank in range(workspace.ranks)]


def count(workspace: Workspace) -> tuple[int, dict[int, int]]:
    """Bytes of a GPU that the workspace holds as it says, and those that are free as the stand-in says, by device."""
    shared = workspace.shared
    assert isinstance(shared, GpuWorkspace)
    free = {}
    for ordinal, device in shared.gpus.devices.items():
        with shared.gpus.inside(device):
            free[ordinal] = shared.vendor.free_memory()
    return sum(workspace.memory.values()), free


def complete(workspace: Workspace) -> None:
    """All bindings hold what they do after a run."""
    shared = workspace.shared
    assert isinstance(shared, GpuWorkspace)
    for binding in [*shared.binder.bindings]:
        shared.binder.complete(binding)


def main() -> None:
    library = standin.cuda()
    library.reset(f"devices {RANKS}; sms 132; arch sm_90")
    begun = time.process_time()
    with Workspace(RANKS) as workspace:
        empty, free = count(workspace)
        executors = [*opened(workspace, OPERATIONS, ROWS)]
        there = time.process_time() - begun
        at = rooms(workspace, ROOM)
        for executor in executors:
            for layer in range(LAYERS):
                bind(executor, at, layer)
        took = time.process_time() - begun
        if "--complete" in sys.argv:
            complete(workspace)
        held = {kind: f"{size / 2**20:.1f} MiB" for kind, size in workspace.memory.items() if kind != "tensors"}
        print(f"{len(executors)} plans opened in {there:.1f} s, bound for {LAYERS} layers in {took:.1f} s: {held}")
        said, left = count(workspace)
        most = max(free[ordinal] - n for ordinal, n in left.items())
        print(f"the workspace says {said - empty} bytes more than at first, and the stand-in {most}")


if __name__ == "__main__":
    main()
