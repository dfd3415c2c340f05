"""The graph: what each rank computes and moves, on exact regions. No streams, events or machine yet.

`Graph.ops` have the order of the schedule's meaning: stage by stage, phase by phase, rank by rank, and in text order
within a rank. `Graph.deps[i]` are the earlier ops that op i must follow.

An op consists of a body, which says what is done, and a `Where`. Plans hold the same bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, TypeAlias, TypeVar

from ficco_dsl.diagnostics import Span

from ..files.records import Count, Positive
from ..geometry.region import Region
from ..types import ACCUMULATOR, TYPES, Dtype, Scaling, holds
from .functions import FunctionName

T = TypeVar("T")
Engine: TypeAlias = Literal["copy", "sm", "nccl"]
Priority: TypeAlias = Literal["high", "normal", "low"]
Hazard: TypeAlias = Literal["read after write", "write after read", "write after write"]
CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
# What the vendor's library is called for. `send_recv`: each rank sends to one rank and receives from one.
CallKind: TypeAlias = Literal[CollectiveKind, "send_recv"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of every rank; `shapes[r]` is rank r's part (elements)."""

    name: str
    kind: Literal["input", "output", "scratch"]
    dtype: Dtype
    shapes: tuple[tuple[int, ...], ...]
    unproven: bool
    origin: Span = field(compare=False)
    scaling: Scaling | None = None  # its scales are a tensor of their own (`graph/scales`)


@dataclass(frozen=True, slots=True)
class Leave:
    """What a launch leaves free: shared memory, or room for a block of the vendor's collectives, on each of the
    multiprocessors that it takes; or whole multiprocessors."""

    what: Literal["bytes", "nccl", "sms"]
    amount: int = 0  # bytes, or multiprocessors

    def __str__(self) -> str:
        return {"bytes": f"{self.amount} bytes", "nccl": "nccl", "sms": f"{self.amount} sms"}[self.what]


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that a queue, stage or statement requests from the device; None leaves the choice to the
    compiler."""

    priority: Priority | None = None
    smem: int | None = None  # bytes of dynamic shared memory a block
    residency: int | None = None  # blocks a multiprocessor
    sms: int | None = None  # multiprocessors that a persistent grid may use
    order: Literal["text", "auto"] | None = None  # may transfers be reordered
    kernel: str | None = None  # that makes products, by its name; vendor: of the vendor's library
    scale: Literal["pow2"] | None = None  # which scales a quantize computes
    leave: Leave | None = None
    fast: int | None = None  # 1: products of fp8 are added up by the tensor cores alone


@dataclass(frozen=True, slots=True)
class CollectiveSettings:
    """The settings that a queue requests from the vendor's library of collectives; None leaves the choice to the
    library."""

    ctas: Count | None = None  # blocks of a collective's kernel at most, each on a multiprocessor; 0: none where it can
    threads: Positive | None = None  # of such a block, at most


@dataclass(frozen=True, slots=True)
class Queue:
    """Where a stage runs: an engine of every rank."""

    name: str
    engine: Engine
    resources: Resources
    origin: Span = field(compare=False)
    collectives: CollectiveSettings | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage, or one iteration of it inside a `step`. `after` are indices of earlier stages."""

    name: str
    queue: str
    iteration: tuple[int, ...]
    streamed: bool
    after: tuple[int, ...]
    origin: Span = field(compare=False)

    @property
    def label(self) -> str:
        return self.name + "".join(f"[{i}]" for i in self.iteration)


@dataclass(frozen=True, slots=True)
class Body:
    """What an op does. The record of its kind (`kinds`) has what each level needs to know. Bodies whose fields other
    levels read are defined here; bodies that other levels use only through the record are defined in their module in
    `ops`."""

    @property
    def reads(self) -> tuple[Region, ...]:
        raise NotImplementedError

    @property
    def writes(self) -> tuple[Region, ...]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Copy(Body):
    """dst <- src, bit by bit, equal logical shapes; one of the two may be on another rank."""

    dst: Region
    src: Region

    @property
    def reads(self) -> tuple[Region, ...]:
        return (self.src,)

    @property
    def writes(self) -> tuple[Region, ...]:
        return (self.dst,)


@dataclass(frozen=True, slots=True)
class Gemm(Body):
    """out = left · right + the sum of `addends` (or out += left · right), logical [m, k] · [k, n]; a transposed operand
    is stored the other way. All is added in fp32, `function` is applied to the sum and multiplied by `factor`, and the
    result is rounded once. An addend has the shape of `out`, or is one row, which is added to every row. It is of the
    operands' type or of fp32, and so is the factor. `out` may be on another rank, and so may an addend, which may be
    `out` itself. With `+=` there are no addends and no function, and `out` is the rank's own. `scales`: those of the
    left and of the right operand, if they are scaled. `fast`: products of fp8 may be added up as tensor cores do alone,
    which keeps some 14 bits."""

    out: Region
    left: Region
    right: Region
    left_transposed: bool
    right_transposed: bool
    accumulate: bool
    addends: tuple[Region, ...] = ()
    function: FunctionName | None = None
    factor: Region | None = None
    scales: tuple[Region, ...] = ()
    fast: bool = False
    tf32: bool = False  # fp32 operands may be rounded to TF32: all claims admit it

    @property
    def reads(self) -> tuple[Region, ...]:
        added = (self.out,) if self.accumulate else self.addends
        return (self.left, self.right, *added, *((self.factor,) if self.factor else ()), *self.scales)

    @property
    def writes(self) -> tuple[Region, ...]:
        return (self.out,)

    @property
    def transposed(self) -> tuple[bool, bool]:
        return self.left_transposed, self.right_transposed

    @property
    def stored_afar(self) -> bool:
        """Whether the result goes to another rank; the operands are always on the gemm's own rank."""
        return self.out.rank != self.left.rank

    @property
    def depth(self) -> int:
        """The inner size, K."""
        return self.left.shape[0 if self.left_transposed else -1]

    @property
    def flops(self) -> int:
        """Operations."""
        return 2 * self.out.elements * self.depth


@dataclass(frozen=True, slots=True)
class Reduce(Body):
    """out = the sum of `terms`, elementwise, accumulated in fp32; or `function` of it, times `factor`, as in Gemm."""

    out: Region
    terms: tuple[Region, ...]
    function: FunctionName | None = None
    factor: Region | None = None

    @property
    def reads(self) -> tuple[Region, ...]:
        return (*self.terms, *((self.factor,) if self.factor else ()))

    @property
    def writes(self) -> tuple[Region, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantize(Reduce):
    """out, of fp8, = the value of a Reduce, divided by `scales`, which it writes, too: one for `across` elements of a
    row (0: for all), computed from the largest of them (`pow2`: a power of two), or the number that `by` holds."""

    scales: Region
    across: int
    by: Region | None = None
    pow2: bool = False

    @property
    def reads(self) -> tuple[Region, ...]:
        return tuple(region for region in (*self.terms, self.factor, self.by) if region is not None)

    @property
    def writes(self) -> tuple[Region, ...]:
        return (self.out, self.scales)


@dataclass(frozen=True, slots=True)
class Collective(Body):
    """One rank's call of the vendor's library. All ranks' calls of one `group` are one operation;
    they stand next to each other in `Graph.ops`, in a phase of their own. Pieces go along the
    first logical dimension.

    `send_recv`: the rank sends `src` to rank `to`, and receives `dst` from rank `by`. A side of no elements is not
    sent, or not received; other calls have no such side, and no `to` and `by`."""

    kind: CallKind
    group: int
    dst: Region
    src: Region
    to: int = -1
    by: int = -1

    @property
    def reads(self) -> tuple[Region, ...]:
        return (self.src,) if self.src.elements else ()

    @property
    def writes(self) -> tuple[Region, ...]:
        return (self.dst,) if self.dst.elements else ()


def by_call(items: Iterable[T], body: Callable[[T], Body]) -> Iterator[list[T]]:
    """Items one by one, by their bodies; the calls of a collective, which stand next to each other, at once."""

    def group(item: T) -> object:
        call = body(item)
        return call.group if isinstance(call, Collective) else object()

    return (list(members) for _, members in groupby(items, group))


def heard(call: Collective, rank: int, ranks: int) -> Sequence[int]:
    """The ranks whose calls have certainly begun when this rank's call ends. NOTE a library may buffer what is sent, so
    the end of a send_recv says nothing about the rank that it sends to."""
    if call.kind != "send_recv":
        return range(ranks)
    return (rank, call.by) if call.writes else (rank,)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a user kernel: a region with its mode, or an int."""

    name: str
    mode: Literal["read", "write", "update", "int"]
    value: Region | int


@dataclass(frozen=True, slots=True)
class KernelCall(Body):
    """A user kernel. The proof does not see into it; its declared regions order it. The dynamic shared memory that it
    takes is the `smem` of the op's resources."""

    kernel: str
    arguments: tuple[Argument, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def reads(self) -> tuple[Region, ...]:
        return tuple(a.value for a in self.arguments if a.mode in ("read", "update") and isinstance(a.value, Region))

    @property
    def writes(self) -> tuple[Region, ...]:
        return tuple(a.value for a in self.arguments if a.mode in ("write", "update") and isinstance(a.value, Region))


@dataclass(frozen=True, slots=True)
class Where:
    """The issuing rank, the stage (index), the phase within the stage, resources, place."""

    rank: int
    stage: int
    phase: int
    resources: Resources
    origin: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Op:
    """A body and where it is executed."""

    where: Where
    body: Body

    @property
    def reads(self) -> tuple[Region, ...]:
        return self.body.reads

    @property
    def writes(self) -> tuple[Region, ...]:
        return self.body.writes


@dataclass(frozen=True, slots=True)
class Dep:
    """This op follows op `before`, because of `tensor` on `rank`."""

    before: int
    hazard: Hazard
    tensor: str
    rank: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A user kernel's declaration. `host` is `file.py:function`, its numpy twin; paths are as written, relative to
    `folder` (the schedule's if empty). The SHA-256 of both files are known once a plan is sealed (`kernel_files`)."""

    name: str
    file: str
    entry: str
    host: str | None
    origin: Span = field(compare=False)
    file_hash: str = ""
    host_hash: str = ""
    folder: str = field(default="", compare=False)


# ---------------------------------------------------------------- what the schedule claims to compute


@dataclass(frozen=True, slots=True)
class Operand:
    """An input as the claim reads it: one region a rank."""

    regions: tuple[Region, ...]
    transposed: bool


@dataclass(frozen=True, slots=True)
class Product:
    """left · right on every rank."""

    left: ClaimValue
    right: ClaimValue


@dataclass(frozen=True, slots=True)
class Added:
    """left + right on every rank; a right side of one dimension is added to every row."""

    left: ClaimValue
    right: ClaimValue


@dataclass(frozen=True, slots=True)
class Applied:
    """A function of a finished sum; a second argument is what its value is multiplied by. Nothing is added to it, and
    nothing multiplied by it."""

    function: FunctionName
    arguments: tuple[ClaimValue, ...]


@dataclass(frozen=True, slots=True)
class Combined:
    """A collective of the ranks' values. `axis` counts from the last two logical dimensions: 0 rows, 1 columns.

    `shares[r]` says how rank r's operand is cut (reduce_scatter and all_to_all); lengths, one a rank.
    """

    kind: CollectiveKind
    operand: ClaimValue
    axis: int
    shares: tuple[tuple[int, ...], ...] | None


ClaimValue: TypeAlias = Operand | Product | Added | Applied | Combined


@dataclass(frozen=True, slots=True)
class Claim:
    """`computes target = value`: after the run, every rank's target region holds the value, up to the rounding of the
    target's own type and of the types `within`."""

    targets: tuple[Region, ...]
    value: ClaimValue
    text: str  # as written, for reports
    origin: Span = field(compare=False)
    within: tuple[Dtype, ...] = ()
    tf32: bool = False  # and fp32 operands of products may be rounded to TF32

    def admits(self, dtype: Dtype, own: Dtype) -> bool:
        """Whether intermediate values of a target of type `own` may be rounded to `dtype`. Of fp8 the claim says so
        even where the target has it."""
        return dtype == ACCUMULATOR or any(
            holds(dtype, admitted) for admitted in (*(() if TYPES[own].quantised else (own,)), *self.within)
        )


@dataclass(frozen=True, slots=True)
class Graph:
    """A schedule with all sizes bound and all loops expanded on all ranks."""

    schedule: str
    path: str
    ranks: int
    params: tuple[tuple[str, object], ...]  # name, value (int or nested tuples of int), and types as text
    tensors: tuple[Tensor, ...]
    queues: tuple[Queue, ...]
    stages: tuple[Stage, ...]
    kernels: tuple[Kernel, ...]
    claims: tuple[Claim, ...]
    ops: tuple[Op, ...]
    deps: tuple[tuple[Dep, ...], ...]

    def __repr__(self) -> str:
        return f"<Graph of {self.schedule}: {self.ranks} ranks, {len(self.stages)} stages, {len(self.ops)} ops>"

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def queue(self, name: str) -> Queue:
        return next(q for q in self.queues if q.name == name)
