"""Real sizes: data by PyTorch on the GPUs, runs on its tensors and streams, reference by cuBLAS in fp32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ficco_rt.errors import DeviceError
from ficco_rt.exec.bound import Bound
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import exact_limit, integers, scale
from ficco_rt.exec.reference import Arithmetic, evaluate
from ficco_rt.graph.ir import Claim, Operand, Product
from ficco_rt.plan.ir import Plan
from ficco_rt.types import TYPES
from tests.gpu.repeats import Draw, Outputs, Reference

KEEP_FREE = 0.5  # of a GPU's memory, for executors and what computing takes: references are kept in the rest


class TorchData:
    """See `Data`. Inputs are made anew for each plan, as that takes less than the memory to keep them is worth;
    references are kept while there is room, and made anew beyond.

    All plans run on the same tensors. One executor is open at a time: streams of many would share the GPUs' hardware
    queues, and a stream that waits for a flag would hold others up.
    """

    def __init__(self, plan: Plan, devices: Sequence[Any]) -> None:
        """`devices`: of each rank."""
        import torch

        self.torch: Any = torch
        self._plan = plan
        self._devices = devices
        self._limit = exact_limit(plan)
        self._integers = integers(plan)
        self._streams = [torch.cuda.Stream(device) for device in devices]
        self._tensors = {
            t.name: [
                torch.empty(s, dtype=getattr(torch, TYPES[t.dtype].torch), device=d)
                for s, d in zip(t.shapes, devices, strict=True)
            ]
            for t in plan.tensors
            if t.kind != "scratch"
        }
        self._inputs = {t.name: self._tensors[t.name] for t in plan.tensors if t.kind == "input"}
        self._outputs = {t.name: self._tensors[t.name] for t in plan.tensors if t.kind == "output"}
        self._references: dict[Draw, list[Reference]] = {}
        self._executor: Executor | None = None
        self._bound: Bound | None = None

    def join(self, parts: list[Any], axis: int) -> Any:
        return self.torch.cat(parts, axis)

    def attach(self, executor: Executor) -> None:
        self._executor, self._bound = executor, executor.bind(**self._tensors)

    def load(self, draw: Draw) -> None:
        for number, (name, arrays) in enumerate(self._inputs.items()):
            for rank, array in enumerate(arrays):
                self._fill(name, array, draw, draw.seed * 1000 + number * 100 + rank)
        self._finish()

    def _fill(self, name: str, array: Any, draw: Draw, seed: int) -> None:
        """Fresh values, as `fresh_inputs` has them."""
        torch, chosen = self.torch, self._integers
        make = torch.Generator(array.device).manual_seed(seed)
        if draw.values == "normal":
            array.normal_(0, scale(self._plan), generator=make)
            return
        half = (chosen.density if name in chosen.sparse else 1.0) / 2
        uniform = torch.rand(array.shape, generator=make, device=array.device)
        array.copy_((uniform < half).to(torch.int8) - (uniform >= 1 - half).to(torch.int8))
        if chosen.bound > 1:
            array.mul_(torch.empty_like(array).random_(1, chosen.bound + 1, generator=make))

    def run(self, *, graph: bool) -> Outputs:
        executor = self._executor
        assert executor is not None
        for arrays in self._outputs.values():
            for array in arrays:
                array.fill_(float("nan"))
        executor.poison()
        self._finish()
        executor.graph = graph
        executor.run(self._bound, streams=self._streams)
        executor.synchronize()
        if graph:
            return self._outputs
        return {name: [array.clone() for array in arrays] for name, arrays in self._outputs.items()}

    def _finish(self) -> None:
        for device in dict.fromkeys(self._devices):
            self.torch.cuda.synchronize(device)

    # ---- reference

    def references(self, draw: Draw) -> Sequence[Reference]:
        found = self._references.get(draw)
        if found is None:
            found = [self._reference(claim, draw) for claim in self._plan.claims]
            self._finish()
            if all(map(self._has_room, self._devices)):
                self._references[draw] = found
        return found

    def _reference(self, claim: Claim, draw: Draw) -> Reference:
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = draw.values == "exact"  # holds the integers, and their sums, exactly
        arrays = []
        for target, array in zip(claim.targets, self._evaluate(claim), strict=True):
            arrays.append(array.to(self._devices[target.rank]))
        largest = max((float(abs(a).max()) for a in arrays if a.numel()), default=0.0)
        exact = draw.values == "exact" and largest <= self._limit
        if exact:
            dtype = self._outputs[claim.targets[0].tensor][0].dtype
            arrays = [array.to(dtype) for array in arrays]
        return Reference(arrays, largest, exact)

    def _evaluate(self, claim: Claim) -> Iterator[Any]:
        """Rank by rank, in fp32. A product with each rank's own operand is made on the rank's GPU, all else on the
        first rank's."""
        torch = self.torch
        first = Arithmetic(lambda a: a.to(self._devices[0], torch.float32), torch.cat)
        match claim.value:
            case Product(left=left, right=Operand() as right):
                own = Arithmetic(lambda a: a.to(torch.float32), torch.cat)
                pairs = zip(evaluate(left, self._inputs, first), evaluate(right, self._inputs, own), strict=True)
                yield from (a.to(b.device) @ b for a, b in pairs)
            case value:
                yield from evaluate(value, self._inputs, first)

    def _has_room(self, device: Any) -> bool:
        cuda = self.torch.cuda
        free, total = cuda.mem_get_info(device)
        unused = cuda.memory_reserved(device) - cuda.memory_allocated(device)
        return bool(free + unused > KEEP_FREE * total)

    # ---- comparing

    def same(self, pairs: Iterable[tuple[Any, Any]]) -> bool:
        differ = [(self._bits(a) != self._bits(b)).any() for a, b in pairs]  # on all GPUs at once
        return not any(map(bool, differ))

    def _bits(self, array: Any) -> Any:
        return array.view(self.torch.int16 if array.element_size() == 2 else self.torch.int32)

    def off(self, got: Any, wanted: Any) -> Any:
        return (got.to(self.torch.float32) - wanted.to(self.torch.float32)).abs_()


def make_room() -> None:
    """Memory that PyTorch keeps for later is for executors now."""
    import torch

    torch.cuda.empty_cache()


@contextmanager
def torch_errors() -> Iterator[None]:
    """What PyTorch says of GPUs, in our words: no memory, or a lost device."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceError(f"PyTorch: {error}") from error
