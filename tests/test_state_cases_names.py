"""Arguments whose names buffers have too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

from etshared_plugin import EntryPoint

Partitioners = Sequence[Partitioner]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.tensor([1, 2, 3]))

    def set(self, b_state: Tensor) -> None:
        self.state = b_state.clone()

    def get(self) -> Tensor:
        return self.state


class Namesakes(nn.Module):
    """Arguments with the names of buffers, and of their placeholders."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 2))
        self.register_buffer("x", torch.full((3,), 2.0))
        self.dec = Decoder()

    def forward(self, x: Tensor) -> Tensor:
        self.state += x
        return self.state.flatten() * 2

    def set_state(self, state: Tensor) -> None:
        self.state.copy_(state)

    def get_state(self) -> Tensor:
        return self.state

    def add(self, x: Tensor, b_x: Tensor) -> Tensor:
        self.x[:] = x + b_x
        return self.x * x

    def set_nested(self, dec_state: Tensor, b_dec_state: Tensor) -> Tensor:
        self.dec.state.copy_(dec_state)
        return b_dec_state - self.dec.state


@pytest.mark.parametrize(
    ("partitioner", "reverse"),
    [("portable", False), ("xnnpack", True)],
    indirect=["partitioner"],
)
def test_an_argument_may_have_the_name_of_a_buffer(
    partitioner: Partitioners, reverse: bool
) -> None:
    model = Namesakes()
    ones, longs = torch.ones(2, 2), torch.tensor([4, 5, 6])
    entry_points = {
        "forward": EntryPoint(model.forward, (ones,)),
        "set_state": EntryPoint(model.set_state, (ones,)),
        "get_state": EntryPoint(model.get_state),
        "add": EntryPoint(model.add, (torch.ones(3), torch.ones(3))),
        "set_nested": EntryPoint(model.set_nested, (longs, longs)),
        "set_decoder": EntryPoint(model.dec.set, (longs,)),
        "get_decoder": EntryPoint(model.dec.get),
    }
    if reverse:
        entry_points = dict(reversed(entry_points.items()))
    program = assert_equals_eager(
        model,
        entry_points,
        [
            call("forward", ones),
            call("get_state"),
            call("set_state", 7 * ones),
            call("get_state"),
            call("set_state", state=3 * ones),
            call("forward", x=ones),
            call("add", torch.ones(3), torch.arange(3.0)),
            call("get_decoder"),
            call("set_nested", longs, 10 * longs),
            call("get_decoder"),
            call("set_decoder", b_state=-longs),
            call("get_decoder"),
            call("set_nested", b_dec_state=longs, dec_state=2 * longs),
            call("add", torch.ones(3), torch.ones(3)),
        ],
        partitioner,
    )
    session = program.session()
    session.set_state(7 * ones)
    assert torch.equal(session.get_state(), 7 * ones)
