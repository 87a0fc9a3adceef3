"""Random expressions of a given dtype and shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from random_kinds import FLOATS, INTEGERS, Kind, Value, fitted
from random_registrations import Buffer, Draw, Layer, Registered, draw_constant

Producer = Callable[[], str]


class Scope:
    """A method that is being drawn: what it can use, and its lines so far.

    ``values`` are inputs and locals. Floats stay small, and a comparison never
    depends on the last digits of one.
    """

    def __init__(
        self,
        draw: Draw[Any],
        owner: str,
        registered: Registered,
        inputs: Sequence[Value],
    ) -> None:
        self.draw = draw
        self.owner = owner
        self.registered = registered
        self.inputs = list(inputs)
        self.values = list(inputs)
        self.is_dynamic = any(value.kind.is_dynamic for value in inputs)
        self.keeps_inputs = False
        self.lines: list[str] = []
        self._count = 0

    def new_name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def local(self, value: Value) -> Value:
        """Give a value a name."""
        name = self.new_name()
        self.lines.append(f"{name} = {value.code}")
        local = Value(name, value.kind, value.is_fresh)
        self.values.append(local)
        return local

    def own(self, value: Value) -> Value:
        """Return a value in memory of its own."""
        if value.is_fresh:
            # Where it is a local, its memory is no longer its own.
            self.values = [
                Value(v.code, v.kind, False) if v is value else v for v in self.values
            ]
            return value
        return Value(f"{value.code}.clone()", value.kind)

    def all_values(self) -> list[Value]:
        buffers = self.registered.buffers
        return self.values + [
            Value(buffer.seen_from(self.owner), buffer.kind, False)
            for buffer in buffers
        ]

    def make(self, kind: Kind, depth: int = 2) -> Value:
        """Draw an expression."""
        producers: list[Producer] = []
        if depth:
            producers = self._producers(kind, depth - 1)
        choice = self.draw(st.integers(0, len(producers)))
        if choice:
            return Value(producers[choice - 1](), kind)
        values = self.all_values()
        alike = [value for value in values if value.kind == kind]
        if alike and self.draw(st.integers(0, 3)):
            return self.draw(st.sampled_from(alike))
        if self.draw(st.integers(0, 4)) == 4:
            return draw_constant(self.draw, kind)
        return fitted(self.draw(st.sampled_from(values)), kind)

    def code(self, kind: Kind, depth: int) -> str:
        return self.make(kind, depth).code

    def _pick(self, *options: str) -> str:
        return self.draw(st.sampled_from(options))

    def _producers(self, kind: Kind, depth: int) -> list[Producer]:
        """Return functions that make new memory of a kind."""
        found: list[Producer] = self._structural(kind, depth)
        if kind.is_float:
            found += self._floating(kind, depth)
            found += self._layers(kind, depth)
        elif kind.is_integer:
            found += self._integral(kind, depth)
        else:
            found += self._boolean(kind, depth)
        return found

    def _smaller(self, kind: Kind) -> Kind:
        """Return a kind that broadcasts to this one."""
        if kind.shape and self.draw(st.integers(0, 3)) == 3:
            return kind.shaped(*kind.shape[1:])
        return kind

    def _structural(self, kind: Kind, depth: int) -> list[Producer]:
        def where() -> str:
            mask = self.code(self._smaller(kind.of(torch.bool)), depth)
            # Where all three are smaller, so is the result.
            other = self.code(self._smaller(kind), depth)
            return f"torch.where({mask}, {self.code(kind, depth)}, {other})"

        def index() -> str:
            indices = self.code(Kind(torch.int64, kind.shape[:1]), depth)
            source = self.code(kind.shaped(4, *kind.shape[1:]), depth)
            if self.draw(st.booleans()):
                return f"{source}[({indices}) % 4]"
            return f"torch.index_select({source}, 0, ({indices}) % 4)"

        def gather() -> str:
            indices = self.code(kind.of(torch.int64), depth)
            source = self.code(kind.shaped(*kind.shape[:-1], 3), depth)
            return f"torch.gather({source}, -1, ({indices}) % 3)"

        def join() -> str:
            size = kind.shape[0]
            assert isinstance(size, int)
            first = self.draw(st.integers(1, size - 1))
            parts = [
                self.code(kind.shaped(part, *kind.shape[1:]), depth)
                for part in (first, size - first)
            ]
            return f"torch.cat([{', '.join(parts)}])"

        found: list[Producer] = [where]
        if kind.shape:
            found.append(index)
            found.append(gather)
            if isinstance(kind.shape[0], int):
                found.append(lambda: f"torch.roll({self.code(kind, depth)}, 1, 0)")
                found.append(lambda: f"{self.code(kind, depth)}.flip(0)")
                if kind.shape[0] > 1:
                    found.append(join)
        if len(kind.shape) == 2:
            turned = kind.shaped(kind.shape[1], kind.shape[0])
            found.append(
                lambda: (
                    f"{self.code(turned, depth)}.t()"
                    ".clone(memory_format=torch.contiguous_format)"
                )
            )
        return found

    def _floating(self, kind: Kind, depth: int) -> list[Producer]:
        def unary() -> str:
            return self._pick(
                "torch.tanh({})", "torch.sigmoid({})", "F.relu({})", "(-{})",
                "{}.clamp(-1, 1)", "torch.sin({})", "{}.abs()", "F.silu({})",
                "torch.exp(-({}).abs())", "F.gelu({})",
                "F.gelu({}, approximate='tanh')",
            ).format(self.code(kind, depth))  # fmt: skip

        def binary() -> str:
            return self._pick(
                "(0.5 * ({} + {}))", "torch.tanh({} - {})", "({} * {}).clamp(-2, 2)",
                "torch.maximum({}, {})", "torch.tanh(torch.add({}, {}, alpha=2))",
            ).format(
                self.code(kind, depth), self.code(self._smaller(kind), depth)
            )  # fmt: skip

        def reduce() -> str:
            more = self.code(kind.shaped(3, *kind.shape), depth)
            how = self._pick("mean(0)", "amax(0)", "sum(0).tanh()", "mean(0, True)[0]")
            return f"({more}).{how}"

        def scaled() -> str:
            patterns = ["({} * 0.25)", "(0.75 - {})", "({} / 2)", "(1 + {}).tanh()"]
            if kind.dtype != torch.float16:  # has none of these numbers
                patterns += ["({} * 0.3)", "({} / 1.7)", "(0.1 + {})"]
            return self._pick(*patterns).format(self.code(kind, depth))

        def prelu() -> str:
            slopes = self.draw(st.sampled_from((1, kind.shape[1])))
            weight = self.code(kind.shaped(slopes), 0)
            return f"F.prelu({self.code(kind, depth)}, {weight})"

        found = [unary, unary, binary, binary, reduce, scaled]
        if len(kind.shape) > 1 and isinstance(kind.shape[1], int):
            found.append(prelu)
        if kind.shape and kind.dtype == torch.float32:
            found.append(lambda: f"torch.softmax({self.code(kind, depth)}, -1)")
        if len(kind.shape) == 2 and kind.dtype != torch.float16:
            rows, columns = kind.shape
            left, right = kind.shaped(rows, 3), kind.shaped(3, columns)
            found.append(
                lambda: (
                    f"torch.tanh({self.code(left, depth)} @ {self.code(right, depth)})"
                )
            )
        if kind.dtype == torch.float32:
            calls = [self.weighted(b, kind, depth) for b in self.registered.buffers]
            found += [call for call in calls if call is not None]
        other = self.draw(st.sampled_from([*FLOATS, torch.int64, torch.bool]))
        if other != kind.dtype:
            found.append(lambda: fitted(self.make(kind.of(other), depth), kind).code)
        return found

    def weighted(self, buffer: Buffer, kind: Kind, depth: int) -> Producer | None:
        """Return what takes a buffer for its weight and gives a kind, if it can."""
        weight, shape = buffer.kind, kind.shape
        if torch.float32 != weight.dtype or len(weight.shape) not in (2, 3):
            return None
        inner = weight.sizes(1)[1:]
        if len(inner) == 1 and shape[-1:] == weight.shape[:1]:
            operator, x = "linear", kind.shaped(*shape[:-1], inner[0])
        elif len(shape) == len(weight.shape) == 3 and shape[1] == weight.shape[0]:
            if not isinstance(shape[2], int):
                return None
            operator = "conv1d"
            x = kind.shaped(shape[0], inner[0], shape[2] + inner[1] - 1)
        else:
            return None

        def call() -> str:
            arguments = [self.code(x, depth), buffer.seen_from(self.owner)]
            if self.draw(st.booleans()):
                bias = kind.shaped(*weight.shape[:1])
                arguments.append(self.code(bias, 0))
            return f"torch.tanh(F.{operator}({', '.join(arguments)}))"

        return call

    def _layers(self, kind: Kind, depth: int) -> list[Producer]:
        found: list[Producer] = []
        for layer in self.registered.layers:
            call = self.layer(layer, kind, depth)
            if call is not None:
                found += [call, call]
        return found

    def layer(self, layer: Layer, kind: Kind, depth: int) -> Producer | None:
        """Return what calls a layer so that it gives a kind, if it can."""
        name, shape, sizes = layer.seen_from(self.owner), kind.shape, layer.sizes
        if kind.dtype != torch.float32 or not shape:
            return None
        last = shape[-1] == sizes[-1]
        if layer.operator == "LayerNorm" and last:
            return lambda: f"{name}({self.code(kind, depth)})"
        if layer.operator == "Linear" and last:
            x = kind.shaped(*shape[:-1], sizes[0])
            return lambda: f"torch.tanh({name}({self.code(x, depth)}))"
        if layer.operator == "BatchNorm1d" and len(shape) in (2, 3):
            if shape[1] == sizes[0]:
                return lambda: f"{name}({self.code(kind, depth)})"
        if layer.operator == "Conv1d" and len(shape) == 3 and shape[1] == sizes[1]:
            x = kind.shaped(shape[0], sizes[0], shape[2])
            return lambda: f"torch.tanh({name}({self.code(x, depth)}))"
        if layer.operator == "Embedding" and last:
            indices = Kind(torch.int64, shape[:-1])
            return lambda: f"{name}(({self.code(indices, depth)}) % {sizes[0]})"
        if layer.operator in ("GRUCell", "LSTMCell") and len(shape) == 2 and last:
            x = kind.shaped(shape[0], sizes[0])
            if layer.operator == "GRUCell":
                return lambda: (
                    f"{name}({self.code(x, depth)}, {self.code(kind, depth)})"
                )
            return lambda: (
                f"{name}({self.code(x, depth)}, ({self.code(kind, depth)},"
                f" {self.code(kind, depth)}))[{self._pick('0', '1')}].clamp(-2, 2)"
            )
        return None

    def _integral(self, kind: Kind, depth: int) -> list[Producer]:
        def binary() -> str:
            patterns = [
                "(({} + {}) % 7)", "torch.maximum({}, {})", "torch.minimum({}, {})"
            ]  # fmt: skip
            if kind.dtype != torch.uint8:
                patterns += ["(({} - {}) % 5)", "({} * {}).clamp(-9, 9)"]
            return self._pick(*patterns).format(
                self.code(kind, depth), self.code(self._smaller(kind), depth)
            )

        def unary() -> str:
            patterns = ["({} // 2)", "({} % 3)", "{}.clamp(1, 4)"]
            if kind.dtype != torch.uint8:
                patterns += ["(-{})", "({} % -3)", "({} // -2)", "{}.abs()"]
            return self._pick(*patterns).format(self.code(kind, depth))

        def count() -> str:
            mask = self.code(kind.shaped(3, *kind.shape).of(torch.bool), depth)
            return f"({mask}).sum(0).to({kind.dtype})"

        found = [binary, binary, unary, count]
        other = self.draw(st.sampled_from([*INTEGERS, torch.bool]))
        if other != kind.dtype:
            found.append(lambda: fitted(self.make(kind.of(other), depth), kind).code)
        return found

    def _boolean(self, kind: Kind, depth: int) -> list[Producer]:
        def compare() -> str:
            numbers = kind.of(self.draw(st.sampled_from(INTEGERS)))
            return self._pick("({} == {})", "({} < {})", "({} >= {})").format(
                self.code(numbers, depth), self.code(self._smaller(numbers), depth)
            )

        def logic() -> str:
            return self._pick("({} & {})", "({} | {})", "({} ^ {})").format(
                self.code(kind, depth), self.code(self._smaller(kind), depth)
            )

        def threshold() -> str:
            return f"({self.code(kind.of(torch.float32), depth)} > 0.317)"

        return [compare, logic, threshold, lambda: f"(~{self.code(kind, depth)})"]
