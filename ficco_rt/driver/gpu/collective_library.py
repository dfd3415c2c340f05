"""The interface to a vendor's library of collectives: NCCL or RCCL, whose calls are alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ...device.ir import Library
from ...graph.ir import CallKind, CollectiveSettings
from ...types import TYPES, Dtype
from .refused import Refused, coded

UNIQUE = 128  # bytes of an ncclUniqueId
ZERO_CTAS = 2  # NCCL_CTA_POLICY_ZERO: copy engines where that is possible
PENDING = "ncclInProgress"  # the state of a communicator that what was begun of it has not left yet

_ADVICE = {
    "ncclUnhandledCudaError": "a call of CUDA or HIP failed inside; NCCL_DEBUG=WARN tells which",
    "ncclSystemError": "a call of the operating system failed inside; NCCL_DEBUG=WARN tells which",
    "ncclInternalError": "NCCL_DEBUG=WARN tells more",
    "ncclRemoteError": "another rank failed, or left",
}


def c_name(call: str) -> str:
    """all_reduce is ncclAllReduce."""
    return f"nccl{''.join(map(str.capitalize, call.split('_')))}"


def refused(call: str, code: str) -> Refused:
    """The error of a call that gave `code`, by its C name."""
    return Refused(call, code, "", _ADVICE.get(code, ""))


class Member(NamedTuple):
    """A rank's call: addresses, and elements of the rank's own part (all_to_all: of the piece for each rank).
    send_recv: the elements that go to rank `to`, and those `received` from rank `by`. None are a message, too: both of
    two ranks know of it."""

    dst: int
    src: int
    elements: int
    dtype: Dtype
    stream: Any
    received: int = 0
    to: int = -1
    by: int = -1


class CollectiveLibrary(ABC):
    """NCCL or RCCL, whose calls and codes are alike. Each method makes calls, and raises Refused. `call` and `open`
    stand in a `group`.

    Communicators do not block: after the end of a group they are PENDING, while a thread of the library connects or
    launches, and until that is over nothing but `state` and `abort` may be called. One thread at a time."""

    name: Library
    _number: int  # of the version
    _sum: Any  # the operation
    _nobody: Any  # a communicator that is none

    @abstractmethod
    def _made(self, call: str, *arguments: Any) -> Any:
        """The value of a call: `comm_abort` is ncclCommAbort. Refused: the library gave an error."""

    @abstractmethod
    def _type(self, code: int) -> Any:
        """An element type as calls take it."""

    def version(self) -> str:
        number = self._number
        return f"{self.name} {number // 10000}.{number % 10000 // 100}.{number % 100}"

    @contextmanager
    def group(self) -> Iterator[None]:
        """The calls inside are made at its end, together."""
        try:
            self._made("group_start")
            yield
        except BaseException:
            with suppress(Refused):  # the first error is the one to tell
                # NOTE ranks missing from the group would be waited for: after a call that fails its end does nothing
                self._made("all_reduce", 0, 0, 0, self._type(TYPES["fp32"].nccl or 0), self._sum, self._nobody, 0)
            with suppress(Refused):
                self._made("group_end")
            raise
        self._made("group_end")

    @abstractmethod
    def unique(self) -> bytes:
        """The identifier that the communicators of several ranks share, in whatever processes these are."""

    @abstractmethod
    def open(self, ranks: int, rank: int, unique: bytes, settings: CollectiveSettings) -> Any:
        """A communicator on the current device. It is PENDING until all ranks have come."""

    def call(self, kind: CallKind, communicator: Any, rank: int, ranks: int, member: Member) -> None:
        dst, src, elements, dtype, stream, *_ = member
        kept, on, made = self._type(self.code(dtype)), int(stream), self._made
        match kind:
            case "all_reduce" | "reduce_scatter":
                made(kind, src, dst, elements, kept, self._sum, communicator, on)
            case "all_gather":
                made(kind, src, dst, elements, kept, communicator, on)
            case "send_recv":
                made("send", src, elements, kept, member.to, communicator, on)
                made("recv", dst, member.received, kept, member.by, communicator, on)
            case "all_to_all":
                size = elements * TYPES[dtype].bytes
                for peer in range(ranks):
                    made("send", src + peer * size, elements, kept, peer, communicator, on)
                    made("recv", dst + peer * size, elements, kept, peer, communicator, on)

    def code(self, dtype: Dtype) -> int:
        """The library's code of an element type. Refused: it has none."""
        return coded(TYPES[dtype].nccl, dtype, self.name, "take engine = copy, or tensors of another type")

    @abstractmethod
    def state(self, communicator: Any) -> str:
        """PENDING, or the error of a communicator by its name; nothing if all is well. NOTE the first answer that is
        not PENDING joins the library's thread: it is no mere question."""

    def abort(self, communicator: Any) -> None:
        """Kernels and threads of the communicator stop at once. The rest, at the end of a group if it stands in one,
        waits until no graph holds calls of it."""
        self._made("comm_abort", communicator)

    def close(self, communicator: Any) -> None:
        """Not of one that is PENDING or has failed: that is aborted."""
        self._made("comm_destroy", communicator)
