"""Tensor-parallel linear modules and styles on the operators of `linear`."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from ..errors import UsageError
from . import linear  # noqa: F401 (defines torch.ops.ficco)

_OPS = torch.ops.ficco


class ColumnParallelLinear(nn.Module):
    """y = all_gather(x) · Wᵀ + b, with the features of W and b sharded: x [rows, in_features] of a rank's own rows,
    y [rows · ranks, out_features / ranks]. `gather_dim`: the dimension of x that is gathered, any but the last.

    Raises UsageError (features that cannot be sharded evenly, a process that is not in the group).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: dist.ProcessGroup | None = None,
        gather_dim: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.group_name, ranks, self._rank = _group(group)
        self.gather_dim, self._width = gather_dim, in_features
        mine = _share(out_features, ranks, "out_features")
        _parameters(self, mine, in_features, bias, device, dtype)

    def reset_parameters(self) -> None:
        """Initialize the shards as `nn.Linear` initializes a whole layer, differently on each rank."""
        _draw(self.weight, self._width, self._rank)
        if self.bias is not None:
            _draw(self.bias, self._width, self._rank)

    @classmethod
    def from_linear(
        cls, full: nn.Linear, group: dist.ProcessGroup | None = None, *, gather_dim: int = 0
    ) -> ColumnParallelLinear:
        """This rank's shard of a whole layer. Raises UsageError."""
        made = cls(*_as(full, cls), group=group, gather_dim=gather_dim, device="meta", dtype=full.weight.dtype)
        _, ranks, rank = _group(group)
        bias = None if full.bias is None else full.bias.chunk(ranks)[rank]
        _copy(made, full, full.weight.chunk(ranks, 0)[rank], bias)
        return made

    def forward(self, x: Tensor) -> Tensor:
        return _OPS.all_gather_linear(x, self.weight, self.bias, self.gather_dim, self.group_name)


class RowParallelLinear(nn.Module):
    """y = reduce_scatter(x · Wᵀ) + b, with the width of W sharded: x [rows, in_features / ranks], y [rows / ranks,
    out_features] of the rank's own rows. `scatter_dim`: the dimension of y that is sharded, any but the last; None:
    y = all_reduce(x · Wᵀ) + b on all ranks. All ranks have the whole bias.

    Raises UsageError (features that cannot be sharded evenly, a process that is not in the group).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: dist.ProcessGroup | None = None,
        scatter_dim: int | None = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.group_name, ranks, self._rank = _group(group)
        self.scatter_dim, self._width = scatter_dim, in_features
        mine = _share(in_features, ranks, "in_features")
        _parameters(self, out_features, mine, bias, device, dtype)

    def reset_parameters(self) -> None:
        """Initialize the shard of the weight as `nn.Linear` initializes a whole layer's, differently on each rank, and
        the bias, which all ranks have, with zeros."""
        _draw(self.weight, self._width, self._rank)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @classmethod
    def from_linear(
        cls, full: nn.Linear, group: dist.ProcessGroup | None = None, *, scatter_dim: int | None = 0
    ) -> RowParallelLinear:
        """This rank's shard of a whole layer. Raises UsageError."""
        made = cls(*_as(full, cls), group=group, scatter_dim=scatter_dim, device="meta", dtype=full.weight.dtype)
        _, ranks, rank = _group(group)
        _copy(made, full, full.weight.chunk(ranks, 1)[rank], full.bias)
        return made

    def forward(self, x: Tensor) -> Tensor:
        return _reduced(x, self.weight, self.bias, self.scatter_dim, self.group_name)


class ColumnParallel(ParallelStyle):
    """For `parallelize_module`: an nn.Linear becomes all_gather + linear, as in `ColumnParallelLinear`. Its parameters
    become DTensors; it takes and returns this rank's part as a plain tensor (a DTensor given is made one).

    Raises UsageError (a module that is no nn.Linear or has another forward, features that cannot be sharded evenly).
    """

    def __init__(self, *, gather_dim: int = 0) -> None:
        super().__init__()
        self.gather_dim = gather_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layer = _linear(module, type(self))
        group_name, ranks, _ = _group(device_mesh.get_group())
        _share(layer.out_features, ranks, "out_features")
        _distribute(layer, device_mesh, Shard(0), Shard(0), self.src_data_rank)
        dim = self.gather_dim

        def forward(layer: nn.Linear, x: Tensor) -> Tensor:
            weight, bias = _local(layer.weight), _local(layer.bias)
            return _OPS.all_gather_linear(_as_local(x, Shard(dim)), weight, bias, dim, group_name)

        layer.forward = MethodType(forward, layer)  # a copy of the layer has its own
        return layer


class RowParallel(ParallelStyle):
    """For `parallelize_module`: an nn.Linear becomes linear + reduce_scatter, or with `scatter_dim=None` linear +
    all_reduce, as in `RowParallelLinear`. Otherwise as `ColumnParallel`."""

    def __init__(self, *, scatter_dim: int | None = 0) -> None:
        super().__init__()
        self.scatter_dim = scatter_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layer = _linear(module, type(self))
        group_name, ranks, _ = _group(device_mesh.get_group())
        _share(layer.in_features, ranks, "in_features")
        _distribute(layer, device_mesh, Shard(1), Replicate(), self.src_data_rank)
        dim = self.scatter_dim

        def forward(layer: nn.Linear, x: Tensor) -> Tensor:
            weight, bias = _local(layer.weight), _local(layer.bias)
            return _reduced(_as_local(x, Shard(-1)), weight, bias, dim, group_name)

        layer.forward = MethodType(forward, layer)  # a copy of the layer has its own
        return layer


def _reduced(x: Tensor, weight: Tensor, bias: Tensor | None, scatter_dim: int | None, group_name: str) -> Tensor:
    if scatter_dim is None:
        return _OPS.linear_all_reduce(x, weight, bias, group_name)
    return _OPS.linear_reduce_scatter(x, weight, bias, scatter_dim, group_name)


def _group(group: dist.ProcessGroup | None) -> tuple[str, int, int]:
    """Name, number of ranks, this one's place. None: of all processes."""
    found = dist.group.WORLD if group is None else group
    if found is None:
        raise UsageError("there is no process group: call torch.distributed.init_process_group first")
    if not isinstance(found, dist.ProcessGroup):  # what new_group gives processes that are not in it
        raise UsageError("this process is not in the group: make the layer only in the processes that are")
    return found.group_name, found.size(), found.rank()


def _share(features: int, ranks: int, name: str) -> int:
    if features < 1:
        raise UsageError(f"{name} is {features}; wanted at least 1 for each of {ranks} ranks")
    if features % ranks:
        raise UsageError(f"{name} is {features}, which is not the same number for each of {ranks} ranks")
    return features // ranks


def _linear(module: nn.Module, kind: type) -> nn.Linear:
    if not isinstance(module, nn.Linear):
        raise UsageError(f"{kind.__name__} is for nn.Linear; given {type(module).__name__}")
    if type(module).forward is not nn.Linear.forward:
        raise UsageError(
            f"{kind.__name__} is for nn.Linear; {type(module).__name__} has a forward of its own, which would be lost: "
            "give a plain nn.Linear, or call torch.ops.ficco in that forward"
        )
    return module


def _as(full: nn.Module, kind: type) -> tuple[int, int, bool]:
    """Width, features, and whether there is a bias."""
    layer = _linear(full, kind)
    return layer.in_features, layer.out_features, layer.bias is not None


def _parameters(
    layer: ColumnParallelLinear | RowParallelLinear, features: int, width: int, bias: bool, device: Any, dtype: Any
) -> None:
    layer.weight = nn.Parameter(torch.empty(features, width, device=device, dtype=dtype))
    layer.register_parameter("bias", nn.Parameter(torch.empty(features, device=device, dtype=dtype)) if bias else None)
    layer.reset_parameters()


def _draw(parameter: Tensor, width: int, rank: int) -> None:
    """As `nn.Linear` of this width does, from a seed of the default generator's and the rank."""
    if parameter.is_meta or isinstance(parameter, FakeTensor):
        return
    generator = torch.Generator(parameter.device).manual_seed(int(torch.randint(1 << 62, (), device="cpu")) + rank)
    nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator=generator)


def _copy(made: nn.Module, full: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """What is frozen in `full` stays so."""
    made.to_empty(device=full.weight.device)
    made.weight.requires_grad_(full.weight.requires_grad)
    if bias is not None:
        made.bias.requires_grad_(full.bias.requires_grad)
    with torch.no_grad():
        made.weight.copy_(weight)
        if bias is not None:
            made.bias.copy_(bias)


def _distribute(layer: nn.Linear, mesh: DeviceMesh, weight: Any, bias: Any, source: int | None) -> None:
    for name, placement in (("weight", weight), ("bias", bias)):
        whole = getattr(layer, name)
        if whole is not None:
            parts = distribute_tensor(whole, mesh, [placement], src_data_rank=source)
            layer.register_parameter(name, nn.Parameter(parts, requires_grad=whole.requires_grad))


def _local(parameter: Any) -> Any:
    """NOTE without placements PyTorch takes the gradient of a replicated parameter for whole, and so it is here."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _as_local(x: Tensor, placement: Shard) -> Tensor:
    return x.redistribute(placements=[placement]).to_local() if isinstance(x, DTensor) else x
