"""Products of few rows that wait for all of them, as `ag_gemm/oneshot` makes them at decode sizes.

A copy on part of the multiprocessors brings the rows, takes as long as one from a peer, and raises the flag that the
product waits for. The product is launched behind it as plans chain launches: its blocks start while the copy runs, on
the multiprocessors that are free, and load the right operand, which nothing writes.

A shape that `raises` is the product of `gemm_rs/oneshot` and `gemm_ar/oneshot`: it waits for nothing, and raises a
flag.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import torch

from ficco_rt.kernels import kernel_compiler
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import choice
from ficco_rt.kernels.sm90.cost import WaitGroup
from ficco_rt.kernels.target import options

from .device import Kernel, arch, loaded, sms
from .launch import Launch, compiled
from .odd import LAUNCHES, check, padded_sets, told
from .product import Choice, plain
from .timing import Sets, graph, spread, times
from .variants import Key

SOURCE = """
extern "C" __global__ void __launch_bounds__(512, 1)
arrive(const uint4 *from, uint4 *to, unsigned count, unsigned *ended, unsigned *flag, unsigned took) {
    asm volatile("griddepcontrol.launch_dependents;");
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    for (unsigned i = blockIdx.x * 512 + threadIdx.x; i < count; i += gridDim.x * 512) to[i] = from[i];
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < took);
    __syncthreads();
    if (threadIdx.x) return;
    __threadfence_system();
    if (atomicAdd(ended, 1) != gridDim.x - 1) return;
    *ended = 0;
    __threadfence_system();
    *(volatile unsigned *)flag = 1;
}
"""
BLOCKS, THREADS, TOOK = 64, 512, 5800  # of `naive_copy` in ag_gemm/oneshot at M = 64 on two H200; ns
ALONE = 180 << 10  # bytes of shared memory: no block of a product has room beside it, as beside `naive_copy`


@cache
def _function() -> Any:
    code = kernel_compiler.compile_text(SOURCE, "arrive.cu", tuple(options(arch()))).code
    return loaded(code, "arrive", ALONE)


class Copy(Kernel):
    """Brings rows, and raises a flag."""

    def __init__(self, rows: torch.Tensor, to: torch.Tensor) -> None:
        self.words = torch.zeros(2, dtype=torch.int32, device="cuda")  # ended blocks, and the flag
        size = ctypes.c_uint(rows.numel() * rows.element_size() // 16)
        places = [ctypes.c_void_p(t) for t in (rows.data_ptr(), to.data_ptr(), self.words.data_ptr(), self.flag)]
        self.arguments = (*places[:2], size, *places[2:], ctypes.c_uint(TOOK))
        super().__init__(_function(), BLOCKS, THREADS, ALONE, [ctypes.addressof(a) for a in self.arguments])

    @property
    def flag(self) -> int:
        """Its address."""
        return int(self.words.data_ptr()) + 4


@dataclass(frozen=True)
class Late:
    """A copy, and the product behind it."""

    copy: Copy
    product: Launch

    def __call__(self) -> None:
        self.copy()
        self.product()

    def left_counters(self) -> bool:
        return self.product.left_counters() or bool(self.copy.words.any())


def choices(shape: dict[str, Any]) -> list[Choice]:
    """What `choose` says for a launch that waits for all rows, or for nothing, first; then what the shape names."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    at = TOOK / 1000
    waits = () if shape.get("raises") else (WaitGroup((m,), at, at),)
    first = choice.ranked([m], [n], k, sms(), False, late=waits, throttled=False)[0]
    found = [Choice(first.variant, first.tail_splits, chained=True), *map(told, shape.get("tries", ()))]
    return list(dict.fromkeys(found))


def raising(name: str, found: Sequence[Choice], data: Sets, rounds: int) -> list[str]:
    """Check and time products that wait for nothing and raise a flag; what is wrong."""
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    launches = [[plain(a, b, c, False, each, raises=flag.data_ptr()) for a, b, c in data] for each in found]
    wrong = []
    for c, calls in zip(found, launches, strict=True):
        flag.zero_()
        wrong += [f"{name} {text}" for text in check(data[0], False, [(str(c), calls[0])])]
        wrong += [] if flag.item() == 1 else [f"{name} {c}: the flag is {flag.item()}"]
    again = math.ceil(LAUNCHES / len(data))
    t = times([graph(calls * again) for calls in launches], again * len(data), rounds)
    print(f"{name}: raises a flag")
    for number, (c, taken) in enumerate(zip(found, t, strict=True)):
        mark = "  chosen" if number == 0 else ""
        print(f"  {c!s:28} {'':6} {median(taken):6.1f}   spread {spread(taken):.1f} %{mark}", flush=True)
    return wrong


def late(shapes: Sequence[dict[str, Any]], rounds: int) -> int:
    """Check and time all shapes; print a table. How many results are wrong."""
    print("µs behind the copy's end, and of the same launch without copy and flag; medians")
    wrong, results = [], 0
    for shape in shapes:
        found = choices(shape)
        for c in found:
            compiled(None, Key(c.variant, Signature("bf16", "bf16", False, False)))
        data = padded_sets(shape["m"], shape["n"], shape["k"], False, "")
        if shape.get("raises"):
            wrong += raising(shape["name"], found, data, rounds)
            results += len(found)
            continue
        arrived = [torch.full_like(a, math.nan) for a, _, _ in data]
        copies = [Copy(a, to) for (a, _, _), to in zip(data, arrived, strict=True)]
        pairs = [
            [Late(copy, plain(to, b, c, False, each, flag=copy.flag))
             for copy, to, (_, b, c) in zip(copies, arrived, data, strict=True)]
            for each in found
        ]  # fmt: skip
        alone = [[plain(a, b, c, False, each) for a, b, c in data] for each in found]
        wrong += [f"{shape['name']} {text}" for text in
                  check(data[0], False, [(str(c), p[0]) for c, p in zip(found, pairs, strict=True)])]  # fmt: skip
        results += len(found)
        again = math.ceil(LAUNCHES / len(data))
        every: list[list[Any]] = [[*copies], *map(list, pairs), *map(list, alone)]
        graphs = [graph(calls * again) for calls in every]
        t = times(graphs, again * len(data), rounds)
        before = median(t[0])
        print(f"{shape['name']}: the copy alone {before:.1f} µs")
        rows = zip(found, t[1 : 1 + len(found)], t[1 + len(found) :], strict=True)
        for number, (c, taken, by_itself) in enumerate(rows):
            mark = "  chosen" if number == 0 else ""
            print(f"  {c!s:28} {median(taken) - before:6.1f} {median(by_itself):6.1f}   "
                  f"spread {spread(taken):.1f} %{mark}", flush=True)  # fmt: skip
    print(f"{results} results beside fp32, {len(wrong)} wrong")
    for text in wrong[:12]:
        print("  " + text)
    return len(wrong)
