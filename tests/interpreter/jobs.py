"""The jobs whose device plans are mutated: schedules of all kinds, in all modes, on all kinds of placements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from unittest.mock import patch

from ficco_rt.compiler import build, plan_of
from ficco_rt.device import sharing
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.features import usual
from ficco_rt.device.ir import DevicePlan, Library, Mode, Placement
from ficco_rt.device.layout import Layout
from ficco_rt.machine.profiles import profile
from tests import cases


@dataclass(frozen=True)
class Job:
    schedule: str
    mode: Mode
    devices: tuple[int, ...]
    processes: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    library: Library = ""
    machine: str = "h200-switch"
    scale: int = 1  # of M
    large: bool = False  # as if the scratch were too large for two sets
    scaled: bool = False  # its operands

    def __str__(self) -> str:
        where = f"devices {''.join(map(str, self.devices))}"
        if self.processes:
            where += f", processes {''.join(map(str, self.processes))}"
        if self.nodes:
            where += f", nodes {''.join(map(str, self.nodes))}"
        larger = f", {self.scale} times as many rows" if self.scale > 1 else ""
        larger += ", of one set" * self.large + ", scaled" * self.scaled
        return f"{self.schedule}, {self.mode}, {where}{f', {self.library}' if self.library else ''}{larger}"


TWO, FOUR, SHARED = (0, 1), (0, 1, 2, 3), (0, 0, 1, 1)
ONE_EACH, NODES = FOUR, (0, 0, 1, 1)
JOBS = (
    Job("ag_gemm/streamed", "streams", TWO),
    Job("ag_gemm/streamed", "graph", TWO, TWO, large=True),  # local streams
    Job("ag_gemm/streamed", "embedded", FOUR, SHARED),
    Job("ag_gemm/hetero_fused_1d", "gated", TWO),
    Job("ag_gemm/stationary_a", "streams", TWO, TWO),  # entries, side streams
    Job("ag_gemm/oneshot", "graph", TWO, TWO),  # two sets, early launches
    Job("ag_gemm/oneshot", "embedded", TWO, TWO),
    Job("ag_gemm/hierarchical", "graph", FOUR, FOUR, NODES, "NCCL", "h200-nodes"),
    Job("gemm_rs/streamed", "streams", TWO, TWO, large=True),  # local streams, side streams
    Job("gemm_rs/streamed", "graph", FOUR, SHARED),
    Job("gemm_rs/direct", "traced", TWO, TWO),  # two sets
    Job("gemm_rs/oneshot", "streams", TWO, TWO),
    Job("gemm_rs/ring", "embedded", (0, 0, 1, 1)),
    Job("gemm_rs/serial", "traced", TWO),
    Job("gemm_rs/relay", "gated", SHARED),
    Job("gemm_ar/streamed", "streams", TWO, TWO),  # entries, side streams
    Job("gemm_ar/serial", "traced", TWO, TWO, library="NCCL"),
    Job("a2a_gemm/overlapped", "streams", SHARED, SHARED),
    Job("concurrent/ar_copies", "graph", TWO),
    Job("concurrent/ar_vendor", "streams", TWO),
    Job("ag_gemm/streamed", "streams", TWO, TWO, scaled=True),
    Job("ag_gemm/serial", "graph", TWO, TWO, library="NCCL", scaled=True),
    Job("quantized/ag_gemm_streamed", "streams", TWO, TWO),
)


def _workspace(
    schedules: str, devices: tuple[int, ...], processes: tuple[int, ...] = (), library: Library = ""
) -> tuple[Job, ...]:
    """`ag_gemm/streamed*2`: with twice as many rows; `large:ag_gemm/streamed`: of one set."""
    found = []
    for word in schedules.split():
        name, _, scale = word.removeprefix("large:").partition("*")
        large = word.startswith("large:")
        found.append(Job(name, "streams", devices, processes, (), library, scale=int(scale or 1), large=large))
    return tuple(found)


# Plans that share a workspace.
WORKSPACES = (
    _workspace(
        "large:ag_gemm/streamed ag_gemm/streamed*2 ag_gemm/stationary_a large:gemm_rs/streamed gemm_rs/oneshot*2 "
        "gemm_ar/streamed",
        TWO, TWO,
    ),
    _workspace("ag_gemm/oneshot ag_gemm/oneshot*2 gemm_rs/oneshot gemm_rs/direct gemm_ar/oneshot", TWO, TWO),
    _workspace("ag_gemm/streamed ag_gemm/hetero_fused_1d*2 gemm_rs/serial gemm_ar/streamed concurrent/ar_copies", TWO),
    _workspace("ag_gemm/streamed gemm_rs/ring gemm_rs/streamed*2 a2a_gemm/overlapped", SHARED),
    _workspace(
        "large:ag_gemm/streamed gemm_rs/relay*2 large:gemm_rs/direct a2a_gemm/overlapped gemm_ar/oneshot",
        SHARED, SHARED,
    ),
    _workspace("large:ag_gemm/streamed gemm_rs/streamed gemm_ar/streamed*2 ag_gemm/streamed", FOUR, SHARED),
    _workspace("gemm_ar/serial gemm_ar/oneshot ag_gemm/streamed*2", TWO, TWO, "NCCL"),
)  # fmt: skip


@cache
def layout(job: Job) -> Layout:
    ranks = len(job.devices)
    placement = Placement(job.devices, job.processes, job.nodes)
    machine = profile(job.machine, ranks)
    sizes = cases.sizes(job.schedule, ranks, even=True) | {"T": "bf16"} | cases.few_chunks(job.schedule)
    if job.nodes:
        node = job.nodes.count(0)
        machine = replace(machine, links=replace(machine.links, ranks=node))
        sizes |= {"node": node, "chunks": 1}
    if job.scaled:
        sizes |= cases.scaled(job.schedule, ranks, 0)
    if job.scale > 1:
        sizes["M"] = 16 * ranks * job.scale
    plan = plan_of(build(cases.schedule(job.schedule), ranks, sizes), machine)
    features = replace(usual(machine.device.arch), collectives=job.library)
    with patch.object(sharing, "LARGEST", 0 if job.large else sharing.LARGEST):
        return layout_of(plan, machine.device, placement, features)


@cache
def plans(job: Job) -> dict[Mode, DevicePlan]:
    """The device plans of all modes that the job may take."""
    made = layout(job)
    modes: list[Mode] = ["streams", "apart", "graph", "traced", "gated"]
    if made.features.embeds and not (job.library and not made.placement.each_alone):
        modes.append("embedded")
    return {mode: device_plan(made, mode) for mode in modes}
