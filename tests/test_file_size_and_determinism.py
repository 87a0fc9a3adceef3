"""Each distinct weight is stored once, and the same export gives the same bytes."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from eager_comparison import lower
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from torch import Tensor, nn

from etshared_plugin import EntryPoint
from etshared_plugin.pte import PteFile

PARTITIONERS = {"portable": None, "xnnpack": XnnpackPartitioner}


class Large(nn.Module):
    """4 MiB of weights that each entry point uses, and some state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))
        self.conv = nn.Conv2d(8, 8, 3)
        self.register_buffer("h", torch.zeros(1, 512))
        self.register_buffer("a", torch.ones(3))
        self.register_buffer("zeros", torch.zeros(100_000))
        self.register_buffer("ones", torch.ones(100_000))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        self.h = self.h + x
        self.zeros.add_(1)
        self.ones.add_(1)
        return self.h

    def peek(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.h - x + self.a.sum() + self.ones[0] + self.zeros[0]

    def other_order(self, x: Tensor) -> Tensor:
        self.a *= 2
        for layer in reversed(self.layers):
            x = torch.tanh(layer(x))
        return self.conv(x.view(1, 8, 8, 8)) + self.a[0]


def lowered(backend: str, names: tuple[str, ...] = ()) -> bytes:
    torch.manual_seed(0)
    model = Large()
    x = torch.ones(1, 512)
    partitioner = PARTITIONERS[backend]
    return lower(
        model,
        {
            name: EntryPoint(getattr(model, name), (x,))
            for name in names or ("forward", "peek", "other_order")
        },
        [partitioner()] if partitioner else [],
    )


once = functools.cache(lowered)


@pytest.mark.parametrize("backend", PARTITIONERS)
def test_three_entry_points_take_the_file_of_one(backend: str) -> None:
    one = len(once(backend, ("forward",)))
    weights = 4 * 512 * 513 * 4
    assert weights < one
    assert len(once(backend)) <= 1.02 * one


@pytest.mark.parametrize("backend", PARTITIONERS)
def test_each_distinct_weight_is_stored_once(backend: str) -> None:
    data = once(backend)
    torch.manual_seed(0)
    parameters = dict(Large().named_parameters())
    for fqn, parameter in parameters.items():
        stored = parameter.detach()
        if backend == "xnnpack" and stored.dim() == 4:  # input channels last
            stored = stored.permute(0, 2, 3, 1).contiguous()
        assert data.count(stored.numpy().tobytes()) == 1, fqn
    program = PteFile(data)
    nbytes = sum(parameter.nbytes for parameter in parameters.values())
    assert nbytes < sum(segment.nbytes for segment in program.segments) < 1.02 * nbytes
    context = program.shared_context()
    assert context is not None
    for weight in context.weights:
        if weight.nbytes == 512 * 512 * 4:
            delegates = [context.delegates[index] for index in weight.delegates]
            users = {*weight.entry_points, *(one.entry_point for one in delegates)}
            assert len(users) == 3, weight.fqns


@pytest.mark.parametrize("backend", PARTITIONERS)
def test_exporting_again_gives_the_same_bytes(backend: str) -> None:
    assert lowered(backend) == once(backend)


def test_a_process_with_another_hash_seed_writes_the_same_bytes() -> None:
    script = (
        "import hashlib\n"
        "from test_file_size_and_determinism import lowered\n"
        "print(hashlib.sha256(lowered('xnnpack')).hexdigest())\n"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONHASHSEED": seed},
        text=True,
        check=True,
    )
    assert done.stdout.strip() == hashlib.sha256(once("xnnpack")).hexdigest()
