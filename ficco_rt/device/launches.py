"""Builds the launches of a plan: configures kernels, divides multiprocessors among launches, and decides early
starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ..errors import PlanError
from ..graph.budget import COLLECTED, OPERANDS, WORKS, Budget
from ..graph.ir import Reduce
from ..graph.kinds import likeness
from ..kernels.catalogue import CLUSTERS, REDUCE, TILES
from ..kernels.families import configure, plain, tuned
from ..kernels.family import MOST_CLUSTER, KernelConfig, LaunchRequest
from ..kernels.occupancy import Limits
from ..kernels.works import kernel_work, symbolic
from ..machine.model import Device
from ..plan.ir import CollectiveCall, CopyAsync, Launch, Plan, Stream, Work
from .collectives import calls_of, part_of
from .ir import Communicator, DeviceLaunch, Features, Placement
from .semaphores import private_flags


class LaunchPlanner:
    """Configures the launches of one plan; see `build.layout_of`."""

    def __init__(
        self,
        plan: Plan,
        device: Device,
        placement: Placement,
        features: Features,
        unaligned: frozenset[tuple[int, int]],
        communicators: Sequence[Communicator] = (),
    ) -> None:
        self.plan = plan
        self.limits = Limits.of(device)
        self.placement = placement
        self.features = features
        self.unaligned = unaligned
        self.by_library = {c.queue: c.blocks for c in communicators}  # blocks of the vendor's collectives, by queue
        self.look = symbolic(plan.tensors)
        self.private = private_flags(plan)
        self.calls = calls_of(plan)
        self.shapes = {t.name: t.shapes for t in plan.tensors}
        self.known: dict[tuple[object, ...], tuple[KernelConfig, ...]] = {}
        self.works, self.operands = Budget(WORKS, PlanError), Budget(OPERANDS, PlanError)
        self.collected = Budget(COLLECTED, PlanError)
        self.free: dict[int, tuple[int, int]] = {}  # by device
        self.clusters: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))  # by device and stream
        for stream in plan.streams:
            self.clusters[self._device(stream)][stream.id].update(
                CLUSTERS[c.kernel]
                for c in stream.commands
                if isinstance(c, Launch) and c.streamed and c.kernel in CLUSTERS
            )

    def all(self, rank: int | None = None) -> tuple[DeviceLaunch, ...]:
        """The launches in the order of the plan's streams and their commands; of one rank, or of all."""
        found: list[DeviceLaunch] = []
        for stream in self.plan.streams:
            if rank is not None and stream.rank != rank:
                continue
            behind = False
            for p, command in enumerate(stream.commands):
                if isinstance(command, Launch):
                    made = list(self._launch(stream, p, command, behind))
                    behind = not self.private or not self._private(command) - _reset(made)
                    found += made
                    continue
                behind = False
                if isinstance(command, CollectiveCall) and not self.by_library:
                    found += self._sum(stream, p, command)
        return tuple(found)

    def _private(self, command: Launch) -> frozenset[int]:
        """The flags that nothing but the launch waits for: its kernel resets them, or its stream right behind it."""
        return frozenset(signal.number for signal in command.waits) & self.private

    def _launch(self, stream: Stream, p: int, command: Launch, behind: bool) -> Iterator[DeviceLaunch]:
        """`behind`: nothing will stand between the kernel before and this launch."""
        asked = command.attributes.sms or self.limits.sms
        sms = asked
        if command.streamed:  # a cluster is not divided
            sms = min(asked, max(self._share(self._device(stream), asked), CLUSTERS.get(command.kernel, 1)))
        self.works.spend(len(command.works), command.origin)
        self.operands.spend(sum(len(w.reads) + len(w.writes) for w in command.works), command.origin)
        for config in self._configs(stream, p, command, sms):
            first, count = config.works
            yield DeviceLaunch(
                config=replace(config, works=(0, count)) if first else config,
                works=command.works[first : first + count],
                sms=sms,
                spins=command.streamed,
                early=behind and config.chained and self.features.early_starts,
                priority=command.attributes.priority,
                stream=stream.id,
                command=p,
                stages=tuple(command.stage_of(i) for i in range(first, first + count)),
                origin=command.origin,
                leave=command.attributes.leave,
            )
            behind = True

    def _request(self, stream: Stream, command: Launch, sms: int) -> LaunchRequest:
        return LaunchRequest(
            kernel=command.kernel,
            works=tuple(kernel_work(w.body, self.look, w.waits, w.signals) for w in command.works),
            sms=sms,
            smem=command.attributes.smem,
            streamed=command.streamed,
            resets=tuple(sorted(self._private(command))),
            cluster=self._cluster_of_others(stream) if command.streamed else 1,
        )

    def _configs(self, stream: Stream, p: int, command: Launch, sms: int) -> tuple[KernelConfig, ...]:
        """Launches without flags are made alike on all ranks."""
        a, unaligned = command.attributes, (stream.id, p) in self.unaligned
        vendor = self.features.vendor_gemms and (a.residency, a.sms, a.priority, a.leave) == (None,) * 4
        make = plain if unaligned else partial(configure, vendor=vendor)
        if command.streamed or len(command.works) > 1:
            return make(self._request(stream, command, sms), self.limits)
        (work,) = command.works
        key = (command.kernel, sms, a.smem, unaligned, vendor, likeness(work.body, stream.rank, self.shapes))
        if key not in self.known:
            self.known[key] = make(self._request(stream, command, sms), self.limits)
        return self.known[key]

    def _sum(self, stream: Stream, p: int, command: CollectiveCall) -> Iterator[DeviceLaunch]:
        """The sum that is a rank's part of a collective."""
        parts = 1 if command.kind == "send_recv" else len(self.calls[command.group])
        self.collected.spend(parts, command.origin)  # for all who ask for its parts
        for total in part_of(stream.rank, self.calls[command.group]):
            if not isinstance(total, Reduce):
                return
            work = Work(total, (), (), command.op, command.origin)
            request = LaunchRequest(REDUCE, (kernel_work(total, self.look),), self.limits.sms)
            for config in configure(request, self.limits):
                yield DeviceLaunch(
                    config, (work,), self.limits.sms, False, False, None, stream.id, p, (command.stage,), command.origin
                )

    # ---- multiprocessors

    def _device(self, stream: Stream) -> int:
        return self.placement.devices[stream.rank]

    def _share(self, device: int, sms: int) -> int:
        """The multiprocessors that a streamed launch may hold if it wants `sms`. Its blocks hold them while they wait,
        so all streamed launches of a device together never ask for more than the device has. They also leave enough
        free for other work that they may wait for: the launches of other ranks on the device, copies inside a GPU,
        which may run on multiprocessors, and launches that are not streamed."""
        if device not in self.free:
            self.free[device] = self._free_on(device)
        left, wanted = self.free[device]
        return sms if wanted <= left else max(1, left * sms // wanted)

    def _free_on(self, device: int) -> tuple[int, int]:
        """The multiprocessors that are left for streamed launches, and those that these want together."""
        here = [s for s in self.plan.streams if self._device(s) == device]
        wanted = [self._wanted(s) for s in here]
        needed, local = 0, False  # by what is not streamed, beyond its stream's own share; copies inside the GPU
        for stream, want in zip(here, wanted, strict=True):
            for c in stream.commands:
                if isinstance(c, Launch) or (isinstance(c, CollectiveCall) and not self.by_library):
                    least = self._side_by_side(c) if isinstance(c, Launch) else 1
                    needed = max(needed, least if least > want else 0)
                if isinstance(c, CopyAsync):
                    local = local or any(self.placement.share_gpu(t.src.rank, t.dst.rank) for t in c.transfers)
        # the library's collectives hold their blocks while they wait for other ranks, those of all queues at once
        needed += sum(self.by_library.get(stream.queue, 0) for stream in here)
        concurrent = sum(map(bool, wanted)) > 1
        alone = len(self.placement.ranks(device)) == 1 and not local and not (concurrent and needed)
        left = self.limits.sms - (0 if alone else max(1, needed))
        return left, left if alone and not concurrent else sum(wanted)  # one launch alone gets what it wants

    def _side_by_side(self, command: Launch) -> int:
        """Blocks of a launch that begin together: a cluster of its kernel, or of one that the vendor's library has in
        its place."""
        library = self.features.vendor_gemms and not command.streamed and not tuned(self.limits.arch)
        return max(CLUSTERS.get(command.kernel, 1), MOST_CLUSTER if library and command.kernel in TILES else 1)

    def _wanted(self, stream: Stream) -> int:
        """Multiprocessors that the streamed launches of a stream, one after another, want at most."""
        streamed = (c for c in stream.commands if isinstance(c, Launch) and c.streamed)
        wanted = [c.attributes.sms or self.limits.sms for c in streamed]
        return max(wanted, default=0)

    def _cluster_of_others(self, stream: Stream) -> int:
        """How many single blocks of a streamed launch start side by side: as many as a cluster of the kernels that may
        run at the same time. Scattered single blocks would leave multiprocessors that no cluster can use."""
        found = self.clusters[self._device(stream)]
        return min((min(of) for other, of in found.items() if of and other != stream.id), default=1)


def _reset(launches: Iterable[DeviceLaunch]) -> frozenset[int]:
    """The flags that kernels reset, or that have no semaphore."""
    return frozenset(flag for launch in launches for flag in (*launch.config.resets, *launch.config.unraised))
