"""State in branches and loops, and what control-flow operators leave behind."""

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
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as torch_map

import etshared_plugin as etshared
from etshared_plugin import EntryPoint, export
from etshared_plugin.errors import EntryPointError

Partitioners = Sequence[Partitioner]

X = torch.tensor([[1.0, 2.0, -3.0, 0.5]])


def assert_calls_equal_eager(
    model: nn.Module, names: Sequence[str], partitioner: Partitioners
) -> None:
    """Call each entry point with inputs that take either branch."""
    steps = [1, -1, 2, 3, -2]
    assert_equals_eager(
        model,
        {name: EntryPoint(getattr(model, name), (X,)) for name in names},
        [call(name, step * X) for step in steps for name in names],
        partitioner,
    )


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.register_buffer("h", torch.ones(1, 4))
        self.register_buffer("g", torch.zeros(1, 4))

    def read(self, x: Tensor) -> Tensor:
        y = torch.cond(
            x.sum() > self.g.sum(),
            lambda x: self.first(x) + self.h,
            lambda x: torch.sigmoid(self.second(x)) * self.h - self.g,
            (self.first(x),),
        )
        self.h = 2 * y
        return torch.relu(self.second(y))

    def keep_or_take(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda x, h: x + 1, lambda x, h: h * 1, (x, self.h))
        self.h.copy_(y)
        self.g += 1
        return y

    def write(self, x: Tensor) -> Tensor:
        def add(x: Tensor) -> Tensor:
            self.h.add_(x)
            return self.h * 2

        def double(x: Tensor) -> Tensor:
            self.g.mul_(2).add_(1)
            self.h[:, 1:3].sub_(self.g[:, :2])
            return x * 3

        return torch.cond(x.sum() > 0, add, double, (x,)) + self.h

    def learn(self, x: Tensor) -> Tensor:
        def teach(x: Tensor) -> Tensor:
            self.second.bias.copy_(x[0])
            return x + 1

        return torch.cond(x.sum() > 0, teach, lambda x: x - 1, (x,))


class CastsState(nn.Module):
    """What a branch writes is also given to it, in a dtype of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(0, dtype=torch.int32))

    def count(self, x: Tensor) -> Tensor:
        def add(n: Tensor) -> Tensor:
            self.n.add_(1)
            return n + self.n

        n = self.n.to(torch.int64).to(torch.int32)
        return torch.cond(x.sum() > 0, add, lambda n: n - 1, (n,))


def test_a_branch_writes_what_it_gets_in_another_dtype(
    partitioner: Partitioners,
) -> None:
    assert_calls_equal_eager(CastsState(), ["count"], partitioner)


class OneRow(nn.Module):
    """State with a size of 1, where strides mean nothing, differs in them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 4, 4))
        self.register_buffer("g", torch.ones(1, 4))

    def mark(self, x: Tensor) -> Tensor:
        self.h = torch.diagonal_scatter(self.h, x, 0, -2, -1)

        def clear(x: Tensor) -> Tensor:
            self.h.zero_()
            return x + 1

        def count(x: Tensor) -> Tensor:
            self.g.add_(2)
            return x * self.g

        return torch.cond(x.sum() > 0, clear, count, (x,))

    def read(self, x: Tensor) -> Tensor:
        return self.h + x


def test_branches_write_what_has_a_size_of_1(partitioner: Partitioners) -> None:
    assert_calls_equal_eager(OneRow(), ["mark", "read"], partitioner)


def test_branches_read_and_write_state(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    names = ["read", "write", "keep_or_take", "learn", "read", "write"]
    assert_calls_equal_eager(Branching(), names, partitioner)


class Several(nn.Module):
    """Several operators in one entry point, one after another and nested."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("h", torch.ones(1, 4))
        self.register_buffer("n", torch.tensor(0))

    def two(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * self.h, (x,))
        self.h.copy_(y)
        z = torch.cond(
            x.sum() > 1, lambda x: x * 10, lambda x: self.linear(x) * 20, (y,)
        )
        return y, z

    def nested(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            def count(x: Tensor) -> Tensor:
                self.n.add_(1)
                return torch.tanh(x)

            a = torch.cond(x.sum() > 0.6, count, lambda x: x * 7 - self.h, (x,))
            b = torch.cond(self.n > 2, lambda x: x + 2, lambda x: self.linear(x), (x,))
            return a * 10 + b

        y = torch.cond(x.sum() > 0, inner, lambda x: x * self.h, (x,))
        self.h.copy_(y)
        return torch.cond(self.n > 1, lambda y: y + self.n, lambda y: -y, (y,))


def test_operators_keep_their_results(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    assert_calls_equal_eager(Several(), ["two", "nested"], partitioner)


class Looping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.ones(4))
        self.register_buffer("rows", torch.zeros(3, 4))

    def each(self, x: Tensor) -> Tensor:
        y = torch_map(lambda row, h: row * 2 + h, x.expand(3, 4) * 1.0, self.h)
        z = torch_map(lambda row, h: row - h, y + self.rows, self.h)
        self.rows.copy_(y)
        return z

    def accumulate(self, x: Tensor) -> Tensor:
        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            return carry + row * self.h, carry * 2

        carry, ys = scan(step, self.h * 1, x.expand(3, 4) * self.rows)
        self.h.copy_(carry)
        return ys

    def sums(self, x: Tensor) -> Tensor:
        y = associative_scan(
            lambda a, b: a + b, x.expand(3, 4) + self.h, 0, combine_mode="generic"
        )
        self.rows = y
        return y.sum()


def test_loops_read_state(partitioner: Partitioners) -> None:
    assert_calls_equal_eager(Looping(), ["each", "accumulate", "sums"], partitioner)


class Aliases(nn.Module):
    """Branches that return what they were given, wrote or captured."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, 4), 0.5))
        self.register_buffer("h", torch.ones(1, 4))
        self.register_buffer("g", torch.zeros(1, 4))

    def _add(self, x: Tensor) -> Tensor:
        self.h.add_(x)
        return self.h

    def state(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, self._add, lambda x: x, (x,)) * 2

    def captured(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2

        def several(x: Tensor) -> tuple[Tensor, Tensor]:
            self.g.sub_(x)
            return y, y

        return torch.cond(x.sum() > 0, several, lambda x: (self.h, self.weight), (x,))

    def nested(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 1, self._add, lambda x: self.g, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: x, (x,))

    def used_before_write(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, self._add, lambda x: 2 * x, (x,)) + 1
        self.h.mul_(2)
        return y


def test_branches_return_what_they_were_given(partitioner: Partitioners) -> None:
    names = ["state", "captured", "nested", "used_before_write"]
    assert_calls_equal_eager(Aliases(), names, partitioner)


class Operands(nn.Module):
    """Operands that are one tensor, or were two before one was copied."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.ones(1, 4))
        self.register_buffer("g", torch.arange(4.0)[None])

    def copied(self, x: Tensor) -> Tensor:
        self.g.copy_(self.h)

        def take(x: Tensor) -> Tensor:
            self.h.copy_(2 * self.g)
            return self.h.clamp(-4, 4) + x

        return torch.cond(x.sum() > 0, lambda x: x * self.h, take, (x,))

    def views(self, x: Tensor) -> Tensor:
        y = x + self.g
        views = (y, y.view(2, 2).view(1, 4))
        z = torch.cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: a - b, views)
        self.h.add_(z)
        return z


def test_operands_may_be_one_tensor(partitioner: Partitioners) -> None:
    assert_calls_equal_eager(Operands(), ["copied", "views"], partitioner)


class Refused(Branching):
    def assign(self, x: Tensor) -> Tensor:
        def take(x: Tensor) -> Tensor:
            self.h = x + self.h
            return x * 2

        return torch.cond(x.sum() > 0, take, lambda x: x * 3, (x,))

    def two_views(self, x: Tensor) -> Tensor:
        def write(x: Tensor, row: Tensor) -> Tensor:
            self.h.add_(x)
            return row + x[0]

        return torch.cond(x.sum() > 0, write, lambda x, r: r + 1, (x, self.h[0]))

    def two_views_of_no_state(self, x: Tensor) -> Tensor:
        y = 2 * x

        def write(y: Tensor, row: Tensor) -> Tensor:
            y.add_(1)
            return row + 1

        return torch.cond(x.sum() > 0, write, lambda y, r: r - 1, (y, y[0]))

    def write_what_was_returned(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda x: self.h, lambda x: x * 2, (x,))
        self.h.mul_(2)
        return y

    def write_result(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 1, lambda x: self.h, lambda x: x * 2, (x,))

        y = torch.cond(x.sum() > 0, inner, lambda x: x * 3, (x,))
        return y.add_(1)

    def loop(self, x: Tensor) -> Tensor:
        _, y = while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y * self.h), (torch.tensor(0), x)
        )
        return y

    def write_in_while_loop(self, x: Tensor) -> Tensor:
        def write(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            self.h.add_(1)
            return i + 1, y * 2

        return while_loop(lambda i, y: i < 3, write, (torch.tensor(0), x))[1]

    def same_in_while_loop(self, x: Tensor) -> Tensor:
        return while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y), (torch.tensor(0), x)
        )[1]

    def write_in_loop(self, x: Tensor) -> Tensor:
        def write(row: Tensor) -> Tensor:
            self.g.add_(1)
            return row + 1

        return torch_map(write, x)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("assign", "'assign' cannot be exported: .* in place; all else has to be"),
        ("two_views", "'two_views' writes 'h' in a branch of torch.cond that uses it"),
        ("two_views_of_no_state", "' writes a tensor that is no state in a branch of"),
        ("write_what_was_returned", "' writes 'h' after a branch of torch.cond return"),
        ("write_result", "' writes 'h' after .*, or writes that result, and uses the"),
        ("loop", "'loop' uses while_loop, which ExecuTorch 1.5.1 has not; use torch.c"),
        ("write_in_while_loop", "loop' uses while_loop, which ExecuTorch 1.5.1 has no"),
        ("same_in_while_loop", "loop' uses while_loop, which ExecuTorch 1.5.1 has not"),
        (
            "write_in_loop",
            "'write_in_loop' cannot be exported: .* all else has to be returned",
        ),
    ],
)
def test_what_branches_and_loops_may_not_do_is_refused(name: str, message: str) -> None:
    model = Refused()
    with pytest.raises(EntryPointError, match=message):
        export(model, {name: EntryPoint(getattr(model, name), (X,))})


def test_branches_of_plain_programs_write_state() -> None:
    class Plain(Branching):
        forward = Branching.write

    model = Plain()
    with torch.no_grad():  # torch traces such branches nowhere else
        program = torch.export.export(model, (X,))
    code = program.graph_module.true_graph_0.code
    edge = etshared.to_edge_transform_and_lower(program)
    calls = [call("forward", step * X) for step in (1, -1, 2, -3)]
    outcomes = eager_outcomes(
        model, {"forward": EntryPoint(model.forward, (X,))}, calls
    )
    assert_program_equals(bytes(edge.to_executorch().buffer), outcomes)
    assert program.graph_module.true_graph_0.code == code


class Results(nn.Module):
    def shaped(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: 2 * x, (x,))
        return y.reshape(2, 2)

    def beside_delegates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.cond(
            x.sum() > 0, lambda x: x + 1, lambda x: x * x, (torch.tanh(x),)
        )
        second = torch.cond(
            x.sum() > 1, lambda x: x - 1, lambda x: 2 * x, (torch.tanh(x),)
        )
        return first, second


def test_results_are_kept_for_views_and_beside_delegates(
    partitioner: Partitioners,
) -> None:
    assert_calls_equal_eager(Results(), ["shaped", "beside_delegates"], partitioner)


class Reshaping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(2, 4))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def keep(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            self.h[:, 0] = h.reshape(-1)[:2] + 1
            pairs = h.reshape(4, 2)
            return torch.where(self.h.reshape(4, 2) > 1, pairs, -pairs), x.reshape(-1)

        def clear(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            self.h.zero_()
            return torch.softmax(h.reshape(4, 2), 1), x.reshape(-1) * 2

        return torch.cond(x.sum() > 0, keep, clear, (self.h + 1, x))


def test_branches_reshape_what_they_are_given(partitioner: Partitioners) -> None:
    model = Reshaping()
    rows = torch.export.Dim("rows", max=4)
    assert_equals_eager(
        model,
        {
            "heads": EntryPoint(
                model.heads, (X.repeat(3, 1),), dynamic_shapes=({0: rows},)
            )
        },
        [
            call("heads", step * X.repeat(n, 1))
            for n, step in enumerate((1, -1, 2, 3), 1)
        ],
        partitioner,
    )


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(2, 4))
        self.register_buffer("n", torch.zeros(3, dtype=torch.int32))

    def numbers(self, x: Tensor) -> Tensor:
        def first(x: Tensor) -> Tensor:
            self.h[0] = 1
            self.n[1:] = 7
            return x + torch.tensor([1.0, 2.0, 3.0, 4.0])

        def second(x: Tensor) -> Tensor:
            self.h[:, 1:3] = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
            self.n[0] += 1
            return x * torch.tensor(2.0)

        return torch.cond(x.sum() > 0, first, second, (x,)) + self.h

    def nested(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            self.h[1] = 3
            return x - torch.tensor([0.5])

        def outer(x: Tensor) -> Tensor:
            y = torch.cond(x.sum() > 4, inner, torch.exp, (x,))
            self.n[2] = 9
            return y

        return torch.cond(x.sum() > 0, outer, torch.sin, (x,))

    def mapped(self, x: Tensor) -> Tensor:
        scale = torch.tensor([2.0, 3.0, 4.0, 5.0])
        y = torch_map(lambda row: row * scale + torch.tensor([0.25]), x)
        self.h += y
        return y


def test_branches_and_loops_have_constants(partitioner: Partitioners) -> None:
    assert_calls_equal_eager(Constants(), ["numbers", "nested", "mapped"], partitioner)
