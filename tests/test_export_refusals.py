"""What export refuses, and that its messages name it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from etshared_plugin import EntryPoint, export, to_edge_transform_and_lower
from etshared_plugin.errors import EntryPointError, LoweringError, StateError
from etshared_plugin.testing import assert_matches_eager


class Faulty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(2))
        self.register_buffer("g", torch.zeros(2))
        self.plain = torch.zeros(2)
        self.register_buffer("none", None)

    def grow(self, x: Tensor) -> Tensor:
        self.h = torch.cat([self.h, x])
        return self.h

    def retype(self, x: Tensor) -> None:
        self.h = self.h.double()

    def drop(self, x: Tensor) -> None:
        self.h = None

    def resize(self, x: Tensor) -> Tensor:
        return self.h.resize_(3)

    def set_memory(self, x: Tensor) -> None:
        self.h.set_(x)

    def new_attribute(self, x: Tensor) -> None:
        self.result = x * 2

    def train_mode(self, x: Tensor) -> None:
        self.train(not self.training)

    def write_plain(self, x: Tensor) -> None:
        self.plain += x

    def assign_plain(self, x: Tensor) -> None:
        self.plain = self.plain + x

    def fill_none(self, x: Tensor) -> Tensor:
        if self.none is None:
            self.none = torch.zeros(2)
        return self.none + x

    def branch(self, x: Tensor, how: str = "up") -> Tensor:
        return x + 1 if how == "up" else x - 1

    def noise(self, x: Tensor) -> Tensor:
        return x + torch.randn(2)

    def coin(self, x: Tensor) -> Tensor:
        return torch.bernoulli(x / 2)

    def attend(self, x: Tensor) -> Tensor:
        x = x.expand(1, 3, 2)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    def drop_out(self, x: Tensor) -> Tensor:
        return F.dropout(x)

    def fine(self, x: Tensor) -> Tensor:
        self.h += x
        return self.h


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("grow", StateError, r"'grow' changes 'h' from float32\[2\] to .*\[4\]"),
        (
            "retype",
            StateError,
            r"'retype' changes 'h' .* to float64\[2\]; .* so bring the value to its",
        ),
        ("drop", StateError, "'drop' leaves 'h' as NoneType"),
        ("resize", StateError, r"'resize' changes 'h' from .*\[2\] to float32\[3\]"),
        ("set_memory", EntryPointError, "'set_memory' gives 'h' other memory, which"),
        ("new_attribute", EntryPointError, "'new_attribute' changes 'result'"),
        ("train_mode", EntryPointError, "'train_mode' changes 'training'"),
        ("noise", EntryPointError, "'noise' draws random numbers with aten.randn"),
        ("coin", EntryPointError, "'coin' draws random numbers with aten.bernoulli"),
        ("attend", EntryPointError, "'attend' draws random numbers with aten.scaled"),
        (
            "drop_out",
            EntryPointError,
            "'drop_out' has aten.native_dropout.* in training mode",
        ),
        (
            "write_plain",
            EntryPointError,
            "'write_plain' changes 'plain', which is no buffer",
        ),
        (
            "assign_plain",
            EntryPointError,
            "'assign_plain' changes 'plain', which is no buffer",
        ),
        (
            "fill_none",
            EntryPointError,
            "'fill_none' assigns 'none', which is registered as None; give it a tensor",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused(
    name: str, error: type[Exception], message: str
) -> None:
    model = Faulty()
    x = torch.ones(2)
    with pytest.raises(error, match=message):
        export(
            model,
            {
                "fine": EntryPoint(model.fine, (x,)),
                name: EntryPoint(getattr(model, name), (x,)),
            },
        )
    assert torch.equal(model.plain, torch.zeros(2))


def _other_module() -> EntryPoint:
    return EntryPoint(Faulty().fine, (torch.ones(2),))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_other_module, "'f' belongs to a Faulty that is not part of the root Linear"),
        (lambda: EntryPoint(3), "'f' is an instance of int, expected a method"),
        (lambda: EntryPoint(lambda root, x, y: x, (1,)), "do not fit its signature"),
    ],
)
def test_entry_points_that_do_not_fit_are_refused(
    make: Callable[[], EntryPoint], message: str
) -> None:
    with pytest.raises(EntryPointError, match=message):
        export(nn.Linear(2, 2), {"f": make()})


def test_state_is_chosen_by_names_and_globs() -> None:
    model = Faulty()
    x = torch.ones(2)
    entry_points = {"fine": EntryPoint(model.fine, (x,))}
    assert list(export(model, entry_points, state=["?"]).state) == ["g", "h"]
    with pytest.raises(StateError, match="state 'k' matches no buffer.* 'g', 'h'"):
        export(model, entry_points, state=["h", "k"])
    with pytest.raises(StateError, match="'fine' writes buffer 'h', which 'state' lea"):
        export(model, entry_points, state=["g"])


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("g", torch.arange(6.0).view(2, 3))

    def state(self) -> Tensor:
        return self.h.as_strided((2,), (1,), 1)

    def argument(self, x: Tensor) -> Tensor:
        return x.as_strided((2,), (1,), 1) + self.g.as_strided((2,), (1,), 1)


def test_strides_that_a_program_has_otherwise_are_refused() -> None:
    model = Strided()
    with pytest.raises(EntryPointError, match="'state' uses as_strided on .* 'h'"):
        export(model, {"state": EntryPoint(model.state)})
    message = "'argument' uses as_strided on .* an input or weight, which is not c"
    with pytest.raises(EntryPointError, match=message):
        export(model, {"argument": EntryPoint(model.argument, (model.h,))})
    export(model, {"argument": EntryPoint(model.argument, (model.g,))})


def test_no_entry_point_is_an_error() -> None:
    with pytest.raises(EntryPointError, match="there is no entry point to export"):
        export(nn.Linear(2, 2), {})


class Volumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def test_strings_among_the_inputs_are_refused() -> None:
    model, x = Faulty(), torch.ones(2)
    with pytest.raises(EntryPointError, match="'branch' takes the string 'how'"):
        export(model, {"branch": EntryPoint(model.branch, (x, "up"))})
    up = functools.partial(model.branch, how="up")
    assert set(export(model, {"branch": EntryPoint(up, (x,))})) == {"branch"}


class Indices(nn.Module):
    def positions(self, x: Tensor) -> Tensor:
        return torch.nonzero(x)

    def rows(self, x: Tensor) -> Tensor:
        return torch.where(x > 0)[0] * 2


@pytest.mark.parametrize("name", ["positions", "rows"])
def test_indices_of_what_is_not_zero_are_refused(name: str) -> None:
    model, x = Indices(), torch.ones(2, 3)
    exported = export(model, {name: EntryPoint(getattr(model, name), (x,))})
    edge = to_edge_transform_and_lower(exported)
    with pytest.raises(LoweringError, match=f"'{name}' uses the indices of torch.nonz"):
        edge.to_executorch()


def test_convolutions_of_volumes_are_refused() -> None:
    model = Volumes().eval()
    x = torch.ones(1, 2, 4, 4, 4)
    exported = export(model, {"forward": EntryPoint(model.forward, (x,))})
    edge = to_edge_transform_and_lower(exported)
    with pytest.raises(LoweringError, match="'forward' has a convolution of volumes"):
        edge.to_executorch()


class Contexts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)

    def lower_precision(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.dense(x).float()

    def with_gradients(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return self.dense(x) * 2

    def gradient(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_(True)
            return torch.autograd.grad(self.dense(x).sum(), x)[0]

    def backward(self, x: Tensor) -> Tensor:
        x = x.clone()
        self.dense(x).sum().backward()
        return x * 2

    def transformed(self, x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: self.dense(y).sum())(x)

    def without_gradients(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.dense(x)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lower_precision", r"uses torch\.autocast, .* cast inputs .* with '\.to\(\)'"),
        ("with_gradients", r"uses torch\.enable_grad, .*; take it out of the method"),
        ("gradient", r".*no gradients; take torch\.autograd\.grad, .* out of"),
        ("backward", r".*no gradients; take torch\.autograd\.grad, .* out of"),
        ("transformed", r".*no gradients; take .* torch\.func out of the method"),
    ],
)
def test_contexts_that_no_program_has_are_named(name: str, message: str) -> None:
    model, x = Contexts(), torch.ones(1, 2)
    fine = EntryPoint(model.without_gradients, (x,))
    export(model, {"fine": fine})
    faulty = EntryPoint(getattr(model, name), (x,))
    with pytest.raises(EntryPointError, match=f"entry point '{name}' {message}"):
        export(model, {"fine": fine, name: faulty})


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.values = [0]
        self.plain = torch.zeros(2)
        self.nested = {"a": (torch.zeros(2), 1)}

    def count(self, x: Tensor) -> Tensor:
        self.number += 1
        return x * self.number

    def grow(self, x: Tensor) -> Tensor:
        self.values.append(1)
        return x * len(self.values)

    def assign(self, x: Tensor) -> Tensor:
        self.plain = self.plain + x
        return self.plain * 2

    def nest(self, x: Tensor) -> Tensor:
        self.nested["a"] = (x + self.nested["a"][0], 1)
        return self.nested["a"][0] * 2

    def fine(self, x: Tensor) -> Tensor:
        return x + self.plain * len(self.values)


@pytest.mark.filterwarnings("ignore:The tensor attribute")
@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("count", "number"),
        ("grow", "values"),
        ("assign", "plain"),
        ("nest", "nested"),
    ],
)
def test_changed_attributes_of_submodules_are_refused(
    name: str, attribute: str
) -> None:
    inner = Inner()
    model = nn.Sequential(nn.Sequential(inner))
    plain, x = inner.plain, torch.ones(2)
    message = f"'{name}' changes '0.0.{attribute}', which is no buffer"
    export(model, {"fine": EntryPoint(inner.fine, (x,))})
    with pytest.raises(EntryPointError, match=message):
        export(model, {name: EntryPoint(getattr(inner, name), (x,))})
    assert (inner.number, inner.values) == (0, [0])
    assert inner.plain is plain
    assert torch.equal(plain, torch.zeros(2))
    assert torch.equal(inner.nested["a"][0], torch.zeros(2))


@pytest.mark.parametrize("name", ["lifted_tensor_0", "_lifted_tensor_constant0"])
def test_buffers_called_as_constants_of_the_exporter_are_refused(name: str) -> None:
    model = nn.Module()
    model.register_buffer(name, torch.zeros(2))
    with pytest.raises(StateError, match=f"'{name}' has a name .* rename it"):
        export(model, {"read": EntryPoint(functools.partial(getattr, model, name))})


def test_names_of_state_need_not_be_identifiers() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleDict({"a-b": nn.BatchNorm1d(2)})
            self.register_buffer("x y", torch.zeros(2))
            self.register_buffer("x_y", torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            getattr(self, "x y").add_(x)
            self.x_y.mul_(x)
            return self.norms["a-b"](x[None]) + getattr(self, "x y") + self.x_y

        def adapt(self, x: Tensor) -> None:
            self.norms["a-b"].running_mean.add_(x)

    model, x = Named().eval(), torch.tensor([1.0, 2.0])
    entry_points = {
        name: EntryPoint(getattr(model, name), (x,)) for name in ("forward", "adapt")
    }
    assert_matches_eager(model, entry_points)


def test_batch_norms_that_average_over_all_batches_are_refused() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=None))
    entry_point = EntryPoint(model.forward, (torch.ones(4, 3),))
    with pytest.raises(EntryPointError, match="'forward' has a batch norm .* momentum"):
        export(model, {"forward": entry_point})


class Frames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 3, batch_first=True)
        self.register_buffer("total", torch.zeros(1, 4, 3))

    def beside_state(self, x: Tensor) -> Tensor:
        self.total += x
        return self.total

    def unrolled(self, x: Tensor) -> Tensor:
        result: Tensor = self.gru(x)[0]
        return result

    def in_numpy(self, x: Tensor) -> Tensor:
        return x + float(x.numpy().sum())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unrolled", r"one size only: .* as in nn\.GRU .* export one step per call"),
        ("beside_state", "one size only: that of a buffer .* out of dynamic_shapes"),
        ("in_numpy", "NumPy is not traced; compute with torch"),
    ],
)
def test_what_tracing_cannot_follow_comes_with_a_remedy(
    name: str, message: str
) -> None:
    model = Frames().eval()
    entry_point = EntryPoint(
        getattr(model, name),
        (torch.ones(1, 4, 3),),
        dynamic_shapes={"x": {1: Dim("frames", min=2, max=9)}},
    )
    with pytest.raises(
        EntryPointError, match=f"'{name}' cannot be exported: .*{message}"
    ):
        export(model, {name: entry_point})


def test_sizes_that_change_what_a_method_does_are_refused_with_a_remedy() -> None:
    model = nn.Module()
    model.register_buffer("table", torch.zeros(8, 6))

    def add(x: Tensor) -> Tensor:
        rows, columns = x.shape
        model.table[:rows, :columns] += x
        return model.table.sum()

    sizes = {0: Dim("rows", max=5), 1: Dim("columns", max=6)}
    entry_point = EntryPoint(add, (torch.ones(3, 4),), dynamic_shapes={"x": sizes})
    problem = "for some sizes .* full size of a buffer .* max of the Dim"
    with pytest.raises(EntryPointError, match=f"'add' cannot be exported: {problem}"):
        export(model, {"add": entry_point})


def test_operators_that_compute_python_values_are_refused_with_their_place() -> None:
    def read(x: Tensor) -> Tensor:
        return torch.cov(x)

    problem = r"'read' uses the value of a tensor .*test_export_refusals.py, line"
    with pytest.raises(EntryPointError, match=problem):
        export(nn.Module(), {"read": EntryPoint(read, (torch.ones(4, 3),))})


@pytest.mark.filterwarnings("ignore:`?torch.jit:DeprecationWarning")
def test_modules_of_torchscript_are_refused() -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    model = nn.Sequential(nn.Identity(), scripted)
    entry_point = EntryPoint(model.forward, (torch.ones(2),))
    with pytest.raises(EntryPointError, match="'1' is a module of TorchScript"):
        export(model, {"forward": entry_point})
    with pytest.raises(EntryPointError, match="root is a module of TorchScript"):
        export(scripted, {"forward": entry_point})
