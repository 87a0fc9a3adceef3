"""What export refuses, and that its messages name it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from etshared_plugin import EntryPoint, export
from etshared_plugin.errors import EntryPointError, StateError


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
        (lambda: EntryPoint(3), "'f' is a int, expected a method"),
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


def test_no_entry_point_is_an_error() -> None:
    with pytest.raises(EntryPointError, match="there is no entry point to export"):
        export(nn.Linear(2, 2), {})
