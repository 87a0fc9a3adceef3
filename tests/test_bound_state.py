"""State that methods take and return."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from eager_comparison import assert_equals_eager, assert_matches_eager, call, lower
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import etshared_plugin as etshared
from etshared_plugin import Bind, EntryPoint
from etshared_plugin.errors import EntryPointError, LoweringError, StateError
from etshared_plugin.testing import exported_outcomes

Partitioners = Sequence[Partitioner]


class Cell(nn.Module):
    """A recurrent cell as people write it without buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.LSTMCell(4, 3)
        self.head = nn.Linear(3, 2)

    def step(
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = self.cell(x, state)
        return self.head(h), (h, c)

    def peek(self, x: Tensor, *, state: tuple[Tensor, Tensor]) -> Tensor:
        return self.head(self.cell(x, state)[0])

    def start(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(h), torch.zeros_like(h) + 0.5


X = torch.linspace(-1, 1, 4).reshape(1, 4)
LSTM = (torch.full((1, 3), 0.25), torch.zeros(1, 3))


def cell_entry_points(model: Cell) -> dict[str, EntryPoint]:
    return {
        "step": EntryPoint(
            model.step, (X, LSTM), binds={"lstm": Bind(input=1, output=1)}
        ),
        "peek": EntryPoint(
            model.peek, (X,), {"state": LSTM}, binds={"lstm": Bind(input="state")}
        ),
        "start": EntryPoint(model.start, (LSTM[0],), binds={"lstm": Bind(output=())}),
    }


def test_a_nested_state_is_shared_by_entry_points(partitioner: Partitioners) -> None:
    model = Cell().eval()
    calls = [
        call("peek", X),
        call("step", X),
        call("peek", x=X),
        call("step", -X),
        call("start", 2 * LSTM[0]),
        call("peek", X),
        call("step", X),
    ]
    program = assert_equals_eager(model, cell_entry_points(model), calls, partitioner)
    session = program.session()
    assert list(session.state) == ["lstm.0", "lstm.1"]
    assert torch.equal(session.state["lstm.0"], LSTM[0])
    with torch.no_grad():
        expected, state = model.step(X, LSTM)
        torch.testing.assert_close(session.step(X), expected)
        torch.testing.assert_close(session.step(X), model.step(X, state)[0])
    assert session.start(LSTM[0]) is None
    session.reset("lstm")
    torch.testing.assert_close(session.step(X), expected)


def test_random_calls_follow_the_state() -> None:
    model = Cell().eval()
    assert_matches_eager(model, cell_entry_points(model), sequences=2, length=10)


class Decoder(nn.Module):
    """Caches per layer in a list of dicts, a position, and a dict as result."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def decode(
        self, caches: list[dict[str, Tensor]], rows: Tensor, position: Tensor
    ) -> dict[str, Any]:
        new = []
        for layer, cache in zip(self.layers, caches, strict=True):
            index = position + torch.arange(rows.shape[0])
            keys = cache["keys"].index_copy(0, index, layer(rows))
            # In another order than the example has.
            new.append({"sum": cache["sum"] + keys.sum(), "keys": keys})
            rows = torch.tanh(rows + keys.mean(0))
        return {
            "rows": rows,
            "state": {"caches": new, "position": position + rows.shape[0]},
            "last": new[-1]["keys"],
        }


def decoder_entry_points(model: Decoder) -> dict[str, EntryPoint]:
    caches = [{"keys": torch.zeros(16, 4), "sum": torch.ones(())} for _ in range(2)]
    position = torch.zeros(1, dtype=torch.int64)
    n = Dim("n", min=1, max=4)
    binds = {
        "cache": Bind(input="caches", output=("state", "caches")),
        "position": Bind(input=2, output=("state", "position")),
    }
    return {
        "prefill": EntryPoint(
            model.decode,
            (caches, torch.ones(3, 4), position),
            dynamic_shapes={"caches": None, "rows": {0: n}, "position": None},
            binds=binds,
        ),
        "decode": EntryPoint(
            model.decode, (caches, torch.ones(1, 4), position), binds=binds
        ),
    }


def test_lists_of_caches_in_and_dicts_out(partitioner: Partitioners) -> None:
    model = Decoder()
    one, three = torch.linspace(0, 1, 4)[None], torch.linspace(0, 1, 12).reshape(3, 4)
    program = assert_equals_eager(
        model,
        decoder_entry_points(model),
        [
            call("prefill", three),
            call("decode", one),
            call("prefill", three[:2]),
            call("decode", rows=-one),
        ],
        partitioner,
    )
    session = program.session()
    assert set(session.state) == {
        "cache.0.keys",
        "cache.0.sum",
        "cache.1.keys",
        "cache.1.sum",
        "position",
    }
    result = session.decode(one)
    assert list(result) == ["rows", "last"]
    assert session.state["position"].tolist() == [1]


def _step(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return a + x, a * b, b - x


@pytest.mark.parametrize("dropped", [1, 2])
def test_what_is_left_of_a_tuple(dropped: int) -> None:
    a, b = torch.ones(2), torch.full((2,), 3.0)
    binds = {"a": Bind(input=1, output=0)}
    if dropped == 2:
        binds["b"] = Bind(input=-1, output=-1)
    point = EntryPoint(_step, (torch.ones(2), a, b), binds=binds)
    session = etshared.load(lower(nn.Module(), {"f": point}), tensors="torch").session()
    x = torch.tensor([1.0, 2.0])
    if dropped == 2:
        assert torch.equal(session.f(x), a * b)
        assert torch.equal(session.state["b"], b - x)
        assert torch.equal(session.f(x), (a + x) * (b - x))
    else:
        product, difference = session.f(x, b)
        assert torch.equal(product, a * b) and torch.equal(difference, b - x)
        assert torch.equal(session.f(x, b)[0], (a + x) * b)
    assert list(session.state) == ["a", "b"][:dropped]


ONES = torch.ones(2)


@pytest.mark.parametrize(
    ("binds", "error", "message"),
    [
        ({"a": Bind(3, 0)}, EntryPointError, "'a' to its input 3, expected .* x, a, b"),
        ({"a": Bind("y", 0)}, EntryPointError, "to its input 'y'"),
        ({"a": Bind(1, 5)}, EntryPointError, "its result has no 5 there"),
        ({"a": Bind(1, "a")}, EntryPointError, "its result has no 'a' there"),
        ({"a": Bind(1, ())}, StateError, "returns .* for 'a', expected"),
        (
            {"a": Bind(output=0)},
            StateError,
            "binds 'a', which no entry point has as an",
        ),
        ({"a": Bind(1)}, StateError, "no entry point has 'a' as an output"),
        ({"a": Bind(1, 0), "b": Bind(1, 1)}, EntryPointError, "as another bind does"),
        ({"a": 1}, EntryPointError, "bind 'a' is an instance of int, expected a Bind"),
        ({"taken": Bind(1, 0)}, StateError, "'taken' is the name of bound state and"),
    ],
)
def test_binds_that_cannot_be_are_refused(
    binds: dict[str, Bind], error: type[LoweringError], message: str
) -> None:
    root = nn.Module()
    root.register_buffer("taken", torch.ones(2))
    with pytest.raises(error, match=message):
        etshared.export(root, {"f": EntryPoint(_step, (ONES,) * 3, binds=binds)})


def test_state_that_would_change_its_shape_is_refused() -> None:
    def grow(x: Tensor, cache: Tensor) -> Tensor:
        return torch.cat([cache, x])

    point = EntryPoint(grow, (ONES, ONES), binds={"cache": Bind(1, ())})
    with pytest.raises(
        StateError, match=r"changes 'cache' from float32\[2\] to .*\[4\]"
    ):
        etshared.export(nn.Module(), {"grow": point})


def test_entry_points_agree_on_the_initial_value() -> None:
    bind = {"a": Bind(1, 0)}
    with pytest.raises(StateError, match="'g' binds 'a' with another example value"):
        etshared.export(
            nn.Module(),
            {
                "f": EntryPoint(_step, (ONES, ONES, ONES), binds=bind),
                "g": EntryPoint(_step, (ONES, 2 * ONES, ONES), binds=bind),
            },
        )


def test_values_that_are_no_tensors_are_refused() -> None:
    def count(x: Tensor, n: int) -> tuple[Tensor, int]:
        return x + n, n + 1

    point = EntryPoint(count, (ONES, 1), binds={"n": Bind(1, 1)})
    with pytest.raises(StateError, match="binds 'n' to int, expected a tensor"):
        etshared.export(nn.Module(), {"count": point})


def test_names_that_run_together_are_refused() -> None:
    def step(
        x: Tensor, a: dict[str, Tensor], b: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        return x + a["b"] - b, {"b": a["b"] + x}, b * 2

    point = EntryPoint(
        step,
        (ONES, {"b": ONES}, ONES),
        binds={"a": Bind(1, 1), "a.b": Bind(2, 2)},
    )
    with pytest.raises(StateError, match="binds two values to 'a.b'"):
        etshared.export(nn.Module(), {"step": point})


def test_sequences_equal_those_threaded_by_hand(partitioner: Partitioners) -> None:
    model = Decoder()
    data = lower(model, decoder_entry_points(model), partitioner)
    session = etshared.load(data, tensors="torch").session()
    caches = [{"keys": torch.zeros(16, 4), "sum": torch.ones(())} for _ in model.layers]
    position = torch.zeros(1, dtype=torch.int64)
    for step, count in enumerate((3, 1, 1, 4)):
        rows = torch.linspace(step, step + 1, 4 * count).reshape(count, 4)
        with torch.no_grad():
            expected = model.decode(caches, rows, position)
        caches = expected["state"]["caches"]
        position = expected["state"]["position"]
        result = session.decode(rows) if count == 1 else session.prefill(rows)
        torch.testing.assert_close(result["rows"], expected["rows"])
        torch.testing.assert_close(result["last"], expected["last"])
        torch.testing.assert_close(session.state["cache.1.sum"], caches[1]["sum"])
    assert session.state["position"].tolist() == position.tolist() == [9]


@pytest.mark.parametrize(
    ("entry_points", "message"),
    [
        ([EntryPoint(_step)], "entry_points is a list, expected a dict"),
        ({"f": _step}, "'f' is a function, expected an EntryPoint; write"),
        ({"f": EntryPoint(_step, ONES)}, "args are a Tensor, expected a tuple; write"),
    ],
)
def test_what_declares_no_entry_point_is_refused(
    entry_points: Any,  # noqa: ANN401
    message: str,
) -> None:
    with pytest.raises(EntryPointError, match=message):
        etshared.export(nn.Module(), entry_points)


class Named(NamedTuple):
    y: Tensor
    h: Tensor | None
    twice: Tensor


@dataclass
class Record:
    y: Tensor
    h: Tensor | None
    inner: dict[str, Tensor]


torch.export.register_dataclass(Record)


class Containers(nn.Module):
    def named(self, x: Tensor, h: Tensor) -> Named:
        return Named(x + h, h + x, 2 * x)

    def record(self, x: Tensor, h: Tensor) -> Record:
        return Record(x - h, h + 2 * x, {"x": x + 1, "y": x})

    def inner(self, x: Tensor, h: Tensor) -> Record:
        return Record(x - h, 3 * h, {"x": x + 1, "y": h * x})

    def ordered(self, x: Tensor, h: Tensor) -> OrderedDict[str, Any]:
        return OrderedDict(z=x + h, h=h * 2, a=(h - x, x))


def test_containers_keep_their_class(partitioner: Partitioners) -> None:
    model = Containers()
    outputs: dict[str, str | int | tuple[int | str, ...]] = {
        "named": "h",
        "record": "h",
        "inner": ("inner", "y"),
    }
    entry_points = {
        name: EntryPoint(
            getattr(model, name), (ONES, 3 * ONES), binds={"h": Bind(1, output)}
        )
        for name, output in outputs.items()
    }
    x = torch.tensor([0.5, -2.0])
    program = assert_equals_eager(
        model,
        entry_points,
        [call(name, x) for name in ("named", "record", "inner", "named")],
        partitioner,
        types=[Named, Record],
    )
    session = program.session()
    named, record = session.named(x), session.record(x)
    assert isinstance(named, Named) and named.h is None
    assert torch.equal(named.y, x + 3) and torch.equal(named.twice, 2 * x)
    assert isinstance(record, Record) and record.h is None
    assert torch.equal(session.state["h"], 3 * ONES + 3 * x)
    assert list(session.inner(x).inner) == ["x"]


def test_fields_of_named_tuples_have_positions_and_dicts_their_order() -> None:
    model = Containers()
    entry_points = {
        "named": EntryPoint(model.named, (ONES, ONES), binds={"h": Bind(1, -2)}),
        "ordered": EntryPoint(model.ordered, (ONES, ONES), binds={"h": Bind(1, "h")}),
    }
    named, ordered = exported_outcomes(
        etshared.export(model, entry_points),
        [call("named", ONES), call("ordered", ONES)],
    )
    assert torch.equal(named.state["h"], 2 * ONES) and named.result.h is None
    assert type(ordered.result) is OrderedDict and list(ordered.result) == ["z", "a"]
    assert torch.equal(ordered.state["h"], 4 * ONES)


class Outputs(dict[str, Any]):
    """Registers itself by its keys, as transformers' ModelOutput does."""


pytree.register_pytree_node(
    Outputs,
    lambda one: ([*one.values()], [*one]),
    lambda values, keys: Outputs(zip(keys, values, strict=True)),
    serialized_type_name="Outputs",
    flatten_with_keys_fn=lambda one: (
        [(pytree.MappingKey(key), value) for key, value in one.items()],
        [*one],
    ),
)


def test_keys_of_a_class_are_names() -> None:
    def step(x: Tensor, h: Tensor) -> Outputs:
        return Outputs(logits=x + h, cache=h * 2)

    point = EntryPoint(step, (ONES, ONES), binds={"h": Bind(1, "cache")})
    session = etshared.load(lower(nn.Module(), {"f": point}), tensors="torch").session()
    result = session.f(ONES)
    assert torch.equal(result["logits"], 2 * ONES) and result["cache"] is None
    assert torch.equal(session.state["h"], 2 * ONES)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ((0, 1), "result has no 1 there, but a tensor"),
        ((1, "k"), "result has no 'k' there, but a tensor"),
        ("k", "result has no 'k' there, but a tuple with 0, 1, 2"),
    ],
)
def test_paths_end_at_tensors(output: Any, message: str) -> None:  # noqa: ANN401
    point = EntryPoint(_step, (ONES,) * 3, binds={"a": Bind(1, output)})
    with pytest.raises(EntryPointError, match=message):
        etshared.export(nn.Module(), {"f": point})


@dataclass
class Scaled:
    y: Tensor
    scale: float | None = 1.0


torch.export.register_dataclass(Scaled)


def test_none_instead_of_a_default_is_refused() -> None:
    def scaled(x: Tensor) -> Scaled:
        return Scaled(x + 1, None)

    with pytest.raises(EntryPointError, match="'scale' is None.*not its default"):
        lower(nn.Module(), {"scaled": EntryPoint(scaled, (ONES,))})
