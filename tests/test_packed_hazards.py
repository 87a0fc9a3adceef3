"""Whatever XNNPACK packs, results are the same with and without packed weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import hazard_programs as hazards
import packed_cache_use as use
import pytest
import torch
from hazard_programs import HazardProgram, Results

import etshared_plugin as etshared
from etshared_plugin.runtime import Session, SharedProgram


def _results(session: Session, one: HazardProgram) -> Results:
    return {name: session[name](one.x) for name in one.eager}


def _alone(one: HazardProgram) -> Results:
    """What comes out when every entry point packs for itself."""
    program = etshared.load(one.data, tensors="torch", packed_weights=False)
    return _results(program.session(), one)


def _assert_same(actual: Results, expected: Results) -> None:
    for name, values in expected.items():
        for index, (a, b) in enumerate(zip(actual[name], values, strict=True)):
            assert torch.equal(a, b), (name, index, a, b)


def _assert_right_in_any_order(
    program: SharedProgram, one: HazardProgram, expected: Results
) -> None:
    """Load and end sessions in several orders."""
    first, second = program.session(), program.session()
    second.load(*reversed(program.entry_points))
    for session in (first, second):
        _assert_same(_results(session, one), expected)
    del first, session
    third = program.session(threads="caller")
    for session in (second, third):
        _assert_same(_results(session, one), expected)
    del second, session
    _assert_same(_results(third, one), expected)
    del third
    for name in reversed(program.entry_points):
        values = {name: program.session()[name](one.x)}
        _assert_same(values, {name: expected[name]})


@dataclasses.dataclass(frozen=True)
class Expectation:
    """How close to eager results are, and what packing makes of the constants.

    ``not_shared`` says why entry points share nothing, by their names.
    """

    atol: float
    packed: int
    reused: int
    not_shared: dict[str, str] = dataclasses.field(default_factory=dict)


_NOTHING_PACKED = "XNNPACK packs no constant of it"
_KEPT_OUT = "the record does not allow it for delegate 0"

#: What is quantized differs by a step of its grid where XNNPACK rounds otherwise.
_EXPECTED = {
    "one weight": Expectation(1e-5, 8, 7),
    "convolutions": Expectation(1e-4, 23, 8),
    "elementwise": Expectation(1e-5, 1, 2, {"multiplied": _NOTHING_PACKED}),
    "adapters": Expectation(1e-5, 6, 6),
    "fp16": Expectation(2e-3, 9, 1),
    # Packed bfloat16 weights crash in 1.5.1.
    "bf16": Expectation(2e-2, 0, 0, dict.fromkeys(("biases", "linears"), _KEPT_OUT)),
    "one operator a delegate": Expectation(1e-5, 9, 1),
    "linear weights as inputs": Expectation(
        1e-5, 0, 0, dict.fromkeys(("biases", "linears"), _NOTHING_PACKED)
    ),
    "static per tensor": Expectation(0.06, 8, 0),
    "static per channel": Expectation(0.06, 11, 6),
    "static with other ranges": Expectation(0.06, 7, 0),
    "dynamic": Expectation(0.08, 9, 2),
    "dynamic, then float": Expectation(0.08, 9, 0),
    "four bits per group": Expectation(0.02, 3, 3),
    "four bits per channel": Expectation(0.02, 3, 0),
    "equal integers, per channel": Expectation(0.02, 2, 2),
    "equal integers, dynamic": Expectation(0.02, 2, 2),
    "equal integers, other scales": Expectation(0.02, 2, 0),
}


@pytest.mark.parametrize("name", hazards.PROGRAMS)
def test_results_are_those_without_packed_weights(name: str, tmp_path: Path) -> None:
    one, expectation = hazards.program(name), _EXPECTED[name]
    expected = _alone(one)
    for entry_point, values in one.eager.items():
        for actual, value in zip(expected[entry_point], values, strict=True):
            torch.testing.assert_close(actual, value, rtol=0, atol=expectation.atol)
    path = tmp_path / "program.pte"
    path.write_bytes(one.data)
    for source in (one.data, path):
        program = etshared.load(source, tensors="torch")
        _assert_right_in_any_order(program, one, expected)
        stats = program.stats()
        assert (stats.constants_packed, stats.constants_reused) == (
            expectation.packed,
            expectation.reused,
        )
        assert expectation.not_shared == {
            used.name: used.not_shared
            for used in stats.entry_points
            if used.not_shared is not None
        }
    if expectation.packed == 0:
        return
    for source, origin in ((path, "written"), (one.data, "unchanged")):
        program = etshared.load(source, tensors="torch", packed_cache=tmp_path)
        assert use.origin(program) == origin
        _assert_right_in_any_order(program, one, expected)


@pytest.mark.parametrize("way", ["per channel", "dynamic"])
def test_equal_integers_have_their_own_scales(way: str, tmp_path: Path) -> None:
    one = hazards.program(f"equal integers, {way}")
    for cache in (False, tmp_path, tmp_path):
        program = etshared.load(one.data, tensors="torch", packed_cache=cache)
        results = _results(program.session(), one)
        (small,), (large,) = results["one"], results["four"]
        assert small.abs().max() > 0.5
        assert torch.equal(large, 4 * small)
        _assert_same(results, {**results, "both": [small, large]})
        stats = program.stats()
        assert stats.constants_packed + stats.constants_from_disk == 2


def test_adapters_that_begin_with_zeros_change_nothing(tmp_path: Path) -> None:
    one = hazards.program("adapters")
    for cache in (False, tmp_path, tmp_path):
        program = etshared.load(one.data, tensors="torch", packed_cache=cache)
        results = _results(program.session(), one)
        for name in ("in_base", "in_both"):
            _assert_same({"plain": results[name]}, {"plain": results["plain"]})
        packed = {e.name: e.constants_packed for e in program.stats().entry_points}
        if not cache:
            # Two for each adapter, and two layers once for all entry points.
            assert sum(packed.values()) == 6


def test_programs_live_and_end_beside_each_other(tmp_path: Path) -> None:
    alone = {n: _alone(hazards.program(n)) for n in hazards.PROGRAMS}

    def session_of(name: str, *, on_disk: bool) -> Session:
        data = hazards.program(name).data
        cache = tmp_path if on_disk else False
        return etshared.load(data, tensors="torch", packed_cache=cache).session()

    def check(sessions: Iterable[tuple[str, Session]]) -> None:
        for name, session in sessions:
            _assert_same(_results(session, hazards.program(name)), alone[name])

    for on_disk in (False, True, True):
        sessions = [(n, session_of(n, on_disk=on_disk)) for n in hazards.PROGRAMS]
        for _, session in reversed(sessions):
            session.load()
        check(sessions)
        del session, sessions[1::2]
        sessions += [(n, session_of(n, on_disk=on_disk)) for n in hazards.PROGRAMS[:6]]
        check(sessions)
        del sessions
