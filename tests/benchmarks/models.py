"""The programs that are measured, lowered by this package and by stock ExecuTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MethodType

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch.export import export

import etshared_plugin as etshared


class Rotations(nn.Module):
    """As many entry points as layers: each starts at another layer, and uses all."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(width, width) for _ in range(count)]
        self.layers = nn.ModuleList(layers)

    def entry_point(self, start: int) -> MethodType:
        def rotation(self: Rotations, x: torch.Tensor) -> torch.Tensor:
            for i in range(len(self.layers)):
                x = torch.tanh(self.layers[(start + i) % len(self.layers)](x))
            return x

        return MethodType(rotation, self)


class _OneMethod(nn.Module):
    """What stock export takes: a module whose forward is the method."""

    def __init__(self, model: nn.Module, method: MethodType) -> None:
        super().__init__()
        self._modules = model._modules
        self.__dict__["method"] = method

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method(x)


def write_programs(
    directory: Path, name: str, count: int, width: int, rows: int = 1
) -> Mapping[str, Path]:
    """Write ``count`` entry points over ``count`` square layers, and one of them.

    Returns:
        Paths of ``all``, ``one`` and ``stock``, the file that stock ExecuTorch
        makes of all.
    """
    model = Rotations(count, width).eval()
    x = (torch.randn(rows, width),)
    methods = {f"method_{i}": model.entry_point(i) for i in range(count)}
    paths = {key: directory / f"{name}_{key}.pte" for key in ("all", "one", "stock")}
    for key, names in (("all", list(methods)), ("one", list(methods)[:1])):
        exported = etshared.export(
            model, {one: etshared.EntryPoint(methods[one], x) for one in names}
        )
        edge = etshared.to_edge_transform_and_lower(
            exported, partitioner=[XnnpackPartitioner()]
        )
        edge.to_executorch().save(str(paths[key]))
    stock = to_edge_transform_and_lower(
        {one: export(_OneMethod(model, methods[one]), x) for one in methods},
        partitioner=[XnnpackPartitioner()],
    )
    stock.to_executorch().save(str(paths["stock"]))
    return paths
