"""Pass: turns the draft into streams of commands. Consecutive copies are issued together unless something waits in
between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..geometry.cells import aligned
from ..geometry.region import Axis, Box, Interval, Region
from ..graph import ir as graph_ir
from ..graph.budget import RUNS, Budget
from . import ir
from .draft import Draft, LaunchKey, Need, waits_of
from .plan_rules import pitched, tiles


@dataclass(slots=True)
class _Entry:
    """One entry of a stream: waits, then a command (open until the end), then marks for others."""

    waits: list[ir.Command] = field(default_factory=list)
    transfers: list[ir.Transfer] = field(default_factory=list)
    copies: set[int] = field(default_factory=set)  # its ops that are copies
    works: list[ir.Work] = field(default_factory=list)
    call: ir.CollectiveCall | None = None
    marks: list[ir.Command] = field(default_factory=list)
    stage: str = ""
    joined: list[tuple[int, str]] = field(default_factory=list)  # see Launch
    first: int = -1  # its first op, whose choice a launch follows
    streamed: bool = False


def emit(draft: Draft) -> ir.Plan:
    """The plan of a complete draft."""
    return _Emitter(draft).plan()


class _Emitter:
    def __init__(self, draft: Draft) -> None:
        self.draft, self.graph = draft, draft.graph
        self.entries: list[list[_Entry]] = [[] for _ in draft.streams]
        self.signals = draft.signals
        self.launches: dict[LaunchKey | None, _Entry] = {}
        self.tensors = {t.name: t for t in self.graph.tensors}
        self.transfers_left = Budget(RUNS)
        self.axes: dict[tuple[int, int, bool], Axis] = {}  # those of runs: many are the same

    def plan(self) -> ir.Plan:
        for v in self.draft.order:
            self._op(v)
        graph, draft = self.graph, self.draft
        queues = {q.name: q for q in graph.queues}
        streams = []
        for i, key in enumerate(draft.streams):
            queue = queues[key.queue]
            commands = tuple(command for entry in self.entries[i] for command in self._commands(entry))
            link = None if key.link < 0 else key.link
            priority = queue.resources.priority or "normal"
            asked = queue.collectives
            streams.append(ir.Stream(i, key.rank, key.queue, queue.engine, priority, link, commands, asked))
        return ir.Plan(
            version=ir.VERSION,
            schedule=graph.schedule,
            ranks=graph.ranks,
            machine=draft.machine.name,
            params=graph.params,
            tensors=graph.tensors,
            kernels=graph.kernels,
            claims=graph.claims,
            streams=tuple(streams),
            events=len(self.signals.events),
            flag_homes=self.signals.flag_homes,
            orders=draft.orders,
            made_for=draft.machine,
        )

    def _commands(self, entry: _Entry) -> Iterator[ir.Command]:
        yield from entry.waits
        if entry.transfers:
            yield ir.CopyAsync(tuple(entry.transfers), entry.stage)
        elif entry.call is not None:
            yield entry.call
        else:
            choice, works, joined = self.draft.kernels[entry.first], tuple(entry.works), tuple(entry.joined)
            yield ir.Launch(choice.kernel, works, entry.streamed, choice.attributes, entry.stage, joined)
        yield from entry.marks

    # -- ops

    def _op(self, v: int) -> None:
        op, key = self.graph.ops[v], self.draft.launch_of[v]
        body, origin, label = op.body, op.where.origin, self.graph.stages[op.where.stage].label
        # works of a streamed launch wait themselves, unless the launch waits for them
        waits = [self._wait(need, op) for need in self.draft.needs.get(v, ()) if key is None or need.launch]
        entry = self._entry(v, key, label, joins=not waits and isinstance(body, graph_ir.Copy))
        entry.waits += waits
        if isinstance(body, graph_ir.Collective):
            entry.call = ir.CollectiveCall(
                body.kind, body.group, body.dst, body.src, body.to, body.by, op=v, stage=label, origin=origin
            )
        elif isinstance(body, graph_ir.Copy) and v not in self.draft.kernels:
            entry.transfers.extend(self._transfers(body, v))
        else:
            if label != (entry.joined[-1][1] if entry.joined else entry.stage):
                entry.joined.append((len(entry.works), label))
            entry.works.append(self._work(v, key is not None))
        if isinstance(body, graph_ir.Copy):
            entry.copies.add(v)
        if v in self.signals.events:
            entry.marks.append(ir.Record(self.signals.events[v], origin))
        if key is None:
            entry.marks += (ir.SignalFlag(flag, origin) for flag in self.signals.raised(v))

    def _entry(self, v: int, key: LaunchKey | None, stage: str, joins: bool) -> _Entry:
        """The entry of an op: that of its streamed launch, that of the copies before it, or a new one."""
        stream = self.entries[self.draft.stream_of[v]]
        if key in self.launches:
            return self.launches[key]
        if key is None and joins and stream and self._joins(stream[-1], v, stage):
            return stream[-1]
        stream.append(_Entry(stage=stage, first=v, streamed=key is not None))
        if key is not None:
            self.launches[key] = stream[-1]
        return stream[-1]

    def _joins(self, entry: _Entry, v: int, stage: str) -> bool:
        """May copy v go out with the batch? Copies of a batch have no order among themselves."""
        if not entry.copies or entry.streamed or entry.marks or entry.stage != stage:
            return False
        if self.draft.kernels.get(entry.first) != self.draft.kernels.get(v):
            return False
        return not any(d.before in entry.copies for d in self.graph.deps[v])

    def _wait(self, need: Need, op: graph_ir.Op) -> ir.Command:
        """A wait of the stream."""
        if need.flag:
            return ir.WaitFlag(self.signals.flags[need.before][op.where.rank], op.where.origin)
        return ir.WaitEvent(self.signals.events[need.before], op.where.origin)

    def _work(self, v: int, streamed: bool) -> ir.Work:
        """The work of an op; works of a plain launch have no flags."""
        body, origin = self.graph.ops[v].body, self.graph.ops[v].where.origin
        waits, signals = (waits_of(self.draft, v), self.signals.raised(v)) if streamed else ((), ())
        assert not isinstance(body, graph_ir.Collective)
        if isinstance(body, graph_ir.Copy):
            self._transfers(body, v)  # for the budget alone: the kernel's table counts as many
        grid = tiles(body.out, self.draft.kernels[v].tile) if isinstance(body, graph_ir.Gemm) else None
        return ir.Work(body, waits, signals, v, origin, grid)

    # -- transfers

    def _transfers(self, copy: graph_ir.Copy, v: int) -> list[ir.Transfer]:
        """A copy as transfers of at most two dimensions."""
        to, of, origin = copy.dst, copy.src, self.graph.ops[v].where.origin
        if len(to.boxes) == len(of.boxes) == 1 and len(to.axes) <= 2 and len(of.axes) <= 2:
            return [ir.Transfer(to, of, v, origin)]
        out = []
        for dst, src in aligned((to, of)):
            for d, s in _flat(dst, src, self._shape(to), self._shape(of)):
                self.transfers_left.spend(1, origin, times=1 + len(to.axes) / 4)
                out.append(ir.Transfer(self._region(to, d), self._region(of, s), v, origin))
        return out

    def _region(self, like: Region, box: Box) -> Region:
        """One box of a region, with the same dimensions dropped."""
        axes = []
        for start, stop, of in zip(box.start, box.stop, like.axes, strict=True):
            key = (start, stop, of.dropped)
            if key not in self.axes:
                self.axes[key] = Axis((Interval(start, stop),), of.dropped)
            axes.append(self.axes[key])
        return Region(like.tensor, like.rank, tuple(axes))

    def _shape(self, region: Region) -> tuple[int, ...]:
        return self.tensors[region.tensor].shapes[region.rank]


def _flat(dst: Box, src: Box, dst_shape: tuple[int, ...], src_shape: tuple[int, ...]) -> Iterator[tuple[Box, Box]]:
    """Pairs, cut until both sides of each are contiguous runs of memory, or runs at one pitch."""
    if pitched(dst, dst_shape) and pitched(src, src_shape):
        yield dst, src
        return
    # cut along the first long dimension; the two sides have their long dimensions in the same order
    d, s = (next(i for i, n in enumerate(box.shape) if n > 1) for box in (dst, src))
    for k in range(dst.shape[d]):
        yield from _flat(_one(dst, d, k), _one(src, s, k), dst_shape, src_shape)


def _one(box: Box, dim: int, k: int) -> Box:
    start, stop = list(box.start), list(box.stop)
    start[dim] += k
    stop[dim] = start[dim] + 1
    return Box(tuple(start), tuple(stop))
