"""What export refuses, and that its messages name it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from etshared_plugin import EntryPoint, export, to_edge_transform_and_lower
from etshared_plugin.errors import EntryPointError, LoweringError, StateError


class Faulty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(2))
        self.register_buffer("g", torch.zeros(2))
        self.plain = torch.zeros(2)

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

    def fine(self, x: Tensor) -> Tensor:
        self.h += x
        return self.h


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("grow", StateError, r"'grow' changes 'h' from float32\[2\] to .*\[4\]"),
        ("retype", StateError, r"'retype' changes 'h' .* to float64\[2\]"),
        ("drop", StateError, "'drop' leaves 'h' as NoneType"),
        ("resize", StateError, r"'resize' changes 'h' from .*\[2\] to float32\[3\]"),
        ("set_memory", EntryPointError, "'set_memory' gives 'h' other memory, which"),
        ("new_attribute", EntryPointError, "'new_attribute' changes 'result'"),
        ("train_mode", EntryPointError, "'train_mode' changes 'training'"),
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
    with pytest.raises(EntryPointError, match="'state' uses as_strided on 'h', which"):
        export(model, {"state": EntryPoint(model.state)})
    message = "'argument' uses as_strided on an input or weight, which is not contig"
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


def test_convolutions_of_volumes_are_refused() -> None:
    model = Volumes().eval()
    x = torch.ones(1, 2, 4, 4, 4)
    exported = export(model, {"forward": EntryPoint(model.forward, (x,))})
    edge = to_edge_transform_and_lower(exported)
    with pytest.raises(LoweringError, match="'forward' has a convolution of volumes"):
        edge.to_executorch()
