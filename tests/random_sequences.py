"""Random sequences of what can be done with sessions, beside the eager module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from hypothesis import strategies as st
from random_kinds import MAX_SIZE
from random_models import RandomModel
from random_registrations import Draw
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from etshared_plugin.runtime import SharedProgram
from etshared_plugin.testing import (
    MismatchError,
    assert_stock_runtime_matches,
    call,
    eager_outcomes,
)

#: By how much results may differ, relative and absolute, for the least accurate
#: dtype that a model uses. All other dtypes are equal.
TOLERANCES = {
    torch.float32: (1e-4, 1e-4),
    torch.float64: (1e-4, 1e-4),  # portable kernels sum float64 in float32
    torch.float16: (1e-2, 1e-2),
}

#: Sessions that a sequence uses.
LIVES = 3


def tolerance(dtypes: frozenset[torch.dtype]) -> tuple[float, float]:
    return max(TOLERANCES.get(dtype, (1e-4, 1e-4)) for dtype in dtypes)


@dataclass(frozen=True)
class Operation:
    """What happens to one session; its class says what."""

    life: int


@dataclass(frozen=True)
class Call(Operation):
    method: str
    seed: int
    size: int


@dataclass(frozen=True)
class Reset(Operation):
    """``names`` selects state by number; -1 resets all."""

    names: int


@dataclass(frozen=True)
class Snapshot(Operation):
    pass


@dataclass(frozen=True)
class Restore(Operation):
    """Restores the last snapshot that any session took."""

    as_mapping: bool


@dataclass(frozen=True)
class Write(Operation):
    """Writes to state from outside, by assignment or through the view."""

    name: int
    seed: int
    through_view: bool


@dataclass(frozen=True)
class Load(Operation):
    method: str


@dataclass(frozen=True)
class Renew(Operation):
    """Drops the session and starts another one."""

    loads_first: bool
    threads: str


@dataclass(frozen=True)
class Sequence:
    """Operations, and whether their calls are tried in stock ExecuTorch too."""

    operations: tuple[Operation, ...]
    in_stock_runtime: bool

    def calls(self) -> list[Call]:
        return [one for one in self.operations if isinstance(one, Call)]


@st.composite
def random_sequences(draw: Draw[Any], model: RandomModel) -> Sequence:
    """Draw ten to twenty operations, most of them calls."""
    methods = [method.name for method in model.methods]
    lives, seeds = st.integers(0, LIVES - 1), st.integers(0, 99)
    numbers = st.integers(0, 7)
    call = st.builds(
        Call, lives, st.sampled_from(methods), seeds, st.integers(1, MAX_SIZE)
    )
    others = st.one_of(
        st.builds(Reset, lives, st.integers(-1, 7)),
        st.builds(Snapshot, lives),
        st.builds(Restore, lives, st.booleans()),
        st.builds(Write, lives, numbers, seeds, st.booleans()),
        st.builds(Load, lives, st.sampled_from(methods)),
        st.builds(Renew, lives, st.booleans(), st.sampled_from(("pool", "caller"))),
    )
    operations = draw(st.lists(st.one_of(call, call, others), min_size=10, max_size=20))
    return Sequence(tuple(operations), draw(st.booleans()))


class _Life:
    """A session and an eager module that have lived through the same."""

    def __init__(self, runner: Runner, loads_first: bool, threads: str) -> None:
        self.session = runner.program.session(threads=threads)
        if loads_first:
            self.session.load()
        self.eager = runner.model.build()
        self.entry_points = runner.model.entry_points(self.eager)


@dataclass
class Runner:
    """Runs sequences over sessions of one program.

    ``aliases`` are all names of each piece of state of the program.
    """

    model: RandomModel
    program: SharedProgram
    data: bytes
    aliases: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        context = self.program.context
        assert context is not None
        self.aliases = {one.fqn: (one.fqn, *one.aliases) for one in context.buffers}
        self._methods = {method.name: method for method in self.model.methods}
        self._tolerance = tolerance(self.model.dtypes)

    def run(self, sequence: Sequence) -> None:
        """Run a sequence.

        Raises:
            MismatchError: the first value that differs.
        """
        lives = [
            _Life(self, loads_first, threads)
            for loads_first, threads in (
                (False, "pool"),
                (True, "caller"),
                (False, "caller"),
            )
        ]
        saved: tuple[Any, dict[str, Tensor]] | None = None
        kept: list[tuple[str, Any, Any]] = []
        for step, one in enumerate(sequence.operations):
            life = lives[one.life]
            place = f"operation {step}, {one}"
            if isinstance(one, Call):
                kept.append(self._call(life, one, place))
            elif isinstance(one, Reset):
                self._reset(life, one.names)
            elif isinstance(one, Snapshot):
                saved = life.session.snapshot(), self._state(life.eager)
            elif isinstance(one, Restore) and saved is not None:
                snapshot, values = saved
                life.session.restore(dict(snapshot) if one.as_mapping else snapshot)
                self._write(life.eager, values)
            elif isinstance(one, Write) and self.aliases:
                self._write_from_outside(life, one)
            elif isinstance(one, Load):
                life.session.load(one.method)
            elif isinstance(one, Renew):
                lives[one.life] = _Life(self, one.loads_first, one.threads)
            self._compare_state(lives[one.life], place)
        for number, life in enumerate(lives):
            self._compare_state(life, f"session {number} at the end")
        for place, actual, expected in kept:
            self._compare(actual, expected, place, "output kept to the end")

        if sequence.in_stock_runtime:
            self._run_in_stock_runtime(sequence)

    def _run_in_stock_runtime(self, sequence: Sequence) -> None:
        root = self.model.build()
        calls = [
            call(one.method, *self._methods[one.method].arguments(one.seed, one.size))
            for one in sequence.calls()
        ]
        outcomes = eager_outcomes(root, self.model.entry_points(root), calls)
        relative, absolute = self._tolerance
        assert_stock_runtime_matches(self.data, outcomes, rtol=relative, atol=absolute)

    def _call(self, life: _Life, one: Call, place: str) -> tuple[str, Any, Any]:
        arguments = self._methods[one.method].arguments(one.seed, one.size)
        given = [argument.clone() for argument in arguments]
        with torch.no_grad():
            expected = life.entry_points[one.method].fn(*given)
            expected = pytree.tree_map_only(Tensor, torch.clone, expected)
        given = [argument.clone() for argument in arguments]
        actual = life.session[one.method](*given)
        self._compare(actual, expected, place, "output")
        self._compare(given, list(arguments), place, "input after the call")
        return place, actual, expected

    def _reset(self, life: _Life, names: int) -> None:
        if names < 0 or not self.aliases:
            life.session.reset()
            chosen = set(self.aliases)
        else:
            name = self._name(names)
            pattern = f"{name[:-1]}?" if names % 2 else name
            life.session.reset(pattern if names % 3 else [pattern, name])
            chosen = {
                fqn
                for fqn, known in self.aliases.items()
                if any(fnmatchcase(other, pattern) for other in known)
            }
        initial = self._state(self.model.build())
        self._write(life.eager, {fqn: initial[fqn] for fqn in chosen})

    def _write_from_outside(self, life: _Life, one: Write) -> None:
        name = self._name(one.name)
        view = life.session.state[name]
        generator = torch.Generator().manual_seed(one.seed)
        if view.is_floating_point():
            value = torch.rand(view.shape, generator=generator).to(view.dtype)
        else:
            value = torch.randint(0, 2, view.shape, generator=generator)
            value = value.to(view.dtype)
        if one.through_view:
            view.copy_(value)
        else:
            life.session.state[name] = value
        self._write(life.eager, {name: value})

    def _name(self, number: int) -> str:
        names = [name for known in self.aliases.values() for name in known]
        return names[number % len(names)]

    def _state(self, eager: nn.Module) -> dict[str, Tensor]:
        return {fqn: _tensor(eager, fqn).detach().clone() for fqn in self.aliases}

    def _write(self, eager: nn.Module, values: Mapping[str, Tensor]) -> None:
        for fqn, value in values.items():
            owner, _, name = fqn.rpartition(".")
            module = eager.get_submodule(owner)
            if fqn in self.model.assigned:
                # What was assigned may be an argument, or another buffer.
                module._buffers[name] = value.clone()
            else:
                _tensor(eager, fqn).detach().copy_(value)

    def _compare_state(self, life: _Life, place: str) -> None:
        for fqn, known in self.aliases.items():
            actual = life.session.state[fqn]
            for name in known:
                expected = _tensor(life.eager, name).detach()
                self._compare(actual, expected, place, f"state '{name}'")

    def _compare(self, actual: Any, expected: Any, place: str, what: str) -> None:  # noqa: ANN401
        relative, absolute = self._tolerance
        found, spec = pytree.tree_flatten(actual)
        wanted, expected_spec = pytree.tree_flatten(expected)
        assert spec == expected_spec, (place, what, spec, expected_spec)
        for one, other in zip(found, wanted, strict=True):
            if not isinstance(other, Tensor):
                assert one is other, (place, what)
                continue
            is_float = other.is_floating_point()
            try:
                torch.testing.assert_close(
                    one,
                    other,
                    rtol=relative if is_float else 0,
                    atol=absolute if is_float else 0,
                    equal_nan=True,
                )
            except AssertionError as error:
                raise MismatchError(
                    f"{place}: {what} differs from eager\n{error}\n"
                    f"expected {other}\ngot {one}",
                    step=0,
                    method_name="",
                    place=place,
                    expected=other,
                    actual=one,
                ) from None


def _tensor(module: nn.Module, fqn: str) -> Tensor:
    owner, _, name = fqn.rpartition(".")
    value = getattr(module.get_submodule(owner), name)
    assert isinstance(value, Tensor)
    return value
