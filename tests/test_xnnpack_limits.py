"""What XNNPACK's lowering cannot compute is left to kernels, and is right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from eager_comparison import assert_equals_eager, call
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from torch import Tensor, nn

from etshared_plugin import EntryPoint
from etshared_plugin.backends.xnnpack import SharedXnnpackPartitioner


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.conv1d = nn.Conv1d(4, 4, 3)
        self.linear = nn.Linear(8, 8)
        self.prelu = nn.PReLU(4)
        self.slope = nn.PReLU(init=-0.5)
        self.matrix = nn.Parameter(torch.randn(8, 3))
        self.bias = nn.Parameter(torch.randn(3))
        with torch.no_grad():
            self.prelu.weight.copy_(torch.tensor([0.1, -0.7, 1.5, 0.3]))

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

    def many_dimensions(self, x: Tensor) -> list[Tensor]:
        cube = x.reshape(1, 2, 2, 2, 2, 2, 8)
        return [cube + cube, self.linear(cube), cube.permute(0, 6, 1, 2, 3, 4, 5)]


_X = torch.linspace(-2, 2, 256).reshape(1, 8, 4, 8).transpose(1, 2).contiguous()
_METHODS = [name for name, one in vars(Layers).items() if not name.startswith("_")]


@pytest.mark.parametrize("per_op_mode", [False, True, None])
def test_layers_are_right_whether_delegated_or_not(per_op_mode: bool | None) -> None:
    model = Layers().eval()
    partitioner = (
        [] if per_op_mode is None else [XnnpackPartitioner(per_op_mode=per_op_mode)]
    )
    assert_equals_eager(
        model,
        {name: EntryPoint(getattr(model, name), (_X,)) for name in _METHODS},
        [call(name, _X) for name in _METHODS],
        partitioner,
    )


def test_prelu_lowers_in_the_flow_of_executorch_too() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.PReLU(4), nn.Linear(4, 8)).eval()
    x = torch.linspace(-1, 1, 24).reshape(3, 8)
    edge = to_edge_transform_and_lower(
        torch.export.export(model, (x,)), partitioner=[SharedXnnpackPartitioner()]
    )
    program = Runtime.get().load_program(bytes(edge.to_executorch().buffer))
    (result,) = program.load_method("forward").execute([x])
    torch.testing.assert_close(result, model(x))
