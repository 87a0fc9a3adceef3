"""Running statistics of normalization layers that entry points update."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from eager_comparison import (
    assert_equals_eager,
    assert_program_equals,
    call,
    eager_outcomes,
)
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint

Partitioners = Sequence[Partitioner]


class Adaptive(nn.Module):
    """Convolution and normalization, as they are used and as they adapt."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 3)
        self.scores = nn.BatchNorm1d(3, affine=False)
        self.fixed = nn.BatchNorm1d(3)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        return self.fixed(self.scores(self.linear(y.mean(2))))

    def adapt(self, x: Tensor, momentum: float) -> Tensor:
        norm = self.norm
        norm.num_batches_tracked += 1
        y = F.batch_norm(
            self.conv(x),
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            True,
            momentum,
        )
        return y + norm(x[:, :1].expand(-1, 3, -1))

    def calibrate(self, x: Tensor) -> None:
        scores = self.linear(self.conv(x).mean(2))
        self.scores.running_mean.lerp_(scores.mean(0), 0.5)
        self.scores.running_var = scores.var(0)

    def get(self) -> tuple[Tensor, Tensor]:
        return self.norm.num_batches_tracked, self.norm.running_var


def test_statistics_of_batches_reach_entry_points_that_use_them(
    partitioner: Partitioners,
) -> None:
    torch.manual_seed(0)
    model = Adaptive()
    x = torch.randn(4, 2, 6)
    program = assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (x,)),
            "adapt": EntryPoint(model.adapt, (x, 0.3)),
            "calibrate": EntryPoint(model.calibrate, (x,)),
            "get": EntryPoint(model.get),
        },
        [
            call("forward", x),
            call("adapt", 2 * x + 1, 0.3),
            call("forward", x),
            call("calibrate", x),
            call("forward", x),
            call("get"),
            call("adapt", x * x, 0.3),
            call("calibrate", -x),
            call("forward", x),
            call("get"),
        ],
        partitioner,
    )
    assert set(program.session().state) == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "scores.running_mean",
        "scores.running_var",
    }


class Training(nn.Module):
    """Layers in training mode, whose every call updates them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.batch = nn.BatchNorm2d(3)
        self.cumulative = nn.BatchNorm2d(3, momentum=1.0, affine=False)
        self.instance = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
        self.layer = nn.LayerNorm([3, 3])

    def forward(self, x: Tensor) -> Tensor:
        y = self.instance(self.batch(self.conv(x)))
        return self.layer(self.cumulative(y))

    def use(self, x: Tensor) -> Tensor:
        i = self.instance
        y = F.instance_norm(
            self.conv(x), i.running_mean, i.running_var, i.weight, i.bias, False
        )
        b = self.batch
        return F.batch_norm(y, b.running_mean, b.running_var, None, b.bias)


def test_layers_in_training_mode_update_their_statistics(
    partitioner: Partitioners,
) -> None:
    torch.manual_seed(0)
    model = Training()
    x = torch.randn(2, 2, 5, 5)
    names = ["use", "forward", "use", "forward", "forward", "use"]
    assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (x,)),
            "use": EntryPoint(model.use, (x,)),
        },
        [call(name, x * step - step) for step, name in enumerate(names)],
        partitioner,
    )


@pytest.mark.parametrize("functional", [False, True])
def test_plain_programs_update_statistics(functional: bool) -> None:
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.instance = nn.InstanceNorm1d(3, track_running_stats=not functional)
            self.batch = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.batch(self.instance(x))

    model = Norms()
    x = torch.randn(2, 3, 4)
    program = torch.export.export(model, (x,))
    if functional:
        program = program.run_decompositions({})
    edge = etshared.to_edge_transform_and_lower(program)
    calls = [call("forward", x), call("forward", 3 * x + 1)]
    outcomes = eager_outcomes(
        model, {"forward": EntryPoint(model.forward, (x,))}, calls
    )
    program_of_ours = assert_program_equals(
        bytes(edge.to_executorch().buffer), outcomes
    )
    # Eager instance normalization does not count.
    expected = {n for n, _ in model.named_buffers()} - {"instance.num_batches_tracked"}
    assert set(program_of_ours.session().state) == expected
