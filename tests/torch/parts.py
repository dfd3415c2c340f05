"""What each process of a group does in the tests of `test_symm_mem.py`. Every function is called by all processes."""

from __future__ import annotations

import gc
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed._symmetric_memory as symmetric
import torch.testing._internal.distributed.fake_pg

import ficco_rt.torch
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.select.sized import Operation
from ficco_rt.torch import groups, symm_mem
from tests.torch import calls
from tests.torch.calls import OPERATORS, same
from tests.unit import pages

NAMES = [f"symm_mem::{name}" for name in symm_mem._KERNELS]


class Lines(logging.Handler):
    """What the logger says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def lines() -> Iterator[list[str]]:
    handler, logger = Lines(), logging.getLogger("ficco_rt.torch")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler.said
    logger.removeHandler(handler)


def integers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Other ones in each process."""
    made = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    return torch.randint(-2, 3, shape, generator=made).to(dtype)


def gather(m: int, group: Any = None, seed: int = 0) -> Callable[[], None]:
    """A call of m rows that checks its result."""
    group = dist.group.WORLD if group is None else group
    A, B = integers(m, 16, seed=seed), integers(16, 8, seed=seed + 1)
    arguments = A, [B], 0, group.group_name
    wanted = symmetric._fused_all_gather_matmul_fallback(*arguments, return_A=False)
    return lambda: same(OPERATORS.fused_all_gather_matmul(*arguments, return_A=False), wanted)


def scatter(m: int, group: Any = None, seed: int = 0) -> Callable[[], None]:
    group = dist.group.WORLD if group is None else group
    arguments = integers(m * group.size(), 16, seed=seed), integers(16, 8, seed=seed + 1), "sum", 0, group.group_name
    wanted = symmetric._fused_matmul_reduce_scatter_fallback(*arguments)
    return lambda: same(OPERATORS.fused_matmul_reduce_scatter(*arguments), wanted)


# ---------------------------------------------------------------- parts


def random_calls(number: int, seed: int) -> None:
    with ficco_rt.torch.installed(), lines() as said:
        calls.many(number, seed)
    by_us = [line for line in said if "schedule" in line]
    assert len(by_us) > number // 5
    assert len(said) - len(by_us) > number // 20
    assert any("fp8" in line for line in by_us)
    assert not [line for line in said if "scaled_matmul" in line]  # which schedules serve


def everything(number: int, seed: int) -> None:
    """All parts, in one start."""
    first = installation, log, refusals, refusals_of_fp8, mistakes, known, compiled, compiled_of_fp8, sizes, freed
    for part in (*first, threads, one_group_of_threads, capture):
        part()
    page()
    random_calls(number, seed)
    orders()


def installation() -> None:
    before = [torch._C._dispatch_dump(name) for name in NAMES]
    with warnings.catch_warnings(action="error"):
        ficco_rt.torch.install(leave=8)
        ficco_rt.torch.install(leave=8)
    gather(3)()
    with pytest.raises(UsageError, match="installed with other settings: call uninstall"):
        ficco_rt.torch.install()
    gather(4)()
    for wrong, said in (
        ({"leave": -1}, "leave is a number of multiprocessors, 0 or more; given -1"),
        ({"limit": 0}, "limit is a number of bytes, at least 1; given 0"),
        ({"buckets": [0]}, r"buckets is a list of numbers of rows, each at least 1; given \[0\]"),
        ({"buckets": 8}, "buckets is a list of numbers of rows, each at least 1; given 8"),
        ({"by": "luck"}, "by is rules, model, measured; given 'luck'"),
        ({"timeout": 0}, "timeout is a number of seconds above 0, or None; given 0"),
    ):
        with pytest.raises(UsageError, match=said):
            ficco_rt.torch.install(**wrong)
    with pytest.raises(UsageError, match="install has no setting 'leaves'; it has leave, limit, buckets"):
        ficco_rt.torch.install(leaves=8)
    ficco_rt.torch.uninstall()
    ficco_rt.torch.uninstall()
    assert [torch._C._dispatch_dump(name) for name in NAMES] == before
    with pytest.raises(NotImplementedError):
        gather(3)()
    with ficco_rt.torch.installed(ficco_rt.torch.Settings(buckets=[24])), lines() as said:
        gather(20)()
    assert "made for 24 rows" in said[0]
    assert [torch._C._dispatch_dump(name) for name in NAMES] == before
    assert not groups._OPERATIONS


def log() -> None:
    with ficco_rt.torch.installed(), lines() as said:
        for _ in range(2):
            gather(5)()
            scatter(20)()
            OPERATORS.fused_all_gather_matmul(integers(2, 3, 8), [integers(16, 8)], 2, name())
        with symmetric._test_mode():
            gather(6)()
    assert said == [
        "ag_gemm of 2 ranks, 5 rows of each, N=16, K=16, T=fp32: schedule ag_gemm_oneshot, made for 16 rows",
        "gemm_rs of 2 ranks, 20 rows of each, N=8, K=32, T=fp32: schedule gemm_rs_oneshot, made for 32 rows",
        "symm_mem::fused_all_gather_matmul of A [2, 3, 8] float32, B [16, 8] float32, dimension 2, return_A=True, 2 "
        "ranks: PyTorch's own implementation, because the dimension is the last one",
    ], said


def refusals() -> None:
    A, B = integers(4, 6, 8), integers(8, 8)
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True).group_name
    fake = dist.new_group([0, 1], backend="fake").group_name
    scattered = OPERATORS.fused_matmul_reduce_scatter
    cases: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
        ("the dimension is the last one", scattered, (A, B, "sum", 2, name())),
        ("no tuned product of float64", scattered, (A.double(), B.double(), "sum", 0, name())),
        ("nothing to compute", scattered, (A[:, :0], B, "sum", 0, name())),
        ("the group has one process", scattered, (A, B, "sum", 0, alone)),
        ("the group is a fake one", scattered, (A, B, "sum", 0, fake)),
        ("max is neither sum nor avg", scattered, (A, B, "max", 0, name())),
    ]
    with ficco_rt.torch.installed():
        for why, operator, arguments in cases:
            with lines() as said:
                given, wanted = operator(*arguments), symmetric._fused_matmul_reduce_scatter_fallback(*arguments)
            if "fake" not in why:
                same(given, wanted)
            assert len(said) == 1, said
            assert why in said[0], said


def refusals_of_fp8() -> None:
    """NOTE gloo gathers no fp8: what would be served by PyTorch's all-gather fails."""
    x, w = (integers(*shape).to(calls.FP8) for shape in ((4, 6, 16), (8, 16)))
    one, rows, columns = torch.tensor(2.0), torch.ones(4, 6, 1), torch.ones(1, 8)
    b, bf16 = torch.ones(8, dtype=torch.bfloat16), torch.bfloat16

    def scattered(A_scale: Any, B_scale: Any, dim: int, *rest: Any) -> tuple[Any, ...]:
        return x, w.t(), A_scale, B_scale, "sum", dim, dim, name(), [4, 6, 8], *rest

    scattering: list[tuple[str, tuple[Any, ...]]] = [
        ("the dimension is the last one", scattered(one, one, 2, None, None, bf16)),
        ("each process adds its own bias", scattered(rows, columns, 0, b, None, bf16)),
        ("the result is of torch.float64", scattered(one, one, 1, None, None, torch.float64)),
    ]
    gathering: list[tuple[str, tuple[Any, ...]]] = [
        ("the result is scaled", (one, [one], 0, name(), [None], [one], [bf16], [False])),
        ("the result is of fp8", (rows, [columns], 0, name(), [None], [None], [None], [False])),
        ("the dimension is the last one", (rows, [columns], 2, name(), [None], [None], [bf16], [False])),
        ("the bias has another type", (one, [one], 0, name(), [b.half()], [None], [bf16], [False])),
        ("neither all of tensors nor all of rows", (one, [columns], 0, name(), [None], [None], [bf16], [False])),
        ("scales are not of float32", (one.double(), [one], 0, name(), [None], [None], [bf16], [False])),
    ]
    with ficco_rt.torch.installed():
        for why, arguments in scattering:
            with lines() as said:
                try:
                    wanted = symmetric._fused_scaled_matmul_reduce_scatter_fallback(*arguments)
                except (RuntimeError, ValueError, NotImplementedError) as error:
                    with pytest.raises(type(error)):
                        OPERATORS.fused_scaled_matmul_reduce_scatter(*arguments)
                else:
                    same(OPERATORS.fused_scaled_matmul_reduce_scatter(*arguments), wanted)
            assert len(said) == 1, said
            assert why in said[0], said
        for why, arguments in gathering:
            with lines() as said, pytest.raises(RuntimeError, match="Invalid scalar type"):
                OPERATORS.fused_all_gather_scaled_matmul(x, [w.t()], *arguments)
            assert len(said) == 1, said
            assert why in said[0], said


def compiled_of_fp8() -> None:
    """With several products, of which PyTorch makes those of fp8 on the gathered rows."""

    def layer(x: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, ...]:
        columns = [torch.ones(1, n) for n in (16, 32, 16)]
        outs = [torch.bfloat16, torch.float32, None]
        nones, fast = [None] * 3, [False] * 3
        gathered, made = OPERATORS.fused_all_gather_scaled_matmul(
            x, [up[:n].t() for n in (16, 32, 16)], by, columns, 1, name(), nones, nones, outs, fast
        )
        z = OPERATORS.fused_scaled_matmul_reduce_scatter(
            gathered, up.t(), 2 * torch.ones(*gathered.shape[:-1], 1), torch.ones(1, 32), "sum", 1, 1, name(),
            [*gathered.shape[:-1], 32], out_dtype=torch.bfloat16,
        )  # fmt: skip
        return gathered, *made, z

    x, up = (integers(*shape, seed=1).sign().to(calls.FP8) for shape in ((2, 3, 16), (32, 16)))
    by = integers(2, 3, 1).abs() + 1
    with ficco_rt.torch.installed(), lines() as said:
        for given, wanted in zip(
            torch.compile(layer, fullgraph=True, backend="aot_eager")(x, by), layer(x, by), strict=True
        ):
            same(given, wanted)
    assert [line.split()[0] for line in said] == ["ag_gemm_kept", "gemm_rs"], said


def mistakes() -> None:
    """Errors are PyTorch's, and the next calls are right."""
    A, B = integers(4, 8), integers(8, 8)
    wrong: list[tuple[Any, ...]] = [
        (A, [integers(9, 8)], 0, name()),
        (A, [B.bfloat16()], 0, name()),
        (A, [B], 7, name()),
        (A, [integers(2, 8, 8)[0, 0]], 0, "nobody"),
    ]
    with ficco_rt.torch.installed():
        for arguments in wrong:
            with pytest.raises(Exception, match=r".") as theirs:
                symmetric._fused_all_gather_matmul_fallback(*arguments)
            with pytest.raises(theirs.type) as ours:
                OPERATORS.fused_all_gather_matmul(*arguments)
            assert str(ours.value) == str(theirs.value)
            gather(4)()
        odd = integers(5, 8), B, "sum", 0, name()
        with pytest.raises(AssertionError, match="must be a multiple of group_size"):
            OPERATORS.fused_matmul_reduce_scatter(*odd)
        scatter(4)()


def compiled() -> None:
    """Eagerly and by torch.compile, whose Meta kernels tell the strides."""

    def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        _, (y,) = OPERATORS.fused_all_gather_matmul(x, [up.t()], 1, name(), return_A=False)
        z: torch.Tensor = OPERATORS.fused_matmul_reduce_scatter(y.relu() * 2, down.t(), "sum", 1, name())
        return z + x

    tensors = integers(2, 6, 16), integers(8, 16, seed=1), integers(16, 8, seed=2)
    with symmetric._test_mode(), ficco_rt.torch.installed():
        wanted = layer(*tensors)
    with ficco_rt.torch.installed(), lines() as said:
        same(torch.compile(layer, fullgraph=True, backend="aot_eager")(*tensors), wanted)
    assert len(said) == 2
    assert all("transb=1" in line for line in said), said  # the weights are not copied


def inductor_of_fp8() -> None:
    """The pass makes the scaled operators, too."""
    group = dist.group.WORLD

    def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        gathered = (
            funcol.all_gather_single(x.view(torch.uint8), 0, group).view(x.dtype)
            if eager
            else funcol.all_gather_single(x, 0, group)
        )
        y = torch._scaled_mm(gathered, up.t(), one, one, out_dtype=torch.bfloat16)
        z = torch._scaled_mm(y.to(x.dtype), down.t(), one, one, out_dtype=torch.bfloat16)
        return funcol.reduce_scatter_single(z, "sum", 0, group)

    tensors = [t.sign().to(calls.FP8) for t in (integers(8, 16), integers(32, 16, seed=1), integers(16, 32, seed=2))]
    one = torch.tensor(1.0)
    eager = True
    wanted = layer(*tensors, one)
    eager = False
    with ficco_rt.torch.installed(), lines() as said, micro_pipelined() as options:
        same(torch.compile(layer, fullgraph=True, options=options)(*tensors, one), wanted)
    assert [line.split()[0] for line in said] == ["ag_gemm_kept", "gemm_rs"], said


@contextmanager
def micro_pipelined() -> Iterator[dict[str, Any]]:
    """Options of Inductor. NOTE its pass asks for NCCL, and uses none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "is_nccl_available", lambda: True)
        patch.setitem(symmetric._group_name_to_store, name(), None)
        yield {"_micro_pipeline_tp": True, "fx_graph_cache": False}


def inductor() -> None:
    """Inductor's micro-pipeline pass makes the operators of a plain layer."""
    group = dist.group.WORLD

    def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        y = torch.relu(funcol.all_gather_single(x, 0, group) @ up.t())
        return funcol.reduce_scatter_single(y @ down.t(), "sum", 0, group)

    tensors = integers(8, 16), integers(24, 16, seed=1), integers(16, 24, seed=2)
    wanted = layer(*tensors)
    with ficco_rt.torch.installed(), lines() as said, micro_pipelined() as options:
        same(torch.compile(layer, fullgraph=True, options=options)(*tensors), wanted)
    assert [line.split()[0] for line in said] == ["ag_gemm", "gemm_rs"], said
    inductor_of_fp8()


def sizes() -> None:
    """One process calls with other sizes: all say so, and go on."""
    mine = 5 if dist.get_rank() else 7
    with ficco_rt.torch.installed():
        for _ in range(2):  # at the first call of these sizes, and later
            with pytest.raises(UsageError, match=r"the rows of a rank is 7 in process 0 and 5 in process 1"):
                OPERATORS.fused_all_gather_matmul(integers(mine, 16), [integers(16, 8)], 0, name())
            gather(7)()
            gather(5)()
        ones = gather(4), scatter(4)
        with pytest.raises(UsageError, match="the operation is ag_gemm in process 0 and gemm_rs in process 1"):
            ones[dist.get_rank()]()
        gather(7)()


def freed() -> None:
    """Tensors that are freed between calls, and others in their places."""
    with ficco_rt.torch.installed():
        kept = []
        for i in range(20):
            A, B = integers(4, 16, seed=i), integers(16, 8, seed=i + 1)
            wanted = symmetric._fused_all_gather_matmul_fallback(A, [B], 0, name())
            given = OPERATORS.fused_all_gather_matmul(A, [B], 0, name())
            del A, B
            gc.collect()
            kept.append((given, wanted))
        for given, wanted in kept:
            same(given, wanted)


def threads() -> None:
    """Each of two threads with a group of its own."""
    pair = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)]
    todo = [[made(m, group) for m in (3, 20, 3) for made in (gather, scatter)] * 3 for group in pair]
    with ficco_rt.torch.installed():
        assert not failures(*(lambda of=of: [one() for one in of] for of in todo))


def one_group_of_threads() -> None:
    """Two threads on one group: right where they take turns in an order, and where they do not, right or refused."""
    with ficco_rt.torch.installed():
        ones, turn = [gather(3), scatter(4)], threading.Semaphore(0)
        assert not failures(lambda: (ones[0](), turn.release()), lambda: (turn.acquire(), ones[1]()))
        for _ in range(5):
            wrong = failures(*ones)
            assert all(isinstance(error, UsageError) for error in wrong), wrong
            assert len(wrong) in (0, 2)
            ones[0]()


def failures(*functions: Callable[[], object]) -> list[BaseException]:
    """What they raise, each in a thread."""
    with ThreadPoolExecutor(len(functions)) as pool:
        raised = [made.exception() for made in [pool.submit(function) for function in functions]]
    return [error for error in raised if error is not None]


def known() -> None:
    """A call that comes again on the same tensors is its run alone, on GPUs; here a run of the host stands for that."""
    again = SimpleNamespace(again=lambda streams: streams is None)  # whether it may come

    def run(operation: Operation, tensors: Any, streams: Any, *, gradients: bool = False) -> object:
        if not gradients:
            return None
        operation.run(streams=streams, **tensors)
        return again

    A, B, square = integers(4, 16), integers(16, 8), integers(16, 16)
    odd = torch.cat([A.flatten()[:1], A.flatten()])[1:].view(A.shape)  # at an address that is not aligned
    of_gather, of_scatter = OPERATORS.fused_all_gather_matmul, OPERATORS.fused_matmul_reduce_scatter
    group, count = name(), 2 * dist.get_world_size()
    cases: list[tuple[int, Callable[..., Any], tuple[Any, ...]]] = [  # how many runs are learned
        (1, of_gather, (A, [B], 0, group)),
        (1, of_gather, (A.view(4, 1, 16), [integers(8, 16).t()], 0, group)),
        (0, of_gather, (A, [B, B], 0, group)),  # the second product stands behind the run
        (0, of_gather, (square.t(), [B], 0, group)),  # of a copy
        (0, of_gather, (odd, [B], 0, group)),
        (1, of_scatter, (integers(count, 16), B, "sum", 0, group)),
        (0, of_scatter, (integers(count, 16), B, "avg", 0, group)),
    ]
    X, W = (integers(count, 16).to(calls.FP8) for _ in range(2))
    rows, one, lists = torch.ones(count, 1), torch.ones(1), ([None], [None], [torch.bfloat16], [False])
    for learned, by, of_W in ((1, rows, rows.t()), (0, one, one)):  # one scale is copied
        cases.append((learned, OPERATORS.fused_all_gather_scaled_matmul, (X, [W.t()], by, [of_W], 0, group, *lists)))
        arguments = X, W.t(), by, of_W, "sum", 0, 0, group, [count, count], None, None, torch.bfloat16
        cases.append((learned, OPERATORS.fused_scaled_matmul_reduce_scatter, arguments))
    with ficco_rt.torch.installed(), pytest.MonkeyPatch.context() as patch:
        gather(3)()
        of = groups.operations(group, A.device)
        patch.setattr(of, "_compares", False)
        patch.setattr(Operation, "again", run)
        for learned, operator, arguments in cases:
            before = len(of._known)
            operator(*arguments)
            assert len(of._known) == before + learned, arguments
        call, (how, runs) = next(iter(of._known.items()))
        made = [torch.empty_strided(shape, stride, dtype=dtype) for shape, stride, dtype in how]
        patch.setattr(of, "_empty", lambda shape, *_: next(y for y in made if y.shape == shape))
        assert of.again(call) is None  # no run makes these
        runs[made[0].data_ptr() if len(made) == 1 else tuple(y.data_ptr() for y in made)] = runs.popitem()[1]
        found = of.again(call)
        assert found is not None
        assert [y.data_ptr() for y in found] == [y.data_ptr() for y in made]
        again.again = lambda streams: False
        assert of.again(call) is None
        assert of.again(("another", *call[1:])) is None


def capture() -> None:
    """Nothing is made inside a capture; what is there is used."""
    with ficco_rt.torch.installed(), pytest.MonkeyPatch.context() as patch:
        gather(3)()
        of = groups.operations(name(), torch.device("cpu"))
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        patch.setattr(of, "driver", "cuda")
        with pytest.raises(UsageError, match=r"ag_gemm with 40 rows of a rank, .* before the capture"):
            of.run("ag_gemm", 40, {"N": 16, "K": 16, "T": "fp32"})
        patch.setattr(of, "driver", "host")
        gather(3)()


def page() -> None:
    """The program of the page, in this group."""
    blocks = pages.blocks((pages.DOCS / "torch.md").read_text(encoding="utf-8"))
    (program,) = [block.text for block in blocks if "mlp_cpu.py" in block.words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", lambda backend: None)
        patch.setattr(dist, "destroy_process_group", lambda: None)
        exec(program, {})


def orders() -> None:
    """Two groups in different orders. On the host a run begins when all processes have called it: they wait for each
    other until the time limit, and say for whom. Without an installation PyTorch goes on, and the next one works."""
    pair = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)]
    ones = [gather(3, group) for group in pair]
    with ficco_rt.torch.installed(timeout=1.5):
        for one in ones:
            one()
        dist.barrier()
        with pytest.raises(DeviceError, match=r"has waited 1.5 s for the same facts, and process . of 2 has not come"):
            ones[dist.get_rank()]()
        with pytest.raises(DeviceError, match="of no use any more"):
            ones[dist.get_rank()]()
    dist.barrier()
    gathered = torch.empty(2, dtype=torch.int64)
    dist.all_gather_into_tensor(gathered, torch.tensor([dist.get_rank()]))
    assert gathered.tolist() == [0, 1]
    with ficco_rt.torch.installed():
        for one in ones:
            one()


def subgroups() -> None:
    """Pairs and all four, in the same order in each process; pairs are at different sizes."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    crossed = [dist.new_group(ranks) for ranks in ([0, 2], [3, 1])]
    rank = dist.get_rank()
    mine, other = pairs[rank // 2], crossed[0 if rank in (0, 2) else 1]
    with ficco_rt.torch.installed():
        for m in (2, 3, 17):
            gather(m + rank // 2, mine)()
            scatter(m, other)()
            gather(m)()
            scatter(m, mine)()


def four(number: int, seed: int) -> None:
    subgroups()
    random_calls(number, seed)
    ficco_rt.torch.install()  # a process may end without `uninstall`
    gather(3)()


def name() -> str:
    return str(dist.group.WORLD.group_name)
