"""What a vendor's library of collectives gives: NCCL and RCCL, whose calls are alike."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from ...device.ir import Library
from ...graph.ir import CallKind, CollectiveSettings
from ...types import Dtype
from .refused import Refused

UNIQUE = 128  # bytes of an ncclUniqueId
ZERO_CTAS = 2  # NCCL_CTA_POLICY_ZERO: copy engines where that is possible
PENDING = "ncclInProgress"  # the state of a communicator that what was begun of it has not left yet

_ADVICE = {
    "ncclUnhandledCudaError": "a call of CUDA or HIP failed inside; NCCL_DEBUG=WARN tells which",
    "ncclSystemError": "a call of the operating system failed inside; NCCL_DEBUG=WARN tells which",
    "ncclInternalError": "NCCL_DEBUG=WARN tells more",
    "ncclRemoteError": "another rank failed, or left",
}


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


class CollectiveLibrary(Protocol):
    """What NCCL and RCCL give. Each method makes calls, and raises Refused. `call` and `open` stand in a `group`.

    Communicators do not block: after the end of a group they are PENDING, while a thread of the library connects or
    launches, and until that is over nothing but `state` and `abort` may be called. One thread at a time."""

    name: Library

    def version(self) -> str: ...

    def group(self) -> AbstractContextManager[None]:
        """The calls inside are made at its end, together."""

    def unique(self) -> bytes:
        """What the communicators of several ranks have in common, in whatever processes these are."""

    def open(self, ranks: int, rank: int, unique: bytes, settings: CollectiveSettings) -> Any:
        """A communicator on the current device. It is PENDING until all ranks have come."""

    def call(self, kind: CallKind, communicator: Any, rank: int, ranks: int, member: Member) -> None: ...

    def state(self, communicator: Any) -> str:
        """PENDING, or the error of a communicator by its name; nothing if all is well. NOTE the first answer that is
        not PENDING joins the library's thread: it is no mere question."""

    def abort(self, communicator: Any) -> None:
        """Kernels and threads of the communicator stop at once. The rest, at the end of a group if it stands in one,
        waits until no graph holds calls of it."""

    def close(self, communicator: Any) -> None:
        """Not of one that is PENDING or has failed: that is aborted."""
