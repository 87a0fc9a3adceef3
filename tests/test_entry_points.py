"""Signatures, structures and dtypes of entry points."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn
from torch.export import Dim

from etshared_plugin import EntryPoint

Partitioners = Sequence[Partitioner]


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def containers(
        self, pair: tuple[Tensor, list[Tensor]], by_name: dict[str, Tensor]
    ) -> dict[str, Any]:
        first, (second, third) = pair
        self.total += first + by_name["b"]
        return {
            "z": [first - second, (third, self.total)],
            "a": {"inner": by_name["a"] * 2},
            "none": None,
            "seven": 7,
        }

    def keywords(
        self, x: Tensor, scale: Tensor | None = None, *, bias: Tensor, add: bool = True
    ) -> tuple[Tensor, ...]:
        if scale is not None:
            x = x * scale
        self.total = self.total + (x if add else -x)
        return self.total, bias + x

    def variadic(self, *xs: Tensor, **named: Tensor) -> Tensor:
        for value in (*xs, *named.values()):
            self.total += value
        return self.total - named["last"]

    def numbers(self, x: Tensor, times: int, offset: float, negate: bool) -> Tensor:
        self.total += x * times + offset
        return -self.total if negate else self.total


def test_inputs_and_results_may_be_nested() -> None:
    model = Nested()
    a, b, c = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0]), torch.ones(2)
    program = assert_equals_eager(
        model,
        {
            "containers": EntryPoint(model.containers, ((a, [b, c]), {"b": b, "a": a})),
            "keywords": EntryPoint(model.keywords, (a,), {"scale": c, "bias": b}),
            "no_scale": EntryPoint(model.keywords, (a,), {"bias": b, "add": False}),
            "variadic": EntryPoint(model.variadic, (a, b), {"last": c, "more": a}),
            "numbers": EntryPoint(model.numbers, (a, 3, 0.5, True)),
        },
        [
            call("containers", (a, [b, c]), {"b": b, "a": a}),
            call("containers", pair=(b, [a, c]), by_name={"b": a, "a": c}),
            call("keywords", a, scale=c + 1, bias=b),
            call("keywords", a, c, bias=b),
            call("keywords", bias=a, scale=b, x=c),
            call("no_scale", a, bias=b, add=False),
            call("variadic", a, b, last=c, more=a),
            call("numbers", b, 3, 0.5, True),
        ],
    )
    session = program.session()
    result = session.containers((a, [b, c]), {"b": b, "a": a})
    assert list(result) == ["z", "a", "none", "seven"]


class Best(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scores", torch.zeros(4))

    def best(self, x: Tensor) -> tuple[Any, dict[str, Any]]:
        self.scores += x
        return self.scores.topk(2), {"all": [self.scores.max(0), x.min(0)]}


def test_results_that_torch_names_are_tuples(partitioner: Partitioners) -> None:
    model = Best()
    x = torch.tensor([1.0, 3.0, -2.0, 0.5])
    program = assert_equals_eager(
        model,
        {"best": EntryPoint(model.best, (x,))},
        [call("best", x), call("best", x - 1)],
        partitioner,
    )
    (values, indices), others = program.session().best(x)
    torch.testing.assert_close(values, torch.tensor([3.0, 1.0]))
    assert indices.tolist() == [1, 0] and type(others["all"][0]) is tuple


class State(NamedTuple):
    h: Tensor
    c: Tensor


def test_functions_and_partials_are_entry_points() -> None:
    model = Nested()
    x = torch.tensor([1.0, 2.0])

    def drain(root: Nested, share: Tensor) -> State:
        taken = root.total * share
        root.total -= taken
        return State(taken, root.total)

    assert_equals_eager(
        model,
        {
            "add": EntryPoint(functools.partial(model.keywords, bias=x), (x,)),
            "drain": EntryPoint(drain, (x,)),
        },
        [call("add", x), call("drain", x / 4), call("add", 2 * x), call("drain", x)],
        types=[State],
    )


class Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(3))

    def add(self, xs: Tensor, *, weights: Tensor) -> Tensor:
        rows = self.linear(xs) * weights[:, None]
        self.total = self.total + rows.sum(0)
        return rows

    def mean(self, batch: dict[str, Tensor]) -> Tensor:
        self.total *= 0.5
        return batch["x"].mean(-1) + self.total.sum()


def test_each_entry_point_has_its_own_dynamic_shapes(
    partitioner: Partitioners,
) -> None:
    model = Dynamic()
    rows = Dim("rows", min=1, max=8)
    xs, weights = torch.randn(4, 3), torch.rand(4)
    x = torch.randn(2, 6)
    assert_equals_eager(
        model,
        {
            "add": EntryPoint(
                model.add,
                (xs,),
                {"weights": weights},
                dynamic_shapes={"xs": {0: rows}, "weights": {0: rows}},
            ),
            "mean": EntryPoint(
                model.mean,
                ({"x": x},),
                dynamic_shapes=({"x": {0: Dim("a", max=5), 1: Dim("b", max=7)}},),
            ),
        },
        [
            call("add", xs, weights=weights),
            call("add", weights=torch.rand(8), xs=torch.randn(8, 3)),
            call("mean", {"x": x}),
            call("add", torch.randn(1, 3), weights=torch.rand(1)),
            call("mean", {"x": torch.randn(5, 7)}),
            call("mean", {"x": torch.randn(1, 2)}),
        ],
        partitioner,
    )


DTYPES = {
    "bool": torch.bool,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class Dtypes(nn.Module):
    """A buffer of each dtype, of 0, 1 and 3 dimensions, and tied ones."""

    def __init__(self) -> None:
        super().__init__()
        for name, dtype in DTYPES.items():
            self.register_buffer(f"{name}_3d", torch.tensor([[[1, 0, 1]]]).to(dtype))
            self.register_buffer(f"{name}_0d", torch.tensor(1).to(dtype), False)
        self.alias = nn.Module()
        self.alias.register_buffer("other", self.float32_3d)
        self.register_buffer("empty", torch.zeros(0, 3))

    def flip(self) -> list[Tensor]:
        for name in DTYPES:
            one, scalar = getattr(self, f"{name}_3d"), getattr(self, f"{name}_0d")
            one.copy_(one == 0)
            setattr(self, f"{name}_0d", (scalar == 0).to(scalar.dtype))
        self.alias.other.mul_(3)
        return [getattr(self, f"{name}_0d") for name in DTYPES]

    def read(self) -> list[Tensor]:
        return [getattr(self, f"{name}_3d") for name in DTYPES]


def test_buffers_may_have_any_dtype_and_be_tied(partitioner: Partitioners) -> None:
    model = Dtypes()
    program = assert_equals_eager(
        model,
        {"flip": EntryPoint(model.flip), "read": EntryPoint(model.read)},
        [call("read"), call("flip"), call("read"), call("flip"), call("read")],
        partitioner,
    )
    session = program.session()
    session.flip()
    assert torch.equal(session.state["alias.other"], session.state["float32_3d"])


def test_example_inputs_may_be_buffers_or_given_twice() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.ones(2))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            self.h = self.h + x
            return self.h - y

    model = Sum()
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    for examples in ((model.h, x), (x, x)):
        assert_equals_eager(
            model,
            {"forward": EntryPoint(model.forward, examples)},
            [call("forward", x, y), call("forward", y, x), call("forward", y, y)],
        )
