"""Estimates when data sent by other ranks arrives. Kernels are chosen by these estimates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

from ..graph import ir
from ..kernels.catalogue import copy_sms
from ..machine.durations import gemm_time, store_time, transfer_time
from ..machine.model import Machine
from ..types import TYPES


class Arrivals:
    """Arrival estimates for one graph on one machine. Copies of one tensor are assumed to follow one another."""

    def __init__(self, graph: ir.Graph, machine: Machine) -> None:
        self._graph, self._machine = graph, machine
        self._dtypes = {t.name: t.dtype for t in graph.tensors}

    def last(self, where: ir.Where, gemms: Sequence[ir.Gemm]) -> float:
        """Microseconds from the launch's start until the last piece from another rank has come that these products
        read. Copies run while earlier products of the rank's queue are made. 0: none comes."""
        tensors = {r.tensor for g in gemms for r in g.reads}
        arrival = sum(self._copies.get((where.rank, tensor), 0.0) for tensor in tensors)
        return max(0.0, arrival - self._busy(where)) if arrival else 0.0

    @cached_property
    def _copies(self) -> dict[tuple[int, str], float]:
        """Microseconds of the copies to a rank's tensor from other ranks."""
        machine = self._machine
        times: dict[tuple[int, str], float] = defaultdict(float)
        engines = {q.name: q.engine for q in self._graph.queues}
        for op in self._graph.ops:
            if isinstance(copy := op.body, ir.Copy) and copy.src.rank != copy.dst.rank:
                size = copy.dst.elements * TYPES[self._dtypes[copy.dst.tensor]].bytes
                if engines[self._graph.stages[op.where.stage].queue] == "sm":
                    sms = op.where.resources.sms or copy_sms(machine.device.sms)
                    time = store_time(machine, copy.src.rank, copy.dst.rank, size, sms)
                else:
                    time = transfer_time(machine, copy.src.rank, copy.dst.rank, size)
                times[copy.dst.rank, copy.dst.tensor] += time
        return dict(times)

    def _busy(self, where: ir.Where) -> float:
        """Microseconds of the products that the rank makes on the queue before the stage, one after another."""
        products = self._products.get((where.rank, self._graph.stages[where.stage].queue), {})
        return sum(time for stage, time in products.items() if stage < where.stage)

    @cached_property
    def _products(self) -> Mapping[tuple[int, str], Mapping[int, float]]:
        """By rank and queue: the microseconds of the products of each stage, in the order of the stages."""
        times: dict[tuple[int, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for op in self._graph.ops:
            if isinstance(g := op.body, ir.Gemm):
                where, (m, n) = op.where, g.out.shape
                time = gemm_time(self._machine, m, n, g.depth, self._dtypes[g.left.tensor], where.resources.sms)
                times[where.rank, self._graph.stages[where.stage].queue][where.stage] += time
        return times
