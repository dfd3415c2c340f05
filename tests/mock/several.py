"""Several executors of one process at once, on devices with few multiprocessors, in seeded orders.

    python -m tests.mock.several                                  # every pair of shipped schedules, 200 orders each
    python -m tests.mock.several --orders 30 gemm_rs/streamed     # pairs of which one is this schedule

A pair is four executors on the same two devices, two of each schedule; an order takes two, three or all of them. Which
run next, how often, on streams or as graphs, who is waited for first, and how the stand-in steps: the order's number
draws all of it. All runs are issued before any is waited for, so that the devices may begin with any of them.

Exit code 4 if a run did not end or gave wrong numbers.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import combinations_with_replacement

import numpy as np

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.api import Array
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.bound import Bound
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import compare, fresh_inputs
from ficco_rt.plan.ir import Plan
from ficco_rt.types import Dtype, numpy_dtype
from tests import cases
from tests.mock import standin

RANKS, SMS, TIMEOUT = 2, 2, 60.0
PAIRS = tuple(combinations_with_replacement(cases.SCHEDULES, 2))


@cache
def plan_for(face: standin.Face, name: str, sms: int) -> Plan:
    """For the stand-in's devices, which have so many multiprocessors now."""
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name)
    return plan_of(build(cases.schedule(name), RANKS, sizes), discover(face, RANKS))


def zeros(shape: tuple[int, ...], dtype: Dtype) -> Array:
    made: Array = np.zeros(shape, numpy_dtype(dtype))
    return made


class Running:
    """An executor with inputs of its own and what must come of them."""

    def __init__(self, plan: Plan, face: standin.Face) -> None:
        self.executor = Executor(plan, face, machine=discover(face, RANKS), timeout=TIMEOUT)
        inputs = fresh_inputs(plan, 0, "exact")
        for name, arrays in inputs.items():
            for rank, array in enumerate(arrays):
                self.executor.write(name, rank, array)
        self.bound: Bound = self.executor.bind()
        self.driver = self.executor.driver
        assert self.bound.binding is not None
        self.driver.capture(self.bound.binding)
        self.executor.run(self.bound)
        self.wanted = self.outputs()
        assert compare(plan, inputs, self.wanted, "exact").ok

    def outputs(self) -> dict[str, list[Array]]:
        kinds = {t.name: t.kind for t in self.executor.plan.tensors}
        names = [name for name, kind in kinds.items() if kind == "output"]
        return {name: [self.executor.read(name, rank) for rank in range(RANKS)] for name in names}

    def issue(self, *, graph: bool) -> None:
        """A run, which nobody waits for yet."""
        assert self.bound.binding is not None
        self.driver.run(self.bound.binding, (), graph=graph)

    def right(self) -> bool:
        found = self.outputs()
        return all(np.array_equal(a, b) for name in found for a, b in zip(found[name], self.wanted[name], strict=True))


@contextmanager
def pair(library: standin.StandIn, names: Sequence[str], sms: int = SMS) -> Iterator[list[Running]]:
    """Two executors of each, on fresh devices."""
    library.reset(f"devices {RANKS}; sms {sms}")
    with ExitStack() as stack:
        found = [Running(plan_for(library.face, name, sms), library.face) for name in (*names, *names)]
        for running in found:
            stack.enter_context(running.executor)
        yield found


def in_order(library: standin.StandIn, running: Sequence[Running], seed: int) -> str:
    """One order: what went wrong, or nothing."""
    chance = random.Random(seed)
    library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
    taken = chance.sample(running, chance.randint(2, len(running)))
    for one in taken:
        one.executor.poison()
    for one in chance.sample(2 * taken, 2 * len(taken)):
        one.issue(graph=chance.random() < 0.5)
    try:
        for one in chance.sample(taken, len(taken)):
            one.executor.synchronize()
    except DeviceError as error:
        return str(error)
    wrong = [one.executor.plan.schedule for one in taken if not one.right()]
    return f"wrong numbers of {', '.join(wrong)}" if wrong else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*cases.SCHEDULES, []], help="pairs of which one is one of these")
    parser.add_argument("--driver", choices=["cuda", "hip"], default="cuda")
    parser.add_argument("--orders", type=int, default=200, help="of each pair (200)")
    parser.add_argument("--sms", type=int, default=SMS, help=f"multiprocessors of each device ({SMS})")
    options = parser.parse_args()
    library = standin.cuda() if options.driver == "cuda" else standin.hip()
    pairs = [names for names in PAIRS if not options.names or set(names) & set(options.names)]
    bad, begun = 0, time.monotonic()
    for done, names in enumerate(pairs, 1):
        with pair(library, names, options.sms) as running:
            for seed in range(options.orders):
                said = in_order(library, running, seed)
                if said:
                    bad += 1
                    print(f"{' and '.join(names)}, order {seed}: {said}", flush=True)
                    break
        bad += bool(library.violations() or library.live())
        sys.stderr.write(f"\r{done} of {len(pairs)} pairs, {time.monotonic() - begun:.0f} s")
    took = time.monotonic() - begun
    print(f"\n{len(pairs)} pairs, {options.orders} orders each, {options.driver}: {bad} bad, {took:.0f} s")
    library.reset("devices 0")
    return 4 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
