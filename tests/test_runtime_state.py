"""State: its life, its names, its copies."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path

import numpy as np
import pytest
import runtime_programs as programs
import torch
from eager_comparison import lower
from runtime_programs import Backend, Recurrent

import etshared_plugin as etshared
from etshared_plugin.errors import (
    ExecutorchError,
    RuntimeFailure,
    SessionPoisonedError,
    StateMismatchError,
)
from etshared_plugin.runtime import Session, Snapshot

_ROW = torch.tensor([[0.5, -1.0, 2.0, 0.25]])
_KEYS = np.array([[1.0, 2.0, 3.0]], np.float32)
_INITIAL = {
    "cache.keys": np.arange(6, dtype=np.float32).reshape(2, 3),
    "cache.values": np.zeros((2, 3), np.float32),
    "hidden": np.full((1, 4), 5, np.float32),
    "steps": np.array(0),
}


def _session(backend: Backend = "portable") -> Session:
    return etshared.load(programs.recurrent(backend), tensors="numpy").session()


def _is_initial(session: Session, *names: str) -> bool:
    return all(
        np.array_equal(session.state[name], _INITIAL[name])
        for name in names or _INITIAL
    )


def test_a_new_session_has_the_registered_values() -> None:
    session = _session()
    assert sorted(session.state) == sorted(_INITIAL)
    assert _is_initial(session)
    assert session.state["hidden"].dtype == np.float32
    assert session.state["steps"].dtype == np.int64


def test_views_show_and_change_the_state() -> None:
    session = _session()
    view = session.state["hidden"]
    steps = session.state["steps"]
    session.forward(_ROW)
    assert steps == 1
    assert not np.array_equal(view, _INITIAL["hidden"])
    view[...] = 2
    np.testing.assert_array_equal(session.peek(_ROW), _ROW.numpy() + 2)
    session.state["hidden"] = np.full((4, 1), 3, np.float32).T
    np.testing.assert_array_equal(view, np.full((1, 4), 3))
    session.state["hidden"] = session.state["hidden"][:, ::-1]
    np.testing.assert_array_equal(session.peek(_ROW), _ROW.numpy() + 3)


def test_a_view_written_over_itself_is_copied_first() -> None:
    session = _session()
    session.state["cache.keys"] = session.state["cache.keys"][::-1]
    np.testing.assert_array_equal(
        session.state["cache.keys"], _INITIAL["cache.keys"][::-1]
    )


def test_torch_views_share_the_memory() -> None:
    session = etshared.load(programs.recurrent("portable"), tensors="torch").session()
    session.state["hidden"].fill_(1)
    assert torch.equal(session.peek(_ROW), _ROW + 1)


def test_views_outlive_session_and_program() -> None:
    session = _session()
    session.forward(_ROW)
    view = session.state["hidden"]
    before = view.copy()
    tensor = torch.from_numpy(view)
    del session
    gc.collect()
    np.testing.assert_array_equal(view, before)
    view += 1
    assert torch.equal(tensor, torch.from_numpy(before) + 1)


def test_entry_points_outlive_the_session_object() -> None:
    peek = _session().peek
    gc.collect()
    np.testing.assert_array_equal(peek(_ROW), _ROW.numpy() + 5)


def test_assigned_values_must_fit() -> None:
    session = _session()
    with pytest.raises(
        StateMismatchError,
        match=r"'hidden' is float32 \(1, 4\), the given value is float64 \(1, 4\)",
    ):
        session.state["hidden"] = np.ones((1, 4))
    with pytest.raises(StateMismatchError, match=r"given value is float32 \(4,\)"):
        session.state["hidden"] = np.ones(4, np.float32)
    with pytest.raises(StateMismatchError, match="'steps' is of type 'int'"):
        session.state["steps"] = 3
    with pytest.raises(KeyError, match="no state 'h', only 'cache.keys'"):
        session.state["h"]
    assert session.state.get("h") is None
    assert _is_initial(session)


def test_reset_gives_all_or_named_state_its_initial_values() -> None:
    session = _session()

    def advance() -> None:
        session.forward(_ROW)
        session.fill(_KEYS)

    advance()
    session.reset()
    assert _is_initial(session)

    advance()
    kept = session.state["cache.keys"].copy()
    session.reset("hidden")
    assert _is_initial(session, "hidden")
    assert session.state["steps"] == 1
    session.reset(["cache.v*", "steps"])
    assert _is_initial(session, "hidden", "cache.values", "steps")
    np.testing.assert_array_equal(session.state["cache.keys"], kept)
    session.reset([])
    np.testing.assert_array_equal(session.state["cache.keys"], kept)
    session.reset("*")
    assert _is_initial(session)
    with pytest.raises(StateMismatchError, match="no state matches 'cach', only"):
        session.reset(["hidden", "cach"])


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_sessions_interleaved_are_as_each_alone(backend: Backend) -> None:
    program = etshared.load(programs.recurrent(backend), tensors="numpy")
    inputs = [_ROW * scale for scale in (1, -2, 3)]

    def run(session: Session, x: torch.Tensor) -> np.ndarray:
        return session.forward(x)[0]

    alone_session = program.session()
    alone = [run(alone_session, x) for x in inputs]
    first, second = program.session(), program.session()
    for x, expected in zip(inputs, alone, strict=True):
        np.testing.assert_array_equal(run(first, x), expected)
        if x is inputs[0]:
            np.testing.assert_array_equal(run(second, x), expected)
    assert first.state["steps"] == 3
    assert second.state["steps"] == 1


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_loading_late_keeps_state(backend: Backend) -> None:
    session = _session(backend)
    for _ in range(2):
        session.forward(_ROW)
    hidden = session.state["hidden"].copy()
    assert "loaded: forward" in repr(session)
    session.load("peek")
    session.load()
    np.testing.assert_array_equal(session.state["hidden"], hidden)
    assert session.state["steps"] == 2


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_loading_late_keeps_the_state_of_a_stock_program(backend: Backend) -> None:
    # Stock loading writes the initial value again, for every method.
    eager = Recurrent().requires_grad_(False)
    data = programs.stock_recurrent(backend, initialised=True)
    session = etshared.load(data).session()
    for _ in range(2):
        torch.testing.assert_close(session.forward(_ROW)[0], eager(_ROW)[0])
    session.load("peek")
    torch.testing.assert_close(session.peek(_ROW)[0], eager.peek(_ROW))
    session.reset()
    torch.testing.assert_close(session.peek(_ROW)[0], _ROW + 5)


def test_a_reader_before_any_writer_sees_a_stock_programs_initial_value() -> None:
    data = programs.stock_recurrent("portable", initialised=True)
    session = etshared.load(data).session()
    torch.testing.assert_close(session.peek(_ROW)[0], _ROW + 5)


def test_state_without_a_record_has_no_names() -> None:
    session = etshared.load(programs.stock_recurrent("portable")).session()
    assert len(session.state) == 0
    with pytest.raises(StateMismatchError, match="no record of its state; reset()"):
        session.reset("hidden")
    for save in (session.snapshot, lambda: session.restore({})):
        with pytest.raises(RuntimeFailure, match="cannot be saved; export it"):
            save()


def test_a_snapshot_restores_in_another_session() -> None:
    session = _session()
    session.forward(_ROW)
    saved = session.snapshot()
    expected = session.forward(_ROW)[0]
    assert sorted(saved) == sorted(_INITIAL)
    assert saved["steps"] == 1
    with pytest.raises(ValueError, match="read-only"):
        saved["hidden"][...] = 0
    assert "'hidden' (1, 4)" in repr(saved)

    session.restore(saved)
    np.testing.assert_array_equal(session.forward(_ROW)[0], expected)
    other = _session("xnnpack")
    view = other.state["hidden"]
    other.restore(pickle.loads(pickle.dumps(saved)))
    np.testing.assert_array_equal(view, saved["hidden"])
    other.restore(copy.deepcopy(dict(saved)))
    assert other.state["steps"] == 1


def test_a_snapshot_that_does_not_fit_changes_nothing() -> None:
    session = _session()
    saved = dict(session.snapshot())
    hidden = saved.pop("hidden")
    with pytest.raises(StateMismatchError, match="the snapshot lacks 'hidden'"):
        session.restore(Snapshot(saved))
    with pytest.raises(StateMismatchError, match="lacks 'hidden' and has 'h', which"):
        session.restore({**saved, "h": hidden})
    with pytest.raises(StateMismatchError, match=r"'hidden' is float32 \(1, 4\)"):
        session.restore({**saved, "cache.keys": saved["cache.keys"] + 1, "hidden": 1.0})
    assert _is_initial(session)


def test_a_call_that_fails_midway_poisons_the_session() -> None:
    session = _session()
    assert session.lookup(np.array([1])).shape == (1, 3)
    saved = session.snapshot()
    for recover in (session.reset, lambda: session.restore(saved)):
        with pytest.raises(
            ExecutorchError,
            match="entry point 'lookup': cannot execute: Error::InvalidArgument: "
            "aten::index.Tensor_out: Index 7 out of range .* size 2 at dimension 0$",
        ) as error:
            session.lookup(np.array([7]))
        assert error.value.code != 0
        assert error.value.method_name == "lookup"
        for use in (
            lambda: session.peek(_ROW),
            session.snapshot,
            lambda: session.reset("hidden"),
            lambda: session.snapshot("hidden"),
            lambda: session.restore(saved, "hidden"),
        ):
            with pytest.raises(SessionPoisonedError, match=r"call reset\(\) or resto"):
                use()
        session.load()
        recover()
        np.testing.assert_array_equal(session.peek(_ROW), _ROW.numpy() + 5)
    assert session.state["steps"] == 1


def test_one_poisoned_session_leaves_others_alone() -> None:
    program = etshared.load(programs.recurrent("portable"), tensors="numpy")
    first, second = program.session(), program.session()
    with pytest.raises(ExecutorchError):
        first.lookup(np.array([7]))
    np.testing.assert_array_equal(second.peek(_ROW), _ROW.numpy() + 5)


def test_state_of_torch_tensors_of_any_kind_restores() -> None:
    session = etshared.load(programs.recurrent("portable"), tensors="torch").session()
    saved = {name: torch.tensor(value) for name, value in _INITIAL.items()}
    saved["hidden"] = torch.full((1, 4), 2.0, requires_grad=True)
    session.restore(saved)
    assert torch.equal(session.state["hidden"], torch.full((1, 4), 2.0))
    session.restore(session.state)
    assert torch.equal(session.state["hidden"], torch.full((1, 4), 2.0))
    bits = Snapshot({"h": torch.tensor([1.5], dtype=torch.bfloat16)})
    assert bits["h"].view(np.uint16).tolist() == [0x3FC0]


class _Half(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
        self.register_buffer("steps", torch.tensor(0))

    def step(self) -> torch.Tensor:
        self.h.mul_(2)
        self.steps += 1
        return self.h


def test_bfloat16_state_restores_from_files_of_numpy(tmp_path: Path) -> None:
    model = _Half()
    data = lower(model, {"step": etshared.EntryPoint(model.step)})
    session = etshared.load(data, tensors="torch").session()
    session.step()
    path = tmp_path / "state.npz"
    np.savez(path, **session.snapshot())  # type: ignore[arg-type]
    session.reset()
    session.restore(np.load(path))
    assert session.state["h"].tolist() == [3.0, -4.0]
    assert session.step().tolist() == [6.0, -8.0]
    with pytest.raises(StateMismatchError, match="uint16"):
        session.restore({"steps": np.zeros((), np.uint16)}, "steps")


@pytest.mark.parametrize(
    "value", [None, [1], {"hidden": torch.zeros(1, 4).to_sparse()}], ids=str
)
def test_what_is_no_saved_state_is_refused(value: object) -> None:
    with pytest.raises(StateMismatchError):
        _session().restore(value)  # type: ignore[arg-type]
