"""Weights beside state, and state where weights stand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

from etshared_plugin import EntryPoint

Partitioners = Sequence[Partitioner]


class Cell(nn.Module):
    """Entry points that call each other, over one hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.l1 = nn.Linear(4, 4)
        self.l2 = nn.Linear(4, 4)
        self.out = nn.Linear(4, 2)
        self.register_buffer("hidden", torch.full((1, 4), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = torch.tanh(self.l1(x) + self.l2(self.hidden))
        return self.hidden

    def decode(self) -> Tensor:
        return self.out(self.hidden)

    def infer(self, x: Tensor) -> Tensor:
        return torch.relu(self.forward(x))

    def infer_by_call(self, x: Tensor) -> Tensor:
        return torch.relu(self(x)) + self.decode().sum()

    def twice(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.infer(x), self.infer_by_call(x)


@pytest.mark.parametrize(
    ("partitioner", "first"),
    [("portable", "forward"), ("xnnpack", "infer_by_call"), ("xnnpack", "decode")],
    indirect=["partitioner"],
)
def test_entry_points_may_call_each_other(
    partitioner: Partitioners, first: str
) -> None:
    torch.manual_seed(0)
    model = Cell()
    x = torch.randn(6, 1, 4)
    names = ["forward", "decode", "infer", "infer_by_call", "twice"]
    names.sort(key=lambda name: name != first)
    program = assert_equals_eager(
        model,
        {
            name: EntryPoint(getattr(model, name), () if name == "decode" else (x[0],))
            for name in names
        },
        [
            call("decode"),
            call("infer", x[0]),
            call("decode"),
            call("forward", x[1]),
            call("infer_by_call", x[2]),
            call("twice", x[3]),
            call("decode"),
            call("infer", x[4]),
            call("forward", x[5]),
        ],
        partitioner,
    )
    assert program.context is not None
    large = [weight for weight in program.context.weights if weight.nbytes == 64]
    assert len(large) == 2  # l1 and l2 once each, in four entry points


def test_forward_itself_may_be_given_as_the_module() -> None:
    model = Cell()
    x = torch.randn(1, 4)
    assert_equals_eager(
        model,
        {"step": EntryPoint(model, (x,)), "decode": EntryPoint(model.decode)},
        [call("step", x), call("decode"), call("step", 2 * x), call("decode")],
    )


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("h", torch.ones(1, 3))
        self.register_buffer("grad_h", torch.ones(1, 3))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        self.h += self.linear(x)
        return self.h * self.gain

    def assign(self, x: Tensor) -> Tensor:
        self.grad_h = self.grad_h * self.gain + self.linear(x)
        return self.norm(self.grad_h)


def test_trainable_parameters_stand_beside_state(partitioner: Partitioners) -> None:
    model = Trained().eval()
    parameters = dict(model.named_parameters())
    flags = {name: p.requires_grad for name, p in parameters.items()}
    x = torch.randn(1, 3)
    assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (x,)),
            "assign": EntryPoint(model.assign, (x,)),
        },
        [call("forward", x), call("assign", x), call("assign", -x), call("forward", x)],
        partitioner,
    )
    assert {n: p.requires_grad for n, p in model.named_parameters()} == flags
    assert all(p is parameters[name] for name, p in model.named_parameters())


class Hypernetwork(nn.Module):
    """State that other entry points use as weight and bias of their operators."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(8, 8))
        self.register_buffer("bias", torch.randn(8))
        self.register_buffer("kernel", torch.randn(3, 8, 3))
        self.register_buffer("kernel_2d", torch.randn(2, 1, 3, 3))
        self.register_buffer("scale", torch.rand(1, 8) + 0.5)
        self.fixed = nn.Linear(8, 8)

    def linear(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w)

    def linear_with_bias(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w, self.bias) * self.scale

    def fixed_with_bias(self, x: Tensor) -> Tensor:
        return torch.relu(F.linear(x, self.fixed.weight, self.bias)) + self.fixed(x)

    def convolve(self, x: Tensor) -> Tensor:
        return F.conv1d(x.T[None], self.kernel, self.bias[:3])

    def convolve_2d(self, x: Tensor) -> Tensor:
        return F.conv2d(x[None, None], self.kernel_2d, self.bias[:2])

    def product(self, x: Tensor) -> Tensor:
        return x @ self.w.T + torch.addmm(self.bias, x, self.w)

    def update(self, w: Tensor) -> None:
        self.w.copy_(w)
        self.bias = w[0] + self.bias
        self.kernel *= 2
        self.kernel_2d.mul_(w[0, 0])
        self.scale = self.scale + 1


@pytest.mark.parametrize(
    ("partitioner", "writer_first"),
    [("portable", True), ("xnnpack", False)],
    indirect=["partitioner"],
)
def test_state_may_be_a_weight_of_another_entry_point(
    partitioner: Partitioners, writer_first: bool
) -> None:
    torch.manual_seed(0)
    model = Hypernetwork()
    x, w = torch.randn(5, 8), torch.randn(8, 8)
    readers = [
        "linear",
        "linear_with_bias",
        "fixed_with_bias",
        "convolve",
        "convolve_2d",
        "product",
    ]
    entry_points = {name: EntryPoint(getattr(model, name), (x,)) for name in readers}
    entry_points["update"] = EntryPoint(model.update, (w,))
    if writer_first:
        entry_points = dict(reversed(entry_points.items()))
    read = [call(name, x) for name in readers]
    assert_equals_eager(
        model,
        entry_points,
        [*read, call("update", w), *read, *read, call("update", -w), *read],
        partitioner,
    )


def test_one_entry_point_may_write_what_it_uses_as_a_weight(
    partitioner: Partitioners,
) -> None:
    class Adapting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.eye(4))
            self.register_buffer("bias", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            before = F.linear(x, self.w, self.bias)
            self.w = self.w + 0.1 * x.T @ before
            self.bias.add_(before.mean(0))
            return F.linear(x, self.w, self.bias) - before

    model = Adapting()
    xs = torch.randn(4, 3, 4)
    assert_equals_eager(
        model,
        {"forward": EntryPoint(model.forward, (xs[0],))},
        [call("forward", x) for x in xs],
        partitioner,
    )


class Core(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(2))

    def add(self, x: Tensor) -> Tensor:
        self.n += x
        return self.n + 0


class TwoNames(nn.Module):
    """One module under two names, and another that is not it."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core()
        self.inner = self.core
        self.other = Core()

    def double(self, x: Tensor) -> Tensor:
        self.inner.n.mul_(2)
        return self.inner.n + x


def test_a_module_under_two_names_is_one(partitioner: Partitioners) -> None:
    model = TwoNames()
    x = torch.tensor([1.0, 2.0])
    program = assert_equals_eager(
        model,
        {
            "add": EntryPoint(model.core.add, (x,)),
            "double": EntryPoint(model.double, (x,)),
            "add_other": EntryPoint(model.other.add, (x,)),
        },
        [
            call("add", x),
            call("double", 0 * x),
            call("add_other", x),
            call("add", x),
            call("double", x),
        ],
        partitioner,
    )
    session = program.session()
    session.add(torch.ones(2))
    assert torch.equal(session.double(torch.zeros(2)), torch.full((2,), 2.0))
    assert set(session.state) == {"core.n", "other.n"}
    assert torch.equal(session.state["inner.n"], session.state["core.n"])


def test_the_approximation_of_gelu_is_eagers(partitioner: Partitioners) -> None:
    class Gelu(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return F.gelu(x, approximate="tanh"), F.gelu(x)

    model, x = Gelu(), torch.linspace(-4, 4, 33)
    with torch.no_grad():
        tanh, exact = model(x)
    assert (tanh - exact).abs().max() > 1e-4
    assert_equals_eager(
        model,
        {"forward": EntryPoint(model.forward, (x,))},
        [call("forward", x)],
        partitioner,
    )
