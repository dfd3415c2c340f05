"""Callers' tensors in memory that peer access between devices does not cover: mapped to addresses, as by PyTorch's
expandable segments, or of a stream-ordered pool. The other devices are given access, or the call is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import VENDORS, discover
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.bound import KEPT
from ficco_rt.exec.executor import Executor
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.mock.standin import StandIn
from tests.mock.test_callers import Array, Torch

RANKS, PIECE = 2, 1 << 16
SIZES = {"M": 256, "N": 128, "K": 128, "T": "fp32"}


def run(
    library: StandIn,
    memory: Callable[[int, int], int],
    *,
    between: Callable[[list[int]], None] | None = None,
    kind: type[Array] = Array,
) -> None:
    """A schedule whose ranks write to each other's C, on tensors in this memory, twice on the same ones."""
    machine = discover(library.face, RANKS)
    plan = plan_of(build(cases.schedule("gemm_ar/streamed"), RANKS, SIZES), machine)
    tensors: dict[str, list[Array]] = {}
    for tensor in (t for t in plan.tensors if t.kind != "scratch"):
        shapes = enumerate(tensor.shapes)
        tensors[tensor.name] = [kind(memory(rank, 4 * int(np.prod(shape))), shape) for rank, shape in shapes]
    with Executor(plan, library.face, machine=machine, timeout=60) as executor:
        executor.run(**tensors)
        if between is not None:
            between([array.address for arrays in tensors.values() for array in arrays])
        executor.run(**tensors)
    assert not library.violations()


def mapped(library: StandIn) -> Callable[[int, int], int]:
    """Tensors begin in one mapping and end in another."""

    def make(rank: int, size: int) -> int:
        pieces = -(-(size + PIECE // 2) // PIECE)
        return library.mapped(rank, PIECE, max(2, pieces)) + PIECE // 2

    return make


def test_mapped_memory(library: StandIn) -> None:
    library.reset(f"devices {RANKS}")
    run(library, mapped(library))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("kind", [Array, Torch])
def test_memory_that_is_mapped_anew_between_runs(
    library: StandIn, monkeypatch: pytest.MonkeyPatch, torch: type[Torch], told: bool, kind: type[Array]
) -> None:
    """Also where the vendor has no numbers of mappings, by which one would know that it is another one."""
    library.reset(f"devices {RANKS}")
    if not told:
        monkeypatch.setattr(type(VENDORS[library.face]()), "allocation", lambda vendor, address: 0)

    def again(addresses: list[int]) -> None:
        for address in addresses:
            library.remapped(address)

    run(library, mapped(library), between=again, kind=kind)
    assert torch.exports == (kind is Torch) * RANKS * len("ABC") * (1 + told)


def test_memory_of_a_pool(cuda: StandIn) -> None:
    cuda.reset(f"devices {RANKS}")
    run(cuda, cuda.pooled)


def test_access_that_is_refused(library: StandIn) -> None:
    library.reset(f"devices {RANKS}")
    call = {"cuda": "cuMemSetAccess", "hip": "hipMemSetAccess"}[library.face]
    library.set(f"fail {call} 1 801")
    with pytest.raises(DeviceError) as refused:
        run(library, mapped(library))
    name = {"cuda": "CUDA_ERROR_NOT_SUPPORTED", "hip": "hipErrorNotSupported"}[library.face]
    assert str(refused.value) == (
        f"{call} (access to rank 0's tensor, stand-in (device 0)): {name}: other GPUs cannot be given access to this "
        "memory, which is mapped to its addresses or comes from a pool; take tensors of ordinary allocations (PyTorch: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)"
    )


@pytest.mark.parametrize("flush", [0, 1])
@pytest.mark.parametrize("graph", [False, True])
def test_waits_of_streams_flush_what_others_wrote_where_the_device_can(cuda: StandIn, flush: int, graph: bool) -> None:
    """The stand-in refuses the flag where the device cannot, and notes a wait without it where the device can."""
    cuda.reset(f"devices {RANKS}; flush {flush}")
    machine = discover("cuda", RANKS)
    sizes = cases.sizes("gemm_rs/relay", RANKS, True) | cases.few_chunks("gemm_rs/relay")
    plan = plan_of(build(cases.schedule("gemm_rs/relay"), RANKS, sizes), machine)
    with Executor(plan, "cuda", machine=machine, graph=graph, timeout=60) as executor:
        for tensor in (t for t in plan.tensors if t.kind == "input"):
            for rank, shape in enumerate(tensor.shapes):
                executor.write(tensor.name, rank, np.zeros(shape, np.float32))
        executor.run()
    calls = cuda.called()
    assert calls.get("cuStreamWaitValue32", 0) + calls.get("cuStreamBatchMemOp", 0)
    assert not cuda.violations()


def test_memory_of_another_context(cuda: StandIn) -> None:
    """Its own GPU can use it, others cannot: told when it is bound."""
    cuda.reset(f"devices {RANKS}")
    with pytest.raises(UsageError) as refused:
        run(cuda, cuda.elsewhere)
    assert str(refused.value) == (
        "access to rank 0's tensor: its memory belongs to a context that is not the primary one of its GPU, and other "
        "GPUs cannot use it; allocate it in the primary context (cuDevicePrimaryCtxRetain), as PyTorch, CuPy and the "
        "CUDA runtime do"
    )


def test_tensors_are_looked_at_once_a_run(cuda: StandIn) -> None:
    """One call for each tensor that is given again, where another GPU may use it; none for what `bind` has made."""
    cuda.reset(f"devices {RANKS}; reuse 1")
    machine = discover("cuda", RANKS)
    plan = plan_of(build(cases.schedule("gemm_ar/streamed"), RANKS, SIZES), machine)
    tensors = {
        t.name: [Array(cuda.pooled(rank, 4 * int(np.prod(shape))), shape) for rank, shape in enumerate(t.shapes)]
        for t in plan.tensors
        if t.kind != "scratch"
    }
    with Executor(plan, "cuda", machine=machine, timeout=60) as executor:
        executor.run(**tensors)
        before = cuda.called().get("cuPointerGetAttribute", 0)
        executor.run(**tensors)
        assert cuda.called()["cuPointerGetAttribute"] == before + len(tensors) * RANKS
        bound = executor.bind(**tensors)
        before = cuda.called()["cuPointerGetAttribute"]
        executor.run(bound)
        assert cuda.called()["cuPointerGetAttribute"] == before


def test_room_for_bindings_is_made_for_several_at_once(
    cuda: StandIn, torch: type[Torch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releasing one waits for the last run."""
    cuda.reset("devices 1")
    machine, gone, after = discover("cuda", RANKS, RANKS), [], []
    plan = plan_of(build(cases.schedule("gemm_ar/streamed"), RANKS, SIZES), machine)
    with Executor(plan, "cuda", machine=machine, ranks_per_gpu=RANKS, timeout=60) as executor:
        unbind = executor.driver.unbind
        monkeypatch.setattr(executor.driver, "unbind", lambda binding: gone.append(unbind(binding)))
        for _ in range(KEPT + KEPT // 2 + 1):
            executor.run(**tensors_of(cuda, plan, torch))
            after.append(len(gone))
    assert after == [0] * KEPT + [KEPT // 2] * (KEPT // 2) + [KEPT]
    assert not cuda.violations()


def tensors_of(cuda: StandIn, plan: Plan, torch: type[Torch]) -> dict[str, list[Torch]]:
    taken = [t for t in plan.tensors if t.kind != "scratch"]
    return {t.name: [torch(cuda.pooled(0, 4 * int(np.prod(s))), s) for s in t.shapes] for t in taken}


def test_tensors_are_known_as_long_as_their_binding(cuda: StandIn, torch: type[Torch]) -> None:
    cuda.reset("devices 1")
    machine = discover("cuda", RANKS, RANKS)
    plan = plan_of(build(cases.schedule("gemm_ar/streamed"), RANKS, SIZES), machine)
    with Executor(plan, "cuda", machine=machine, ranks_per_gpu=RANKS, timeout=60) as executor:
        sets = [tensors_of(cuda, plan, torch) for _ in range(KEPT + 1)]

        def run(which: int) -> int:
            before = torch.exports
            executor.run(**sets[which])
            return (torch.exports - before) // (RANKS * len(sets[0]))

        assert [run(which) for which in (*range(KEPT), *range(KEPT))] == [1] * KEPT + [0] * KEPT
        assert [run(which) for which in (0, KEPT, 0, 1)] == [0, 1, 0, 1]  # the one that was used longest ago has gone
        executor.release(executor.bind(**sets[0]))
        assert [run(0), run(0)] == [1, 0]
        with pytest.raises(UsageError, match="wanted a list of 2 tensors"):
            executor.run(**{**sets[0], "A": tuple(sets[0]["A"]) * 2})
    assert not cuda.violations()
