"""Random statements, most of them writes of state."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from random_expressions import Scope
from random_kinds import FLOATS, INTEGERS, MAX_SIZE, Kind, Size, Value
from random_registrations import Buffer, draw_constant, views

Statement = Callable[[], None]


def write_statement(scope: Scope) -> None:
    buffer = scope.draw(st.sampled_from(scope.registered.buffers))
    one = Statements(scope, buffer)
    groups = [one.copies(), one.values(), one.computed()]
    if buffer.writes in ("any", "assign"):
        groups += [one.assignments()] * 2
    if buffer.writes in ("any", "in place"):
        groups += [one.updates(), one.slices(), one.indices(), one.rings()]
        groups += [one.through_views(), one.diagonals(), *[one.from_others()] * 2]
    scope.draw(st.sampled_from(scope.draw(st.sampled_from([g for g in groups if g]))))()


@dataclass
class Statements:
    """What may be done with one buffer, in groups, some of them empty."""

    scope: Scope
    buffer: Buffer

    def __post_init__(self) -> None:
        self.code = self.buffer.seen_from(self.scope.owner)
        self.kind = self.buffer.kind

    def _emit(self, line: str) -> Statement:
        return lambda: self.scope.lines.append(line)

    def _with(self, template: str, *kinds: Kind) -> Statement:
        """Return a statement with new values in the places of ``{}``."""

        def write() -> None:
            depth = self.scope.draw(st.integers(1, 2)) if len(kinds) == 1 else 1
            values = [self._apart(self.scope.make(kind, depth)).code for kind in kinds]
            self.scope.lines.append(template.format(*values))

        return write

    def _apart(self, value: Value) -> Value:
        """Return a value that does not overlap with the buffer, which eager refuses."""
        if value.is_fresh:
            return value
        names = set(re.findall(r"self\.[\w.]+|v\d+", value.code))
        apart = {
            other.seen_from(self.scope.owner)
            for other in self.scope.registered.buffers
            if other.memory != self.buffer.memory
        }
        # Methods of tensors follow the names of buffers.
        if all(any(f"{n}.".startswith(f"{other}.") for other in apart) for n in names):
            return value
        return Value(f"{value.code}.clone()", value.kind)

    def _row(self, rows: Size = 1) -> Kind:
        return self.kind.shaped(rows, *self.kind.shape[1:])

    def _part(self) -> Kind:
        return self.kind.shaped(*self.kind.shape[1:])

    def _constant(self) -> str:
        value = draw_constant(self.scope.draw, self.kind.shaped()).code
        return value.split(", ")[1] if value.startswith("torch.full(()") else "0"

    def values(self) -> list[Statement]:
        """Locals, some of them changed in place."""
        scope = self.scope

        def local() -> None:
            scope.local(scope.make(self.kind))

        def changed() -> None:
            value = scope.local(scope.own(scope.make(self.kind)))
            change = "logical_not_()" if value.kind.is_bool else "clamp_(0, 1)"
            scope.lines.append(f"{value.code}.{change}")

        return [local, changed]

    def computed(self) -> list[Statement]:
        """Results of layers, and of what takes a buffer for its weight."""
        scope = self.scope
        found: list[Statement] = []

        def local(call: Callable[[], str], kind: Kind) -> Statement:
            return lambda: void(scope.local(Value(call(), kind)))

        def void(_: Value) -> None:
            pass

        for layer in scope.registered.layers:
            size = layer.sizes[-1]
            wide = layer.operator in ("Conv1d", "BatchNorm1d")
            shape: tuple[Size, ...] = (2, size, 3) if wide else (2, size)
            kind = Kind(torch.float32, shape)
            call = scope.layer(layer, kind, 1)
            assert call is not None
            found.append(local(call, kind))
        for buffer in scope.registered.buffers:
            weight = buffer.kind
            if weight.dtype != torch.float32 or len(weight.shape) not in (2, 3):
                continue
            kind = weight.shaped(2, weight.shape[0], *([3] * (len(weight.shape) - 2)))
            call = scope.weighted(buffer, kind, 1)
            assert call is not None
            found.append(local(call, kind))
        return found

    def copies(self) -> list[Statement]:
        """Writes of the whole buffer by whatever way it allows."""
        if self.buffer.writes == "assign":
            return self.assignments()
        code, kind = self.code, self.kind
        found = [self._with(f"{code}.copy_({{}})", kind)] * 2
        if kind.shape:
            part = kind.shaped(*kind.shape[1:])
            found.append(self._with(f"{code}.copy_({{}})", part))
        others: list[torch.dtype] = [torch.bool]
        if kind.is_float:
            others += [*FLOATS, torch.int64, torch.int32]
        elif kind.is_integer and kind.dtype != torch.uint8:
            others += INTEGERS
        if not kind.is_bool:
            other = self.scope.draw(st.sampled_from(others))
            found.append(self._with(f"{code}.copy_({{}})", kind.of(other)))
        return found

    def updates(self) -> list[Statement]:
        code, kind = self.code, self.kind
        found = [
            self._emit(f"{code}.zero_()"),
            self._emit(f"{code}.fill_({self._constant()})"),
            self._with(f"{code}.masked_fill_({{}}, 1)", kind.of(torch.bool)),
            self._with(
                f"{code}.copy_(torch.where({{}}, {{}}, {code}))",
                kind.of(torch.bool),
                kind,
            ),
        ]
        if kind.is_float:
            found += [
                self._with(f"{code}.mul_(0.5).add_({{}})", kind),
                self._with(f"{code}.add_({{}}).clamp_(-2, 2)", kind),
                self._with(f"{code}.sub_({{}}, alpha=0.5).tanh_()", kind),
                self._with(f"{code}.lerp_({{}}, 0.25)", kind),
            ]
        elif kind.is_bool:
            found += [
                self._with(f"{code}.logical_xor_({{}})", kind),
                self._emit(f"{code}.logical_not_()"),
                self._with(f"{code}.logical_and_({{}})", kind),
            ]
        else:
            found += [
                self._emit(f"{code} += 1"),
                self._emit(f"{code}.add_(2).remainder_(5)"),
                self._with(f"{code}.add_({{}}).clamp_(0, 9)", kind),
            ]
        return found

    def slices(self) -> list[Statement]:
        """Slices and shifts along the first and last dimension."""
        code, kind = self.code, self.kind
        if not kind.shape:
            return []
        size = self._size()
        shift = f"{code}.copy_(torch.cat([{code}[1:], {{}}]))"
        found = [
            self._with(f"{code}[-1] = {{}}", kind.shaped(*kind.shape[1:])),
            self._with(f"{code}[..., 0] = {{}}", kind.shaped(*kind.shape[:-1])),
            self._emit(f"{code}[0] = {self._constant()}"),
            self._with(shift, self._row()),
            self._emit(f"{code}.copy_(torch.roll({code}, 1, 0))"),
        ]
        if size > 1:
            found.append(self._with(f"{code}[1:] = {{}}", self._row(size - 1)))
            found.append(self._emit(f"{code}[:-1] = {code}[1:].clone()"))
        if size == MAX_SIZE and self.scope.is_dynamic:
            found += [self._with(f"{code}[:n] = {{}}", self._row("n"))] * 4
        return found

    def indices(self) -> list[Statement]:
        """Writes where an index or a mask says."""
        code, kind = self.code, self.kind
        shape = kind.shape
        if not shape:
            return []
        size = self._size()
        row, one = self._row(), Kind(torch.int64, (1,))
        at, constant = f"({{}}) % {size}", self._constant()
        mask = kind.of(torch.bool)
        found = [
            self._with(f"{code}[{at}] = {{}}", one, row),
            self._with(f"{code}.index_copy_(0, {at}, {{}})", one, row),
            self._with(f"{code}.index_fill_(0, {at}, {constant})", one),
            self._with(f"{code}.scatter_(0, {at}, {{}})", row.of(torch.int64), row),
            self._with(f"{code}[{{}}] = {constant}", mask),
            self._with(f"{code}[{{}}] = {constant}", mask.shaped(size)),
        ]
        if not kind.is_bool:
            put = f"{code}.index_put_(({at},), {{}}, accumulate=True)"
            found += [self._with(put, Kind(torch.int64, (2,)), self._row(2))] * 2
            found.append(self._with(f"{code}.index_add_(0, {at}, {{}})", one, row))
        if len(shape) > 1:
            column = kind.shaped(size, 1, *shape[2:])
            put = f"{code}[:, ({{}}) % {shape[1]}] = {{}}"
            found += [self._with(put, one, column)] * 2
        return found

    def _size(self) -> int:
        size = self.kind.shape[0]
        assert isinstance(size, int)
        return size

    def diagonals(self) -> list[Statement]:
        """Writes along a diagonal of the last two dimensions."""
        code, kind = self.code, self.kind
        if len(kind.shape) < 2:
            return []
        rows, columns = kind.sizes(1)[-2:]
        diagonal = f"{code}.diagonal(0, -2, -1)"
        along = kind.shaped(*kind.shape[:-2], min(rows, columns))
        found = [
            self._with(f"{diagonal}.copy_({{}})", along),
            self._emit(f"{diagonal}.fill_({self._constant()})"),
        ]
        if len(kind.shape) == 2:
            constant = self._constant()
            wrap = self.scope.draw(st.booleans())
            found.append(self._emit(f"{code}.fill_diagonal_({constant}, {wrap})"))
        if columns > 1 and self.buffer.writes == "any":
            along = kind.shaped(*kind.shape[:-2], min(rows, columns - 1))
            scattered = f"torch.diagonal_scatter({code}, {{}}, 1, -2, -1)"
            found.append(self._with(f"{code} = {scattered}", along))
        return found

    def rings(self) -> list[Statement]:
        """Writes at a position that is state itself, and moves on."""
        found: list[Statement] = []
        if not self.kind.shape:
            return found
        size = self._size()
        for other in self.scope.registered.buffers:
            if other.kind.is_integer and other.kind.numel == 1:
                position = other.seen_from(self.scope.owner)
                shape, row = self.scope.draw(
                    st.sampled_from((("1", self._row()), ("()", self._part())))
                )
                at = f"{self.code}[{position}.reshape({shape}).long() % {size}]"
                end = {
                    "any": f"{position} = ({position} - 1) % {size}",
                    "assign": f"{position} = ({position} + 1) % {size}",
                    "in place": f"{position} += 1",
                }[other.writes]
                found.append(self._with(f"{at} = {{}}\n{end}", row))
        return found

    def through_views(self) -> list[Statement]:
        found: list[Statement] = []
        for kind, code in views(Value(self.code, self.kind)):
            # A view of what was assigned depends on the strides of that.
            is_flat = code.endswith(".view(-1)")
            if is_flat and (
                self.buffer.writes == "any" or self.buffer.name == "shared"
            ):
                continue
            found.append(self._with(f"{code}.copy_({{}})", kind))
            change = "logical_not_()" if kind.is_bool else "mul_(0)"
            found.append(lambda k=kind, c=code, h=change: self._through(k, c, h))
            if is_flat and self.kind.numel > 1:
                less = kind.shaped(self.kind.numel - 1)
                found.append(self._with(f"{code}[1:] = {{}}", less))
        return found

    def _through(self, kind: Kind, code: str, change: str) -> None:
        """Write through a view that has a name, and stays in use."""
        view = self.scope.local(Value(code, kind, False))
        self.scope.lines.append(f"{view.code}.{change}")

    def from_others(self) -> list[Statement]:
        """Copies between buffers, and of one value to several."""
        code, scope = self.code, self.scope
        found: list[Statement] = []
        for other in scope.registered.buffers:
            if other.kind != self.kind or other.memory == self.buffer.memory:
                continue
            source = other.seen_from(scope.owner)
            found.append(self._emit(f"{code}.copy_({source})"))
            if other.writes == "assign":
                continue
            found.append(
                self._emit(
                    f"held = {code}.clone()\n{code}.copy_({source})\n"
                    f"{source}.copy_(held)"
                )
            )
            found.append(lambda o=source: self._spread(o))
        return found

    def _spread(self, other: str) -> None:
        value = self.scope.local(self.scope.make(self.kind))
        self.scope.lines.append(f"{self.code}.copy_({value.code})")
        self.scope.lines.append(f"{other}.copy_({value.code})")

    def assignments(self) -> list[Statement]:
        """``self.buffer = …``, with memory that nothing else writes."""
        code, kind, scope = self.code, self.kind, self.scope
        found: list[Statement] = [self._assign, self._assign, self._assign_local]
        if kind.is_float:
            found.append(self._with(f"{code} = 0.5 * {code} + 0.5 * {{}}", kind))
        if kind.is_integer and kind.dtype != torch.uint8:
            found.append(self._emit(f"{code} = ({code} - 1) % 4"))
        if kind.shape:
            found.append(self._emit(f"{code} = torch.roll({code}, 1, 0)"))
            last = f"torch.cat([{code}[1:], {{}}])"
            found.append(self._with(f"{code} = {last}", self._row()))
        for other in scope.registered.buffers:
            if (other.kind, other.writes) != (kind, self.buffer.writes):
                continue
            if other is not self.buffer:
                held = other.seen_from(scope.owner)
                found.append(self._emit(f"{code}, {held} = {held}, {code}"))
                if other.writes == "assign":
                    found.append(self._emit(f"{code} = {held}"))
        if self.buffer.writes == "assign":
            for given in scope.inputs:
                if given.kind == kind:
                    found.append(lambda g=given.code: self._keep(g))
        return found

    def _keep(self, argument: str) -> None:
        self.scope.keeps_inputs = True
        self.scope.lines.append(f"{self.code} = {argument}")

    def _assign(self) -> None:
        value = self.scope.own(self.scope.make(self.kind))
        self.scope.lines.append(f"{self.code} = {value.code}")

    def _assign_local(self) -> None:
        """Store a value that stays in use, and may be returned."""
        value = self.scope.local(self.scope.make(self.kind))
        self.scope.lines.append(f"{self.code} = {self.scope.own(value).code}")
