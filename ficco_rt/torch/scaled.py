"""Products of fp8 matrices with scales by operations, whose operands have these recipes of `torch._scaled_mm`:

| recipe | scales of x [m, k] | scales of a weight [n, k] |
|---|---|---|
| tensor | one number | one number |
| row | [m, 1] | [n, 1], [1, n] or [n] |
| blocks | [m, ⌈k / 128⌉] | [⌈n / 128⌉, ⌈k / 128⌉] |

An x by tensor goes with a weight by row as well, and the other way round. Columns of scales of blocks may be padded to
a multiple of four. Scales that are not stored as an operation has them (`graph.scales`) are copied: one number, blocks
without padding, and an order of dimensions such as the one that `_scaled_mm` asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..graph.scales import PAD, name_of
from ..types import Scaling
from .groups import DTYPES, Operations, dense

FP8: Mapping[torch.dtype, str] = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}
HOPPER = (9, 0)  # whose tensor cores our kernels for fp8 are made for


class Scaled(NamedTuple):
    """A matrix [rows, k] of fp8 and its scales, as an operation has them."""

    values: Tensor
    scales: Tensor
    scaling: Scaling

    @property
    def type(self) -> str:
        """As a schedule has it."""
        return f"{FP8[self.values.dtype]} scaled {self.scaling}"


def scalings(
    x: Sequence[int], weight: Sequence[int], of_x: Tensor, of_weight: Tensor
) -> tuple[Scaling, Scaling] | None:
    """How scales of these shapes belong to x [m, k] and to a weight [n, k]; None: not so. Raises nothing."""
    (m, k), n, (one, other) = x, weight[0], (of_x.shape, of_weight.shape)
    left: Scaling | None = "tensor" if of_x.numel() == 1 else "row" if one == (m, 1) else None
    rows = other in ((n, 1), (1, n), (n,))
    right: Scaling | None = "tensor" if of_weight.numel() == 1 else "row" if rows else None
    if left and right:
        return left, right
    blocks, down = -(-k // 128), -(-n // 128)
    wide = blocks, blocks + -blocks % PAD
    return ("1x128", "128x128") if one in [(m, w) for w in wide] and other in [(down, w) for w in wide] else None


def scaled(values: Tensor, scales: Tensor, scaling: Scaling) -> Scaled:
    """The matrix with its scales as an operation has them. Raises nothing."""
    rows = values.shape[0]
    if scaling == "tensor":
        made = scales.reshape(1, 1).expand(rows, 1).contiguous()
    elif scaling == "row":
        made = dense(scales.reshape(rows, 1))
    elif missing := -scales.shape[1] % PAD:
        made = scales.new_empty(scales.shape[0], scales.shape[1] + missing)
        made[:, : scales.shape[1]] = scales
    else:
        made = dense(scales)
    return Scaled(dense(values), made, scaling)


def refused(of: Operations, x: Tensor, others: Sequence[Tensor], out: torch.dtype | None) -> str:
    """Why no operation multiplies `x` by the first of the `others`, which are a weight, the scales and perhaps a bias,
    by what all processes of the group have alike; empty if one does."""
    weight, *scales = others[:3]
    if of.alone:
        return of.alone
    if any(t.device != x.device for t in others):
        return "the tensors differ in device"
    if x.dtype not in FP8 or weight.dtype not in FP8 or x.dtype == weight.dtype == torch.float8_e5m2:
        return f"there is no tuned product of {_word(x.dtype)} and {_word(weight.dtype)}"
    if any(t.dtype != torch.float32 for t in scales):
        return "scales are not of float32"
    if out not in DTYPES:
        return f"there is no product to {_word(out or x.dtype)}"
    if of.driver != "host" and (of.driver == "hip" or torch.cuda.get_device_capability(x.device) != HOPPER):
        return "there is no tuned product of fp8 on these GPUs"
    if not x.numel() or not weight.numel():
        return "there is nothing to compute"
    return ""


def all_gather_matmul(
    of: Operations, x: Scaled, weight: Scaled, bias: Tensor | None, out: torch.dtype, *, keep: bool = False,
    fast: bool = False,
) -> tuple[Tensor, Scaled | None]:  # fmt: skip
    """`all_gather(x, rows) @ weight.t() + bias` [ranks · m, n] of type `out`, and with `keep` the gathered x: new
    tensors. `x` [m, k], `weight` [n, k]; `bias` [n] is of type `out`, or of one that `out` holds. `fast`: the tensor
    cores alone add up all of k, which is less exact; not for blocks.

    Raises UsageError, ScheduleError, DeviceError (as `Operations.run`)."""
    (m, k), n, ranks = x.values.shape, weight.values.shape[0], of.ranks
    y = x.values.new_empty(m * ranks, n, dtype=out)
    if not keep:
        return _run(of, "ag_gemm", m, (n * ranks, k), x, weight, bias, y, fast=fast), None
    kept = Scaled(x.values.new_empty(m * ranks, k), x.scales.new_empty(m * ranks, x.scales.shape[1]), x.scaling)
    return _run(of, "ag_gemm_kept", m, (n * ranks, k), x, weight, bias, y, kept, fast), kept


def matmul_reduce_scatter(
    of: Operations, x: Scaled, weight: Scaled, bias: Tensor | None, out: torch.dtype, *, fast: bool = False
) -> Tensor:
    """`reduce_scatter(x @ weight.t(), rows) + bias` [m / ranks, n], as `all_gather_matmul`; m is a multiple of the
    ranks."""
    m, (n, k) = x.values.shape[0] // of.ranks, weight.values.shape
    return _run(of, "gemm_rs", m, (n, k * of.ranks), x, weight, bias, x.values.new_empty(m, n, dtype=out), fast=fast)


def matmul_all_reduce(of: Operations, x: Scaled, weight: Scaled, bias: Tensor | None, out: torch.dtype) -> Tensor:
    """`all_reduce(x @ weight.t()) + bias` [m, n], with the `bias` of rank 0. Otherwise as `all_gather_matmul`."""
    if bias is not None and of.group.rank():
        bias = of.zeros_like(bias)
    m, (n, k) = x.values.shape[0], weight.values.shape
    return _run(of, "gemm_ar", m, (n, k * of.ranks), x, weight, bias, x.values.new_empty(m, n, dtype=out))


def all_to_all_matmul(of: Operations, x: Scaled, weight: Scaled, bias: Tensor | None, out: torch.dtype) -> Tensor:
    """`all_to_all(x, rows) @ weight.t() + bias` [m, n], of `x` [m, k], whose piece r of m / ranks rows goes to rank r.
    Otherwise as `all_gather_matmul`."""
    rows, (n, k) = x.values.shape[0], weight.values.shape
    return _run(of, "a2a_gemm", rows // of.ranks, (n, k), x, weight, bias, x.values.new_empty(rows, n, dtype=out))


def _run(
    of: Operations, name: str, m: int, sizes: tuple[int, int], x: Scaled, weight: Scaled, bias: Tensor | None,
    y: Tensor, kept: Scaled | None = None, fast: bool = False,
) -> Tensor:  # fmt: skip
    """`y`, which the operation writes. `sizes`: N and K."""
    left, right = ("X", "W") if name == "a2a_gemm" else ("A", "B")
    matrices = {left: x, right: weight, **({} if kept is None else {"R": kept})}
    tensors = {key: matrix.values for key, matrix in matrices.items()} | {"C": y}
    tensors |= {name_of(key): matrix.scales for key, matrix in matrices.items()}
    said: dict[str, object] = {"N": sizes[0], "K": sizes[1], "T": x.type, "Weight": weight.type, "Sum": DTYPES[y.dtype]}
    if bias is not None:
        said["bias"], tensors["b"] = 1, dense(bias.to(y.dtype))
    if fast:
        said["fast"] = 1
    of.run(name, m, {**said, "transb": 1}, **tensors)
    return y


def plain(x: Scaled, weight: Scaled, bias: Tensor | None, out: torch.dtype) -> Tensor:
    """`x @ weight.t() + bias`, where no operation serves: PyTorch's own product of fp8, or one in fp32 where that has
    none. Raises nothing."""
    (m, k), n, by = x.values.shape, weight.values.shape[0], x.scales
    blocks = x.scaling == "1x128"  # NOTE PyTorch 2.11 reads wrong ones if K is no multiple of 512
    fits = not (m % 4 or n % 128 or k % 512) if blocks else not (n % 16 or k % 16)
    if x.values.is_cuda and out == torch.bfloat16 and fits:
        by = by.t().contiguous().t() if blocks else by
        y = torch._scaled_mm(x.values, weight.values.t(), by, weight.scales.t(), out_dtype=out)
    else:
        y = (_wide(x) @ _wide(weight).t()).to(out)
    return y if bias is None else y.add_(bias)


def _wide(matrix: Scaled) -> Tensor:
    """In fp32."""
    (rows, k), scales = matrix.values.shape, matrix.scales
    if matrix.scaling == "128x128":
        scales = scales.repeat_interleave(128, 0)[:rows]
    if matrix.scaling in ("1x128", "128x128"):
        scales = scales.repeat_interleave(128, 1)[:, :k]
    return matrix.values.float() * scales


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
