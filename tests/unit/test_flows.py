"""What runs at the same time on the virtual machine shares its ports, memories and multiprocessors."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

import pytest

import ficco_dsl
import ficco_rt
from ficco_rt.compiler import build, plan_of
from ficco_rt.machine.model import Machine, Port, TopologyKind
from ficco_rt.machine.profiles import profile
from ficco_rt.sim.contention import Activity, Sharing
from ficco_rt.sim.prices import Prices

RATE = 100.0  # bytes a microsecond


def machine(kind: TopologyKind = "switch") -> Machine:
    found = profile("h200-switch", 4)
    return replace(found, links=replace(found.links, kind=kind, rate=RATE))


def ends(on: Machine, *copies: tuple[float, int, int, int]) -> list[float]:
    """When each has come, of copies that begin at a time, from a rank to a rank, of so many bytes."""
    events: list[tuple[float, int, object]] = []
    order, found, now = count(), {}, 0.0
    prices = Prices(on, {})
    shared = Sharing(prices.limit, 1.0, lambda time, action: heappush(events, (time, next(order), action)))

    def begin(i: int) -> None:
        start, src, dst, size = copies[i]
        uses = prices.moved(src, dst, size)
        task = shared.begin(start, {resource: amount * RATE / size for resource, amount in uses.items()})

        def done() -> None:
            shared.end(now, task)
            found.setdefault(i, now)

        shared.call(start, task, size / RATE, done)

    for i, (start, *_) in enumerate(copies):
        heappush(events, (start, next(order), lambda i=i: begin(i)))
    while events:
        now, _, action = heappop(events)
        action()  # type: ignore[operator]
    assert len(found) == len(copies)
    return [found[i] for i in range(len(copies))]


def test_a_copy_alone_has_the_port() -> None:
    assert ends(machine(), (3.0, 0, 1, 1000)) == [13.0]


def test_copies_that_pass_different_ports_know_nothing_of_each_other() -> None:
    assert ends(machine(), (0.0, 0, 1, 1000), (0.0, 1, 0, 2000), (0.0, 2, 3, 500)) == [10.0, 20.0, 5.0]


@pytest.mark.parametrize("two", [(0, 2), (3, 1)])  # out of one rank, into one rank
def test_copies_that_meet_share_a_port(two: tuple[int, int]) -> None:
    assert ends(machine(), (0.0, 0, 1, 1000), (0.0, *two, 1000)) == [20.0, 20.0]
    # the second one comes at half of the first, which then has half of the rate; alone again it has all of it
    assert ends(machine(), (0.0, 0, 1, 1000), (5.0, *two, 250)) == [12.5, 10.0]


def test_the_fullest_port_of_a_copy_sets_its_pace() -> None:
    """Three into rank 1, of which one comes from a rank that sends to another, too: that port's other copy has
    what the first one leaves."""
    found = ends(machine(), *((0.0, src, 1, 1000) for src in (0, 2, 3)), (0.0, 0, 2, 500))
    assert found == pytest.approx([30.0, 30.0, 30.0, 7.5])


def test_a_mesh_has_a_link_for_each_pair() -> None:
    assert ends(machine("mesh"), (0.0, 0, 1, 1000), (0.0, 0, 2, 1000), (0.0, 2, 1, 1000)) == [10.0, 10.0, 10.0]
    assert ends(machine("mesh"), (0.0, 0, 1, 1000), (0.0, 0, 1, 1000)) == [20.0, 20.0]


def test_on_a_ring_a_copy_keeps_every_link_of_its_way() -> None:
    assert ends(machine("ring"), (0.0, 0, 2, 1000), (0.0, 2, 3, 1000)) == [10.0, 10.0]
    assert ends(machine("ring"), (0.0, 0, 2, 1000), (0.0, 1, 2, 1000)) == [20.0, 20.0]


GATHER = """
schedule gather
input  A[4096, 8192] : bf16
output C[4096 * ranks, 8192] : bf16
computes C = all_gather(A, rows)
queue dma { engine = copy }
stage move on dma { for p in all { copy C.rows(rank of ranks) @ ORDER <- A } }
"""


def test_incast_costs_what_it_costs() -> None:
    """All ranks send to rank 0, then to rank 1, …: others wait meanwhile. Each to its own next one: nobody does."""
    times = []
    for order in ("p", "(rank + p) % ranks"):
        graph = build(ficco_dsl.parse(GATHER.replace("ORDER", order), "gather.ficco"), 4)
        target = profile("h200-switch", 4)
        times.append(ficco_rt.simulate(plan_of(graph, target), target).duration)
    assert 1.5 * times[1] < times[0] < 3 * times[1]


@pytest.mark.parametrize("kind", ["switch", "mesh", "ring"])
def test_nobody_is_faster_than_alone_and_no_port_than_its_rate(kind: TopologyKind) -> None:
    on = machine(kind)
    for seed in range(400):
        rng, copies = random.Random(seed), []
        latest, largest = rng.choice((0, 3, 20)), rng.choice((2, 100, 2000))  # many begin or end together, or few
        for _ in range(rng.randint(1, 12)):
            src = rng.randrange(4)
            dst = (src + rng.randint(1, 3)) % 4
            copies.append((float(rng.randint(0, latest)), src, dst, rng.randint(1, largest)))
        found = ends(on, *copies)
        passed: dict[Port, list[int]] = defaultdict(list)
        for i, (start, src, dst, size) in enumerate(copies):
            assert found[i] >= start + size / RATE - 1e-6, f"seed {seed}"
            for port in on.ports(src, dst):
                passed[port].append(i)
        for mine in passed.values():
            begun, last = min(copies[i][0] for i in mine), max(found[i] for i in mine)
            assert sum(copies[i][3] for i in mine) <= (last - begun) * RATE + 1e-6, f"seed {seed}"


# ---------------------------------------------------------------- memories and multiprocessors


class Alone:
    """A virtual clock with nothing but what a test begins. One device, 10 multiprocessors, 100 bytes a microsecond."""

    def __init__(self, beside: float = 1.0) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.ends: dict[str, float] = {}
        self.shared = Sharing(lambda _: 100.0, 10.0, self.at, beside)

    def at(self, time: float, action: Callable[[], None]) -> None:
        heappush(self.events, (time, next(self.order), action))

    def task(self, name: str, start: float, time: float, memory: float, wants: float | None = None) -> None:
        """Takes so long alone, uses so much of the memory meanwhile, and holds multiprocessors, or is a copy."""

        def begin() -> None:
            device = None if wants is None else 0
            task = self.shared.begin(self.now, {0: memory}, device, wants or 0.0)
            self.shared.call(self.now, task, time, lambda: self.end(name, task))

        self.at(start, begin)

    def end(self, name: str, task: Activity) -> None:
        self.ends[name] = self.now
        self.shared.end(self.now, task)

    def run(self) -> dict[str, float]:
        while self.events:
            self.now, _, action = heappop(self.events)
            action()
        return {name: round(time, 6) for name, time in self.ends.items()}


def test_a_kernel_and_a_copy_that_want_more_than_the_memory_has_slow_each_other_down() -> None:
    clock = Alone()
    clock.task("gemm", 0.0, 10.0, memory=60.0, wants=10.0)
    clock.task("copy", 0.0, 20.0, memory=40.0)
    assert clock.run() == {"gemm": 10.0, "copy": 20.0}  # together they want what there is
    clock = Alone()
    clock.task("gemm", 0.0, 10.0, memory=100.0, wants=10.0)
    clock.task("copy", 0.0, 20.0, memory=25.0)
    assert clock.run() == {"gemm": 12.5, "copy": 22.5}  # both at 0.8 until the product is made


def test_who_comes_first_holds_its_multiprocessors() -> None:
    clock = Alone()
    clock.task("gemm", 0.0, 10.0, memory=1.0, wants=8.0)
    clock.task("sum", 0.0, 4.0, memory=1.0, wants=4.0)  # has two of four while the product is made
    assert clock.run() == {"gemm": 10.0, "sum": 8.0}
    clock = Alone()
    clock.task("gemm", 0.0, 10.0, memory=1.0, wants=10.0)
    clock.task("sum", 0.0, 4.0, memory=1.0, wants=4.0)  # one is left to it: a quarter of its speed, then all
    assert clock.run() == {"gemm": 10.0, "sum": 11.5}


def test_a_launch_that_holds_half_leaves_half() -> None:
    """As one does whose blocks have `residency = 2`, or `sms`."""
    clock = Alone()
    for name in ("one", "two"):
        clock.task(name, 0.0, 10.0, memory=1.0, wants=5.0)
    assert clock.run() == {"one": 10.0, "two": 10.0}


def test_a_kernel_keeps_a_share_of_its_speed_beside_copies() -> None:
    clock = Alone(beside=0.8)
    clock.task("gemm", 0.0, 10.0, memory=1.0, wants=10.0)
    clock.task("first", 0.0, 3.0, memory=1.0)
    clock.task("second", 1.0, 4.0, memory=1.0)  # five microseconds with one copy or two: four of the product's ten
    assert clock.run() == {"gemm": 11.0, "first": 3.0, "second": 5.0}


@pytest.mark.parametrize("schedule", ["ag_gemm/streamed", "gemm_rs/streamed", "gemm_ar/streamed"])
@pytest.mark.parametrize("rate", [386e3, 9000e3])
def test_links_may_bring_more_than_memory_takes(schedule: str, rate: float) -> None:
    found = profile("h200-switch", 4)
    plan = ficco_rt.compile(f"schedules/{schedule}.ficco", ranks=4, M=1024, N=1024, K=1024)
    times = []
    for memory in (4.2e6, 0.7e6, 0.1e6):
        on = replace(found, links=replace(found.links, rate=rate), device=replace(found.device, memory_rate=memory))
        times.append([ficco_rt.simulate(plan, on, mode).duration for mode in ("streams", "graph")])
    assert times == sorted(times)
    least = 1024 * 1024 * 2 * 3 / 4 / 0.1e6  # what comes into a rank's memory
    assert min(times[-1]) > least
