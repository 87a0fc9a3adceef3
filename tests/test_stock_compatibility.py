"""The same file in unmodified ExecuTorch: its Python runtime and its C++ Module."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from eager_comparison import (
    Call,
    Outcome,
    assert_program_equals,
    call,
    eager_outcomes,
    lower,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.runtime import Runtime
from stock_programs import build
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import etshared_plugin as etshared
from etshared_plugin import EntryPoint


@pytest.fixture(scope="session")
def stock_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("stock_module", tmp_path_factory.mktemp("stock_module"))


class Streaming(nn.Module):
    """State that is written, read, used as a weight, and not zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(4, 4)
        self.conv = nn.Conv1d(4, 2, 3)
        self.register_buffer("h", torch.full((1, 4), 0.25))
        self.register_buffer("before", torch.zeros(1, 4, 2))
        self.register_buffer("w", torch.eye(4))
        self.register_buffer("steps", torch.tensor([3]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.h = torch.tanh(self.inp(x) + F.linear(self.h, self.w))
        self.steps += 1
        return self.h, self.steps

    def peek(self, x: Tensor) -> Tensor:
        return torch.relu(self.inp(x)) - self.h

    def filter(self, chunk: Tensor) -> Tensor:
        y = torch.cat([self.before, chunk], dim=2)
        self.before.copy_(y[:, :, -2:])
        return self.conv(y)

    def set_weight(self, w: Tensor) -> None:
        self.w.copy_(w)

    def swap(self, h: Tensor) -> Tensor:
        old, self.h = self.h, h
        return old

    def reset(self) -> None:
        self.h.zero_()
        self.before.zero_()


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    model, entry_points, calls = streaming()
    return eager_outcomes(model, entry_points, calls)


@pytest.fixture(scope="module", params=["portable", "xnnpack"])
def path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    model, entry_points, _ = streaming()
    partitioner = [XnnpackPartitioner()] if request.param == "xnnpack" else []
    path = tmp_path_factory.mktemp("stock") / "program.pte"
    path.write_bytes(lower(model, entry_points, partitioner))
    return path


def streaming() -> tuple[Streaming, dict[str, EntryPoint], list[Call]]:
    torch.manual_seed(0)
    model = Streaming()
    x, w, chunk = torch.randn(1, 4), torch.randn(4, 4), torch.randn(1, 4, 6)
    entry_points = {
        "forward": EntryPoint(model.forward, (x,)),
        "peek": EntryPoint(model.peek, (x,)),
        "filter": EntryPoint(model.filter, (chunk,)),
        "set_weight": EntryPoint(model.set_weight, (w,)),
        "swap": EntryPoint(model.swap, (x,)),
        "reset": EntryPoint(model.reset),
    }
    calls = [
        call("peek", x),
        call("forward", x),
        call("filter", chunk),
        call("peek", x),
        call("set_weight", w),
        call("forward", 2 * x),
        call("swap", -x),
        call("filter", -chunk),
        call("forward", x),
        call("reset"),
        call("filter", chunk),
        call("forward", x),
        call("peek", -x),
    ]
    return model, entry_points, calls


def _line(name: str, tensors: Sequence[Tensor]) -> str:
    words = [name]
    for tensor in tensors:
        words += ["l" if tensor.dtype == torch.int64 else "f", str(tensor.dim())]
        words += map(str, tensor.shape)
        words += map(repr, tensor.flatten().tolist())
    return " ".join(words)


def _tensors(words: list[str]) -> list[Tensor]:
    tensors = []
    while words:
        kind, dim = words[0], int(words[1])
        sizes = [int(size) for size in words[2 : 2 + dim]]
        start = 2 + dim
        end = start + torch.Size(sizes).numel()
        values = words[start:end]
        tensors.append(
            torch.tensor([int(v) for v in values]).reshape(sizes)
            if kind == "l"
            else torch.tensor([float.fromhex(v) for v in values]).reshape(sizes)
        )
        words = words[end:]
    return tensors


def _tensors_of(result: object) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]


def _run(program: Path, path: Path, lines: list[str]) -> list[list[Tensor]]:
    done = subprocess.run(
        [program, path], input="\n".join(lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    printed = [line.split() for line in done.stdout.splitlines()]
    assert [words[0] for words in printed] == [line.split()[0] for line in lines]
    return [_tensors(words[1:]) for words in printed]


def test_a_program_is_the_same_in_unmodified_runtimes(
    stock_module: Path, path: Path, outcomes: list[Outcome]
) -> None:
    assert_program_equals(path.read_bytes(), outcomes)  # also in executorch.runtime

    calls = [_line(one.call.name, one.inputs) for one in outcomes]
    once = ["reset_state", *calls]
    results = _run(stock_module, path, once + once)
    for life in (results[: len(once)], results[len(once) :]):
        for result, outcome in zip(life[1:], outcomes, strict=True):
            torch.testing.assert_close(result, _tensors_of(outcome.result))


def test_unmodified_runtimes_give_the_same_bits(
    stock_module: Path, path: Path, outcomes: list[Outcome]
) -> None:
    session = etshared.load(path, tensors="torch").session()
    python = Runtime.get().load_program(path)
    python.load_method("reset_state").execute([])
    lines = ["reset_state", *(_line(one.call.name, one.inputs) for one in outcomes)]
    for outcome, cpp in zip(outcomes, _run(stock_module, path, lines)[1:], strict=True):
        one = outcome.call
        ours = _tensors_of(session[one.name](*one.args))
        stock = _tensors_of(python.load_method(one.name).execute(outcome.inputs))
        for a, b, c in zip(ours, stock, cpp, strict=True):
            assert torch.equal(a, b) and torch.equal(a, c), one
