"""Run programs next to the eager module, call by call."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.bound_state import BoundState
from ..capture.calls import AnyCall, calls_of, is_reset
from ..capture.declarations import EntryPoint
from ..capture.entry_points import export
from ..errors import EtsharedError
from ..lifted.signatures import DICTS, is_named_result
from ..lowering.arguments import Partitioners
from ..lowering.edge_transform import to_edge_transform_and_lower
from ..runtime import Session, SharedProgram, load
from .captured import refuse_captured_modules
from .drawing import Inputs, check_inputs, draw_calls
from .eager import Outcome, eager_outcomes

if TYPE_CHECKING:
    from executorch.exir import ExecutorchBackendConfig


class MismatchError(EtsharedError, AssertionError):
    """A program gives something else than the eager module.

    ``step`` is the number of the call, from 0, ``method_name`` its entry point,
    ``place`` the output or the fqn of the state, ``expected`` eager's value and
    ``actual`` the program's.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int,
        method_name: str,
        place: str,
        expected: object,
        actual: object,
    ) -> None:
        super().__init__(message)
        self.step = step
        self.method_name = method_name
        self.place = place
        self.expected = expected
        self.actual = actual


def assert_matches_eager(
    root: nn.Module,
    entry_points: Mapping[str, EntryPoint],
    calls: Iterable[AnyCall] | None = None,
    *,
    partitioner: Partitioners | None = None,
    state: Sequence[str] | None = None,
    config: ExecutorchBackendConfig | None = None,
    types: Sequence[type] = (),
    sequences: int = 3,
    length: int = 20,
    seed: int = 0,
    inputs: Inputs | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> SharedProgram:
    """Export, lower and run entry points, and compare every value with eager.

    Each sequence runs in a session that loads entry points when it first calls
    them and, one call later, in one that has loaded all before; then again in the
    first after `reset`, and in unmodified `executorch.runtime`, which loads late
    and early. Outputs are compared when they come and again at the end, state
    after each call.

    Args:
        root, entry_points, state: as for :func:`etshared_plugin.export`. The module
            is left as it is.
        calls: the sequence to run, of ``("name", (x,))`` or ``call("name", x)``;
            ``("reset_state", ())`` starts anew. By default ``sequences`` random ones of
            ``length`` calls each, the same for the same ``seed``.
        partitioner: as for :func:`etshared_plugin.to_edge_transform_and_lower`.
        config: as for ``to_executorch``.
        types: as for :func:`etshared_plugin.load`.
        inputs: by entry point, what makes the positional inputs of a random call;
            by default they are drawn in the likeness of the examples.
        rtol, atol: as for `torch.testing.assert_close`, whose values for each
            dtype are the default; one that is given alone makes the other 0.

    Returns:
        The program.

    Raises:
        MismatchError: the first value that differs, with its call.
        InputError: an entry point has the module by a closure or a global.
        EtsharedError: the entry points cannot be exported, lowered or run.
    """
    refuse_captured_modules(root, entry_points)
    given = None if calls is None else list(calls_of(calls))
    check_inputs(inputs, entry_points)
    exported = export(root, entry_points, state=state)
    edge = to_edge_transform_and_lower(exported, partitioner=partitioner)
    data = bytes(edge.to_executorch(config).buffer)
    program = load(data, tensors="torch", types=types)
    generator = random.Random(seed)
    unbound = BoundState(root, entry_points).entry_points
    for _ in range(sequences if given is None else 1):
        drawn = given
        if drawn is None:
            records = program._records
            drawn = draw_calls(root, unbound, records, length, generator, inputs)
        outcomes = eager_outcomes(
            root, entry_points, drawn, parameters=sorted(exported.state)
        )
        assert_program_matches(program, outcomes, rtol=rtol, atol=atol)
        assert_stock_runtime_matches(data, outcomes, rtol=rtol, atol=atol)
    return program


def assert_program_matches(
    program: SharedProgram,
    outcomes: Sequence[Outcome],
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compare sessions of a program that gives torch tensors with what eager did.

    Raises:
        MismatchError: the first value that differs.
    """
    tolerance = _tolerance(rtol, atol)
    late, early = program.session(), program.session()
    early.load(*reversed(program.entry_points))
    lives = [
        (late, "a session that loads when it first calls"),
        (early, "a session that has loaded all before"),
    ]
    kept = []
    for step in range(len(outcomes) + 1):
        for (session, place), own in zip(lives, (step, step - 1), strict=True):
            if 0 <= own < len(outcomes):
                compared = _Step(own, len(outcomes), outcomes[own], place, tolerance)
                kept.append((compared, compared.run(session)))
    for compared, result in kept:
        compared.compare_result(result, "kept to the end, output")
    late.reset()
    for step, outcome in enumerate(outcomes):
        place = "a session that was reset"
        _Step(step, len(outcomes), outcome, place, tolerance).run(late)


def assert_stock_runtime_matches(
    data: bytes,
    outcomes: Sequence[Outcome],
    *,
    reset_entry_point: str | None = "reset_state",
    data_path: Path | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compare ``executorch.runtime``, loading late and early, with what eager did.

    Raises:
        MismatchError: the first output that differs.
    """
    # Imported here: loading its extension replaces ExecuTorch's log handler.
    from executorch.runtime import Runtime

    tolerance = _tolerance(rtol, atol)
    for loads_first in (False, True):
        program = Runtime.get().load_program(data, data_path=data_path)
        place = f"executorch.runtime, loading {'early' if loads_first else 'late'}"
        if loads_first:
            for name in sorted(program.method_names, reverse=True):
                program.load_method(name)
        generated = program.method_names & {reset_entry_point}
        own = program.method_names - generated
        for name in generated:
            program.load_method(name).execute([])
        for step, outcome in enumerate(outcomes):
            if is_reset(outcome.call, own):
                for name in generated:
                    program.load_method(name).execute([])
                continue
            method = program.load_method(outcome.call.name)
            result = list(method.execute([*map(_stock_input, outcome.inputs)]))
            flat = pytree.tree_leaves(outcome.result)
            _Step(step, len(outcomes), outcome, place, tolerance).compare(
                result, flat, "output"
            )


def _as_returned(value: object) -> object:
    """Return a result as sessions return it, in plain dicts and tuples."""
    if type(value) in DICTS:
        return {key: _as_returned(one) for key, one in value.items()}  # type: ignore[attr-defined]
    if type(value) is list:
        return list(map(_as_returned, value))
    if type(value) is tuple or is_named_result(type(value)):
        return tuple(map(_as_returned, value))  # type: ignore[call-overload]
    return value


def _stock_input(value: object) -> object:
    """Make a tensor contiguous if ``executorch.runtime`` would not take it."""
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return value
    is_taken = value.is_contiguous(memory_format=torch.channels_last)
    return value if is_taken else value.contiguous()


def _tolerance(rtol: float | None, atol: float | None) -> dict[str, Any]:
    if rtol is None and atol is None:
        return {}  # what torch.testing allows for the dtype
    return {"rtol": rtol or 0.0, "atol": atol or 0.0}


@dataclass(frozen=True, slots=True)
class _Step:
    """One call in one runtime."""

    step: int
    count: int
    outcome: Outcome
    place: str
    tolerance: dict[str, Any]

    def run(self, session: Session) -> object:
        one = self.outcome.call
        result = None
        if is_reset(one, session):
            session.reset()
        else:
            result = session[one.name](*one.args, **one.kwargs)
        self.compare_result(result, "output")
        for fqn, value in session.state.items():
            self.compare(value, self.outcome.state[fqn], f"state '{fqn}'")
        return result

    def compare_result(self, result: object, what: str) -> None:
        expected = _as_returned(self.outcome.result)
        specs = [pytree.tree_structure(value) for value in (result, expected)]
        if specs[0] != specs[1]:
            raise self._mismatch(what, expected, result, "structures differ")
        self.compare(result, expected, what)

    def compare(self, actual: object, expected: object, what: str) -> None:
        found = pytree.tree_leaves_with_path(actual)
        wanted = pytree.tree_leaves(expected)
        if len(found) != len(wanted):
            counts = f"{len(found)} values, expected {len(wanted)}"
            raise self._mismatch(what, expected, actual, counts)
        for (path, one), other in zip(found, wanted, strict=True):
            place = f"{what} {pytree.keystr(path)}".rstrip()
            if not isinstance(other, torch.Tensor):
                if type(one) is not type(other) or one != other:
                    raise self._mismatch(place, other, one, "values differ")
                continue
            try:
                torch.testing.assert_close(one, other, equal_nan=True, **self.tolerance)
            except (AssertionError, TypeError) as difference:
                raise self._mismatch(place, other, one, str(difference)) from None

    def _mismatch(
        self, place: str, expected: object, actual: object, difference: str
    ) -> MismatchError:
        return MismatchError(
            f"call {self.step} of {self.count}, {self.outcome.call}, in {self.place}:"
            f" {place} differs from eager\n{difference}\n"
            f"expected {expected}\ngot {actual}",
            step=self.step,
            method_name=self.outcome.call.name,
            place=place,
            expected=expected,
            actual=actual,
        )
