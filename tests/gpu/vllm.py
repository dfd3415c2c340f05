"""vLLM's tests of fp8 by blocks, with ficco in place of the kernels that vLLM builds, in the processes of a launcher:

    torchrun --nproc-per-node 2 -m tests.gpu.vllm '{"checkout": "../vllm", "which": "", "each": 2}'

Products go to `torch.ops.ficco.all_gather_linear_scaled`: each process gives a half of the rows, and of the weight's. A
quantization is a `quantize`. What vLLM writes in Python, its references above all, comes from its checkout; the rest of
its names stand for nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor

UTILS = "vllm.model_executor.layers.quantization.utils"
ITS_OWN = {f"{UTILS}.fp8_utils", f"{UTILS}.quant_utils", "vllm.utils.deep_gemm", "vllm.utils.math_utils"}
ITS_OWN |= {"vllm.scalar_type"}
TESTS = "test_block_fp8.py", "test_per_token_group_quant.py"

QUANTIZED = """
schedule quantized
type   T = bf16
input  A[{rows}, {columns}] : T
output Q[{rows}, {columns}] : fp8_e4m3 scaled 1x128
computes Q = A within fp8_e4m3
queue compute {{ engine = sm }}
stage round on compute {{ quantize Q = A{way} }}
"""


class Names(ModuleType):
    """A module or package of vLLM's, with any name."""

    __path__: list[str] = []  # noqa: RUF012  which makes it a package
    ours: dict[str, Any] = {}  # noqa: RUF012  names of all modules

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.ours.setdefault(name, MagicMock(name=name))


class Checkout(MetaPathFinder, Loader):
    """Of vLLM. Finds those of its modules that are its own, and has names for the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        path = self.folder / name.replace(".", "/")
        if name == "tests.kernels":
            return spec_from_file_location(name, path / "__init__.py", submodule_search_locations=[str(path)])
        if name in ITS_OWN:
            return spec_from_file_location(name, f"{path}.py")
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ("vllm", "deep_gemm") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to do."""


@cache
def quantization(rows: int, columns: int, dtype: str, pow2: bool) -> Executor:
    text = QUANTIZED.format(rows=rows, columns=columns, way=" with scale = pow2" if pow2 else "")
    graph = build(ficco_dsl.parse(text, "quantized.ficco"), 1, {"T": {"bfloat16": "bf16"}.get(dtype, "fp32")})
    return Executor(plan_of(graph, discover("cuda", 1)), "cuda", timeout=30)


def quantized(x: Any, q: Any, s: Any, group: int, eps: float, least: float, most: float, pow2: bool) -> None:
    """In place of vLLM's kernel of this name."""
    if group != 128 or s.stride(0) < s.stride(1):
        pytest.skip("scales of 1 × 128, by rows, alone")
    assert (eps, most) == (1e-10, 448)
    import torch

    (rows, columns), wide = x.shape, s.shape[1] + -s.shape[1] % 4
    scales = s.new_empty(rows, wide)
    executor = quantization(rows, columns, str(x.dtype).removeprefix("torch."), pow2)
    executor.run(A=[x], Q=[(q, scales)], streams=[torch.cuda.current_stream()])
    executor.synchronize()
    s.copy_(scales[:, : s.shape[1]])


def product(a: Any, b: Any, of_a: Any, of_b: Any) -> Any:
    """a · bᵀ in bf16, [m, n], of a [m, k] and b [n, k]."""
    import torch
    import torch.distributed as dist

    assert dist.group.WORLD is not None
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def part(whole: Any, each: int) -> Any:
        """Of so many rows; the last ones may be zeros."""
        mine = whole[rank * each : (rank + 1) * each]
        return torch.cat([mine, mine.new_zeros(each - len(mine), mine.shape[1])]) if len(mine) < each else mine

    m, blocks = -(-len(a) // ranks), -(-len(of_b) // ranks)
    operands = part(a, m), part(b, 128 * blocks), part(of_a, m), part(of_b, blocks)
    y = torch.ops.ficco.all_gather_linear_scaled(*operands, None, 0, dist.group.WORLD.group_name)
    columns = [torch.empty(y.shape, dtype=y.dtype, device="cpu") for _ in range(ranks)]
    dist.all_gather(columns, y.cpu())
    return torch.cat(columns, 1)[: len(a), : len(b)].to(a.device)


def deep_gemm(a: tuple[Any, Any], b: tuple[Any, Any], out: Any, **_: object) -> None:
    out.copy_(product(a[0], b[0], a[1], b[1]))


def kernels() -> dict[str, Callable[..., Any]]:
    """Those that vLLM builds or brings along, by name."""
    return {
        "cutlass_scaled_mm": lambda a, b, *, out_dtype, scale_a, scale_b: product(a, b.t(), scale_a, scale_b.t()),
        "fp8_gemm_nt": deep_gemm,
        "get_mn_major_tma_aligned_tensor": lambda scales: scales.t().contiguous().t(),
    }


def main(checkout: str, which: str, each: int) -> int:
    """pytest's exit code."""
    import torch
    import torch.distributed as dist
    import triton
    import triton.language as tl

    import ficco_rt.torch  # noqa: F401

    dist.init_process_group("gloo")
    torch.cuda.set_device(0 if each > 1 else dist.get_rank())
    platform = SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn,
        get_device_capability=torch.cuda.get_device_capability,
        is_cuda=lambda: True,
        is_device_capability=lambda number: number == 90,
        is_device_capability_family=lambda number: number == 90,
        is_fp8_fnuz=lambda: False,
        is_rocm=lambda: False,
        simple_compile_backend="eager",
        support_deep_gemm=lambda: True,
    )
    constants = {"VLLM_USE_DEEP_GEMM_E8M0": False, "VLLM_CACHE_ROOT": os.devnull, "VLLM_TARGET_DEVICE": "cuda"}
    found = {"has_deep_gemm": lambda: True, "has_flashinfer_fp8_blockscale_gemm": lambda: False}
    Names.ours |= {"current_platform": platform, "triton": triton, "tl": tl, **constants, **found, **kernels()}
    sys.meta_path.insert(0, Checkout(Path(checkout)))
    utils: Any = import_module(f"{UTILS}.fp8_utils")
    utils.w8a8_triton_block_scaled_mm = lambda a, b, of_a, of_b, _, dtype: product(a, b, of_a, of_b).to(dtype)
    # NOTE by a number PyTorch multiplies with 1 / 448, where vLLM's kernels divide: another side of ties.
    most = torch.tensor(448.0, device="cuda")
    references: Any = import_module("tests.kernels.quant_utils")
    references.torch = SimpleNamespace(**vars(torch) | {"finfo": lambda _: SimpleNamespace(min=-most, max=most)})
    torch.ops._C.per_token_group_fp8_quant = quantized
    files = [str(Path(checkout) / "tests/kernels/quantization" / name) for name in TESTS]
    options = ["-q", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider", "-c", os.devnull]
    code = pytest.main([*options, *files, "-k", which or "fp8 and not packed"])
    dist.barrier()
    dist.destroy_process_group()
    return int(code)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    sys.exit(main(asked["checkout"], asked.get("which", ""), asked["each"]))
