"""The interface of every family of kernels, with the types of its requests and answers.

Two functions are called before memory exists: `choose` selects the kernel for given works, and its shared memory;
`configure` says how the kernel is launched. Both are pure, and their results hold no address. When memory exists,
`tables` writes the works in the form that the kernel reads, with addresses and without further decisions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy.typing as npt

from ..graph.functions import FunctionName
from ..graph.ir import Body
from ..machine.model import Device
from ..types import BLOCKS, Dtype, Scaling
from .block_fit import Footprint
from .occupancy import Limits
from .pace import Pace
from .tile_table import WHOLE_K, SplitK, Table
from .works import Work

MOST_CLUSTER = 8  # blocks of a cluster, on every GPU that has any


@dataclass(frozen=True, slots=True)
class GemmRequest:
    """A launch for whose products a kernel is wanted, and what the text asks of it (None: free choice).

    A caller that only wants to know what a family refuses may ask before flags exist, with works that have no waits.
    """

    works: tuple[Work, ...]
    smem: int | None = None
    residency: int | None = None
    sms: int | None = None
    streamed: bool = False
    arrival: float = 0.0  # µs from the launch's start until the last piece from another rank is there; 0: none comes
    private: frozenset[int] = frozenset()  # flags that nothing but this launch waits for
    kernel: str | None = None  # its name; vendor: the vendor's library
    leave: tuple[Footprint, ...] = ()  # each of these must fit beside all the launch's blocks of a multiprocessor


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a family does not take a launch."""

    family: str
    reason: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen for a request."""

    family: str
    kernel: str
    tile: tuple[int, int, int]  # rows, columns, depth
    stages: int
    smem: int
    residency: int | None
    sms: int | None
    refused: tuple[Refusal, ...] = ()  # by families that would have come first


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A launch whose kernel is known, to be configured."""

    kernel: str
    works: tuple[Work, ...]
    sms: int  # multiprocessors that it may take
    smem: int = 0  # of a block, at least: what the plan says
    streamed: bool = False  # its blocks may wait, so there are no more blocks than multiprocessors
    resets: tuple[int, ...] = ()  # flags that only this launch waits for, which it is to reset
    cluster: int = 1  # blocks that start side by side, of a streamed kernel that has no clusters of its own


@dataclass(frozen=True, slots=True)
class Operand:
    """A row-major matrix inside a tensor, in elements: where it begins, and from row to row."""

    view: int  # the place of the tensor's view in the work
    offset: int
    pitch: int
    transposed: bool = False  # it is stored the other way


@dataclass(frozen=True, slots=True)
class Matmul:
    """A call of the vendor's library: out = left · right, of m × k and k × n elements, or out += left · right. Sums are
    in fp32, and the factor is 1. To the sum it adds a matrix (`residual`) and a row to every row (`bias`), both of the
    output's type; then it applies the function. `sms`: the multiprocessors that the kernel is asked to be made for; 0:
    all. `scaling`: of the left and of the right operand of fp8; a `tensor` has one scale. `fast`: as in `Gemm`."""

    m: int
    n: int
    k: int
    dtype: Dtype
    out_dtype: Dtype
    left: Operand
    right: Operand
    out: Operand
    accumulate: bool
    sms: int = 0
    residual: Operand | None = None
    bias: Operand | None = None
    function: FunctionName | None = None
    right_dtype: Dtype | None = None  # where it is another one
    scaling: tuple[Scaling, Scaling] | None = None
    left_scales: Operand | None = None
    right_scales: Operand | None = None
    fast: bool = False

    @property
    def blocks(self) -> bool:
        """Whether scales are those of blocks, which change along K."""
        return self.scaling is not None and BLOCKS[self.scaling[0]][1] > 0

    @property
    def named(self) -> tuple[tuple[str, Operand], ...]:
        """Its matrices, its row and its scales, with their names."""
        parts = (("left", self.left), ("right", self.right), ("out", self.out))
        added = (("residual", self.residual), ("bias", self.bias))
        scales = (("left_scales", self.left_scales), ("right_scales", self.right_scales))
        return *parts, *((name, operand) for name, operand in (*added, *scales) if operand is not None)


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """How a kernel is launched; no addresses. With `matmuls` it is no kernel of ours: the vendor's library is called,
    with `workspace` bytes at most, and `blocks` is what its kernels are taken to hold."""

    family: str
    kernel: str
    entry: str
    source: str  # a file of kernels/src
    options: tuple[str, ...]  # of the compiler
    threads: int
    registers: int  # a thread's, at most
    smem: int  # dynamic shared memory of a block, bytes
    static_smem: int
    blocks: int
    cluster: int
    resident: int  # blocks that a multiprocessor holds; 0: not one
    tiles: int  # that its blocks share
    works: tuple[int, int]  # the first of the launch's works that it does, and how many
    alignment: int = 1  # bytes, of the address of every tensor
    chained: bool = False  # may start before the previous launch of its stream ends; its kernel waits for that
    read_only: tuple[bool, bool] = (False, False)  # whether nothing writes the left, and the right, operands in a run
    resets: tuple[int, ...] = ()  # flags that it resets
    unraised: tuple[int, ...] = ()  # flags between merged works: no code raises them or waits for them
    tile: tuple[int, int] = (1, 1)  # rows, columns; of copies: 1, bytes
    stages: int = 1
    wave: int = 1  # clusters at work at once: they decide the order of tiles and the splits of K
    band: int | None = None  # rows of clusters' tiles that are walked together; None: a wave is about square
    level: tuple[bool, bool] = (False, False)  # the last tiles of rows, of columns, overlap those before
    lockstep: bool = False  # clusters wait at each of their tiles until all have begun as many
    split_k: SplitK = WHOLE_K
    merged: tuple[tuple[int, ...], ...] = ()  # works that are made as one; empty: every work stands for itself
    matmuls: tuple[Matmul, ...] = ()
    workspace: int = 0

    @property
    def together(self) -> int:
        """Number of blocks that begin together or not at all. For a library's kernel it is unknown, so the largest
        possible number is used."""
        return MOST_CLUSTER if self.matmuls else self.cluster


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What cuTensorMapEncodeTiled is given; rank 2, element strides 1, no interleave, zero fill."""

    address: int
    dtype: str
    dims: tuple[int, int]  # elements; the contiguous one first
    pitch: int  # bytes
    box: tuple[int, int]
    offset: int  # where its 128 bytes go in the parameters
    swizzle: int = 128  # bytes; 0: none


Encode: TypeAlias = Callable[[TensorMap], bytes]
Move: TypeAlias = Callable[[int], int]  # from an address in a tensor to where the tensor lies now
TileWorks: TypeAlias = Sequence[int] | npt.NDArray[Any]  # of each tile the number of its work


@dataclass(frozen=True, slots=True)
class Tables:
    """A launch on memory. `constants` are put into device memory, and zeroed counters after them. Launches of a stream
    may have the same memory for their partial sums.

    The kernel leaves its counters as it found them, 0, unless a run is given up. `arguments` of the addresses of
    constants, counters and partial sums are the kernel's parameters. `tile_works` has the number of each tile's work
    among the configured launch's, or among its `merged` ones; empty where no kernel of ours is. `moved`, of families
    whose constants hold no tensor's address: the same tables for tensors that lie elsewhere.
    """

    constants: bytes = field(repr=False)
    counters: int  # words
    partials: int  # bytes
    arguments: Callable[[int, int, int, Encode], list[bytes]] = field(repr=False)
    tile_works: TileWorks = field(default=(), repr=False)
    moved: Callable[[Move], Tables] | None = field(default=None, repr=False)


def tables_of(table: Table, arguments: Callable[[int, int, int, Encode], list[bytes]]) -> Tables:
    """The tables of a kernel that reads such a table."""
    return Tables(table.constants, table.counter_bytes // 4, table.partial_bytes, arguments, table.tile_works)


class Variant(Protocol):
    """A kernel that a plan may name."""

    @property
    def name(self) -> str: ...

    @property
    def tile(self) -> tuple[int, int]: ...

    @property
    def cluster(self) -> int: ...


class Compiled(Variant, Protocol):
    """A variant that is one compilation of a source, for tiles of one size."""

    @property
    def warps(self) -> int:
        """Number of warps of a block that store a tile."""

    @property
    def threads(self) -> int: ...

    @property
    def registers(self) -> int:
        """Registers of a thread, at most."""


V = TypeVar("V", bound=Variant)


class Family(ABC, Generic[V]):
    """Kernels made of one source. Everything that depends on the family is in its folder; `families.FAMILIES` lists the
    families."""

    name: str
    source: str = ""  # a file of kernels/src
    variants: tuple[V, ...] = ()  # those that make products
    instructions: str = ""  # of tensor cores; empty: it uses none

    def movable(self, bodies: Iterable[Body]) -> bool:
        """Whether the tables of a launch of such works can be `moved`."""
        return False

    def serves(self, arch: str) -> bool:
        """Whether the family runs on an architecture."""
        return True

    def made_for(self, arch: str) -> bool:
        """Whether the family reaches the tensor cores' rate on an architecture, so that the vendor's library need not
        replace it."""
        return bool(self.instructions) and self.serves(arch)

    def reached(self, device: Device, dtype: str) -> float:
        """The share of a device's rate of large GEMMs that it reaches."""
        return 1.0

    def variant(self, kernel: str) -> V:
        return next(v for v in self.variants if v.name == kernel)

    def footprints(self, limits: Limits) -> Sequence[Footprint]:
        """What blocks of its variants for products take, with the least shared memory that they run with."""
        return ()

    @abstractmethod
    def fits(self, request: GemmRequest) -> str | None:
        """Why it cannot take these works on any device, or None."""

    @abstractmethod
    def choose(self, request: GemmRequest, limits: Limits) -> Chosen | str:
        """The variant that its cost model finds fastest; a text says why there is none."""

    @abstractmethod
    def configure(self, request: LaunchRequest, limits: Limits) -> tuple[KernelConfig, ...] | str:
        """The launches that do the works, one after another; a text says why it does not take them."""

    @abstractmethod
    def pace(self, config: KernelConfig, device: Device, dtype: str) -> Pace:
        """What a configured launch of products of `dtype` takes."""

    def tables(self, config: KernelConfig, works: Sequence[Work], resets: Sequence[int] = ()) -> Tables:
        """What a configured launch reads. `works` are all of the request, on memory; `resets` are the addresses of
        the flags of `config.resets`."""
        return Tables(b"", 0, 0, lambda constants, counters, partials, encode: [])
