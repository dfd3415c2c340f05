"""Small sizes: data and reference by numpy, in the executor's own tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ficco_rt.driver.api import Array
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import exact_limit, fresh_inputs, plain, quantizations
from ficco_rt.exec.reference import evaluate
from ficco_rt.graph.ir import Claim
from ficco_rt.plan.ir import Plan
from ficco_rt.types import numpy_dtype
from tests.gpu.repeats import Draw, Outputs, Reference


class NumpyData:
    """See `Data`. All draws are kept: a hundred MB or so for the largest of the small sizes."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._limit = exact_limit(plan)
        self._inputs: dict[Draw, dict[str, list[Array]]] = {}
        self._references: dict[Draw, list[Reference]] = {}
        self._executor: Executor | None = None

    def join(self, parts: list[Any], axis: int) -> Any:
        return np.concatenate(parts, axis)

    def attach(self, executor: Executor) -> None:
        self._executor = executor

    def load(self, draw: Draw) -> None:
        if draw not in self._inputs:
            self._inputs[draw] = fresh_inputs(self._plan, draw.seed, draw.values)
        assert self._executor is not None
        for name, arrays in self._inputs[draw].items():
            for rank, array in enumerate(arrays):
                self._executor.write(name, rank, array)

    def run(self, *, graph: bool) -> Outputs:
        executor = self._executor
        assert executor is not None
        executor.poison()
        executor.graph = graph
        executor.run()
        outputs = [t.name for t in self._plan.tensors if t.kind == "output"]
        return {name: [executor.read(name, r) for r in range(self._plan.ranks)] for name in outputs}

    def references(self, draw: Draw) -> Sequence[Reference]:
        if draw not in self._references:
            self._references[draw] = [self._reference(claim, draw) for claim in self._plan.claims]
        return self._references[draw]

    def _reference(self, claim: Claim, draw: Draw) -> Reference:
        arrays = list(evaluate(claim.value, plain(self._plan, self._inputs[draw])))
        largest = max((float(abs(a).max()) for a in arrays if a.size), default=0.0)
        exact = draw.values == "exact" and largest <= self._limit and not quantizations(self._plan)
        if exact:
            dtype = numpy_dtype(self._plan.tensor(claim.targets[0].tensor).dtype)
            arrays = [a.astype(dtype) for a in arrays]
        return Reference(arrays, largest, exact)

    def same(self, pairs: Iterable[tuple[Any, Any]]) -> bool:
        return all(np.array_equal(_bits(a), _bits(b)) for a, b in pairs)

    def off(self, got: Any, wanted: Any) -> Any:
        return np.abs(np.subtract(got, wanted, dtype=np.result_type(wanted, np.float32)))


def _bits(array: Array) -> Array:
    return array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint32)
