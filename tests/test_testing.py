"""What users compare their own models with eager by."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn
from torch.export import Dim

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import InputError
from etshared_plugin.runtime import SharedProgram
from etshared_plugin.testing import (
    MismatchError,
    assert_matches_eager,
    assert_program_matches,
    call,
    draw_calls,
    eager_outcomes,
    exported_outcomes,
)


class _Model(nn.Module):
    def __init__(self, slope: float = 1.0, rate: float = 0.5) -> None:
        super().__init__()
        self.slope, self.rate = slope, rate
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int32))

    def observe(self, rows: Tensor) -> dict[str, Tensor]:
        self.count += 1
        self.mean.mul_(1 - self.rate).add_(self.rate * rows.mean(0))
        return {"rows": self.slope * rows, "count": self.count + 0}

    def pick(self, rows: Tensor, index: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, rows[index] * self.slope, self.mean)


def _entry_points(model: _Model) -> dict[str, EntryPoint]:
    rows = torch.linspace(2, 3, 12).reshape(4, 3)
    n = Dim("n", min=1, max=64)
    return {
        "observe": EntryPoint(model.observe, (rows,), dynamic_shapes={"rows": {0: n}}),
        "pick": EntryPoint(
            model.pick,
            (rows,),
            {"mask": torch.ones(3, dtype=torch.bool), "index": torch.tensor([1, 0, 3])},
        ),
    }


@functools.cache
def _exported() -> etshared.ExportedEntryPoints:
    model = _Model()
    return etshared.export(model, _entry_points(model))


@functools.cache
def _program() -> SharedProgram:
    edge = etshared.to_edge_transform_and_lower(_exported())
    return etshared.load(bytes(edge.to_executorch().buffer), tensors="torch")


def test_random_calls_of_a_right_program_match(
    partitioner: list[Partitioner],
) -> None:
    model = _Model()
    program = assert_matches_eager(
        model, _entry_points(model), partitioner=partitioner, sequences=2, length=8
    )
    assert set(program.entry_points) == {"observe", "pick"}
    assert model.count == 0


def test_inputs_are_drawn_in_the_likeness_of_the_examples() -> None:
    model = _Model()
    points, context = _entry_points(model), _program().context
    assert context is not None
    records = {one.name: one for one in context.entry_points}

    def draw(seed: int) -> list[Any]:
        return draw_calls(model, points, records, 60, random.Random(seed))

    drawn = draw(1)
    assert {one.name for one in drawn} == {"observe", "pick"}
    sizes = {one.args[0].shape[0] for one in drawn if one.name == "observe"}
    assert min(sizes) >= 1 and max(sizes) <= 8 and len(sizes) > 4
    picks = [one for one in drawn if one.name == "pick"]
    indices = torch.stack([one.args[1] for one in picks])
    assert indices.dtype == torch.int64
    assert (indices.min(), indices.max()) == (0, 3)
    rows = torch.cat([one.args[0] for one in drawn])
    assert rows.min() >= 2 and rows.max() <= 3 and rows.std() > 0.2
    assert len({tuple(one.args[2].tolist()) for one in picks}) > 3
    for one, other in zip(drawn, draw(1), strict=True):
        assert one.name == other.name
        assert all(map(torch.equal, one.args, other.args))
    assert [one.name for one in draw(2)] != [one.name for one in drawn]


class _Image(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return 2 * image.flatten(1)


def test_drawn_inputs_lie_in_memory_as_the_examples_do() -> None:
    model, image = _Image(), torch.rand(1, 3, 4, 5)
    for layout in (torch.channels_last, torch.contiguous_format):
        example = image.contiguous(memory_format=layout)
        points = {"forward": EntryPoint(model.forward, (example,))}
        program = assert_matches_eager(model, points, sequences=1, length=2)
        (drawn,) = draw_calls(model, points, program._records, 1, random.Random(0))
        assert drawn.args[0].stride() == example.stride()


def test_infinities_stay_where_they_are() -> None:
    class Masked(nn.Module):
        def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
            return torch.softmax(scores + mask, -1)

    model = Masked()
    mask = torch.full((3, 3), -torch.inf).triu(1)
    points = {"forward": EntryPoint(model.forward, (torch.rand(3, 3), mask))}
    program = assert_matches_eager(model, points, sequences=1, length=2)
    assert program.context is not None
    records = {one.name: one for one in program.context.entry_points}
    for one in draw_calls(model, points, records, 3, random.Random(0)):
        drawn = one.args[1]
        assert torch.equal(drawn.isinf(), mask.isinf())
        assert not drawn.isnan().any() and drawn[1, 0] != 0


def test_own_inputs_take_the_place_of_drawn_ones() -> None:
    model = _Model()
    points, context = _entry_points(model), _program().context
    assert context is not None
    records = {one.name: one for one in context.entry_points}
    drawn = draw_calls(
        model,
        points,
        records,
        20,
        random.Random(0),
        {"observe": lambda generator: (torch.full((2, 3), generator.random()),)},
    )
    own = [one for one in drawn if one.name == "observe"]
    assert own and all(one.args[0].unique().numel() == 1 for one in own)


@pytest.mark.parametrize(
    ("other", "place"),
    [(_Model(slope=2.0), "output ['rows']"), (_Model(rate=0.25), "state 'mean'")],
)
def test_the_first_value_that_differs_is_named(other: _Model, place: str) -> None:
    rows = torch.ones(2, 3)
    calls = [call("observe", 0 * rows), call("observe", rows), call("observe", rows)]
    outcomes = eager_outcomes(other, _entry_points(other), calls)
    with pytest.raises(MismatchError) as caught:
        assert_program_matches(_program(), outcomes)
    error = caught.value
    assert (error.step, error.method_name, error.place) == (1, "observe", place)
    assert isinstance(error, AssertionError)
    assert "call 1 of 3, 'observe' (float32[2, 3]), in a session that loads" in str(
        error
    )
    expected, actual = error.expected, error.actual
    assert isinstance(expected, Tensor) and isinstance(actual, Tensor)
    assert f"expected {expected}" in str(error) and f"got {actual}" in str(error)
    assert torch.equal(actual, torch.full_like(actual, 1.0 if "rows" in place else 0.5))


def test_tolerances_are_the_callers() -> None:
    other = _Model(slope=1.01)
    outcomes = eager_outcomes(
        other, _entry_points(other), [call("observe", torch.ones(2, 3))]
    )
    assert_program_matches(_program(), outcomes, rtol=0.02)
    with pytest.raises(MismatchError, match="output"):
        assert_program_matches(_program(), outcomes, rtol=0.001)


def test_another_structure_differs() -> None:
    class _Bare(_Model):
        def observe(self, rows: Tensor) -> Any:  # noqa: ANN401
            return super().observe(rows)["rows"]

    other = _Bare()
    outcomes = eager_outcomes(
        other, _entry_points(other), [call("observe", torch.ones(2, 3))]
    )
    with pytest.raises(MismatchError, match="structures differ"):
        assert_program_matches(_program(), outcomes)


def test_dicts_of_every_kind_match_the_dicts_that_sessions_return() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> tuple[OrderedDict[str, Any], Tensor]:
            return OrderedDict(b=x + 1, a=[OrderedDict(c=x * 2)]), x - 1

    model, x = Named(), torch.ones(2)
    entry_points = {"forward": EntryPoint(model.forward, (x,))}
    program = assert_matches_eager(model, entry_points, [call("forward", x)])
    named, _ = program.session().forward(x)
    assert type(named) is dict and list(named) == ["b", "a"]


def test_calls_of_what_is_no_entry_point_are_refused() -> None:
    model = _Model()
    with pytest.raises(InputError, match="no entry point 'reset', only 'observe'"):
        eager_outcomes(model, _entry_points(model), [call("reset")])


_CALLS = [
    ("observe", (torch.ones(2, 3),)),
    call("observe", 2 * torch.ones(1, 3)),
    ("reset_state", ()),
    [
        "pick",
        [torch.ones(4, 3)],
        {"mask": torch.tensor([True, False, True]), "index": torch.tensor([3, 1, 0])},
    ],
    ("observe", (torch.ones(3, 3),)),
]


def test_calls_are_tuples_or_made_and_may_reset(
    partitioner: list[Partitioner],
) -> None:
    model = _Model()
    assert_matches_eager(model, _entry_points(model), _CALLS, partitioner=partitioner)
    exported = exported_outcomes(_exported(), _CALLS)
    eager = eager_outcomes(model, _entry_points(model), iter(_CALLS))
    for one, other in zip(exported, eager, strict=True):
        torch.testing.assert_close((one.result, one.state), (other.result, other.state))
    assert [int(one.state["count"]) for one in eager] == [1, 2, 0, 0, 1]


@pytest.mark.parametrize(
    ("one", "message"),
    [
        ("observe", "a call is 'observe', expected .name, args., "),
        (("observe",), r"a call is a tuple of 1 \(str\), expected"),
        ((1, ()), r"a call is a tuple of 2 \(int, tuple\), expected"),
        (("observe", torch.ones(2)), "'observe': args are a Tensor, expected a tuple"),
        (("observe", (), ()), "'observe': kwargs are a tuple, expected a dict"),
        (("pass", ()), "there is no entry point 'pass', only 'observe', 'pick'"),
        (("reset_state", (1,)), "'reset_state' takes no inputs"),
    ],
)
def test_what_is_no_call_is_refused_everywhere_alike(one: Any, message: str) -> None:  # noqa: ANN401
    model = _Model()
    with pytest.raises(InputError, match=message):
        eager_outcomes(model, _entry_points(model), [one])
    with pytest.raises(InputError, match=message):
        exported_outcomes(_exported(), [one])


def test_sizes_that_depend_on_one_another_are_checked() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x: Tensor, y: Tensor, pairs: Tensor) -> Tensor:
            self.total += pairs.sum()
            return (x + y).repeat(2) * pairs

    model, n = Pairs(), torch.export.Dim("n", max=6)
    one = EntryPoint(
        model.forward,
        (torch.ones(3), torch.ones(3), torch.ones(6)),
        dynamic_shapes=({0: n}, {0: n}, {0: 2 * n}),
    )
    exported = etshared.export(model, {"forward": one})

    def inputs(*sizes: int) -> list[tuple[str, tuple[Tensor, ...]]]:
        return [("forward", tuple(torch.ones(size) for size in sizes))]

    [outcome] = exported_outcomes(exported, inputs(5, 5, 10))
    assert outcome.result.tolist() == [2.0] * 10
    for sizes, message in [
        ((5, 4, 10), r"'y' is of shape \[4\], expected \[5\]"),
        ((5, 5, 9), r"'pairs' is of shape \[9\], expected \[10\]"),
        ((7, 7, 14), r"'x' is of shape \[7\], expected \[\d to 6\]"),
    ]:
        with pytest.raises(InputError, match=message):
            exported_outcomes(exported, inputs(*sizes))


class _Normed(nn.Module):
    """Has a weight that is computed from parameters, and is none itself."""

    def __init__(self) -> None:
        super().__init__()
        with pytest.warns(FutureWarning, match="weight_norm"):
            self.dense = nn.utils.weight_norm(nn.Linear(2, 2))
        self.register_buffer("sum", torch.zeros(1, 2))

    def step(self, x: Tensor) -> Tensor:
        self.sum += self.dense(x)
        return self.sum * 2


@pytest.mark.filterwarnings("ignore:The tensor attribute self.dense.weight")
def test_weights_that_are_computed_from_parameters_match() -> None:
    model, x = _Normed(), torch.ones(1, 2)
    weight = model.dense.weight
    calls = [call("step", x), call("step", 3 * x)]
    assert_matches_eager(model, {"step": EntryPoint(model.step, (x,))}, calls)
    assert model.dense.weight is weight
    assert torch.equal(model.sum, torch.zeros(1, 2))


class _Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("h", torch.zeros(2))

    def step(self, x: Tensor) -> Tensor:
        return self.h.add_(x) * 2


_HELD = _Held()


def _global_step(x: Tensor) -> Tensor:
    return _HELD.h.add_(x) * 2


def _calls_global_step(x: Tensor) -> Tensor:
    return _global_step(x)


def _holding(model: _Held) -> dict[str, tuple[Callable[..., Tensor], str]]:
    step, h, parts = model.step, model.h, {"part": model.inner}

    @functools.wraps(step)
    def wrapped(x: Tensor) -> Tensor:
        return step(x)

    return {
        "closure": (lambda x: model.h.add_(x) * 2, "the root as the variable 'model'"),
        "buffer": (lambda x: h.add_(x) * 2, "'h' as the variable 'h'"),
        "part": (lambda x: parts["part"](x), "module 'inner' as the variable 'parts'"),
        "weight": (
            functools.partial(lambda x, w=2: w * x @ step.__self__.inner.weight),
            "the root as the variable 'step'",
        ),
        "wrapped": (wrapped, "the root as the variable 'step'"),
        "global": (_global_step, "the root as the variable '_HELD'"),
        "deep": (_calls_global_step, "the root as the variable '_global_step'"),
    }


@pytest.mark.parametrize("name", _holding(_HELD))
def test_functions_that_hold_the_module_are_refused(name: str) -> None:
    fn, message = _holding(_HELD)[name]
    x = torch.ones(2)
    entry_points = {name: EntryPoint(fn, (x,))}
    message = f"entry point '{name}' has {message} from outside.*bound method"
    with pytest.raises(InputError, match=message):
        assert_matches_eager(_HELD, entry_points)
    with pytest.raises(InputError, match=message):
        eager_outcomes(_HELD, entry_points, [call(name, x)])
    assert torch.equal(_HELD.h, torch.zeros(2))


@pytest.mark.parametrize("kind", ["hook", "attribute"])
def test_modules_that_hold_functions_with_the_root_are_refused(kind: str) -> None:
    model, x = _Held(), torch.ones(1, 2)
    if kind == "hook":
        model.inner.register_forward_hook(lambda *_: model.h.add_(1))
    else:
        model.inner.functions = [lambda x: model.h.add_(x)]  # type: ignore[assignment]
    entry_points = {"forward": EntryPoint(model.inner.forward, (x,))}
    message = "module 'inner' holds a function.* has the root as the variable 'model'"
    with pytest.raises(InputError, match=message):
        assert_matches_eager(model, entry_points)
    with pytest.raises(InputError, match=message):
        eager_outcomes(model, entry_points, [call("forward", x)])
    assert torch.equal(model.h, torch.zeros(2))


class _Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.inner.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.calls += 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y + self.calls


def test_hooks_that_are_bound_methods_act_on_a_copy() -> None:
    model, x = _Hooked(), torch.ones(1, 2)
    assert_matches_eager(model, {"forward": EntryPoint(model.forward, (x,))})
    assert model.calls == 0


def test_functions_that_are_given_the_module_act_on_a_copy() -> None:
    x = torch.ones(2)

    def of_root(root: _Held, x: Tensor) -> Tensor:
        return root.h.add_(x) * 2

    functions = {
        "root": of_root,
        "partial": functools.partial(of_root, _HELD),
        "step": _HELD.step,
    }
    entry_points = {name: EntryPoint(fn, (x,)) for name, fn in functions.items()}
    outcomes = eager_outcomes(_HELD, entry_points, [call(n, x) for n in functions])
    assert [one.result.tolist() for one in outcomes] == [[2, 2], [4, 4], [6, 6]]
    assert torch.equal(_HELD.h, torch.zeros(2))
