"""What passes promise: each broken promise is found right behind its pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from ficco_rt.compiler import build
from ficco_rt.errors import InternalError
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import lower, promises
from ficco_rt.plan.draft import Draft, KernelChoice, LaunchKey, Need
from ficco_rt.plan.ir import LaunchAttributes
from ficco_rt.plan.promises import Promise, hold
from tests import cases


@cache
def draft(name: str, machine: str = "h200-switch", ranks: int = 3) -> Draft:
    """After all passes."""
    sizes = cases.sizes(name, ranks, even=True) | {"T": "bf16"} | cases.few_chunks(name)
    made = Draft(build(cases.schedule(name), ranks, sizes), profile(machine, ranks))
    for step in lower.PASSES:
        made = step.run(made)
    return made


def first_stream(made: Draft) -> Draft:
    return replace(made, stream_of=(len(made.streams) - 1, *made.stream_of[1:]))


def one_less(made: Draft) -> Draft:
    return replace(made, order=made.order[:-1])


def backwards(made: Draft) -> Draft:
    return replace(made, order=made.order[::-1])


def alone(made: Draft) -> Draft:
    return replace(made, launch_of=(*made.launch_of[:-1], None))


def on_another_rank(made: Draft) -> Draft:
    key = made.launch_of[-1]
    assert key is not None
    return replace(made, launch_of=(*made.launch_of[:-1], LaunchKey(key.stage, 0)))


def much(made: Draft) -> Draft:
    return replace(made, shares={LaunchKey(0, 0): 1000})


def unnumbered(made: Draft) -> Draft:
    v = next(iter(made.needs))
    return replace(made, needs={**made.needs, v: (Need(v, flag=False),)})


def numbered_twice(made: Draft) -> Draft:
    return replace(made, signals=replace(made.signals, flag_homes=(*made.signals.flag_homes, 0)))


def other_kernel(made: Draft) -> Draft:
    v = made.order[-1]
    return replace(made, kernels={**made.kernels, v: replace(made.kernels[v])})


def copying(made: Draft) -> Draft:
    attributes = LaunchAttributes(0, None, None, None)
    return replace(made, kernels=dict.fromkeys(made.kernels, KernelChoice("naive_copy", attributes)))


def sized(made: Draft, **changes: int) -> Draft:
    choices = {i: replace(c, attributes=replace(c.attributes, **changes)) for i, c in made.kernels.items()}
    return replace(made, kernels=choices)


@pytest.mark.parametrize(
    ("promise", "damage", "message"),
    [
        (promises.ops_have_streams, first_stream, "op 0 of rank 0 stands on StreamKey(rank=2"),
        (promises.ops_have_streams, lambda d: replace(d, stream_of=(*d.stream_of, 0)), " ops have a stream"),
        (promises.order_is_topological, one_less, " ops, each once"),
        (promises.order_is_topological, backwards, ", on which it depends"),
        (promises.launches_are_alike, alone, " is a work of None"),
        (promises.launches_are_alike, on_another_rank, " is a work of LaunchKey(stage=0, rank=0)"),
        (promises.shares_fit, much, "LaunchKey(stage=0, rank=0) has a share of 1000 multiprocessors"),
        (promises.signals_have_numbers, unnumbered, " by a signal that has no number"),
        (promises.signals_have_numbers, numbered_twice, "flags do not have the numbers from 0 on, each once"),
        (promises.kernels_take_works, other_kernel, " does not have one kernel"),
        (promises.kernels_take_works, copying, "kernel naive_copy cannot do the launch that begins with op "),
        (promises.attributes_are_sizes, lambda d: sized(d, sms=1000), " on NVIDIA H200"),
        (promises.attributes_are_sizes, lambda d: sized(d, smem=1 << 20), " on NVIDIA H200"),
    ],
)
def test_a_broken_promise_is_told(promise: Promise, damage: Callable[[Draft], Draft], message: str) -> None:
    made = draft("gemm_rs/streamed")
    assert not list(promise(made))
    with pytest.raises(InternalError) as caught:
        hold(damage(made), "some_pass", (promise,))
    first, *shown = str(caught.value).splitlines()
    assert first.startswith("after pass some_pass: ")
    assert message in first
    assert shown[0] == "rank 0 compute"  # the draft follows


def test_a_work_behind_another_launch_is_told() -> None:
    made = draft("gemm_rs/streamed")
    key = made.launch_of[made.order[-1]]
    mine = [i for i in made.order if made.launch_of[i] == key]
    middle = mine[-2]
    other = LaunchKey(made.graph.ops[middle].where.stage, made.graph.ops[middle].where.rank)
    assert key is not None
    assert other != key  # the second of two stages that are one launch
    broken = replace(made, launch_of=tuple(other if i == middle else k for i, k in enumerate(made.launch_of)))
    assert any("behind which another op stands" in m for m in promises.launches_are_alike(broken))


def test_lowering_holds_passes_to_their_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(made: Draft) -> Draft:
        return numbered_twice(lower.synchronise(made))

    steps = tuple(replace(s, run=careless) if s.run is lower.synchronise else s for s in lower.PASSES)
    monkeypatch.setattr(lower, "PASSES", steps)
    made = draft("gemm_rs/ring")
    with pytest.raises(InternalError, match="after pass careless: flags do not have the numbers"):
        lower.lower(made.graph, made.machine)
