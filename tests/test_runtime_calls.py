"""What goes into an entry point and what comes out."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import runtime_programs as programs
import torch
from runtime_programs import Backend, Pair, Point, Recurrent
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

import etshared_plugin as etshared
from etshared_plugin.errors import InputError, RuntimeFailure

_BACKENDS = ("portable", "xnnpack")
_ROW = torch.tensor([[0.5, -1.0, 2.0, 0.25]])


@pytest.mark.parametrize("backend", _BACKENDS)
def test_calls_in_any_order_give_eager_values(backend: Backend) -> None:
    eager = copy.deepcopy(Recurrent())
    session = etshared.load(programs.recurrent(backend)).session()
    nested = ({"a": [_ROW, _ROW * 2]}, _ROW)
    keywords = {"k": torch.tensor([3.0, 4.0])}
    calls = [
        ("peek", (_ROW,), {}),
        ("forward", (_ROW,), {}),
        ("lookup", (torch.tensor([1]),), {}),
        ("fill", (torch.tensor([[1.0, 2.0, 3.0]]),), {}),
        ("forward", (_ROW * 3,), {}),
        ("nested", nested, keywords),
        ("lookup", (torch.tensor([0]),), {}),
        ("peek", (_ROW,), {}),
    ]
    for name, args, kwargs in calls:
        with torch.no_grad():
            expected = getattr(eager, name)(*args, **kwargs)
        torch.testing.assert_close(session[name](*args, **kwargs), expected)
    for fqn, buffer in eager.named_buffers():
        torch.testing.assert_close(session.state[fqn], buffer)


@pytest.mark.parametrize("backend", _BACKENDS)
def test_a_stock_program_takes_positions_and_returns_lists(backend: Backend) -> None:
    eager = Recurrent().requires_grad_(False)
    program = etshared.load(programs.stock_recurrent(backend))
    assert program.context is None
    assert program.entry_points == ("forward", "peek")
    session = program.session()
    eager.hidden.zero_()  # stock lowering drops the initial value
    for _ in range(3):
        hidden, steps = session.forward(_ROW)
        expected = eager(_ROW)
        torch.testing.assert_close(hidden, expected[0])
        assert steps.item() == expected[1].item()
    torch.testing.assert_close(session.peek(_ROW), [eager.peek(_ROW)])
    with pytest.raises(InputError, match="has no names for its inputs"):
        session.peek(x=_ROW)


def test_tensors_come_back_as_the_inputs_were() -> None:
    session = etshared.load(programs.recurrent("portable")).session()
    assert isinstance(session.peek(_ROW), torch.Tensor)
    assert isinstance(session.peek(_ROW.numpy()), np.ndarray)
    assert isinstance(session.state["hidden"], torch.Tensor)  # torch is imported


@pytest.mark.parametrize(
    ("tensors", "kind"), [("numpy", np.ndarray), ("torch", torch.Tensor)]
)
def test_load_can_fix_what_tensors_are(tensors: str, kind: type) -> None:
    session = etshared.load(programs.recurrent("portable"), tensors=tensors).session()
    assert isinstance(session.peek(_ROW), kind)
    assert isinstance(session.peek(_ROW.numpy()), kind)
    assert isinstance(session.state["hidden"], kind)
    with pytest.raises(InputError, match="tensors is 'jax', expected"):
        etshared.load(programs.recurrent("portable"), tensors="jax")


def test_entry_points_are_items_and_attributes() -> None:
    session = etshared.load(programs.recurrent("portable")).session()
    assert sorted(session) == ["fill", "forward", "lookup", "nested", "peek"]
    assert len(session) == 5
    assert "forward" in session
    assert "reset_state" not in session
    assert session.forward is session["forward"]
    assert {"forward", "reset", "state"} <= set(dir(session))
    assert "forward" in repr(session)
    assert "'x' float32 (1, 4)" in repr(session.peek)
    with pytest.raises(InputError, match="no entry point 'decode', only 'fill'"):
        session["decode"]
    with pytest.raises(AttributeError, match="'decode'$"):
        session.decode  # noqa: B018
    with pytest.raises(InputError, match=r"'peek'; call the session's reset\(\)$"):
        session["reset_state"]
    with pytest.raises(AttributeError, match=r"'reset_state'; call the session's re"):
        session.reset_state  # noqa: B018


def test_outputs_belong_to_the_caller() -> None:
    session = etshared.load(programs.recurrent("portable")).session()
    kept, _ = session.forward(_ROW)
    before = kept.clone()
    session.peek(kept)
    session.forward(_ROW)
    assert torch.equal(kept, before)
    kept.zero_()
    assert session.forward(_ROW)[0].abs().sum() > 0


def _inputs() -> list[tuple[str, object]]:
    read_only = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    read_only.flags.writeable = False
    wide = np.arange(8, dtype=np.float32).reshape(1, 8)
    return [
        ("read-only", read_only),
        ("strided", wide[:, ::2]),
        ("reversed", wide[:, 3::-1]),
        ("broadcast", np.broadcast_to(np.float32(3), (1, 4))),
        ("requires grad", torch.ones(1, 4, requires_grad=True)),
        ("parameter", torch.nn.Parameter(torch.ones(1, 4))),
        ("negated", torch._neg_view(torch.arange(4.0).reshape(1, 4))),
        ("transposed", torch.arange(4.0).reshape(4, 1).t()),
        ("unaligned", np.frombuffer(b"\0" + wide.tobytes(), np.float32, 4, 1)[None]),
        ("buffer", memoryview(wide[:, :4].copy())),
    ]


@pytest.mark.parametrize(("name", "value"), _inputs(), ids=[n for n, _ in _inputs()])
def test_inputs_of_any_layout_are_read_right(name: str, value: object) -> None:
    session = etshared.load(programs.recurrent("portable"), tensors="numpy").session()
    if isinstance(value, torch.Tensor):
        expected = value.detach().resolve_neg().numpy() + 5
    else:
        expected = np.asarray(value) + 5
    np.testing.assert_array_equal(session.peek(value), expected)


def test_inputs_of_any_layout_give_contiguous_results() -> None:
    session = etshared.load(programs.mixed()).session()
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    for given in (image, image.to(memory_format=torch.channels_last)):
        result = session.image(given)
        assert torch.equal(result, -image)
        assert result.is_contiguous()
    np.testing.assert_array_equal(session.image(image.numpy()), -image.numpy())


def test_bfloat16_needs_torch_or_ml_dtypes() -> None:
    session = etshared.load(programs.mixed()).session()
    halves = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert torch.equal(session.halves(halves), halves * 2)
    with pytest.raises(InputError, match="input 'x' is uint16, expected bfloat16"):
        session.halves(halves.view(torch.uint16))
    plain = etshared.load(programs.mixed(), tensors="numpy").session()
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(RuntimeFailure, match="bfloat16, which numpy lacks"):
            plain.halves(halves)
    else:
        array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
        np.testing.assert_array_equal(plain.halves(array), array + array)


def test_results_have_the_structure_that_eager_returned() -> None:
    session = etshared.load(programs.mixed()).session()
    x = torch.ones(2, 3)
    assert isinstance(session.pair(x), dict)
    assert list(session.pair(x)) == ["first", "second"]
    typed = etshared.load(programs.mixed(), types=[Pair, Point]).session()
    pair = typed.pair(x)
    assert isinstance(pair, Pair)
    assert torch.equal(pair.second, x + 2)
    point = typed.point(Point(x, x * 2))
    assert isinstance(point, Point)
    assert torch.equal(point.x, x * 2)
    assert torch.equal(session.point({"x": x, "y": x * 3})["x"], x * 3)
    assert typed.constants().tolist() == [1, 2, 3]


def test_tensors_without_elements_pass_through() -> None:
    session = etshared.load(programs.mixed()).session()
    assert session.empty(torch.ones(0, 3)).shape == (0, 3)
    assert session.empty(np.ones((0, 3), np.float32)).shape == (0, 3)


@pytest.mark.parametrize("planned", [True, False])
def test_shapes_may_vary_up_to_their_bound(planned: bool) -> None:
    session = etshared.load(programs.dynamic(planned), tensors="numpy").session()
    for rows in (6, 3, 10, 2, 10):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        doubled, count, flat, twice = session.forward(np.asfortranarray(x))
        np.testing.assert_array_equal(doubled, x.reshape(-1, 2) * 2)
        assert count == rows
        np.testing.assert_array_equal(flat, x.ravel())
        np.testing.assert_array_equal(twice, np.concatenate([x, x]))
    with pytest.raises(
        InputError, match="input 0 has size 11 in dimension 0, expected at most 10$"
    ):
        session.forward(np.ones((11, 4), np.float32))
    with pytest.raises(
        InputError, match=r"input 0 is of shape \(4,\), expected at most \(10, 4\)"
    ):
        session.forward(np.ones(4, np.float32))


_BAD_SIZES = [
    ((5, 7), (1, 5), "input 'x' has size 7 in dimension 1, expected 8"),
    ((5, 9), (1, 5), "input 'x' has size 9 in dimension 1, expected 8"),
    ((1, 8), (1, 1), "input 'x' has size 1 in dimension 0, expected 2 to 16"),
    ((17, 8), (1, 17), "input 'x' has size 17 in dimension 0, expected 2 to 16"),
    ((5, 8), (0, 5), "input 'y' has size 0 in dimension 0, expected 1 to 5"),
    (
        (5, 8),
        (3, 6),
        "input 'y' has size 6 in dimension 1, expected 5 as in dimension 0 of"
        " input 'x'",
    ),
]


@pytest.mark.parametrize("backend", _BACKENDS)
def test_sizes_are_those_that_export_allowed(backend: Backend) -> None:
    eager = programs.Bounded()
    session = etshared.load(programs.bounded(backend)).session()
    for rows, batch in ((2, 1), (16, 5), (7, 3)):
        x, y = torch.rand(rows, 8), torch.rand(batch, rows)
        torch.testing.assert_close(session.encode(x, y), eager.encode(x, y))
    for x_shape, y_shape, message in _BAD_SIZES:
        with pytest.raises(InputError) as refused:
            session.encode(torch.ones(x_shape), torch.ones(y_shape))
        assert str(refused.value) == f"entry point 'encode': {message}"
    assert session.state["calls"].item() == 3


def test_the_least_size_is_the_one_before_lowering() -> None:
    # Lowering to edge makes it 2, for torch takes 0 and 1 for special.
    context = etshared.load(programs.bounded("portable")).context
    assert context is not None
    x, y = context.entry_points[0].inputs
    assert (x.min_sizes, x.max_sizes, x.symbols) == ((2, 8), (16, 8), (1, 0))
    assert (y.min_sizes, y.max_sizes, y.symbols) == ((1, 2), (5, 16), (2, 1))


_SIZES = {
    "at least one": (Dim("n", min=1, max=9), (1, 9)),
    "of any size": (Dim("n", max=9), (0, 9)),
    "found by torch": (Dim.AUTO(max=9), (2, 9)),
    "even": (2 * Dim("n", min=1, max=4), (2, 8)),
    "one more": (Dim("n", min=1, max=8) + 1, (2, 9)),
    "without a bound": (Dim("n"), (0, 6)),  # 1.5.1 plans for the example
}


@pytest.mark.parametrize("dim", _SIZES)
@pytest.mark.parametrize("way", ["export", "plain"])
def test_the_record_has_the_range_of_each_size(dim: str, way: str) -> None:
    class Doubling(torch.nn.Module):
        def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
            return x * 2

    size, expected = _SIZES[dim]
    model, args, shapes = Doubling(), (torch.ones(4, 6), True), ({1: size}, None)
    exported = (
        torch.export.export(model, args, dynamic_shapes=shapes)
        if way == "plain"
        else etshared.export(
            model,
            {"forward": etshared.EntryPoint(model, args, dynamic_shapes=shapes)},
        )
    )
    edge = etshared.to_edge_transform_and_lower(exported)
    context = etshared.load(edge.to_executorch().buffer).context
    assert context is not None
    x, flag = context.entry_points[0].inputs
    least, most = expected
    assert (x.min_sizes, x.max_sizes, x.symbols) == ((4, least), (4, most), (0, 1))
    assert flag.max_sizes == ()


@pytest.mark.parametrize("planned", [True, False])
def test_an_input_may_be_an_output(planned: bool) -> None:
    session = etshared.load(programs.identity(planned), tensors="numpy").session()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for given in (x, np.asfortranarray(x)):
        same, doubled = session.identity(given)
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(doubled, x * 2)
        assert not np.shares_memory(same, given)


def test_values_that_export_fixed_are_checked() -> None:
    session = etshared.load(programs.frozen(), tensors="numpy").session()
    x = np.ones((2, 3), np.float32)
    fixed = (3, 0.5, True, None)
    np.testing.assert_array_equal(session.scaled(x, *fixed)[0], x * 3 + 0.5)
    for position, value, message in [
        (0, 4, "input 1 is the int 4, expected the int 3; export fixed"),
        (0, 3.0, "input 1 is the float 3, expected the int 3"),
        (1, 0.50001, "input 2 is the float 0.50001, expected the float 0.5"),
        (2, False, "input 3 is False, expected True"),
        (2, 1, "input 3 is the int 1, expected True"),
        (3, 0, "input 4 is the int 0, expected None"),
        (3, x, "input 4 is a tensor, expected None"),
    ]:
        given = [*fixed]
        given[position] = value
        with pytest.raises(InputError, match=message):
            session.scaled(x, *given)


def test_values_that_export_fixed_may_be_left_out() -> None:
    session = etshared.load(programs.fixed()).session()
    x = torch.ones(2, 3)
    for given in ((x, 3, 0.5), (x, 3), (x,)):
        assert torch.equal(session.shifted(*given), x * 3 + 0.5)
    assert torch.equal(session.shifted(f=0.5, x=x), x * 3 + 0.5)
    with pytest.raises(InputError, match="input 'k' is the int 4, expected the int 3"):
        session.shifted(x, 4)
    with pytest.raises(InputError, match="input 'x' is missing"):
        session.shifted(k=3)


_BAD_CALLS = [
    ("peek", (), {}, "entry point 'peek': input 'x' is missing"),
    ("peek", (_ROW, _ROW), {}, "entry point 'peek' takes 1 positional input, got 2"),
    ("peek", (_ROW,), {"x": _ROW}, "input 'x' is given by position and by name"),
    ("peek", (_ROW,), {"y": 1}, "entry point 'peek' has no input 'y', only 'x'"),
    ("peek", (_ROW.double(),), {}, "input 'x' is float64, expected float32"),
    ("peek", (_ROW[0],), {}, r"input 'x' is of shape \(4,\), expected \(1, 4\)"),
    ("peek", (_ROW[:, :3],), {}, r"of shape \(1, 3\), expected \(1, 4\)"),
    ("peek", (1.0,), {}, "input 'x' is the float 1, expected a tensor"),
    ("peek", (None,), {}, "input 'x' is None, expected a tensor"),
    ("peek", ("a",), {}, "input 'x' is the str 'a', expected a tensor"),
    ("peek", ([1.0],), {}, "input 'x' is of type 'list', expected a tensor"),
    ("peek", (_ROW.to(torch.complex64),), {}, "dtype that ExecuTorch does not know"),
    ("peek", (_ROW.to_sparse(),), {}, "input 'x' is not a plain dense tensor"),
    ("peek", (_ROW.to("meta"),), {}, "input 'x' is on device 'meta', exp.* no data"),
    ("peek", (np.ones((1, 4), ">f4"),), {}, "not in this machine's byte order"),
    ("peek", (np.array([["a"]]),), {}, "expected a tensor"),
    ("nested", ({"a": [_ROW]}, _ROW), {"k": _ROW[0, :2]}, r"x\['a'\]' is a list of 1"),
    ("nested", ({"b": []}, _ROW), {"k": _ROW}, "is a dict with 'b', expected a dict w"),
    ("nested", (_ROW, _ROW), {"k": _ROW}, "of type 'Tensor', expected a dict with 'a'"),
    (
        "nested",
        ({"a": [_ROW, _ROW.double()]}, _ROW),
        {"k": _ROW[0, :2]},
        r"input 'x\['a'\]\[1\]' is float64",
    ),
    ("nested", ({"a": [_ROW, _ROW]}, _ROW, _ROW), {}, "takes 2 positional inputs"),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "message"), _BAD_CALLS, ids=[c[3] for c in _BAD_CALLS]
)
def test_inputs_that_do_not_fit_are_refused_before_anything_runs(
    name: str, args: tuple[object, ...], kwargs: dict[str, object], message: str
) -> None:
    session = etshared.load(programs.recurrent("portable")).session()
    with pytest.raises(InputError, match=message) as caught:
        session[name](*args, **kwargs)
    assert caught.value.method_name == name
    assert session.state["steps"].item() == 0
    torch.testing.assert_close(session.peek(_ROW), _ROW + 5)


def test_input_memory_is_left_alone() -> None:
    session = etshared.load(programs.recurrent("portable")).session()
    given = _ROW.clone()
    session.forward(given)
    assert torch.equal(given, _ROW)


_WITHOUT_TORCH = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is blocked")

sys.meta_path.insert(0, Blocker())
import numpy as np
import etshared_plugin as etshared

session = etshared.load(sys.argv[1]).session()
x = np.ones((1, 4), np.float32)
assert (session.peek(x) == 6).all()
session.forward(x)
assert session.state["steps"] == 1
saved = session.snapshot()
session.reset()
session.restore(saved)
assert session.state["steps"] == 1
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("backend", _BACKENDS)
def test_a_session_runs_without_torch(backend: Backend, tmp_path) -> None:  # noqa: ANN001
    path = tmp_path / "recurrent.pte"
    path.write_bytes(programs.recurrent(backend))
    result = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, path], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_tensors_without_memory_are_refused_or_zeros() -> None:
    session = etshared.load(programs.recurrent("portable")).session()
    with FakeTensorMode():
        fake = torch.ones(1, 4)
    with pytest.raises(InputError, match="not a plain dense tensor with data"):
        session.peek(fake)
    zeros = torch._efficientzerotensor(1, 4)
    assert torch.equal(session.peek(zeros), torch.full((1, 4), 5.0))


def test_a_tuple_is_no_tensor() -> None:
    session = etshared.load(programs.recurrent("portable")).session()
    with pytest.raises(InputError, match="of type 'tuple', expected a tensor"):
        session.state["hidden"] = (_ROW, _ROW)
    session = etshared.load(programs.mixed(), tensors="torch").session()
    halves = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    with pytest.raises(InputError, match="'tuple'"):
        session.halves((halves, halves))
