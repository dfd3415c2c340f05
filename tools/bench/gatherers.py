"""QuACK's and FlashInfer's all-gather + GEMM as peers, each in processes of its own: FlashInfer wants the symmetric
memory of PyTorch on NVSHMEM, async TP on CUDA.

Sources: `quack/distributed/all_gather_gemm.py` and `quack/gemm_config.py` of QuACK 0.6.5,
`flashinfer/comm/all_gather_matmul` of FlashInfer 0.7.4. Neither has a GEMM + reduce-scatter, or on Hopper one for
all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

from .cublasmp import newest
from .peers import PEERS, Contestant, Peer
from .workers import Turn

# Of each kind its package, and the least version
PACKAGES: dict[str, tuple[str, tuple[int, ...]]] = {
    "quack": ("quack-kernels", (0, 6, 4)),
    "flashinfer": ("flashinfer-python", (0, 6, 18)),
}
# Rows, columns, cluster, pingpong: of QuACK's configurations for Hopper
TILES = (
    (128, 256, 2, 1, False), (256, 128, 2, 1, False), (256, 192, 1, 2, False), (128, 192, 2, 1, True),
    (128, 128, 1, 2, True),
)  # fmt: skip
BLOCK = 128  # FlashInfer's tiles, in each direction


def missing(kind: str) -> str | None:
    """Why it cannot be measured here, and what to install; None: it can."""
    package, least = PACKAGES[kind]
    had, wanted = newest(package), ".".join(map(str, least))
    if had is not None and had[0] >= least:
        return None
    told = "is not installed" if had is None else f"is {'.'.join(map(str, had[0]))}"
    return f'not measured, as {package} {told}: pip install "{package}>={wanted}"'


class Gatherer(Peer):
    """A `workers.Side` on one GPU, of one kind."""

    errors = (*Peer.errors, AssertionError, ValueError, ImportError)

    def __init__(self, rank: int, ranks: int, port: int, folder: str, kind: str) -> None:
        self.kinds = (kind,)
        super().__init__(rank, ranks, port, folder, PEERS, (0, 0))
        import torch.distributed._symmetric_memory as symmetric

        self._symmetric: Any = symmetric
        if kind == "flashinfer":
            from flashinfer.comm import all_gather_matmul

            self._product = all_gather_matmul
            symmetric.set_backend("NVSHMEM")
        else:
            from quack.distributed import AllGatherRunner
            from quack.gemm import gemm

            self._gather, self._product = AllGatherRunner, gemm
        self._runner: Any = None  # QuACK's, of a shape

    def about(self) -> dict[str, str]:
        (kind,) = self.kinds
        package, _ = PACKAGES[kind]
        return {kind: f"{package} {version(package)}, PyTorch {self._torch.__version__}"}

    def _made(self, kind: str) -> Contestant | str:
        if not self._scenario.gathers:
            return "it has no such operation"
        return self._quack() if kind == "quack" else self._flashinfer()

    def _quack(self) -> Contestant | str:
        """The fastest of the tiles that divide a shard."""
        t = self._tensors
        a, b, c = t["A"], t["B"].t(), t["C"]
        fitting = [tile for tile in TILES if a.shape[0] % (tile[0] * tile[2]) == 0]
        if not fitting:
            return f"a shard of {a.shape[0]} rows is no multiple of its tiles"
        self._runner = runner = self._gather(*a.shape, a.dtype, device=self._device)

        def run(rows: int, columns: int, tall: int, wide: int, pingpong: bool) -> None:
            with runner.gather(a) as (whole, gathered):
                self._product(whole, b, c, None, None, rows, columns, tall, wide, pingpong=pingpong, ag_args=gathered)

        failed: list[str] = []
        runs: dict[str, Callable[[], None]] = {str(tile): partial(run, *tile) for tile in fitting}
        best = self._fastest(runs, failed)
        if best is None:
            return "; ".join(failed)
        return Contestant(runs[best], lambda: c, lambda: c.fill_(float("nan")))

    def _flashinfer(self) -> Contestant | str:
        t, group = self._tensors, self._dist.group.WORLD
        sizes = (*t["A"].shape, t["C"].shape[1])
        if any(size % BLOCK for size in sizes):
            return f"a shard's rows, K and columns, {sizes}, are not multiples of {BLOCK}, its tiles"
        self._registered = shard = self._symmetric.empty(*t["A"].shape, dtype=t["A"].dtype, device=self._device)
        shard.copy_(t["A"])
        made: list[Any] = []

        def run() -> None:
            made[:] = [self._product(shard, t["B"], group)]

        def poison() -> None:
            made.clear()
            t["C"].clone().fill_(float("nan"))  # what the allocator gives next

        return Contestant(run, lambda: made[0], poison)

    def _captured(self, eager: Contestant) -> Contestant:
        if self.kinds == ("flashinfer",):  # NVSHMEM would end the process
            raise RuntimeError("each call gets symmetric memory, for which the processes wait on each other")
        return super()._captured(eager)

    # QuACK's calls and replays of graphs follow each other only behind this fence

    def check(self, key: str) -> float:
        self._fence()
        return super().check(key)

    def turn(self, key: str, warmup: int, singles: int, loop: int) -> Turn:
        self._fence()
        return super().turn(key, warmup, singles, loop)

    def _fence(self) -> None:
        if self._runner is not None:
            self._runner.quiesce()
            self._wait()

    def keep(self, keys: Sequence[str]) -> None:
        super().keep(keys)
        if not keys:
            self._runner = None
