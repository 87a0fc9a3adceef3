"""What XNNPACK's lowering cannot compute is left to kernels, and is right."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from eager_comparison import assert_equals_eager, call
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner
from executorch.runtime import Runtime
from quantized_models import quantizer
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.fx.passes.infra.partitioner import Partition

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.backends.acyclic_partitions import acyclic
from etshared_plugin.backends.xnnpack import SharedXnnpackPartitioner
from etshared_plugin.testing import (
    assert_matches_eager,
    assert_program_matches,
    assert_stock_runtime_matches,
    exported_outcomes,
)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.conv1d = nn.Conv1d(4, 4, 3)
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm2d(4)
        self.prelu = nn.PReLU(4)
        self.slope = nn.PReLU(init=-0.5)
        self.matrix = nn.Parameter(torch.randn(8, 3))
        self.bias = nn.Parameter(torch.randn(3))
        with torch.no_grad():
            self.prelu.weight.copy_(torch.tensor([0.1, -0.7, 1.5, 0.3]))
            self.norm.running_mean.copy_(torch.tensor([0.5, -1.0, 0.0, 2.0]))

    def prelu_of_rows(self, x: Tensor) -> list[Tensor]:
        return [self.prelu(x[0, 0, :, :4]), self.slope(self.linear(x[0, 0]))]

    def prelu_of_a_sequence(self, x: Tensor) -> Tensor:
        return self.conv1d(self.prelu(self.conv1d(x[:, :, 0])))

    def prelu_of_volumes(self, x: Tensor) -> Tensor:
        return self.prelu(x.reshape(1, 4, 2, 4, 8))

    def prelu_of_images(self, x: Tensor) -> list[Tensor]:
        y = self.prelu(self.conv(x))
        return [y, self.prelu(y - 1), self.prelu(y.flatten(2)), self.slope(x)]

    def pooling_without_batches(self, x: Tensor) -> list[Tensor]:
        return [F.max_pool2d(x[0], 2), F.avg_pool2d(x[0], 2)]

    def maximum(self, x: Tensor) -> list[Tensor]:
        return [x.max(1)[0], x.max(2, keepdim=True)[0], x.max(-1, keepdim=True)[0]]

    def softmax_of_images(self, x: Tensor) -> list[Tensor]:
        return [
            torch.softmax(self.conv(x) * 2, -1),
            torch.softmax(self.conv(x).flatten(2), -1),
        ]

    def scaled_product(self, x: Tensor) -> list[Tensor]:
        rows = x[0, 0]
        return [
            torch.addmm(self.bias, rows, self.matrix),
            torch.addmm(self.bias, rows, self.matrix, alpha=2.0, beta=0.5),
            torch.addmm(self.bias.repeat(8, 1), rows, self.matrix),
        ]

    def norms_in_a_row(self, x: Tensor) -> list[Tensor]:
        y = self.norm(x)
        return [self.norm(self.norm(y)), self.norm(self.norm(self.conv(x)))]

    def many_dimensions(self, x: Tensor) -> list[Tensor]:
        cube = x.reshape(1, 2, 2, 2, 2, 2, 8)
        return [cube + cube, self.linear(cube), cube.permute(0, 6, 1, 2, 3, 4, 5)]


_X = torch.linspace(-2, 2, 256).reshape(1, 8, 4, 8).transpose(1, 2).contiguous()
_METHODS = [name for name, one in vars(Layers).items() if not name.startswith("_")]


def test_layers_are_right_whether_delegated_or_not(
    partitioner: Sequence[Partitioner],
) -> None:
    model = Layers().eval()
    assert_equals_eager(
        model,
        {name: EntryPoint(getattr(model, name), (_X,)) for name in _METHODS},
        [call(name, _X) for name in _METHODS],
        partitioner,
    )


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1d = nn.Conv1d(4, 6, 3, padding=1)
        self.out = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(torch.relu(self.conv1d(x)).mT)
        self.seen += y.mean((0, 1))
        return y - self.seen


@pytest.mark.parametrize(
    ("open_sizes", "num_convolutions"), [((0, 2), 0), ((2,), 1), ((0,), 1)]
)
def test_convolutions_may_have_several_open_sizes(
    open_sizes: Sequence[int], num_convolutions: int
) -> None:
    model = Sequences().eval()
    sizes = {size: Dim(f"size{size}", min=1, max=9) for size in open_sizes}
    x = torch.linspace(-1, 1, 3 * 4 * 5).reshape(3, 4, 5)
    entry_point = EntryPoint(model.forward, (x,), dynamic_shapes={"x": sizes})
    calls = [call("forward", x), call("forward", -x)]
    if 0 in open_sizes:
        calls.append(call("forward", x[:2]))
    if 2 in open_sizes:
        calls.append(call("forward", x[..., 1:]))
    program = assert_equals_eager(
        model, {"forward": entry_point}, calls, [XnnpackPartitioner()]
    )
    stats = program.stats()
    # The linear layer beside the convolution.
    assert stats.constants_packed == 1 + num_convolutions


def test_prelu_lowers_in_the_flow_of_executorch_too() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.PReLU(4), nn.Linear(4, 8)).eval()
    x = torch.linspace(-1, 1, 24).reshape(3, 8)
    edge = to_edge_transform_and_lower(
        torch.export.export(model, (x,)), partitioner=[SharedXnnpackPartitioner()]
    )
    program = Runtime.get().load_program(bytes(edge.to_executorch().buffer))
    (result,) = program.load_method("forward").execute([x])
    torch.testing.assert_close(result, model(x))


class Quantized(nn.Module):
    """Convolutions behind what changes the layout of their input, or share it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(4, 4, 3)
        self.wide = nn.Conv2d(8, 4, 3)
        self.linear = nn.Linear(8, 8)

    def padded(self, x: Tensor) -> list[Tensor]:
        return [self.conv(F.pad(x, (1, 2, 0, 1))), self.conv(F.pad(x, (2, 2), value=1))]

    def permuted(self, x: Tensor) -> list[Tensor]:
        return [self.wide(x.permute(0, 3, 2, 1)), self.conv(x[:, :, 1:] * 2)]

    def shared(self, x: Tensor) -> list[Tensor]:
        return [self.conv(x), self.conv(x.abs()), x.permute(0, 2, 3, 1) + 1, x * 2]

    def shifted(self, x: Tensor) -> Tensor:
        return self.conv(x) + x.abs().mean()

    def beside_linear(self, x: Tensor) -> list[Tensor]:
        return [self.conv(x), self.linear(x)]


def test_numbers_that_are_computed_and_quantized_are_left_to_kernels() -> None:
    model = Quantized().eval()
    exported = etshared.export(model, {"shifted": EntryPoint(model.shifted, (_X,))})
    quantized = etshared.quantize(
        exported, quantizer("per tensor"), [("shifted", (_X,))]
    )
    edge = etshared.to_edge_transform_and_lower(
        quantized, partitioner=[XnnpackPartitioner()]
    )
    data = bytes(edge.to_executorch().buffer)
    outcomes = exported_outcomes(quantized, [call("shifted", _X)])
    # Both are on one grid; XNNPACK rounds halves in another way.
    step = float(outcomes[0].result.abs().max()) / 127
    assert_program_matches(
        etshared.load(data, tensors="torch"), outcomes, atol=1.01 * step
    )
    assert_stock_runtime_matches(data, outcomes, atol=1.01 * step)


def test_dynamically_quantized_convolutions_are_delegated_apart() -> None:
    model = Quantized().eval()
    names = ["padded", "permuted", "shared", "beside_linear"]
    exported = etshared.export(
        model, {name: EntryPoint(getattr(model, name), (_X,)) for name in names}
    )
    quantized = etshared.quantize(exported, quantizer("dynamic"))
    edge = etshared.to_edge_transform_and_lower(
        quantized, partitioner=[XnnpackPartitioner()]
    )
    data = bytes(edge.to_executorch().buffer)
    outcomes = exported_outcomes(quantized, [call(name, _X) for name in names])
    # XNNPACK has a scale for each row of a linear layer, the quantizer one for all.
    assert_program_matches(etshared.load(data, tensors="torch"), outcomes, atol=0.05)
    assert_stock_runtime_matches(data, outcomes, atol=0.05)


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.conv = nn.Conv2d(4, 4, 3)
        self.conv1d = nn.Conv1d(4, 4, 3)
        self.transposed = nn.ConvTranspose2d(4, 4, 3)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.linear(x)
        return [self.conv(y), self.conv1d(y[:, :, 0]), self.transposed(y), y]


def test_only_linear_layers_may_have_weights_from_outside() -> None:
    model = Biased().eval()
    partitioner = XnnpackPartitioner(
        force_non_static_weights_for_f32_linear=True, per_op_mode=True
    )
    assert_equals_eager(
        model,
        {"forward": EntryPoint(model.forward, (_X,))},
        [call("forward", _X)],
        [partitioner],
    )


def test_only_products_are_delegated_in_bfloat16() -> None:
    model = Biased().eval().bfloat16()
    x = _X.bfloat16()
    assert_matches_eager(
        model,
        {"forward": EntryPoint(model.forward, (x,))},
        [call("forward", x)],
        partitioner=[XnnpackPartitioner(enable_bf16=True)],
        rtol=0.05,
        atol=0.05,
    )


class _Momentum(nn.Module):
    """Its normalizations depend on each other by way of what XNNPACK does not take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.query, self.key = nn.Linear(5, 4), nn.Linear(5, 4)
        self.query_norm, self.key_norm = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.register_buffer("center", torch.zeros(1, 4))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        query = F.normalize(self.query_norm(self.query(a)), dim=1)
        for new, old in zip(
            self.query_norm.parameters(), self.key_norm.parameters(), strict=True
        ):
            old.data = old * 0.9 + new * 0.1
        key = F.normalize(self.key_norm(self.key(b)), dim=1)
        self.center = self.center * 0.9 + key.mean(0, keepdim=True) * 0.1
        return torch.einsum("nc,nc->n", [query, key])

    def learn(self, step: Tensor) -> None:
        self.query.weight.data.sub_(step)


def test_delegates_never_need_each_other() -> None:
    model = _Momentum().eval()
    a, b, step = torch.randn(2, 5), torch.randn(2, 5), torch.randn(4, 5) / 10
    assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (a, b)),
            "learn": EntryPoint(model.learn, (step,)),
        },
        [call("forward", a, b), call("learn", step), call("forward", b, a)],
        [XnnpackPartitioner()],
    )


def _values() -> dict[str, fx.Node]:
    graph = fx.Graph()
    a = graph.call_function(torch.neg, (graph.placeholder("x"),))
    b = graph.call_function(torch.sin, (a,))
    c = graph.call_function(torch.add, (a, b))
    d = graph.call_function(torch.cos, (b,))
    graph.output((c, d))
    return {"a": a, "b": b, "c": c, "d": d}


@pytest.mark.parametrize(
    ("partitions", "matches", "expected"),
    [
        (["ab", "cd"], [], ["ab", "cd"]),
        (["ad", "b", "c"], ["ad"], ["a", "b", "c", "d"]),  # not connected
        (["ac", "b", "d"], ["a", "b", "c"], ["a", "b", "c", "d"]),
        (["ac", "b", "d"], ["a", "ac", "b"], ["ac", "b", "d"]),  # ExecuTorch's error
    ],
)
def test_partitions_in_a_circle_are_taken_apart(
    partitions: list[str], matches: list[str], expected: list[str]
) -> None:
    values = _values()
    given = [
        Partition(number, [values[one] for one in names])
        for number, names in enumerate(partitions)
    ]
    together = [[values[one] for one in names] for names in matches]
    found = acyclic(values["a"].graph, given, together)
    names = {node: name for name, node in values.items()}
    assert sorted("".join(names[n] for n in one.nodes) for one in found) == expected
    assert [one.id for one in found] == list(range(len(found)))
