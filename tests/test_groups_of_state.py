"""Groups of state: each without a gap in memory, reset alone."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import StateError, StateMismatchError
from etshared_plugin.runtime import Session, SharedProgram


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


def test_groups_of_export_stay_where_lowering_shares_other_state() -> None:
    edge = etshared.to_edge_transform_and_lower(
        Translator().export(GROUPS), state=["*"], groups={"counts": ["drift"]}
    )
    context = etshared.load(bytes(edge.to_executorch().buffer)).context
    assert context is not None
    assert {b.fqn: b.group for b in context.buffers} == {
        **dict.fromkeys((f"decoder.{i}.{n}" for i in (0, 1) for n in "kv"), "decoding"),
        **{"e": "a", "encoder.k": "a", "encoder.v": "a", "drift": "counts"},
    }


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
        (
            {"decoder": ["decoder.*.k"]},
            "'decoder' does not have 'decoder.0.v', which",
        ),
        (
            {"tied": ["drift"]},
            "group 'tied' does not have 'tied.count', which",
        ),
    ],
)
def test_groups_that_do_not_fit_are_refused(
    groups: Mapping[str, Sequence[str]], message: str
) -> None:
    with pytest.raises(StateError, match=message):
        Translator().export(groups)


def test_what_fqns_begin_with_makes_a_group_and_may_be_its_name() -> None:
    exported = Translator().export({"decoder": ["decoder", "drift"], "tail": "encoder"})
    groups = {fqn: buffer.group for fqn, buffer in exported.state.items()}
    assert groups == {
        **dict.fromkeys(("decoder.0.k", "decoder.0.v"), "decoder"),
        **dict.fromkeys(("decoder.1.k", "decoder.1.v", "drift"), "decoder"),
        **dict.fromkeys(("encoder.k", "encoder.v"), "tail"),
        "e": "",
    }


@functools.cache
def _program() -> SharedProgram:
    exported = Translator().export({**GROUPS, "drifting": ["drift"]})
    edge = etshared.to_edge_transform_and_lower(exported)
    return etshared.load(bytes(edge.to_executorch().buffer), tensors="torch")


def _values(session: Session) -> dict[str, list[float]]:
    return {fqn: value.tolist() for fqn, value in session.state.items()}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("decoding", ["decoder.0.k", "decoder.0.v", "decoder.1.k", "decoder.1.v"]),
        ("decoder.1", ["decoder.1.k", "decoder.1.v"]),
        ("e", ["e"]),
        ("tied", ["e"]),
        (["decoder.?.k", "drifting"], ["decoder.0.k", "decoder.1.k", "drift"]),
    ],
)
def test_parts_of_the_state_are_reset_saved_and_restored(
    names: str | list[str], chosen: list[str]
) -> None:
    session = _program().session()
    initial = _values(session)
    session.step(torch.ones(1))
    saved, stepped = session.snapshot(names), _values(session)
    assert sorted(saved) == chosen
    everything = dict(session.snapshot())

    session.reset(names)
    expected = {f: (initial if f in chosen else stepped)[f] for f in stepped}
    assert _values(session) == expected

    session.step(torch.ones(1))
    after = _values(session)
    session.restore(pickle.loads(pickle.dumps(saved)))
    expected = {f: (stepped if f in chosen else after)[f] for f in stepped}
    assert _values(session) == expected

    session.step(torch.ones(1))
    after = _values(session)
    session.restore(everything, names)
    expected = {f: (stepped if f in chosen else after)[f] for f in stepped}
    assert _values(session) == expected


def test_the_state_of_a_group_is_a_mapping() -> None:
    session = _program().session()
    group = session.state.group("a")
    assert list(group) == ["e", "encoder.k", "encoder.v"]
    assert "drift" not in group and "tied.count" in group and len(group) == 3
    session.step(torch.ones(1))
    assert group["tied.count"].tolist() == [5]
    group["encoder.v"] = torch.arange(7.0)
    group["encoder.k"].fill_(9)
    assert session.state["encoder.v"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert session.state["encoder.k"].tolist() == [9] * 7
    assert list(group.group("encoder")) == ["encoder.k", "encoder.v"]
    with pytest.raises(KeyError, match="there is no state 'drift', only 'e', 'enc"):
        group["drift"]


def test_names_of_no_state_are_refused_with_those_there_are() -> None:
    session = _program().session()
    before = _values(session)
    saved = session.snapshot()
    for use in (
        session.reset,
        session.snapshot,
        session.state.group,
        lambda name: session.restore(saved, name),
    ):
        with pytest.raises(
            StateMismatchError,
            match="no state matches 'dec', only 'e', 'enc.*'decoder.1.v', 'drift', in"
            " groups 'a', 'decoding', 'drifting'$",
        ):
            use("dec")
    with pytest.raises(KeyError, match=r"state 'decoder', .*; group\('decoder'\) has"):
        session.state["decoder"]
    with pytest.raises(KeyError, match="'view', .*; a view of state is part of the"):
        session.state["view"]
    part = dict(session.snapshot("drift"))
    with pytest.raises(StateMismatchError, match="lacks 'decoder.* name what to rest"):
        session.restore(part)
    with pytest.raises(StateMismatchError, match="the snapshot lacks 'e'$"):
        session.restore(part, ["drift", "e"])
    part["other"] = part["drift"]
    with pytest.raises(StateMismatchError, match="has 'other', which the program"):
        session.restore({**saved, **part})
    assert _values(session) == before
    session.restore(part, "drifting")


def test_a_group_may_have_the_name_of_its_only_state() -> None:
    exported = Translator().export({"drift": "drift"})
    assert exported.state["drift"].group == "drift"
