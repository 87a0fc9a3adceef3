"""Operators whose stock kernels do not do as eager, and families that do."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_comparison import assert_equals_eager, call, lower
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from torch import nn
from torch.nn import functional as F

import etshared_plugin as etshared
from etshared_plugin.errors import LoweringError
from etshared_plugin.inspection import verify_program

_generator = torch.Generator().manual_seed(5)

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_HALF = (torch.float16, torch.bfloat16)

#: What a result may be off, as a part of the largest one.
_TOLERANCES = {
    torch.float64: 1e-13,
    torch.float32: 5e-6,
    torch.float16: 4e-3,
    torch.bfloat16: 8e-3,
}


@dataclass(frozen=True)
class _Case:
    compute: Callable[..., Any]
    inputs: Sequence[torch.Tensor]


def _positive(*sizes: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(*sizes, generator=_generator, dtype=torch.float64).to(dtype)


def _extremes(dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    values = [limits.max, limits.max - 1, limits.min, limits.min + 1, 0, 1, 7, 100]
    values += [-1, -7, -100] if limits.min else [128, 200, 255]
    return torch.tensor(values, dtype=dtype)


_SPECIAL = torch.tensor(
    [math.nan, math.inf, -math.inf, 0.0, -0.5, 0.5, 1.5, -2.5, 3.75, -7.25]
)
_DIVISORS = torch.tensor([3, -2, 7, 5, -9, 1, 2, -3, 4, 2, 9])


def _cases() -> dict[str, _Case]:
    cases: dict[str, _Case] = {}

    def add(name: str, compute: Callable[..., Any], *inputs: torch.Tensor) -> None:
        dtype = str(inputs[0].dtype).removeprefix("torch.")
        cases[f"{name}-{dtype}"] = _Case(compute, inputs)

    for dtype in _INTEGERS:
        x = _extremes(dtype)
        add("powers", lambda x: (x**1, x**2, x**3, x.square()), x)
        add("whole", lambda x: (x.ceil(), x.floor(), x.trunc(), x.round()), x)
        add("sum", lambda x: (x.sum(0), x.sum(0, keepdim=True), x.sum()), x)
        add("own sum", lambda x: (x.sum(0, dtype=x.dtype), x.sum(dtype=x.dtype)), x)
        add("divided", lambda x: (x // 7, x % 7, x.fmod(7)), x)
        add("truncated", lambda x: torch.div(x, 7, rounding_mode="trunc"), x)
        add("compared", lambda x: (x > 9, x.amax(), x.argmax(), x.maximum(x // 2)), x)
        add("shifted", lambda x: (x << 1, x >> 2, x << 7, x >> 7, x << 70, x >> 70), x)
        add("wrapped", lambda x: (x + x, x * 3, -x, x.cumsum(0)), x)
    x, divisors = _extremes(torch.int64), _DIVISORS
    add("by tensors", lambda x, y: (x % y, x // y, x.fmod(y)), x, divisors)
    add("negative", lambda x: (x.fmod(-7), x % -7, x // -7, 100 % x), divisors)
    add(
        "truncated by tensors",
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        x,
        divisors,
    )
    add("of one bit", lambda x: (x % 2, x.fmod(2)), torch.tensor([True, False]))
    wide = _positive(3, 700)
    add("sums", lambda x: (x.sum(1), x.sum(0, keepdim=True), x.sum((0, 1))), wide)
    add("of sums", lambda x: (x.nansum(1), x.logsumexp(1), x @ x[0]), wide)
    add("log_softmax", lambda x: (x.log_softmax(1), x.log_softmax(0)), wide)
    add("remainders", lambda x: (x % 0.3, x % -0.3, x % x.flip(1)), wide)
    add(
        "cut",
        lambda x: (
            F.pad(x, (1, -2, 0, 3)),
            F.pad(x, (-2, 3, -1, 2), value=1.5),
            torch.constant_pad_nd(x, (-1, 2, 1, -2), 3),
        ),
        wide,
    )
    add(
        "spread",
        lambda x: (
            *torch.var_mean(x, -1),
            *torch.std_mean(x, 0, correction=0),
            *torch.var_mean(x, (0, 1), keepdim=True),
            *torch.std_mean(x),
        ),
        wide,
    )
    add("counted", lambda x: (x > 0.5).double().sum(1), wide)
    for dtype in (*_HALF, torch.float32, torch.float64):
        special = _SPECIAL.to(dtype)
        add("sign", lambda x: (x.sign(), x.sgn()), special)
        # In what is left over of its vectors eager uses C's pow.
        add("roots", lambda x: (x**0.5, x**-0.5), special.repeat(16))
        add("remainder", lambda x: (x % 2, x % -0.75, x.fmod(2)), special)
        add("rounded", lambda x: (x.round(), x.trunc(), x.floor()), special)
        add(
            "chosen",
            lambda x: (x.relu(), x.clamp(-1, 2), x.amax(), x.argmax(), x == x),
            special[1:],  # XNNPACK makes other values of NaN.
        )
        rows, matrix = _positive(3, 700, dtype=dtype), _positive(5, 700, dtype=dtype)
        add("linear", F.linear, rows, matrix, matrix[:, 0])
        scaled = functools.partial(torch.addmm, beta=0.5, alpha=2)
        add(
            "addmm", lambda b, x, w, f=scaled: f(b, x, w.t()), rows[0, :5], rows, matrix
        )
        add("layer_norm", lambda x: F.layer_norm(x, (700,)), rows)
        add(
            "affine",
            lambda x, w: F.layer_norm(x, (700,), w[0], w[1]),
            rows,
            matrix,
        )
        add("moments", lambda x: (x.mean(1), x.var(1), x.var(), x.std(0)), rows)
        add("cumsum", lambda x: x.cumsum(1), rows)
        add("softmax", lambda x: (x.softmax(1), x.logsumexp(1)), rows)
        places = torch.zeros(3, 700, dtype=torch.int64)
        add("scatter_add", lambda x, i: x.scatter_add(1, i, x), rows, places)
        image = _positive(1, 40, 6, 6, dtype=dtype)
        kernel = _positive(4, 40, 3, 3, dtype=dtype)
        add("conv2d", lambda x, w: F.conv2d(x, w, padding=1), image, kernel)
        add("conv1d", lambda x, w: F.conv1d(x[:, :, 0], w[..., 0]), image, kernel)
        add(
            "transposed",
            lambda x, w: F.conv_transpose2d(x[:, :4], w, stride=2),
            image,
            kernel,
        )
        add("avg_pool", lambda x: F.avg_pool2d(x, 6), image)
        add("group_norm", lambda x: F.group_norm(x, 4, x[0, :, 0, 0]), image)
        scalar = rows[0, 0]
        add("0-dim", lambda x: (x.sum(0), x.cumsum(0), x.log_softmax(0)), scalar)
        empty = rows[:0]
        add("empty", lambda x: (x.amax(1), x.sum(1), x.sum(0), x.t() @ x), empty)
        add("half", lambda x: x.cumsum(0, dtype=torch.float16), rows)
    return cases


_CASES = _cases()


class _Kernels(nn.Module):
    def forward(self, *inputs: torch.Tensor) -> list[Any]:
        values = iter(inputs)
        return [
            one.compute(*(next(values) for _ in one.inputs)) for one in _CASES.values()
        ]


@functools.cache
def _results(with_xnnpack: bool) -> dict[str, Any]:
    model = _Kernels()
    inputs = tuple(one.clone() for case in _CASES.values() for one in case.inputs)
    entry_points = {"forward": etshared.EntryPoint(model.forward, inputs)}
    partitioner = [XnnpackPartitioner()] if with_xnnpack else []
    data = lower(model, entry_points, partitioner)
    session = etshared.load(data, tensors="torch").session()
    return dict(zip(_CASES, session.forward(*inputs), strict=True))


@pytest.mark.parametrize("name", _CASES)
def test_kernels_are_as_eager(name: str) -> None:
    _assert_same(_results(False)[name], name)


@pytest.mark.parametrize("name", _CASES)
def test_kernels_beside_delegates_are_as_eager(name: str) -> None:
    _assert_same(_results(True)[name], name)


def _assert_same(found: Any, name: str) -> None:  # noqa: ANN401
    case = _CASES[name]
    expected = case.compute(*case.inputs)
    pairs = (
        zip(found, expected, strict=True)
        if isinstance(expected, tuple)
        else [(found, expected)]
    )
    for actual, wanted in pairs:
        scale = 0.0
        if wanted.is_floating_point() and wanted.numel():
            finite = wanted.nan_to_num(0, 0, 0).abs().max().item()
            scale = _TOLERANCES[wanted.dtype] * max(finite, 1e-3)
        torch.testing.assert_close(
            actual, wanted, rtol=0, atol=scale, equal_nan=True, check_dtype=True
        )


class _Tally(nn.Module):
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3, dtype=torch.int64))
        self.proj = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        chosen: torch.Tensor = torch.cond(
            x[0, 0] > 0,
            lambda x: x.double().sum(1, keepdim=True) ** 0.5,
            lambda x: x.double().mean(1, keepdim=True),
            (x,),
        )
        return chosen + self.proj(x.float() / 2**41).double()


@pytest.mark.parametrize("partitioner", [[], [XnnpackPartitioner()]])
def test_kernels_in_branches_and_of_dynamic_size_are_as_eager(
    partitioner: list[XnnpackPartitioner],
) -> None:
    model = _Tally().eval()
    x = torch.randint(0, 2**40, (4, 3), generator=_generator)
    rows = torch.export.Dim("rows", min=2, max=9)
    entry_points = {
        "forward": etshared.EntryPoint(
            model.forward, (x,), dynamic_shapes={"x": {0: rows}}
        )
    }
    calls = [call("forward", one) for one in (x, x[:2], -x, x.repeat(2, 1))]
    assert_equals_eager(model, entry_points, calls, partitioner)


@torch.library.custom_op("etshared_test::twice", mutates_args=())
def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@_twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class _Refused(nn.Module):
    def right(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def inverse(self, x: torch.Tensor) -> torch.Tensor:
        inverse: torch.Tensor = torch.linalg.inv(x)
        return inverse

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x.half(), x.bfloat16())

    def spectrum(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()

    def bits(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.int32)

    def own(self, x: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = _twice(x)
        return doubled

    def counts(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bincount(x.long().flatten())

    def quantile(self, x: torch.Tensor) -> torch.Tensor:
        return x.quantile(0.25)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("inverse", r"uses aten\.linalg_inv_ex\.default, for which .* has no kernel"),
        ("mixed", r"uses aten\.where\.self, on tensors of several dtypes; bring"),
        ("spectrum", r"uses aten\.abs\.default, on complex numbers, .*view_as_real"),
        ("bits", r"uses aten::view_copy\.dtype_out, for which .* has no kernel"),
        ("counts", r"uses aten\.bincount\.default, for which .* has no kernel"),
        ("own", r"uses etshared_test::twice, which has no out variant"),
        ("quantile", r"uses aten::sort\.values, for which .* has no kernel"),
    ],
)
def test_operators_that_are_refused_are_named(name: str, message: str) -> None:
    model, x = _Refused(), torch.eye(3)
    entry_points = {
        one: etshared.EntryPoint(getattr(model, one), (x,)) for one in ("right", name)
    }
    exported = etshared.export(model, entry_points)
    with pytest.raises(
        LoweringError, match=f"entry point '{name}' {message}"
    ) as raised:
        etshared.to_edge_transform_and_lower(exported).to_executorch()
    assert raised.value.method_name == name


class _Different(nn.Module):
    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 2)

    def powers(self, x: torch.Tensor) -> torch.Tensor:
        return x**x + 2**x


def test_kernels_that_stay_different_are_noted(tmp_path: Path) -> None:
    model, image, integers = _Different(), torch.ones(1, 1, 4, 4), torch.arange(3)
    entry_points = {
        "pooled": etshared.EntryPoint(model.pooled, (image,)),
        "powers": etshared.EntryPoint(model.powers, (integers,)),
    }
    path = tmp_path / "different.pte"
    path.write_bytes(lower(model, entry_points))
    notes = [one for one in verify_program(path) if one.code == "unlike-eager"]
    assert {(one.place, one.message.split("'")[1]) for one in notes} == {
        ("entry point 'pooled'", "aten::max_pool2d_with_indices.out"),
        ("entry point 'powers'", "aten::pow.Scalar_out"),
        ("entry point 'powers'", "aten::pow.Tensor_Tensor_out"),
    }
