"""Runs operations on tensors of PyTorch: for each process group and device one workspace, a lock, and the operations
that were called so far.

What serves a call follows from the shapes, types and layouts of its tensors and from the settings, which all processes
of the group give alike, and from nothing else: no address, no failure in one process. Where processes may have called
with different ones, they compare (`Settings.check`).
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, get_args

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._dynamo import guards

from ..driver.api import DriverName
from ..driver.gpu.refused import Closing
from ..errors import DeviceError, ScheduleError, UsageError
from ..exec.device_arrays import Key
from ..exec.padded import MOST, Prepared
from ..exec.workspace import TIMEOUT, Workspace
from ..files.arguments import multiprocessors, positive, seconds, whole
from ..kernels.gemm_launch import ALIGNMENT
from ..process.group import Group, agree, as_group, gathered
from ..select.choose import By
from ..select.sized import LEAST, Operation

T = TypeVar("T")
LOG = logging.getLogger("ficco_rt.torch")
NCCL_BLOCKS = 32  # multiprocessors that a collective of NCCL may hold, if nothing else is said
FINE = 1024  # rows of a rank from which buckets lie closer than powers of two
_EMPTY: Any = getattr(guards, "_empty_strided_cuda", None)
DTYPES: Mapping[torch.dtype, str] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


@dataclass(frozen=True, slots=True)
class Settings:
    """How operators run; the same in all processes of a group.

    `leave`: multiprocessors that kernels which wait leave to others that wait for other GPUs, as NCCL's of DDP or
    FSDP on another stream (docs/embed/reference.md); 0 where there are none. `limit`: the most bytes of each GPU that a
    group's workspace may hold. `buckets`: numbers of rows of a rank for which there are plans besides the usual ones,
    such as the sizes that are captured. `by`: how schedules are chosen (`ficco.choose`). `timeout` is as for a
    `Workspace`. `check`: compare at every call what the processes call, which takes an exchange; otherwise on GPUs each
    process does it at its first call of each shape. On the host every call is compared.

    Raises UsageError (no such value).
    """

    leave: int = NCCL_BLOCKS
    limit: int | None = None
    buckets: Sequence[int] = ()
    by: By | None = None
    timeout: float | None = TIMEOUT
    check: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.buckets, Sequence) or any(whole(m, "a bucket") < 1 for m in self.buckets):
            raise UsageError(f"buckets is a list of numbers of rows, each at least 1; given {self.buckets}")
        object.__setattr__(self, "buckets", tuple(self.buckets))  # alike, however they are given
        if not isinstance(self.check, bool):
            raise UsageError(f"check is True or False; given {self.check!r}")
        multiprocessors(self.leave, "leave")
        if self.limit is not None:
            positive(self.limit, "limit", "bytes")
        if self.by not in (None, *get_args(By)):
            raise UsageError(f"by is {', '.join(get_args(By))}; given {self.by!r}")
        seconds(self.timeout, "timeout")


class Known(NamedTuple):
    """What a call on inputs at known addresses is: the shapes, strides and types of the tensors that it makes, and runs
    by where these lie: the address of the only one, or the addresses of several."""

    made: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    runs: dict[tuple[int, ...] | int, Prepared]


class Operations:
    """The operations of one process group on one device. Threads may call; the calls of a group follow one another, and
    all processes make them in the same order."""

    def __init__(self, group: Any, device: torch.device, settings: Settings) -> None:
        self.group, self.ranks, self._settings, self._device = group, int(group.size()), settings, device
        self.driver: DriverName = "host" if device.type == "cpu" else "hip" if torch.version.hip else "cuda"
        self._workspace: Workspace | None = None
        self._lock = threading.RLock()
        self._compares = settings.check or self.driver == "host"  # at every call
        self._index, self._quick = device.index, _EMPTY is not None and self.driver != "host"
        self._made: dict[tuple[object, ...], Operation] = {}
        self._called: dict[tuple[object, ...], Operation] = {}  # by call
        self._zeros: dict[tuple[object, ...], torch.Tensor] = {}  # biases of ranks that add none
        self._reasons: dict[tuple[object, ...], str] = {}  # by a caller's shapes, why none serves them; empty: one does
        self._known: dict[Key, Known] = {}  # by call, with the addresses of its inputs
        self._ran: tuple[Prepared, set[int]] | None = None  # the run of the last call, if it may come again, and where

    def again(self, call: Key) -> list[torch.Tensor] | None:
        """The new tensors of a call that is known, whose run is made once more; None: nobody knows such a run, and
        `serve` makes the call. `call` says all that the call depends on, with the `place` of each input.

        NOTE most calls of a model end here. Raises UsageError, DeviceError (as `run`).
        """
        known = self._known.get(call)
        if known is None:
            return None
        made = [self._empty(*how) for how in known.made]
        run = known.runs.get(made[0].data_ptr() if len(made) == 1 else _at(made))
        if run is None:
            return None
        with self._lock:
            return made if run.again(self._streams()) else None

    def learn(self, call: Key, inputs: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> None:
        """From now on the `call` is known, if nothing but its run was made, on all of these tensors themselves."""
        if self._ran is None or self._compares:
            return
        run, places = self._ran
        at = _at(made)
        if places.issuperset((*at, *_at(inputs))):
            if len(self._known) == MOST:
                self._known.clear()
            how = [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in made]
            known = self._known.setdefault(call, Known(how, {}))
            if len(known.runs) == MOST:
                known.runs.clear()
            known.runs[at if len(at) > 1 else at[0]] = run

    def _empty(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """NOTE what Inductor's code calls, on the current device, takes a microsecond less."""
        if self._quick and torch._C._cuda_getDevice() == self._index:
            return _EMPTY(shape, stride, dtype)
        return torch.empty_strided(shape, stride, dtype=dtype, device=self._device)

    def _streams(self) -> list[object] | None:
        """NOTE a stream as an object takes PyTorch some microseconds."""
        return None if self.driver == "host" else [torch._C._cuda_getCurrentRawStream(self._index)]

    def serve(
        self,
        call: tuple[object, ...],
        said: Callable[[], str],
        refused: Callable[[], str],
        ours: Callable[[], T],
        pytorch: Callable[[], T],
    ) -> T:
        """What `ours` gives, or `pytorch` where there is a reason: one that `refused` tells, or that no schedule takes
        the sizes. It is found once for each `call`, the same in all processes, and logged behind what is `said`.

        Raises what `ours` and `pytorch` raise, but no ScheduleError of `ours`; UsageError: other processes have no such
        reason, where calls are compared.
        """
        why, self._ran = self._reasons.get(call), None
        if why is None:
            why = self._reasons[call] = self._log(said, refused())
        if not why:
            try:
                return ours()
            except ScheduleError as error:
                self._reasons[call] = self._log(said, str(error).splitlines()[0])
        elif self._compares and not self.alone:
            self._agree({"the implementation": f"PyTorch's, because {why}"})
        return pytorch()

    def _log(self, said: Callable[[], str], why: str) -> str:
        if why:
            LOG.info("%s, %d ranks: PyTorch's own implementation, because %s", said(), self.ranks, why)
        return why

    @property
    def alone(self) -> str:
        """Why there is nobody to communicate with; empty if there is. Raises nothing."""
        if self.ranks == 1 or c10d.get_backend(self.group) == "fake":
            return "the group has one process" if self.ranks == 1 else "the group is a fake one"
        return ""

    def refused(self, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> str:
        """Why no operation serves products of `x` with the weights, by what all processes of the group have alike;
        empty if operations do. Raises nothing."""
        if self.alone:
            return self.alone
        if any(weight.dtype != x.dtype or weight.device != x.device for weight in weights):
            return "the tensors differ in type or device"
        if x.dtype not in DTYPES or (x.is_cuda and x.dtype == torch.float32):
            return f"there is no tuned product of {str(x.dtype).removeprefix('torch.')}"
        if not x.numel() or not all(weight.numel() for weight in weights):
            return "there is nothing to compute"
        return ""

    def run(self, name: str, m: int, sizes: Mapping[str, Any], **tensors: torch.Tensor) -> None:
        """One run of an operation with m rows of a rank, on contiguous, aligned tensors of this process's rank: on GPUs
        on the current stream, without waiting. Outputs are written in place. `sizes` are all but M, as `ficco.choose`
        takes them. The operation is made at its first call, which all processes make at the same step.

        Raises UsageError (the processes call different things; a first call inside a capture), ScheduleError (sizes
        that no schedule takes), DeviceError (memory, deadlock).
        """
        call = name, m, *sizes.items()
        with self._lock:
            operation = self._called.get(call)
            if operation is None or self._compares:
                self._compare(name, m, sizes)
                operation = operation or self._operation(name, m, sizes)
                if call not in self._called:
                    self._called[call] = operation
                    LOG.info(
                        "%s of %d ranks, %d rows of each, %s: schedule %s, made for %d rows",
                        *(name, self.ranks, m, _words(sizes), operation.executor(m).plan.schedule, operation.max_m),
                    )
            given, streams = {key: [tensor] for key, tensor in tensors.items()}, self._streams()
            run = operation.again(given, streams, gradients=True)
            self._ran = None if run is None else (run, {tensor.data_ptr() for tensor in tensors.values()})
            if run is None:
                operation.run(streams=streams, **{key: [_plain(tensor)] for key, tensor in tensors.items()})

    def all_gather_matmul(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        keep: bool = False,
        turned: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`all_gather(x, rows) @ weight + bias` [ranks · m, n], and with `keep` the gathered x [ranks · m, k], without
        a bias: new tensors.

        `x` [m, k], `weight` [k, n] and `bias` [n] are of one type of `DTYPES`, with m, k, n ≥ 1, and have the same
        sizes in all processes of the group. A weight that is the transpose of a contiguous tensor is not copied;
        `turned`: it is [n, k], as of `nn.Linear`.

        Raises UsageError, ScheduleError, DeviceError (as `run`).
        """
        m, k = x.shape
        sizes, stored, n = _stored("B", weight, bias, turned)
        outputs = {"C": x.new_empty(m * self.ranks, n)}
        if keep:
            outputs["R"] = x.new_empty(m * self.ranks, k)
        name = "ag_gemm_kept" if keep else "ag_gemm"
        self.run(name, m, {"N": n * self.ranks, "K": k, **sizes}, A=dense(x), **stored, **outputs)
        return outputs["C"], outputs.get("R")

    def matmul_reduce_scatter(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, turned: bool = False
    ) -> torch.Tensor:
        """`reduce_scatter(x @ weight, rows) + bias` [m / ranks, n], of `x` [m, k], `weight` [k, n] and `bias` [n]; m is
        a multiple of the ranks. Otherwise as `all_gather_matmul`."""
        return self._reduced("gemm_rs", x, weight, bias, x.shape[0] // self.ranks, turned)

    def matmul_all_reduce(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, turned: bool = False
    ) -> torch.Tensor:
        """`all_reduce(x @ weight) + bias` [m, n], of `x` [m, k], `weight` [k, n] and the `bias` [n] of rank 0.
        Otherwise as `all_gather_matmul`."""
        if bias is not None and self.group.rank():
            bias = self.zeros_like(bias)
        return self._reduced("gemm_ar", x, weight, bias, x.shape[0], turned)

    def zeros_like(self, bias: torch.Tensor) -> torch.Tensor:
        """Made once for each length and type: a part of a graph's memory would not last."""
        key = bias.shape, bias.dtype
        if key in self._zeros:
            return self._zeros[key]
        made = torch.zeros_like(bias, requires_grad=False)
        if self.driver == "host" or not torch.cuda.is_current_stream_capturing():
            self._zeros[key] = made
        return made

    def _reduced(
        self, name: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, m: int, turned: bool
    ) -> torch.Tensor:
        sizes, stored, n = _stored("B", weight, bias, turned)
        y = x.new_empty(m, n)
        self.run(name, m, {"N": n, "K": x.shape[1] * self.ranks, **sizes}, A=dense(x), **stored, C=y)
        return y

    def all_to_all_matmul(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, turned: bool = False
    ) -> torch.Tensor:
        """`all_to_all(x, rows) @ weight + bias` [m, n], of `x` [m, k], whose piece r of m / ranks rows goes to rank r,
        and `weight` [k, n] and `bias` [n], this rank's own. Otherwise as `all_gather_matmul`."""
        rows, k = x.shape
        sizes, stored, n = _stored("W", weight, bias, turned)
        y = x.new_empty(rows, n)
        self.run("a2a_gemm", rows // self.ranks, {"N": n, "K": k, **sizes}, X=dense(x), **stored, C=y)
        return y

    def gradients(
        self, name: str, m: int, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of x and weight, by a backward operation with m rows: `x` […, k], `weight` [n, k] as `nn.Linear` has
        it, and the gradient `dy` […, n] of y. Otherwise as `all_gather_matmul`."""
        (n, k), ranks = weight.shape, self.ranks
        sizes = {"ag_gemm_backward": (n * ranks, k), "gemm_rs_backward": (n, k * ranks)}.get(name, (n, k))
        dx, dw = torch.empty_like(x), weight.new_empty(n, k)
        tensors = {"X": dense(x), "W": dense(weight), "DY": dense(dy), "DX": dx, "DW": dw}
        self.run(name, m, {"N": sizes[0], "K": sizes[1], "T": DTYPES[x.dtype]}, **tensors)
        return dx, dw

    def _operation(self, name: str, m: int, sizes: Mapping[str, Any]) -> Operation:
        """The operation of the bucket of m rows, which it has alone: a larger m needs no new one in its place."""
        bucket = min(b for b in (*self._settings.buckets, _bucket(m)) if b >= m)
        key = name, bucket, *sorted(sizes.items())
        if key not in self._made:
            if self.driver != "host" and torch.cuda.is_current_stream_capturing():
                raise UsageError(
                    f"{name} with {m} rows of a rank, {_words(sizes)}, is called for the first time inside a CUDA "
                    "graph capture, where nothing can be allocated: call it once with these sizes before the capture"
                )
            asked = {"by": self._settings.by, "leave": self._settings.leave, **sizes}
            made = Operation(self.workspace, name, max_m=bucket, buckets=[bucket], **asked)
            with self._current():
                made.warm()
            self._made[key] = made
        return self._made[key]

    @property
    def workspace(self) -> Workspace:
        """The group's, made when it is first needed, by all processes. Raises UsageError, DeviceError, as it does."""
        with self._lock:
            if self._workspace is None:
                settings, group = self._settings, as_group(self.group)
                with self._current():
                    self._workspace = Workspace(
                        self.ranks,
                        self.driver,
                        ranks_per_gpu=self._ranks_per_gpu(group),
                        group=group,
                        timeout=settings.timeout,
                        limit=settings.limit,
                    )
            return self._workspace

    def _ranks_per_gpu(self, group: Group) -> int:
        """The most processes that share a GPU, as all of them find it."""
        if self.driver == "host":
            return 1
        mine = str(torch.cuda.get_device_properties(self._device).uuid)
        return max(Counter(gathered(group, mine, self._settings.timeout, "its GPU")).values())

    def _current(self) -> AbstractContextManager[object]:
        """NOTE a workspace takes the current GPU."""
        return nullcontext() if self._device.type == "cpu" else torch.cuda.device(self._device)

    def _compare(self, name: str, m: int, sizes: Mapping[str, Any]) -> None:
        """Whether all processes make this call. On GPUs a run with other rows, or of another plan, would be wrong
        without a word, or wait until its time limit."""
        said = {"the operation": name, "the rows of a rank": str(m), **{key: str(sizes[key]) for key in sorted(sizes)}}
        self._agree(said)

    def _agree(self, said: Mapping[str, str]) -> None:
        with self._lock:  # backward runs in threads of its own
            assert self.workspace.group is not None
            agree(self.workspace.group, {**said, "the call": str(said)}, self._settings.timeout)

    def close(self) -> None:
        """Release the workspace. Raises DeviceError, as `Workspace.close`."""
        with self._lock:
            self._made.clear()
            self._called.clear()
            self._known.clear()
            workspace, self._workspace = self._workspace, None
            if workspace is not None:
                workspace.close()


_LOCK = threading.RLock()
_SETTINGS = Settings()
_OPERATIONS: dict[tuple[str, torch.device], Operations] = {}


def configure(settings: Settings) -> Settings:
    """The settings of workspaces that are made from now on; returns the earlier ones. Raises nothing."""
    global _SETTINGS
    with _LOCK:
        before, _SETTINGS = _SETTINGS, settings
        return before


def settle(settings: Settings) -> None:
    """All groups have these settings from now on. Raises UsageError (some group has run with others)."""
    with _LOCK:
        for key, of in list(_OPERATIONS.items()):
            if of._workspace is None:
                del _OPERATIONS[key]
            elif of._settings != settings:
                raise UsageError(
                    "operators of torch.ops.ficco have run with other settings: install before their first call, or "
                    "call uninstall() first, in all processes"
                )


def operations(group_name: str, device: torch.device) -> Operations:
    """Those of the process group of this name. Raises RuntimeError (there is no such group)."""
    group, key = c10d._resolve_process_group(group_name), (group_name, device)
    known = _OPERATIONS.get(key)
    if known is not None and known.group is group:
        return known
    with _LOCK:
        for other in sorted(_OPERATIONS, key=str):
            if not _lives(other[0], _OPERATIONS[other].group):
                with suppress(DeviceError, UsageError):
                    _OPERATIONS.pop(other).close()
        if key not in _OPERATIONS:
            _OPERATIONS[key] = Operations(group, device, _SETTINGS)
        return _OPERATIONS[key]


def _lives(name: str, group: Any) -> bool:
    """Whether a process group has not been destroyed; another one may have taken its name."""
    with suppress(RuntimeError):
        return c10d._resolve_process_group(name) is group
    return False


def _at(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple([tensor.data_ptr() for tensor in tensors])


def place(tensor: torch.Tensor) -> Key:
    """Where a tensor lies, and how: a part of what says a call, for `Operations.again`."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def close() -> None:
    """Close the workspaces of all groups; all processes do it at the same step. Raises DeviceError."""
    with _LOCK, Closing() as closing:
        for key in sorted(_OPERATIONS, key=str):  # in the same order everywhere
            closing(_OPERATIONS.pop(key).close)


@atexit.register
def _at_exit() -> None:
    with suppress(DeviceError, UsageError):
        close()


def _stored(
    name: str, weight: torch.Tensor, bias: torch.Tensor | None, turned: bool
) -> tuple[dict[str, object], dict[str, torch.Tensor], int]:
    """The sizes that say how the weight [k, n], which has a name, is stored and whether there is a bias; the tensors
    so; and n. `turned`: `weight` is [n, k]. A transpose is not copied."""
    if not weight.is_contiguous():
        other = weight.t()
        if other.is_contiguous():
            weight, turned = other, not turned
    sizes: dict[str, object] = {"T": DTYPES[weight.dtype], **({"transb": 1} if turned else {})}
    tensors = {name: dense(weight)}
    if bias is not None:
        sizes["bias"], tensors["b"] = 1, dense(bias)
    return sizes, tensors, weight.shape[not turned]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """NOTE a tensor that requires a gradient gives no DLPack."""
    return tensor.detach() if tensor.requires_grad else tensor


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy that is contiguous and aligned as all kernels want it: which kernel runs must not depend on
    addresses, which are this process's own."""
    made = tensor.contiguous()
    return made if made.data_ptr() % ALIGNMENT == 0 else made.clone()


def _bucket(m: int) -> int:
    """The least power of two from 16 that holds m rows; from 1024 on, where what a plan has beyond m costs most, the
    least multiple of an eighth of it."""
    power = 1 << max(m - 1, LEAST - 1).bit_length()
    step = power // 8 if m > FINE else power
    return -(-m // step) * step


def words(tensor: torch.Tensor) -> str:
    """`[4, 16] bfloat16`. Raises nothing."""
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _words(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())
