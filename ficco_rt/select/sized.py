"""Operations whose number of rows is known when they run: a model has another number of tokens at each step.

An operation has a plan for each of some numbers of rows, its *buckets*; each is chosen, compiled and proven when it is
first used. A run takes the smallest bucket that is large enough. On GPUs most plans run with fewer rows than they
have; for others, and on the host, rows are copied to memory of the bucket's size and the result's rows back
(`exec.padded`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from math import prod
from typing import Any

from ..calibrate import alone
from ..driver.registry import has_gemms
from ..errors import UsageError
from ..exec import padded
from ..exec.device_arrays import Key, key_of
from ..exec.executor import Executor
from ..exec.workspace import Workspace
from ..files.arguments import multiprocessors, of_kind, plain, positive, whole
from ..files.store import user_store
from ..geometry.rows import Rows
from ..graph.budget import without_collection
from ..graph.scales import name_of
from ..kernels.families import AloneTimes, PlainProduct
from ..plan.codec import content_hash
from ..plan.ir import Plan
from ..process.group import agree, gathered
from ..types import TYPES
from . import measurements
from .choose import By, choose

LEAST = 16  # rows of a rank in the smallest bucket, if nothing is said


def _of_all(m: int, ranks: int) -> dict[str, object]:
    return {"M": m * ranks}


def _of_one(m: int, _: int) -> dict[str, object]:
    return {"M": m}


def _of_pairs(m: int, ranks: int) -> dict[str, object]:
    return {"counts": ((m,) * ranks,) * ranks}


# By operation, the tensors that have m rows, or (True) m rows of each rank, the one that tells m first; and the size
# that follows from m and the number of ranks.
_ROWS: Mapping[str, tuple[Mapping[str, bool], Callable[[int, int], dict[str, object]]]] = {
    "ag_gemm": ({"A": False, "C": True}, _of_all),
    "ag_gemm_kept": ({"A": False, "C": True, "R": True}, _of_all),
    "ag_gemm_backward": ({"X": False, "DY": True, "DX": False}, _of_all),
    "gemm_rs": ({"A": True, "C": False}, _of_all),
    "gemm_rs_backward": ({"X": True, "DY": False, "DX": True}, _of_all),
    "gemm_ar": ({"A": False, "C": False}, _of_one),
    "a2a_gemm": ({"X": True, "C": True}, _of_pairs),
    "a2a_gemm_backward": ({"X": True, "DY": True, "DX": True}, _of_pairs),
    "gemm_a2a": ({"X": True, "C": True}, _of_pairs),
}


class Operation:
    """An operation of `ficco choose` with up to `max_m` rows, in a workspace. m is the number of rows of a rank: of A
    in `ag_gemm` and `ag_gemm_kept`, whose outputs have those of all ranks; of C in `gemm_rs`, whose A has those of all
    ranks; of A and C in `gemm_ar`. In `a2a_gemm` and `gemm_a2a` it is what each rank sends to each. A backward
    operation (`ag_gemm_backward`, …) has the m of the forward one. All ranks have the same m. `sizes` are the other
    sizes, and types, as `choose` takes them; transb=1 for weights as `nn.Linear` stores them, bias=1 for
    a tensor b that is added to each row.

    `buckets`: the numbers of rows for which there are plans; by default the powers of two from 16, and `max_m`. `graph`
    and `by` are as for an `Executor` and for `choose`. `leave`: multiprocessors that kernels which wait, and meanwhile
    hold theirs, leave to kernels of other libraries. `run` takes tensors as `Executor.run` does. In a group all
    processes make the same calls with the same m: they compare it, on GPUs at the first run with each m.

    Raises UsageError (no such operation, sizes that are missing), ScheduleError (sizes that do not fit).
    """

    def __init__(
        self,
        workspace: Workspace,
        operation: str,
        *,
        max_m: int,
        buckets: Iterable[int] | None = None,
        graph: bool | None = None,
        by: By | None = None,
        leave: int = 0,
        **sizes: object,
    ) -> None:
        if operation not in _ROWS:
            raise UsageError(f"'{operation}' has no number of rows that may change; {', '.join(_ROWS)} have")
        of_kind(workspace, Workspace, "an Operation runs in a ficco.Workspace")
        blocks, self._counted = _ROWS[operation]
        for name in self._counted(1, workspace.ranks).keys() & sizes.keys():
            raise UsageError(f"{name} is given by the tensors of each run: say max_m, the most rows, in its place")
        self.max_m = positive(max_m, "max_m", "rows")
        powers: Iterable[int] = takewhile(lambda m: m < self.max_m, (LEAST << i for i in range(64)))
        given = powers if buckets is None else buckets
        if not isinstance(given, Iterable):
            raise UsageError(f"buckets are numbers of rows, such as [256, 1024]; given {given}")
        asked = (positive(m, "a bucket", "rows") for m in given)
        self.buckets = tuple(sorted({*asked, self.max_m}))
        if self.buckets[-1] > self.max_m:
            raise UsageError(f"a bucket of {self.buckets[-1]} rows is larger than max_m, {self.max_m}")
        self._workspace, self._operation, self._by, self._sizes = workspace, operation, by, sizes
        self._graph, self._leave = graph, multiprocessors(leave, "leave")
        self._executors: dict[int, Executor] = {}  # by bucket
        self._prepared: dict[Key | None, padded.Prepared] = {}  # runs on GPUs
        self._blocks = {name: workspace.ranks if of_all else 1 for name, of_all in blocks.items()}
        self._tells = next(iter(blocks))
        self._agreed: set[int] = set()  # numbers of rows with which all processes have run
        self._scaled = any(" scaled " in str(value) for value in sizes.values())
        self._store = user_store()

    def bucket(self, m: int) -> int:
        """The number of rows of the plan that serves m rows.

        Raises UsageError (more than `max_m`).
        """
        if not 0 <= whole(m, "m") <= self.max_m:
            raise UsageError(
                f"{m} rows of a rank, and the operation takes {self.max_m} at most: make it with a larger max_m"
            )
        return self.buckets[bisect_left(self.buckets, m)]

    def executor(self, m: int) -> Executor:
        """The executor that serves m rows, made if there is none yet.

        Raises UsageError (more than `max_m`), DeviceError (memory), ScheduleError (sizes that do not fit).
        """
        bucket = self.bucket(m)
        if bucket < self.max_m and not self._executors:
            self.executor(self.max_m)  # the others then fit into its scratch
        if bucket not in self._executors:
            ranks = self._workspace.ranks
            sizes = {**self._sizes, **self._counted(bucket, ranks)}
            with without_collection():
                made = Executor(self._plan(sizes), workspace=self._workspace, store=self._store)
            made.graph = self._graph
            for tensor in made.plan.tensors:
                if tensor.scaling is not None and tensor.name in self._blocks:
                    self._blocks[name_of(tensor.name)] = self._blocks[tensor.name]
            self._executors[bucket] = made
        return self._executors[bucket]

    def _plan(self, sizes: Mapping[str, object]) -> Plan:
        """The plan of the schedule that is chosen: kept since it was proven, or proven now."""
        asked = self._operation, self._workspace.ranks, self._workspace.machine, self._by
        said = sorted((name, plain(value)) for name, value in sizes.items())
        on_gpus = self._workspace.shared is not None
        library = not on_gpus or has_gemms(self._workspace.driver)
        measured = measurements.stored() if self._by == "measured" else None
        key = (*asked, library, self._leave, said, measured)
        plan = self._store.get(key, Plan)
        if self._workspace.group is not None:  # processes that have not all kept the same plan choose again
            kept = self._of_all("" if plan is None else content_hash(plan), "look for a plan")
            plan = plan if len(set(kept)) == 1 else None
        if plan is None:
            timer = self._times if on_gpus else None
            plan = choose(*asked, sizes=sizes, vendor=library, leave=self._leave, timer=timer).plan
            self._store.put(key, plan)
        return plan

    def _times(self, product: PlainProduct) -> AloneTimes | None:
        """As the first process measures them."""
        group, mine = self._workspace.group, None
        if group is None or group.rank == 0:
            driver = self._workspace.driver
            mine = alone.times(product, driver, None if group is None else group.part((group.rank,)))
        found = self._of_all(None if mine is None else asdict(mine), "measure a product")[0]
        return None if found is None else AloneTimes(**found)

    def _of_all(self, mine: object, step: str) -> list[Any]:
        """What every process states."""
        group = self._workspace.group
        return [mine] if group is None else gathered(group, mine, self._workspace.timeout, step)

    def _agree(self, m: int) -> None:
        """UsageError: processes run with other rows, where results would be wrong without a word."""
        group = self._workspace.group
        if group is not None and (self._workspace.shared is None or m not in self._agreed):
            agree(group, {"the rows of a rank": str(m), "the run": self._operation}, self._workspace.timeout)
            self._agreed.add(m)

    def warm(self) -> None:
        """Make the executors of all buckets, ahead of runs.

        Raises DeviceError (memory), ScheduleError (sizes that do not fit).
        """
        for bucket in reversed(self.buckets):  # smaller ones fit into the scratch of larger ones
            self.executor(bucket)

    def run(self, *, streams: Sequence[object] | None = None, **tensors: Sequence[object]) -> None:
        """Run the operation once on tensors of any m up to `max_m`, as `Executor.run` does.

        Raises UsageError (what is given does not fit), DeviceError (memory, deadlock).
        """
        if self._scaled:
            tensors = dict(values_and_scales(tensors))
        if self.again(tensors, streams):
            return
        key = None if self._workspace.shared is None else key_of(tensors)
        m = _rows(tensors, self._tells, self._blocks[self._tells])
        self._agree(m)
        executor, rows = self.executor(m), Rows(self.bucket(m), m, self._blocks)
        with self._workspace.entered():
            padded.run(self._workspace, executor, tensors, rows, self.max_m, streams, key, self._prepared)

    def again(
        self, tensors: Mapping[str, Sequence[object]], streams: Sequence[object] | None, *, gradients: bool = False
    ) -> padded.Prepared | None:
        """Run once more on PyTorch tensors at the addresses of an earlier run, as `run` does; what was run, or None.
        `gradients`: they may require gradients, of which a run knows nothing.

        Raises UsageError, DeviceError (as `run`).
        """
        known = self._prepared.get(key_of(tensors, gradients=gradients)) if self._prepared else None
        return known if known is not None and known.again(streams) else None

    def copied(self, m: int) -> int:
        """Bytes that a run with m rows copies beside it, at most on one rank: of tensors that lie in memory of the
        workspace during the run, because other processes touch them, or the plan takes no fewer rows than its own.

        Raises UsageError (more than `max_m`), DeviceError (memory), ScheduleError (sizes that do not fit).
        """
        executor, rows = self.executor(m), Rows(self.bucket(m), m, self._blocks)
        staged = [t for t in executor.plan.tensors if t.name in executor.driver.staged(rows)] if m else []
        return max(
            sum(TYPES[t.dtype].bytes * prod(rows.shape(t.name, t.shapes[rank])) for t in staged)
            for rank in executor.ranks
        )

    def synchronize(self) -> None:
        """Wait for the last run's end.

        Raises UsageError (the workspace is closed), DeviceError (the run failed, or did not end in time).
        """
        for executor in list(self._executors.values())[:1]:
            executor.synchronize()
            if self._workspace.shared is not None:
                self._workspace.shared.wait_for_rows()


def values_and_scales(tensors: Mapping[str, Sequence[object]]) -> Iterator[tuple[str, Sequence[object]]]:
    """Lists of pairs (values, scales) as two lists, and other lists as they are."""
    for name, given in tensors.items():
        pairs = [each for each in given if isinstance(each, tuple) and len(each) == 2]
        if given and len(pairs) == len(given):
            yield name, [values for values, _ in pairs]
            yield name_of(name), [scales for _, scales in pairs]
        else:
            yield name, given


def _rows(tensors: Mapping[str, Sequence[object]], name: str, blocks: int) -> int:
    """m, by the first rank's tensor."""
    of_ranks = tensors.get(name)
    given = of_ranks[0] if isinstance(of_ranks, Sequence) and len(of_ranks) else None
    shape: Sequence[int] = getattr(given, "shape", ())
    if not len(shape):
        raise UsageError(f"{name}: wanted a list of tensors, one a rank, whose rows tell how many there are")
    if shape[0] % blocks:
        raise UsageError(f"{name} has {shape[0]} rows, which are not the same number of {blocks} ranks")
    return int(shape[0]) // blocks
