"""Random methods of random models, statement by statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from random_branches import write_branches
from random_expressions import Scope
from random_kinds import MAX_SIZE, Kind, Value
from random_refusals import write_refused
from random_registrations import OWNERS, Draw, Registered, draw_kind, views
from random_writes import write_statement


@dataclass(frozen=True)
class Method:
    """A method; ``results`` are code after a call of it, such as "[0]"."""

    name: str
    owner: str
    inputs: tuple[tuple[str, Kind], ...]
    results: tuple[tuple[str, Kind], ...]
    body: tuple[str, ...]
    keeps_inputs: bool = False
    refusal: str | None = None

    @property
    def is_dynamic(self) -> bool:
        return any(kind.is_dynamic for _, kind in self.inputs)

    def lines(self) -> list[str]:
        names = ", ".join(["self", *(name for name, _ in self.inputs)])
        return [f"def {self.name}({names}):", *(f"    {line}" for line in self.body)]

    def signature(self) -> str:
        path = f"{self.owner}.{self.name}".lstrip(".")
        inputs = ", ".join(f"{name}: {kind}" for name, kind in self.inputs)
        return f"{path}({inputs})"

    def arguments(self, seed: int, size: int) -> tuple[torch.Tensor, ...]:
        """Make inputs with ``size`` for n."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(kind.random(generator, size) for _, kind in self.inputs)


def draw_method(
    draw: Draw[Any], registered: Registered, others: Sequence[Method], refusable: bool
) -> Method:
    owner = draw(st.sampled_from(("", "", "", *OWNERS)))
    seen = registered.seen_from(owner)
    if not seen.buffers:
        owner, seen = "", registered
    inputs = _draw_inputs(draw, seen)
    scope = Scope(draw, owner, seen, [Value(n, k, False) for n, k in inputs])
    if scope.is_dynamic:
        name, kind = next((n, k) for n, k in inputs if k.is_dynamic)
        scope.lines.append(f"n = {name}.shape[{kind.shape.index('n')}]")
    callable_ = [m for m in others if f"{m.owner}.".startswith(owner)]
    for _ in range(draw(st.integers(1, 4))):
        if callable_ and draw(st.integers(0, 3)) == 3:
            _write_call(scope, draw(st.sampled_from(callable_)))
        elif draw(st.integers(0, 9)) == 7:
            write_branches(scope)
        else:
            write_statement(scope)
    refusal = write_refused(scope) if refusable else None
    results = () if refusable else _write_return(scope)
    return Method(
        f"m{len(others)}",
        owner,
        tuple(inputs),
        results,
        tuple("\n".join(scope.lines).split("\n")),
        scope.keeps_inputs,
        refusal,
    )


def _draw_inputs(draw: Draw[Any], seen: Registered) -> list[tuple[str, Kind]]:
    is_dynamic = draw(st.integers(0, 3)) == 3
    inputs: list[tuple[str, Kind]] = []
    for index in range(draw(st.integers(int(is_dynamic), 3))):
        kind = draw(st.sampled_from([b.kind for b in seen.buffers]))
        if draw(st.integers(0, 2)) == 2:
            kind = draw_kind(draw)
        if is_dynamic and kind.shape and (index == 0 or draw(st.booleans())):
            kind = kind.shaped("n", *kind.shape[1:])
        elif is_dynamic and index == 0:
            kind = kind.shaped("n")
        name = f"x{index}"
        # An argument may have the name of a buffer.
        if draw(st.integers(0, 4)) == 4:
            name = draw(st.sampled_from([b.name for b in seen.buffers]))
        taken = {other for other, _ in inputs}
        if name in taken or "." in name:
            name = f"x{index}"
        inputs.append((name, kind))
    return inputs


def _write_call(scope: Scope, method: Method) -> None:
    # The size that is open there is this method's, or fixed here.
    fixed = None if scope.is_dynamic else scope.draw(st.integers(1, MAX_SIZE))

    def here(kind: Kind) -> Kind:
        return kind if fixed is None else kind.with_size(fixed)

    arguments = []
    for _, kind in method.inputs:
        value = scope.make(here(kind), 1)
        arguments.append(scope.own(value) if method.keeps_inputs else value)
    path = f"{method.owner[len(scope.owner) :]}.{method.name}".lstrip(".")
    call = f"self.{path}({', '.join(value.code for value in arguments)})"
    scope.keeps_inputs |= method.keeps_inputs
    if not method.results:
        scope.lines.append(call)
        return
    name = scope.new_name()
    scope.lines.append(f"{name} = {call}")
    scope.values += [
        Value(f"{name}{access}", here(kind), False) for access, kind in method.results
    ]


def _write_return(scope: Scope) -> tuple[tuple[str, Kind], ...]:
    draw = scope.draw
    values = [_draw_result(scope) for _ in range(draw(st.integers(0, 3)))]
    kinds = [value.kind for value in values]
    codes = [value.code for value in values]
    if not values:
        if not scope.lines:
            scope.lines.append("pass")
        return ()
    structures = ["tuple", "list", "dict"]
    if len(values) == 1:
        structures.insert(0, "single")
    structure = draw(st.sampled_from(structures))
    accesses = [f"[{i}]" for i in range(len(values))]
    if structure == "single":
        code, accesses = codes[0], [""]
    elif structure == "tuple":
        code = f"({', '.join(codes)},)"
    elif structure == "list":
        code = f"[{', '.join(codes)}]"
    else:
        accesses = [f'["y{i}"]' for i in range(len(values))]
        items = (f'"y{i}": {one}' for i, one in enumerate(codes))
        code = f"{{{', '.join(items)}}}"
    scope.lines.append(f"return {code}")
    return tuple(zip(accesses, kinds, strict=True))


def _draw_result(scope: Scope) -> Value:
    """Return a value that the method has, a view of one, or a new one."""
    value = scope.draw(st.sampled_from(scope.values[::-1] + scope.all_values()))
    how = scope.draw(st.integers(0, 3))
    if how == 2 and not value.kind.is_dynamic:
        kind, code = scope.draw(st.sampled_from(views(value)))
        return Value(code.replace(".view(", ".reshape("), kind, False)
    if how == 3:
        return scope.make(value.kind, 2)
    return value
