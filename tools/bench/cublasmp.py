"""cuBLASMp as a peer, through nvmath-python: all-gather + GEMM, GEMM + reduce-scatter, GEMM + all-reduce.

The library wants a newer NCCL than PyTorch brings. So its processes are its own: they load that NCCL before PyTorch,
which then takes it too. The processes try the library's algorithms that need no multicast and keep the fastest.

Sources: NVIDIA's cublasmp.h and "Using cuBLASMp for Tensor Parallelism" (cuBLASMp 0.10); CUDALibrarySamples, cuBLASMp,
matmul_ag.cu, matmul_rs.cu and matmul_ar.cu.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .measure import first_line
from .peers import PEERS, Contestant, Peer, switches
from .scenarios import Scenario

KIND = "cublasmp"
ALGORITHMS = ("DEFAULT", "SPLIT_P2P", "ATOMIC_P2P")  # of enum cublasMpMatmulAlgoType_t, those that need no multicast
BF16 = 14  # CUDA_R_16BF
LEAST = {"nvmath-python": (1, 0), "nccl4py": (0, 6), "nvidia-cublasmp": (0, 8), "nvidia-nccl": (2, 29, 2)}
NVSHMEM = "nvidia-nvshmem"  # nvmath-python looks for the library, though cuBLASMp 0.8 and later do without


# ---- where the libraries are


@dataclass(frozen=True, slots=True)
class Libraries:
    """In the order in which they are loaded, NCCL first."""

    paths: tuple[Path, ...]
    versions: str


def libraries() -> Libraries | str:
    """cuBLASMp and what it needs; or why it cannot be measured here, and what to install."""
    missing: list[str] = []
    for cuda in ("cu13", "cu12"):
        names = {name: f"{name}-{cuda}" if name.startswith("nvidia") else name for name in (*LEAST, NVSHMEM)}
        found = {name: newest(distribution) for name, distribution in names.items()}
        lacks = [
            f"{names[name]} {'is ' + _dotted(had[0]) if had else 'is not installed'}"
            for name, least in LEAST.items()
            if (had := found[name]) is None or had[0] < least
        ]
        if not lacks:
            places = {
                "nvidia-nccl": "nvidia/nccl/lib/libnccl.so.2",
                NVSHMEM: "nvidia/nvshmem/lib/libnvshmem_host.so.3",
                "nvidia-cublasmp": f"nvidia/cublasmp/{cuda}/lib/libcublasmp.so.0",
            }
            paths = tuple(Path(str(had[1].locate_file(at))) for name, at in places.items() if (had := found[name]))
            return Libraries(paths, ", ".join(f"{names[n]} {_dotted(h[0])}" for n in LEAST if (h := found[n])))
        missing = missing or lacks
    wanted = " ".join(
        f'"{name}{"-cu13" if name.startswith("nvidia") else ""}>={_dotted(least)}"' for name, least in LEAST.items()
    )
    return f"not measured, as {', '.join(missing)}: pip install {wanted}"


def newest(name: str) -> tuple[tuple[int, ...], Distribution] | None:
    """The latest version of a package that is installed anywhere on the path."""
    found = [(_numbers(one.version), one) for one in distributions(name=name)]
    return max(found, key=lambda pair: pair[0], default=None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


# ---- matrices, as cuBLASMp takes them


@dataclass(frozen=True, slots=True)
class Matrix:
    """A column-major matrix over all processes, a block each. `over`: the processes stand in a column of the grid, each
    with a block of rows, or in a row of it, each with a block of columns. A block is column-major, too, and its leading
    dimension is `block_rows`."""

    rows: int
    columns: int
    block_rows: int
    block_columns: int
    over: Literal["rows", "columns"]


@dataclass(frozen=True, slots=True)
class Product:
    """D = op(A) · B with D of m × n, all of cuBLASMp's: A is transposed or not."""

    m: int
    n: int
    k: int
    transposed: bool
    a: Matrix
    b: Matrix
    d: Matrix
    all_reduce: bool = False


def product(scenario: Scenario, ranks: int) -> Product:
    """Row-major memory is that of the transposed matrix in column-major order. So C = A · B is asked for as
    Cᵀ = Bᵀ · Aᵀ: cuBLASMp's A is our B, and its B is our A, both as they lie in memory. Only GEMM + all-reduce wants
    its A the other way round: our B in memory as N × K.

    D of reduce-scatter is one matrix of which each process has columns. D of all-reduce is as many of them side by side
    as there are processes.
    """
    m, n, k = scenario.n, scenario.m, scenario.k
    if scenario.gathers:
        a = Matrix(m, k, m // ranks, k, "rows")
        return Product(m, n, k, False, a, Matrix(k, n, k, n // ranks, "columns"),
                       Matrix(m, n, m // ranks, n // ranks, "rows"))  # fmt: skip
    if scenario.collective == "reduce_scatter":
        a = Matrix(m, k, m, k // ranks, "columns")
        return Product(m, n, k, False, a, Matrix(k, n, k // ranks, n // ranks, "rows"),
                       Matrix(m, n, m, n // ranks, "columns"))  # fmt: skip
    a = Matrix(k, m, k // ranks, m, "rows")
    return Product(m, n, k, True, a, Matrix(k, n, k // ranks, n, "rows"),
                   Matrix(m, n * ranks, m, n, "columns"), all_reduce=True)  # fmt: skip


# ---- the side


class CublasMp(Peer):
    """A `workers.Side` on one GPU. `folder` outlives the process: what a process was killed in is not tried again."""

    kinds = (KIND,)

    def __init__(self, rank: int, ranks: int, port: int, folder: str, found: Libraries) -> None:
        switches()
        for path in found.paths:
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)  # PyTorch, nccl4py and nvmath-python take what is loaded
            if path == found.paths[0]:
                import torch  # noqa: F401  it brings the cuBLAS that cuBLASMp is linked to
        super().__init__(rank, ranks, port, folder, PEERS, (0, 0))
        import nccl.core
        from nvmath.bindings import cublasMp

        self.errors = (*Peer.errors, cublasMp.cuBLASMpError, OSError, ValueError)
        self._folder = Path(folder)
        self._hung = {mark.name.split("-")[1] for mark in self._folder.glob("trying-*")}
        self._versions = found.versions
        self._library = cublasMp
        unique = [bytes(nccl.core.get_unique_id())] if rank == 0 else [b""]
        self._dist.broadcast_object_list(unique, 0, device=self._device)
        self._communicator = nccl.core.Communicator.init(ranks, rank, nccl.core.UniqueId.from_bytes(unique[0]))
        self._handle = cublasMp.create(self._stream.cuda_stream)
        columns, rows = cublasMp.GridLayout.COL_MAJOR, cublasMp.GridLayout.ROW_MAJOR
        self._grids = {
            "rows": cublasMp.grid_create(ranks, 1, int(columns), self._communicator.ptr),
            "columns": cublasMp.grid_create(1, ranks, int(rows), self._communicator.ptr),
        }
        self._held: list[Callable[[], None]] = []  # what gives back what a scenario took
        self._weights: Any = None  # a copy in the library's layout, and what it is a copy of

    def about(self) -> dict[str, str]:
        version = self._library.get_version()
        told = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
        return {KIND: f"{told}, with {self._versions}; the fastest of {', '.join(ALGORITHMS)}"}

    def _made(self, kind: str) -> Contestant | str:
        """The fastest algorithm. All processes try the same, and agree on what failed and on what was fastest."""
        failed = [f"{name}: a process was killed in it" for name in ALGORITHMS if name in self._hung]
        runs = self._runs(failed)
        best = self._fastest(runs, failed)
        if best is None:
            return "; ".join(failed) or "no algorithm ran in all processes"
        output = self._tensors["C"]
        return Contestant(runs[best], lambda: output, lambda: output.fill_(float("nan")))

    def _captured(self, eager: Contestant) -> Contestant:
        if "graph" in self._hung:
            raise RuntimeError("a process was killed in it")
        with self._trying("graph"):
            return super()._captured(eager)

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        """What a process is killed in leaves its mark."""
        mark = self._folder / f"trying-{what}-{self._rank}"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def _runs(self, failed: list[str]) -> dict[str, Callable[[], None]]:
        """The product by each algorithm that the library takes; they share a workspace in NCCL's symmetric memory."""
        library, torch, tensors, asked = self._library, self._torch, self._tensors, product(self._scenario, self._ranks)
        a, b = tensors["B"].t() if asked.transposed else tensors["B"], tensors["A"]
        if not a.is_contiguous():  # the library takes one layout for each operation
            self._weights = a.contiguous(), a
            a, _ = self._weights
        if self._scenario.gathers:  # gathered from registered memory, it may be faster
            self._registered = b = self._symmetric(b.nbytes).view(torch.bfloat16).view(b.shape)
            b.copy_(tensors["A"])
        described = [self._described(matrix) for matrix in (asked.a, asked.b, asked.d)]
        one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
        operands = (
            asked.m, asked.n, asked.k, one.ctypes.data, a.data_ptr(), 1, 1, described[0], b.data_ptr(), 1, 1,
            described[1], zero.ctypes.data, 0, 1, 1, 0, tensors["C"].data_ptr(), 1, 1, described[2],
        )  # fmt: skip
        descriptors: dict[str, int] = {}
        on_device = on_host = 1
        for name in (name for name in ALGORITHMS if name not in self._hung):
            try:
                descriptor = self._descriptor(asked, name)
                sizes = library.matmul_buffer_size(self._handle, descriptor, *operands)
            except self.errors as error:
                failed.append(f"{name}: {type(error).__name__}: {first_line(error)}")
                continue
            descriptors[name] = descriptor
            on_device, on_host = max(on_device, sizes[0]), max(on_host, sizes[1])
        work = self._symmetric(on_device, asked.d.over)
        host = np.empty(on_host, np.int8)
        kept = (one, zero, a, b, work, host)  # the library knows addresses alone

        def run(descriptor: int) -> None:
            # a capture has a stream of its own
            library.set_stream(self._handle, torch.cuda.current_stream().cuda_stream)
            work, host = kept[-2:]
            library.matmul(self._handle, descriptor, *operands, work.data_ptr(), on_device, host.ctypes.data, on_host)

        return {name: partial(run, each) for name, each in descriptors.items()}

    def _described(self, matrix: Matrix) -> int:
        library = self._library
        made: int = library.matrix_descriptor_create(
            matrix.rows, matrix.columns, matrix.block_rows, matrix.block_columns, 0, 0, matrix.block_rows, BF16,
            self._grids[matrix.over],
        )  # fmt: skip
        self._held.append(lambda: library.matrix_descriptor_destroy(made))
        return made

    def _descriptor(self, asked: Product, algorithm: str) -> int:
        from nvmath.bindings.cublas import ComputeType, Operation

        library = self._library
        made: int = library.matmul_descriptor_create(int(ComputeType.COMPUTE_32F))
        self._held.append(lambda: library.matmul_descriptor_destroy(made))
        names = library.MatmulDescriptorAttribute
        settings = {
            names.TRANSA: Operation.T if asked.transposed else Operation.N,
            names.TRANSB: Operation.N,
            names.ALGO_TYPE: library.MatmulAlgoType[algorithm],
        }
        if asked.all_reduce:
            settings[names.EPILOGUE] = library.MatmulEpilogue.ALLREDUCE
        for name, value in settings.items():
            kept = np.array([int(value)], library.get_matmul_descriptor_attribute_dtype(name))
            library.matmul_descriptor_set_attribute(made, int(name), kept.ctypes.data, kept.nbytes)
        return made

    def _symmetric(self, size: int, over: str = "rows") -> Any:
        """Bytes that NCCL has registered in all processes; as numbers of 16 bits, which PyTorch reads as bf16."""
        library, grid = self._library, self._grids[over]
        address = library.malloc(grid, (size + 1) // 2 * 2)
        self._held.append(lambda: library.free(grid, address))
        memory = {"shape": ((size + 1) // 2,), "typestr": "<i2", "data": (address, False), "version": 3}
        return self._torch.as_tensor(_Memory(memory), device=self._device)

    def keep(self, keys: Sequence[str]) -> None:
        super().keep(keys)
        if not keys:
            self._weights = None
            self._wait()
            while self._held:
                self._held.pop()()

    def data(self, seed: int) -> None:
        super().data(seed)
        if self._weights is not None:
            copy, lying = self._weights
            copy.copy_(lying)
            self._wait()


class _Memory:
    """Memory of another library, as PyTorch takes it."""

    def __init__(self, described: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = described
