"""Python numbers beside tensors of every dtype, typed and computed as in eager."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from eager_comparison import (
    assert_equals_eager,
    assert_program_equals,
    call,
    eager_outcomes,
)
from executorch import exir
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.passes import base_pre_op_replace_passes
from executorch.exir.verification.arg_validator import EdgeOpArgValidator
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import LoweringError

FLOATS = (torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int32)


def arithmetic(x: Tensor) -> list[Tensor]:
    """Return values whose dtype, and whose rounding, hang on the number's type."""
    return [
        *(x * 0.5, 0.25 * x, x + 0.1, x - 0.1, 1.5 - x, x / 0.5, 1.0 / (x + 1)),
        *(x + 1, x * 3, x - 1, 7 - x, x / 2, x // 2, (x * 100 + 100) // 3, x + True),
        *(x**2, x**0.5, 2 ** (x * 0.5), x > 0.5, x <= 1, x == 3, x != 0.1),
        *(x.clamp(0, 2), x.clamp(0.25, 1.5), torch.where(x > 0, x, 0.5)),
        *(torch.where(x > 0, 2, x), torch.where(x > 0, 1, 2.5)),
        *(torch.add(x, 2, alpha=3), torch.rsub(x, 3), torch.rsub(x, 1.5, alpha=2)),
        x.masked_fill(x > 0, 2),
        torch.addcmul(x, x, x, value=2),
    ]


def in_place(x: Tensor) -> None:
    x.mul_(3)
    x.add_(1)
    x.sub_(torch.where(x > 2, 1, 0).to(x.dtype))
    if x.is_floating_point():
        x.mul_(0.375)
        x.div_(0.75)
        x.addcmul_(x, x, value=-0.0625)


class Scalars(nn.Module):
    """Holds a 0-dim buffer, and one of one dimension, of each dtype."""

    def __init__(self, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        for i, dtype in enumerate(dtypes):
            self.register_buffer(f"scalar{i}", torch.tensor(1.7).to(dtype))
            self.register_buffer(f"vector{i}", torch.tensor([0.1, 2.6, 9]).to(dtype))

    def update(self) -> None:
        for buffer in self.buffers():
            in_place(buffer)

    def compute(self, x: Tensor) -> list[Tensor]:
        kinds = [b + x.to(b.dtype) for b in self.buffers()]
        return [value for one in kinds for value in arithmetic(one)]


@pytest.mark.parametrize("dtypes", [FLOATS, INTEGERS], ids=["floats", "integers"])
def test_numbers_leave_dtypes_and_values_as_in_eager(
    dtypes: Sequence[torch.dtype], partitioner: Sequence[Partitioner]
) -> None:
    model = Scalars(dtypes)
    x = torch.tensor(2.2)
    assert_equals_eager(
        model,
        {
            "update": EntryPoint(model.update),
            "compute": EntryPoint(model.compute, (x,)),
        },
        [call("compute", x), call("update"), call("compute", 3 * x), call("update")],
        partitioner,
    )


class Flags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("on", torch.tensor(True))

    def forward(self, x: Tensor) -> list[Tensor]:
        flags = [self.on, x > 0.5, (x > 0.5)[None]]
        self.on.logical_not_()
        return [
            value for f in flags for value in (f * 3, f + 0.5, f * True, 1 - f.int())
        ]


def test_numbers_beside_bool_are_as_in_eager(
    partitioner: Sequence[Partitioner],
) -> None:
    model = Flags()
    x = torch.tensor(0.7)
    assert_equals_eager(
        model,
        {"forward": EntryPoint(model.forward, (x,))},
        [call("forward", x), call("forward", -x)],
        partitioner,
    )


class Extremes(nn.Module):
    """Numbers that a half has no value for, with results that it has one for."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x * 70000.0, x * 1e-8 * 4096.0, x / 1e6, (x * 8) / 70000.0, 1e5 * x]


def test_numbers_outside_of_a_half_are_not_lost() -> None:
    model = Extremes()
    inputs = {
        "scalar": torch.tensor(0.5, dtype=torch.float16),
        "vector": torch.tensor([0.25, -0.5], dtype=torch.float16),
    }
    assert_equals_eager(
        model,
        {name: EntryPoint(model.forward, (x,)) for name, x in inputs.items()},
        [call(name, x) for name, x in inputs.items()],
    )


class Thresholds(nn.Module):
    """Compares halves with numbers that they round."""

    def forward(self, x: Tensor) -> list[Tensor]:
        compared = [x == 0.1, x != 0.1, x >= 0.1, x < 0.1, x <= 0.7, x > 0.7]
        return [*compared, torch.fmod(x, 0.7), torch.remainder(x, 0.7)]


def test_halves_are_compared_with_rounded_numbers() -> None:
    model = Thresholds()
    inputs = {
        f"{str(dtype)[6:]}_{x.dim()}d": x.to(dtype)
        for dtype in (torch.float16, torch.bfloat16)
        for x in (torch.tensor(0.1), torch.tensor([0.1, 0.7, -0.7, 3.3]))
    }
    assert_equals_eager(
        model,
        {name: EntryPoint(model.forward, (x,)) for name, x in inputs.items()},
        [call(name, x) for name, x in inputs.items()],
    )


COMPARISONS = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)


class Integers(nn.Module):
    """Halves beside integers that they have no number for, as literals and sizes."""

    def forward(self, x: Tensor) -> list[Tensor]:
        functions = (*COMPARISONS, torch.fmod, torch.remainder)
        numbers = (257, -2049, 100_000)
        return [function(x, n) for function in functions for n in numbers]

    def sized(self, x: Tensor, rows: Tensor) -> list[Tensor]:
        n = rows.shape[0]
        return [*(compare(x, n) for compare in COMPARISONS), torch.fmod(x, n), x % n]


def test_halves_are_compared_with_rounded_integers() -> None:
    model = Integers()
    values = torch.tensor([256.0, 258.0, 2048.0, -2048.0, 2050.0, 3.0])
    rows = {0: torch.export.Dim("rows", min=1, max=4096)}
    entry_points, calls = {}, []
    for dtype in (torch.float16, torch.bfloat16):
        for x in (values.to(dtype), values[2].to(dtype)):
            name = f"{str(dtype)[6:]}_{x.dim()}d"
            entry_points[name] = EntryPoint(model.forward, (x,))
            calls.append(call(name, x))
            entry_points[f"{name}_sized"] = EntryPoint(
                model.sized, (x, torch.ones(3)), dynamic_shapes=(None, rows)
            )
            calls += [call(f"{name}_sized", x, torch.ones(n)) for n in (257, 2049)]
    assert_equals_eager(model, entry_points, calls)


class Sizes(nn.Module):
    def forward(self, x: Tensor, scale: Tensor) -> list[Tensor]:
        n = x.shape[0]
        return [scale * n, scale / n, (x > 0) * n, x.sum().to(torch.int16) * n]


def test_sizes_leave_dtypes_as_in_eager() -> None:
    model = Sizes()
    x, scale = torch.ones(3), torch.tensor(1.5, dtype=torch.float16)
    shapes = ({0: torch.export.Dim("n", min=1, max=8)}, None)
    assert_equals_eager(
        model,
        {"forward": EntryPoint(model.forward, (x, scale), dynamic_shapes=shapes)},
        [call("forward", torch.ones(n), scale) for n in (3, 5, 1)],
    )


class Stepping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.tensor(1.5, dtype=torch.float16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.h.mul_(0.7).add_(x * 0.1)
        return self.h * 0.3, x - 0.1


def test_numbers_of_plain_programs_are_typed_too() -> None:
    model = Stepping()
    x = torch.tensor(0.7, dtype=torch.float16)
    passes = list(base_pre_op_replace_passes)
    edge = etshared.to_edge_transform_and_lower(torch.export.export(model, (x,)))
    outcomes = eager_outcomes(
        model,
        {"forward": EntryPoint(model.forward, (x,))},
        [call("forward", x * k) for k in (1, 2, -3)],
    )
    assert_program_equals(bytes(edge.to_executorch().buffer), outcomes)
    assert base_pre_op_replace_passes == passes


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        upper, lower = x.chunk(2, dim=1)
        return (upper + lower) * 0.5


def test_stock_lowering_is_the_same_before_and_after_ours() -> None:
    def stock_program() -> str:
        rows = {0: torch.export.Dim("rows", min=2, max=16)}
        x = torch.ones(5, 4, dtype=torch.float64)
        exported = torch.export.export(Halves(), (x,), dynamic_shapes=(rows,))
        program = exir.to_edge_transform_and_lower(exported).exported_program()
        return str([str(node.meta.get("val")) for node in program.graph.nodes])

    check = EdgeOpArgValidator.call_function
    before = stock_program()
    ours = torch.export.export(nn.ReLU(), (torch.ones(2),))
    edge = etshared.to_edge_transform_and_lower(ours).transform([])
    edge.to_backend(XnnpackPartitioner()).to_executorch()
    assert EdgeOpArgValidator.call_function is check
    assert stock_program() == before


def test_another_executorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = torch.export.export(nn.ReLU(), (torch.ones(2),))
    monkeypatch.delattr(EdgeOpArgValidator, "call_function")
    with pytest.raises(LoweringError, match="install executorch 1.5.1"):
        etshared.to_edge_transform_and_lower(ours)
