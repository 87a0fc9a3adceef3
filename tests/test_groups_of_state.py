"""Groups of state: each without a gap in memory, reset alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import StateError


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("k", torch.full((size,), 2.0))
        self.register_buffer("v", torch.zeros(size))


class Translator(nn.Module):
    """State of an encoder and of a decoder, and a counter between their names."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.ModuleList([Layer(3), Layer(5)])
        self.encoder = Layer(7)
        self.register_buffer("drift", torch.zeros(1))
        self.register_buffer("e", torch.tensor([4]))
        self.tied = nn.Module()
        self.tied.register_buffer("count", self.e)

    def step(self, x: Tensor) -> Tensor:
        for layer in (*self.decoder, self.encoder):
            layer.k.add_(x)
            layer.v.sub_(x)
        self.drift += x
        self.e += 1
        return self.encoder.k.sum() + self.drift

    def export(
        self, groups: Mapping[str, Sequence[str]], **options: object
    ) -> etshared.ExportedEntryPoints:
        x = torch.ones(1)
        return etshared.export(
            self, {"step": EntryPoint(self.step, (x,))}, groups=groups, **options
        )


GROUPS = {"decoding": ["decoder.*"], "a": ["encoder.?", "tied.count"]}


@pytest.mark.parametrize("is_late", [False, True])
def test_a_group_lies_together_and_is_reset_alone(is_late: bool) -> None:
    exported = Translator().export({} if is_late else GROUPS)
    edge = etshared.to_edge_transform_and_lower(
        exported, groups=GROUPS if is_late else None
    )
    program = etshared.load(bytes(edge.to_executorch().buffer), tensors="torch")
    context = program.context
    assert context is not None
    assert [(b.group, b.fqn) for b in context.buffers] == [
        ("", "drift"),
        ("a", "e"),
        ("a", "encoder.k"),
        ("a", "encoder.v"),
        ("decoding", "decoder.0.k"),
        ("decoding", "decoder.0.v"),
        ("decoding", "decoder.1.k"),
        ("decoding", "decoder.1.v"),
    ]
    ends = [0, *(-(-(b.offset + b.nbytes) // 16) * 16 for b in context.buffers)]
    assert [buffer.offset for buffer in context.buffers] == ends[:-1]
    assert {buffer.mem_id for buffer in context.buffers} == {2}

    session = program.session()
    initial = session.snapshot()
    session.step(torch.ones(1))
    stepped = session.snapshot()
    session.reset("decoding")
    for buffer in context.buffers:
        expected = initial if buffer.group == "decoding" else stepped
        assert session.state[buffer.fqn].numpy().tolist() == (
            expected[buffer.fqn].tolist()
        )


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": ["decoder.*"], "b": ["*.k"]}, r"'decoder.0.k' is in the groups 'a' and"),
        ({"a": ["nothing.*"]}, "'nothing.*' of group 'a' matches no shared state"),
        ({"": ["e"]}, "a group of state is named ''"),
        ({"e": ["drift"]}, "group 'e' has the name of state that is not all of it"),
        ({"tied.count": ["*"]}, "group 'tied.count' has the name of state that is not"),
    ],
)
def test_groups_that_do_not_fit_are_refused(
    groups: Mapping[str, Sequence[str]], message: str
) -> None:
    with pytest.raises(StateError, match=message):
        Translator().export(groups)


def test_a_group_may_have_the_name_of_its_only_state() -> None:
    exported = Translator().export({"drift": "drift"})
    assert exported.state["drift"].group == "drift"
