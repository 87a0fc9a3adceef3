"""Custom operators that write into state, ExecuTorch's own for caches among them."""

from __future__ import annotations

from collections.abc import Sequence

import eager_comparison
import pytest
import torch
from eager_comparison import assert_equals_eager, assert_program_equals, call
from executorch.exir.backend.partitioner import Partitioner
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
from torch import Tensor, nn
from torch.export import Dim

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import EntryPointError

Partitioners = Sequence[Partitioner]

# The operators for caches call it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:_check_is_size will be removed:FutureWarning"
)

_update_cache = torch.ops.llama.update_cache


def _index(position: Tensor, last: int = 12) -> int:
    index = position.item()
    torch._check(index >= 0)
    torch._check(index <= last)
    return index


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)
        self.value = nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 16, 2, 4))
        self.register_buffer("values", torch.zeros(1, 16, 2, 4))

    def _heads(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return layer(x).view(1, x.shape[1], 2, 4)

    def attend(self, x: Tensor, position: Tensor) -> Tensor:
        i = _index(position)
        _update_cache(self._heads(self.key, x), self.keys, i)
        _update_cache(self._heads(self.value, x), self.values, i)
        query = self._heads(self.query, x)
        y = torch.ops.llama.custom_sdpa(
            query, self.keys, self.values, i, None, 0.0, True
        )
        return y.view(1, x.shape[1], 8)

    def keep_old(self, x: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        key = self._heads(self.key, x)
        old, double = self.keys.clone(), self.keys * 2
        _update_cache(key, self.keys, _index(position))
        new = self.keys.clone()
        _update_cache(key + 1, self.keys, 0)
        return old, double, new, self.keys, self.keys[0, :3] + old[0, :3]

    def discard(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        copy = self.keys.clone()
        _update_cache(self._heads(self.key, x), copy, _index(position))
        return copy.sum(), self.keys[:, :2]

    def swap(self, x: Tensor, position: Tensor) -> Tensor:
        i = _index(position)
        new, old = self.values.clone(), self.keys
        _update_cache(self._heads(self.key, x), new, i)
        _update_cache(self._heads(self.value, x), self.keys, i)
        self.values = old.clone()
        self.keys = new
        return new

    def view(self, x: Tensor, position: Tensor) -> None:
        key, i = self._heads(self.key, x), _index(position, 8)
        _update_cache(key, self.keys[:, 2:12], i)
        self.values.mul_(0.5)
        _update_cache(key, self.values, i)
        self.values.add_(1)

    def give(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        _update_cache(self._heads(self.key, x), self.keys, _index(position))
        given = self.keys
        self.keys = self.keys * 0.5
        return given, given.view(-1)


NAMES = ("keep_old", "discard", "swap", "view", "give")


def _model() -> Attention:
    torch.manual_seed(0)
    return Attention()


def _inputs(length: int, position: int) -> tuple[Tensor, Tensor]:
    return torch.randn(1, length, 8), torch.tensor(position)


def _entry_points(model: Attention) -> dict[str, EntryPoint]:
    shapes = {"x": {1: Dim("length", min=2, max=4)}, "position": None}
    return {
        "prefill": EntryPoint(model.attend, _inputs(4, 0), dynamic_shapes=shapes),
        "decode": EntryPoint(model.attend, _inputs(1, 4)),
        **{name: EntryPoint(getattr(model, name), _inputs(1, 1)) for name in NAMES},
    }


def test_operators_write_state_as_in_eager(partitioner: Partitioners) -> None:
    model = _model()
    calls = [call("prefill", *_inputs(4, 0)), call("decode", *_inputs(1, 4))]
    for step, name in enumerate(NAMES + NAMES[::-1]):
        calls.append(call(name, *_inputs(1, step % 8)))
        if step % 2:
            calls.append(call("decode", *_inputs(1, 5 + step % 7)))
    calls.append(call("prefill", *_inputs(3, 2)))
    assert len(calls) >= 18
    assert_equals_eager(model, _entry_points(model), calls, partitioner)


def test_a_cache_is_written_in_place() -> None:
    model = _model()
    exported = etshared.export(
        model, {"decode": EntryPoint(model.attend, _inputs(1, 4))}
    )
    manager = etshared.to_edge_transform_and_lower(exported).to_executorch()
    plans = manager.executorch_program.execution_plan
    decode = next(plan for plan in plans if plan.name == "decode")
    names = {operator.name for operator in decode.operators}
    assert "llama::update_cache" in names
    assert not names & {"aten::copy_", "dim_order_ops::_clone_dim_order"}


def test_operators_of_plain_programs_write_state() -> None:
    model = _model()
    model.forward = model.attend  # type: ignore[method-assign]
    program = torch.export.export(model, _inputs(1, 4))
    edge = etshared.to_edge_transform_and_lower(program)
    outcomes = eager_comparison.eager_outcomes(
        model,
        {"forward": EntryPoint(model.attend, _inputs(1, 4))},
        [call("forward", *_inputs(1, i)) for i in (0, 1, 2, 1)],
    )
    assert_program_equals(bytes(edge.to_executorch().buffer), outcomes)


_library = torch.library.Library("test_mutating_operators", "DEF")
_library.define("advance(Tensor(a!) state, Tensor x) -> Tensor")
_library.define("count(Tensor(a!) state) -> ()")


@torch.library.impl(_library, "advance", "CompositeExplicitAutograd")
def _advance(state: Tensor, x: Tensor) -> Tensor:
    state.add_(x)
    return state * 2


@torch.library.impl(_library, "count", "CompositeExplicitAutograd")
def _count(state: Tensor) -> None:
    state.add_(1)


class Refused(Attention):
    def without_out_variant(self, x: Tensor) -> Tensor:
        return torch.ops.test_mutating_operators.advance(self.keys, x)

    def without_result(self, x: Tensor) -> Tensor:
        torch.ops.test_mutating_operators.count(self.keys)
        return self.keys + x

    def in_branch(self, x: Tensor) -> Tensor:
        def write(x: Tensor) -> Tensor:
            _update_cache(x, self.keys, 3)
            return x + 1

        return torch.cond(x.sum() > 0, write, lambda x: x - 1, (x,))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("without_out_variant", "advance', which .* has no out variant .*; register"),
        ("without_result", "::count', which writes into its argument and has no out"),
        ("in_branch", "llama::update_cache', .*, in a branch of torch.cond or a loop"),
    ],
)
def test_operators_that_executorch_cannot_call_are_refused(
    name: str, message: str
) -> None:
    model = Refused()
    x = torch.ones(1, 1, 2, 4)
    with pytest.raises(EntryPointError, match=f"'{name}' calls operator '.*{message}"):
        etshared.export(model, {name: EntryPoint(getattr(model, name), (x,))})
