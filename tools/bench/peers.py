"""The peers' side, one process a GPU: NCCL then cuBLAS, PyTorch's async TP, NCCL's copy-engine collectives."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .clock import Clock
from .data import OPERANDS, empty, fill, off, operand, reference
from .measure import first_line
from .scaled import products
from .scenarios import Scenario
from .workers import Turn

PEERS = ("nccl", "asynctp", "nccl-ce")
CE_LOG = "Init CE"  # what NCCL writes when its copy-engine path is first taken
BF16 = "measured on bf16 alone"
WARM = 3  # eager runs before a capture
TRIALS = 10  # runs of one of several ways, to find the fastest
SWITCHES = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def multicast(environment: dict[str, str]) -> str:
    """What the peers may use, from the switches in force: the caller's, or ours, which turn it off."""
    told = ", ".join(f"{name}={environment[name]}" for name in SWITCHES)
    off = all(environment[name] == value for name, value in SWITCHES.items())
    return f"{'off' if off else 'on where the machine has it'} ({told})"


@dataclass(slots=True)
class Contestant:
    run: Callable[[], None]
    output: Callable[[], Any]  # what the last run has written
    poison: Callable[[], None]
    graph: Any = None  # keeps what a replay uses


def switches() -> None:
    """Set what the caller has not. Before PyTorch and NCCL are loaded."""
    os.environ.update({name: os.environ.get(name, value) for name, value in SWITCHES.items()})


def connect(rank: int, ranks: int, port: int) -> Any:
    """torch.distributed with its NCCL group of all ranks. The store is made here: under torchrun, PyTorch would take
    any address for that of torchrun's own store."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=ranks)
    return dist


class Peer:
    """A `workers.Side` on one GPU. `largest` is the bytes of the largest shard and of the largest gathered tensor of
    all scenarios: NCCL's copy-engine path needs memory of its own, registered once."""

    kinds: tuple[str, ...] = PEERS
    scaled: tuple[str, ...] = ("nccl", "asynctp")  # those of the kinds that take scaled fp8
    errors: tuple[type[Exception], ...] = (AttributeError, TypeError, RuntimeError)  # of a kind that cannot be measured

    def __init__(
        self, rank: int, ranks: int, port: int, folder: str, skip: Sequence[str], largest: tuple[int, int]
    ) -> None:
        switches()
        os.environ.update(
            {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG_FILE": f"{folder}/nccl.{rank}"}
        )
        warnings.filterwarnings("ignore", category=FutureWarning)
        import torch
        import torch.distributed._symmetric_memory as symmetric

        self._torch = torch
        self._rank, self._ranks = rank, ranks
        self._log = Path(f"{folder}/nccl.{rank}")
        self._skip = skip
        self._device = torch.device("cuda", rank)
        torch.cuda.set_device(self._device)
        self._dist = connect(rank, ranks, port)
        self._group = self._dist.group.WORLD.group_name
        if "asynctp" not in skip and hasattr(symmetric, "enable_symm_mem_for_group"):
            symmetric.enable_symm_mem_for_group(self._group)
        self._stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._stream)
        self._token = torch.zeros(1, device=self._device)
        self._meet()
        self._clock = Clock([self._stream], self._meet)
        self._tensors: dict[str, Any] = {}
        self._contestants: dict[str, Contestant] = {}
        self._no_engines = "skipped" if "nccl-ce" in skip else self._register(largest)

    def about(self) -> dict[str, str]:
        version = ".".join(map(str, self._torch.cuda.nccl.version()))
        return {
            "PyTorch": self._torch.__version__,
            "nccl": version,
            "multicast": multicast(dict(os.environ)),
            "nccl-ce": self._no_engines or "reached: zero-CTA policy on a group with registered symmetric memory",
        }

    def _meet(self) -> None:
        self._dist.all_reduce(self._token)

    def _wait(self) -> None:
        self._torch.cuda.synchronize()

    def _register(self, largest: tuple[int, int]) -> str | None:
        """A group of the zero-CTA policy, and symmetric memory registered with it; or why there is none."""
        torch, dist = self._torch, self._dist
        try:
            options = dist.ProcessGroupNCCL.Options()
            options.config.cta_policy = dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
            self._engines = dist.new_group(backend="nccl", pg_options=options)
            dist.all_reduce(self._token, group=self._engines)  # makes the communicator: registration needs it
            backend = self._engines._get_backend(self._device)
            self._pool = torch.cuda.MemPool(backend.mem_allocator)
            with torch.cuda.use_mem_pool(self._pool):
                self._send, self._receive = (
                    torch.empty(size, dtype=torch.uint8, device=self._device) for size in largest
                )
            self._wait()
            backend.register_mem_pool(self._pool, symm=True)
            self._engines_gather(self._receive[: 1 << 20], self._send[: (1 << 20) // self._ranks])
            self._wait()
        except (AttributeError, TypeError, RuntimeError) as error:
            return f"not reached: {type(error).__name__}: {first_line(error)}"
        log = self._log.read_text(errors="replace") if self._log.is_file() else ""
        return None if CE_LOG in log else "not reached: NCCL took its kernels for an all-gather of registered memory"

    def _engines_gather(self, out: Any, shard: Any) -> None:
        self._dist.all_gather_into_tensor(out, shard, group=self._engines)

    # ---- contestants

    def load(self, scenario: Scenario) -> dict[str, str | None]:
        self.keep(())
        self._scenario = scenario
        for name, layout in scenario.layouts(self._ranks).items():
            self._tensors[name] = empty(layout, self._device)
        for name in OPERANDS:
            fill(self._tensors[name], name, self._rank, scenario.k, 0)
        self._tensors["B"] = scenario.weight(self._tensors["B"])
        answer: dict[str, str | None] = {}
        for kind in (kind for kind in self.kinds if kind not in self._skip):
            key = f"{kind} graph"
            try:
                made = BF16 if scenario.scales and kind not in self.scaled else self._made(kind)
                if not isinstance(made, str):
                    for _ in range(WARM):
                        made.run()
                    self._wait()
            except self.errors as error:
                made = f"{type(error).__name__}: {first_line(error)}"
            if isinstance(made, str):
                answer[kind] = answer[key] = made
                continue
            self._contestants[kind], answer[kind] = made, None
            try:
                self._contestants[key], answer[key] = self._captured(made), None
            except self.errors as error:
                answer[key] = f"capture: {first_line(error)}"
        return answer

    def _made(self, kind: str) -> Contestant | str:
        """A contestant as it is issued call by call; or why there is none."""
        return {"nccl": self._nccl, "asynctp": self._asynctp, "nccl-ce": self._nccl_ce}[kind]()

    def _captured(self, eager: Contestant) -> Contestant:
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        self._wait()
        self._meet()
        self._wait()
        # thread_local: NCCL's own threads may call CUDA meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            eager.run()
        result = eager.output()
        graph.replay()
        self._wait()

        def poison() -> None:
            eager.poison()
            result.fill_(float("nan"))

        return Contestant(graph.replay, lambda: result, poison, graph)

    def _fastest(self, runs: Mapping[str, Callable[[], None]], failed: list[str]) -> str | None:
        """The fastest of some ways; None: none runs in all processes. All try the same, and agree on what failed and on
        what was fastest."""
        times: dict[str, float] = {}
        for name, run in runs.items():
            try:
                with self._trying(name):
                    took = self._time(run)
            except self.errors as error:
                failed.append(f"{name}: {type(error).__name__}: {first_line(error)}")
                took = math.inf
            times[name] = self._slowest(took)
        best = min(times, key=lambda name: times[name], default=None)
        return None if best is None or times[best] == math.inf else best

    def _trying(self, what: str) -> AbstractContextManager[None]:
        """Around a trial."""
        return nullcontext()

    def _time(self, run: Callable[[], None]) -> float:
        """Milliseconds of `TRIALS` runs."""
        for _ in range(WARM):
            run()
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(self._stream)
        for _ in range(TRIALS):
            run()
        end.record(self._stream)
        self._wait()
        return float(begin.elapsed_time(end))

    def _slowest(self, time: float) -> float:
        found = self._torch.tensor([time], device=self._device)
        self._dist.all_reduce(found, self._dist.ReduceOp.MAX)
        return float(found.item())

    def _nccl(self) -> Contestant | str:
        """The product is cuBLAS's; of scaled operands that of the fastest library."""
        torch, dist, t = self._torch, self._dist, self._tensors
        a, b, c = t["A"], t["B"], t["C"]
        scenario = self._scenario
        whole, product = a, c
        if scenario.gathers:
            (_, k), blocks = scenario.layouts(self._ranks)["A"]
            whole = empty(((scenario.m, k), blocks), self._device)
        elif scenario.collective == "reduce_scatter":
            product = c.new_empty(scenario.m, scenario.n)

        def gather() -> None:
            if not isinstance(a, tuple):
                dist.all_gather_into_tensor(whole, a)
                return
            with dist._coalescing_manager(device=self._device):
                for to, part in zip(whole, a, strict=True):
                    dist.all_gather_into_tensor(to.view(torch.uint8), part.view(torch.uint8))

        calls: dict[str, tuple[Callable[[], object], ...]] = {"cuBLAS": (partial(torch.mm, whole, b, out=product),)}
        if scenario.scales:
            calls = {name: tuple(made) for name, made in products(whole, b, product).items()}
        before = (gather,) if scenario.gathers else ()
        behind = {
            "all_gather": (),
            "reduce_scatter": (partial(dist.reduce_scatter_tensor, c, product),),
            "all_reduce": (partial(dist.all_reduce, c),),
        }[scenario.collective]

        def run(name: str) -> None:
            for call in (*before, *calls[name], *behind):
                call()

        failed: list[str] = []
        runs: dict[str, Callable[[], None]] = {name: partial(run, name) for name in calls}
        best = self._fastest(runs, failed) if len(runs) > 1 else next(iter(runs))
        if best is None:
            return "; ".join(failed)

        def poison() -> None:
            for tensor in (*(whole if isinstance(whole, tuple) and whole is not a else ()), product, c):
                tensor.fill_(float("nan"))
            if whole is not a and not isinstance(whole, tuple):
                whole.fill_(float("nan"))

        return Contestant(runs[best], lambda: c, poison)

    def _asynctp(self) -> Contestant | str:
        torch, t, scenario = self._torch, self._tensors, self._scenario
        shape = scenario.shapes(self._ranks)["C"]
        made: list[Any] = []
        if scenario.scales == "1x128":
            return "PyTorch gathers no scales of blocks"
        if scenario.gathers:

            def run() -> None:
                if not scenario.scales:
                    gather = torch.ops.symm_mem.fused_all_gather_matmul
                    made[:] = gather(t["A"], [t["B"]], 0, self._group, return_A=False)[1]
                    return
                (a, by), (b, weights) = t["A"], t["B"]
                gather = torch.ops.symm_mem.fused_all_gather_scaled_matmul
                options = [None], [None], [torch.bfloat16], [False]
                made[:] = gather(a, [b.t()], by, [weights.t()], 0, self._group, *options)[1]
        elif scenario.collective == "reduce_scatter":

            def run() -> None:
                if not scenario.scales:
                    made[:] = [torch.ops.symm_mem.fused_matmul_reduce_scatter(t["A"], t["B"], "sum", 0, self._group)]
                    return
                (a, by), (b, weights) = t["A"], t["B"]
                scatter, whole = torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter, (scenario.m, scenario.n)
                options = "sum", 0, 0, self._group, whole, None, None, torch.bfloat16, False
                made[:] = [scatter(a, b.t(), by, weights.t(), *options)]
        else:
            return "PyTorch has no fused operation"

        def poison() -> None:
            """The operation allocates its output: leave NaN in what the allocator will give it."""
            made.clear()
            torch.full(shape, float("nan"), dtype=torch.bfloat16, device=self._device)

        return Contestant(run, lambda: made[0], poison)

    def _nccl_ce(self) -> Contestant | str:
        if self._no_engines:
            return self._no_engines
        if not self._scenario.gathers:
            return "copy engines do no arithmetic: NCCL has only its kernels"
        torch, t, scenario = self._torch, self._tensors, self._scenario
        shard_bytes, whole_bytes = t["A"].nbytes, t["A"].nbytes * self._ranks
        shard = self._send[:shard_bytes].view(torch.bfloat16).view(t["A"].shape)
        whole = self._receive[:whole_bytes].view(torch.bfloat16).view(scenario.m, scenario.k)
        self._registered = shard

        def run() -> None:
            self._engines_gather(whole, shard)
            torch.mm(whole, t["B"], out=t["C"])

        def poison() -> None:
            whole.fill_(float("nan"))
            t["C"].fill_(float("nan"))

        return Contestant(run, lambda: t["C"], poison)

    def keep(self, keys: Sequence[str]) -> None:
        for key in [k for k in self._contestants if k not in keys]:
            del self._contestants[key]
        if not keys:
            self._tensors, self._reference, self._registered = {}, None, None
        self._torch.cuda.empty_cache()

    # ---- data

    def data(self, seed: int) -> None:
        scenario, layouts = self._scenario, self._scenario.layouts(self._ranks)
        of = operand(layouts, scenario.k, seed, self._device)
        for name in OPERANDS:
            if isinstance(self._tensors[name], tuple):
                fill(self._tensors[name], name, self._rank, scenario.k, seed)
            else:
                given = of(name, self._rank)
                self._tensors[name].copy_(given if name == "A" else scenario.weight(given))
        if self._registered is not None:
            self._registered.copy_(self._tensors["A"])
        a, b = (partial(of, name) for name in OPERANDS)
        asked = scenario.collective, layouts["C"][0], self._ranks, self._rank
        self._reference = reference(*asked, a, b, self._device, scenario.transb)
        self._wait()

    def check(self, key: str) -> float:
        contestant = self._contestants[key]
        contestant.poison()
        contestant.run()
        self._wait()
        return off(contestant.output(), self._reference)

    # ---- measuring

    def turn(self, key: str, warmup: int, singles: int, loop: int) -> Turn:
        return Turn(*self._clock.turn(self._contestants[key].run, self._wait, warmup, singles, loop))
