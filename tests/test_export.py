"""What entry points may do, and that export leaves the module alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

from etshared_plugin import EntryPoint, export
from etshared_plugin.errors import EntryPointError

Partitioners = Sequence[Partitioner]


class Everything(nn.Module):
    """Has some of all that a module can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout().eval()
        self.tied = nn.Linear(3, 3, bias=False)
        self.tied.weight = self.frozen.weight
        self.register_buffer("h", torch.ones(1, 3))
        self.register_buffer("local", torch.zeros(2), persistent=False)
        self.register_buffer("nothing", None)
        self.register_buffer("view", torch.ones(3, 2).t())
        self.table = torch.arange(3.0)
        self.history: list[Tensor] = [torch.zeros(1)]
        self.options = {"scale": 2.0, "names": ["a"], "seen": {1, 2}}
        self.count = 0
        self.register_forward_hook(lambda module, args, output: None)
        self.frozen.weight.grad = torch.ones(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.h = self.h + self.frozen(x) * self.options["scale"]
        return self.norm(self.h + self.table)

    def step(self, x: Tensor) -> Tensor:
        self.local += 1
        return self.lstm(x[None])[0]

    def counts(self, x: Tensor) -> Tensor:
        self.h += x
        self.count += 1
        self.history.append(x)
        self.options["names"].append("b")
        return self.h * self.count

    def raises(self, x: Tensor) -> Tensor:
        self.h = self.h + x
        self.frozen.weight = nn.Parameter(torch.zeros(3, 3))
        self.extra = 1
        raise RuntimeError("no")


def _everything_of(model: nn.Module) -> list[tuple[str, object]]:
    """List all that a module holds, tensors by identity, memory and value."""
    found: list[tuple[str, object]] = []
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers"):
                for name, t in value.items():
                    entry: object = None
                    if t is not None:
                        entry = (
                            id(t),
                            t.data_ptr(),
                            t.tolist(),
                            t.stride(),
                            t.requires_grad,
                            t.is_leaf,
                            id(t.grad) if t.is_leaf else None,
                        )
                    found.append((f"{prefix}.{key}.{name}", entry))
            elif key == "_modules":
                found.append((f"{prefix}._modules", [id(m) for m in value.values()]))
            else:
                found.append((f"{prefix}.{key}", (id(value), repr(value))))
    return found


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["forward", "step"], None),
        (["forward", "counts"], "'counts' changes '(history|options|count)"),
        (["step", "raises"], "'raises' cannot be exported: no"),
    ],
)
def test_the_module_is_left_as_it_was(names: list[str], message: str | None) -> None:
    model = Everything()
    model.norm.eval()
    before = _everything_of(model)
    flags = [module.training for module in model.modules()]
    x = torch.ones(1, 3)
    entry_points = {name: EntryPoint(getattr(model, name), (x,)) for name in names}
    if message is None:
        export(model, entry_points)
    else:
        with pytest.raises(EntryPointError, match=message):
            export(model, entry_points)
    assert _everything_of(model) == before
    assert [module.training for module in model.modules()] == flags
    assert "extra" not in vars(model)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.ones(2))
        self.register_buffer("previous", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        delta = self.differences(x)
        self.h = self.h + delta
        return self.h

    def differences(self, x: Tensor) -> Tensor:
        previous, self.previous = self.previous, x
        return x - previous


class Outer(nn.Module):
    """Assigns buffers of its submodules, from within and from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(), Inner()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def swap(self) -> None:
        first, second = self.layers
        first.h, second.h = second.h, first.h

    def set(self, x: Tensor) -> Tensor:
        setattr(self.layers[0], "h", x.clamp(min=0))  # noqa: B010
        self.layers[1]._buffers["h"] = x * 3
        self.layers[1].h += 1
        return self.layers[0].h


def test_buffers_of_submodules_may_be_assigned(partitioner: Partitioners) -> None:
    model = Outer()
    x = torch.tensor([1.0, -2.0])
    program = assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (x,)),
            "swap": EntryPoint(model.swap),
            "set": EntryPoint(model.set, (x,)),
            "differences": EntryPoint(model.layers[1].differences, (x,)),
        },
        [
            call("forward", x),
            call("forward", 2 * x),
            call("swap"),
            call("differences", x),
            call("set", -x),
            call("forward", x),
            call("swap"),
            call("forward", 3 * x),
        ],
        partitioner,
    )
    assert "layers.0.previous" in program.session().state  # not persistent


class StoredAndReturned(nn.Module):
    """Returns what it stores, as it is or as a view or copy."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("h", torch.ones(1, 4))
        self.register_buffer("g", torch.zeros(4, 1))
        self.register_buffer("k", torch.rand(1, 1, 3), persistent=False)

    def stored(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.h = torch.tanh(self.linear(x) + self.h)
        return self.h, self.h.clone()

    def views(self, x: Tensor) -> tuple[Tensor, ...]:
        value = torch.sigmoid(self.linear(x))
        self.g.copy_(value.t())
        self.h = value
        return value, value[0], self.g.flatten(), self.h.view(2, 2), value

    def old_and_new(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        old = self.h.clone()
        kept = self.h.view(4)[1:]
        self.h += x
        return old, kept, self.h.t()

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        self.h.add_(x)
        return self.h, self.h, self.h[0, 1:], x, x.view(4), x[:, :2], self.k

    def unchanged(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.h, x

    def smooth(self, x: Tensor) -> Tensor:
        return F.conv1d(x[None], self.k)


def test_a_stored_value_may_be_returned(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = StoredAndReturned()
    x = torch.randn(1, 4)
    names = ["stored", "views", "old_and_new", "parts", "unchanged", "smooth"]
    assert_equals_eager(
        model,
        {name: EntryPoint(getattr(model, name), (x,)) for name in names},
        [call(name, step * x) for step in (1, 2) for name in (*names, *names[::-1])],
        partitioner,
    )


class Constants(nn.Module):
    """Takes no inputs, and needs constants."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.full((2,), 3.0))
        self.register_buffer("n", torch.tensor(4))

    def both(self) -> tuple[Tensor, Tensor]:
        return self.h + 0, self.n + 0

    def scaled(self) -> Tensor:
        return self.h * 2.0 + 1.0

    def advance(self) -> None:
        self.n += 1
        self.h.mul_(0.5).add_(self.n * 0.25)

    def made(self) -> Tensor:
        return torch.arange(3) + torch.tensor([1, 2, 3])


def test_methods_without_inputs_may_use_constants(partitioner: Partitioners) -> None:
    model = Constants()
    names = ["both", "scaled", "advance", "made"]
    assert_equals_eager(
        model,
        {name: EntryPoint(getattr(model, name)) for name in names},
        [call(name) for name in (*names, *reversed(names))],
        partitioner,
    )


class Transposes(nn.Module):
    """Stores a transposed view and lets it out as well."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3, 3))

    def step(self, x: Tensor) -> Tensor:
        self.h = (x + self.h).t()
        return self.h

    def both(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = (x * 2).t()
        self.h = y
        return y, y.clone(), self.h + 1


def test_a_value_may_be_stored_transposed_and_returned(
    partitioner: Partitioners,
) -> None:
    model = Transposes()
    x = torch.arange(9.0).reshape(3, 3)
    assert_equals_eager(
        model,
        {
            "step": EntryPoint(model.step, (x,)),
            "both": EntryPoint(model.both, (x,)),
        },
        [call("step", x), call("step", x + 1), call("both", x), call("step", x)],
        partitioner,
    )


def test_attributes_may_share_a_container() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            plan = (["x"], ["y"])
            self.first, self.second = {"k": plan}, {"k": plan}
            self.register_buffer("n", torch.zeros(2))

        def count(self, x: Tensor) -> Tensor:
            self.n += x
            return self.n * 2

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Shared()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner.count(x)

    model = Root()
    exported = export(model, {"forward": EntryPoint(model.forward, (torch.ones(2),))})
    assert list(exported.state) == ["inner.n"]
    assert model.inner.first["k"] is model.inner.second["k"]
