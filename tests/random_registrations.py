"""What random models register: buffers, parameters and layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st
from random_kinds import Kind, Value, shape_code

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

OWNERS = ("", "sub", "sub.inner")


@dataclass(frozen=True)
class Buffer:
    """A buffer or parameter.

    ``writes`` says how methods may write it: "any", "in place" or "assign".
    ``memory`` is the same for tensors that share theirs. ``value`` is code.
    """

    name: str
    owner: str
    kind: Kind
    value: str
    writes: str = "any"
    memory: str = ""
    is_parameter: bool = False
    is_persistent: bool = True
    is_weight: bool = False

    @property
    def fqn(self) -> str:
        return f"{self.owner}.{self.name}".lstrip(".")

    def seen_from(self, owner: str) -> str:
        """Return code for the buffer in a method of ``owner``."""
        return f"self.{self.fqn[len(owner) :].lstrip('.')}"

    def registration(self) -> str:
        if self.is_parameter:
            return f"self.{self.name} = nn.Parameter({self.value})"
        end = "" if self.is_persistent else ", persistent=False"
        return f'self.register_buffer("{self.name}", {self.value}{end})'


@dataclass(frozen=True)
class Layer:
    """A layer: ``operator`` is the class's name, ``sizes`` are its arguments."""

    name: str
    owner: str
    operator: str
    sizes: tuple[int, ...]
    code: str

    def seen_from(self, owner: str) -> str:
        path = f"{self.owner}.{self.name}".lstrip(".")
        return f"self.{path[len(owner) :].lstrip('.')}"


@dataclass(frozen=True)
class Registered:
    buffers: tuple[Buffer, ...]
    layers: tuple[Layer, ...]

    def buffers_of(self, owner: str) -> list[Buffer]:
        return [b for b in self.buffers if b.owner == owner and not b.is_weight]

    def without_shared(self) -> Registered:
        alone = tuple(b for b in self.buffers if b.name != "shared")
        return Registered(alone or self.buffers, self.layers)

    def seen_from(self, owner: str) -> Registered:
        def within(other: str) -> bool:
            return f"{other}.".startswith(f"{owner}." if owner else "")

        return Registered(
            tuple(b for b in self.buffers if within(b.owner)),
            tuple(one for one in self.layers if within(one.owner)),
        )


def draw_registered(draw: Draw[Any]) -> Registered:
    buffers: list[Buffer] = []
    for index in range(draw(st.integers(1, 5))):
        buffers.append(_draw_buffer(draw, f"b{index}", buffers))
    buffers += _draw_sharing(draw, buffers)
    layers = [
        _draw_layer(draw, f"l{index}") for index in range(draw(st.integers(0, 3)))
    ]
    buffers += [
        weight
        for layer in layers
        if draw(st.integers(0, 5)) == 5
        for weight in _weights(layer)
    ]
    return Registered(tuple(buffers), tuple(layers))


def draw_kind(draw: Draw[Any], ranks: Sequence[int] = (2, 1, 0, 3)) -> Kind:
    dtype = draw(st.sampled_from(_DTYPES))
    rank = draw(st.sampled_from(ranks))
    return Kind(dtype, tuple(draw(st.sampled_from(_SIZES)) for _ in range(rank)))


#: As often as they stand here.
_DTYPES = (
    *[torch.float32] * 11,
    *[torch.int64] * 4,
    *[torch.int32, torch.bool, torch.float64] * 2,
    torch.float16,
    torch.int8,
    torch.uint8,
    torch.int16,
)
_SIZES = (4, 3, 2, 4, 1)


def _draw_buffer(draw: Draw[Any], name: str, others: Sequence[Buffer]) -> Buffer:
    if others and draw(st.booleans()):
        kind = draw(st.sampled_from(others)).kind
    else:
        kind = draw_kind(draw)
    is_parameter = kind.dtype == torch.float32 and draw(st.integers(0, 7)) == 7
    writes = "in place" if is_parameter else draw(st.sampled_from(_WRITES))
    owner = draw(st.sampled_from(("", "", "sub", "sub.inner")))
    return Buffer(
        name,
        owner,
        kind,
        draw_constant(draw, kind).code,
        writes,
        name,
        is_parameter,
        draw(st.integers(0, 7)) != 7,
    )


_WRITES = ("any", "any", "in place", "assign")


def draw_constant(draw: Draw[Any], kind: Kind) -> Value:
    shape = shape_code(kind.shape)
    values = ["0", "1", "-1", "5"]
    if kind.is_float:
        values = ["0.0", "0.5", "-1.25"]
    if kind.is_bool:
        values = ["False", "True"]
    if kind.dtype == torch.uint8:
        values.remove("-1")
    options = [f"torch.full({shape}, {v}, dtype={kind.dtype})" for v in values]
    if not kind.is_dynamic and kind.numel > 1:
        ramp = f"torch.arange({kind.numel})"
        if kind.is_float:
            ramp = f"torch.linspace(-1, 1, {kind.numel}, dtype={kind.dtype})"
        elif kind.is_bool:
            ramp = f"({ramp} % 3 == 1)"
        else:
            ramp = f"({ramp} % 4).to({kind.dtype})"
        options.append(f"{ramp}.reshape({shape})")
    return Value(draw(st.sampled_from(options)), kind)


def _draw_sharing(draw: Draw[Any], buffers: list[Buffer]) -> list[Buffer]:
    """Tie the root's ``shared`` to another buffer, or make it a view of one."""
    how = draw(st.integers(0, 9))
    if how < 8:
        return []
    position = draw(st.integers(0, len(buffers) - 1))
    base = buffers[position]
    if base.is_parameter and how == 8:
        return []
    kind, code = base.kind, base.seen_from("")
    if how == 9:
        kind, code = draw(st.sampled_from(views(Value(code, kind))))
        if base.is_parameter:
            code = code.replace(base.name, f"{base.name}.data", 1)
    buffers[position] = replace(base, writes="in place")
    return [Buffer("shared", "", kind, code, "in place", base.memory)]


def views(value: Value) -> list[tuple[Kind, str]]:
    """Return views of a value with static sizes."""
    code, kind = value.code, value.kind
    numel, shape = kind.numel, kind.shape
    found = [(kind.shaped(numel), f"{code}.view(-1)")]
    if shape:
        found.append((kind.shaped(*shape[1:]), f"{code}[0]"))
        found.append((kind.shaped(1, *shape), f"{code}.unsqueeze(0)"))
        if isinstance(shape[0], int) and shape[0] > 1:
            found.append((kind.shaped(shape[0] - 1, *shape[1:]), f"{code}[1:]"))
    if len(shape) == 2:
        found.append((kind.shaped(shape[1], shape[0]), f"{code}.t()"))
        found.append((kind.shaped(shape[0]), f"{code}[:, -1]"))
    return found


def _draw_layer(draw: Draw[Any], name: str) -> Layer:
    operator = draw(st.sampled_from(_LAYERS))
    sizes = [draw(st.sampled_from((4, 3, 2)))]
    if operator in ("Linear", "Conv1d", "GRUCell", "LSTMCell", "Embedding"):
        sizes.append(draw(st.sampled_from((4, 3, 2))))
    arguments = ", ".join(map(str, sizes))
    if operator == "Conv1d":
        arguments += ", 3, padding=1"
    if operator in ("Linear", "Conv1d") and draw(st.integers(0, 3)) == 3:
        arguments += ", bias=False"
    owner = draw(st.sampled_from(OWNERS))
    code = f"nn.{operator}({arguments})"
    return Layer(name, owner, operator, tuple(sizes), code)


_LAYERS = (
    "Linear",
    "Linear",
    "LayerNorm",
    "Conv1d",
    "GRUCell",
    "LSTMCell",
    "Embedding",
    "BatchNorm1d",
)  # no PReLU: the XNNPACK of ExecuTorch 1.5.1 lowers it for four dimensions only


def _weights(layer: Layer) -> list[Buffer]:
    """Return a layer's weight for methods to write."""
    if layer.operator == "Linear":
        shape = layer.sizes[1], layer.sizes[0]
    elif layer.operator == "Embedding":
        shape = layer.sizes
    else:
        return []
    name = f"{layer.name}.weight"
    kind = Kind(torch.float32, shape)
    return [Buffer(name, layer.owner, kind, "", "in place", name, True, is_weight=True)]
