"""Random modules: layers, state of several kinds, and methods that use both.

A model is Python source, drawn statement by statement, so that what Hypothesis
prints for a failure can be read, and run.
"""

from __future__ import annotations

import functools
import linecache
import textwrap
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from random_kinds import FLOATS, MAX_SIZE
from random_methods import Method, draw_method
from random_registrations import Draw, Registered, draw_registered
from torch import nn
from torch.export import Dim

from etshared_plugin import EntryPoint

_CLASSES = {"": "Model", "sub": "Sub", "sub.inner": "Inner"}

# Without export, torch.cond compiles what it calls.
_HEADER = """\
import torch
import torch.nn.functional as F
from torch import nn


def cond(condition, on_true, on_false, operands):
    if torch.compiler.is_exporting():
        return torch.cond(condition, on_true, on_false, operands)
    return (on_true if condition else on_false)(*operands)


def fresh(x):
    return x.reshape(-1).clone().reshape(x.shape)
"""


@dataclass(frozen=True)
class RandomModel:
    """A module class ``Model`` with methods to export.

    ``dtypes`` are those of its buffers and inputs, and floating ones that it computes
    in, ``assigned`` the fqns of buffers that methods may replace. If the model holds
    something that export has to refuse, ``refusal`` is what the message matches.
    """

    source: str = field(repr=False)
    methods: tuple[Method, ...] = field(repr=False)
    dtypes: frozenset[torch.dtype] = field(repr=False)
    assigned: frozenset[str] = field(repr=False)
    refusal: str | None = None

    def __repr__(self) -> str:
        calls = "\n".join(f"#   {method.signature()}" for method in self.methods)
        return f"\n{self.source}\n# entry points, sizes n from 1 to 4:\n{calls}\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ANN401
        """Have Hypothesis print the source and not the fields."""
        printer.text(repr(self))

    def build(self) -> nn.Module:
        """Make a module, always with the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = _class(self.source)()
        assert isinstance(model, nn.Module)
        return model.eval()

    def entry_points(self, root: nn.Module) -> dict[str, EntryPoint]:
        """Return what to export of ``root``, with examples."""
        return {
            method.name: EntryPoint(
                getattr(root.get_submodule(method.owner), method.name),
                method.arguments(seed=0, size=3),
                dynamic_shapes={
                    name: {dim: _n() for dim, s in enumerate(kind.shape) if s == "n"}
                    for name, kind in method.inputs
                }
                if method.is_dynamic
                else None,
            )
            for method in self.methods
        }


@functools.cache
def _n() -> Dim:
    return Dim("n", min=1, max=MAX_SIZE)


@functools.cache
def _class(source: str) -> type:
    name = f"<random model {hash(source):x}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    namespace: dict[str, type] = {}
    exec(compile(source, name, "exec"), namespace)
    return namespace["Model"]


@st.composite
def random_models(draw: Draw) -> RandomModel:
    """Draw models, a few of them with something to be refused."""
    registered = draw_registered(draw)
    refuses = draw(st.integers(0, 39)) == 23
    count = draw(st.integers(2, 4))
    methods: list[Method] = []
    for index in range(count):
        refusable = refuses and index == count - 1
        methods.append(draw_method(draw, registered, methods, refusable))
    kinds = {buffer.kind.dtype for buffer in registered.buffers}
    kinds.update(kind.dtype for method in methods for _, kind in method.inputs)
    source = _source(registered, methods)
    kinds.update(dtype for dtype in FLOATS if str(dtype) in source)
    return RandomModel(
        source,
        tuple(methods),
        frozenset(kinds),
        frozenset(b.fqn for b in registered.buffers if b.writes != "in place"),
        methods[-1].refusal,
    )


def _source(registered: Registered, methods: list[Method]) -> str:
    parts = [_HEADER]
    for owner in ("sub.inner", "sub", ""):
        body = ["super().__init__()"]
        if owner == "sub":
            body.append("self.inner = Inner()")
        if owner == "":
            body.append("self.sub = Sub()")
        body += [
            f"self.{layer.name} = {layer.code}"
            for layer in registered.layers
            if layer.owner == owner
        ]
        body += [buffer.registration() for buffer in registered.buffers_of(owner)]
        lines = [f"class {_CLASSES[owner]}(nn.Module):", "    def __init__(self):"]
        lines += [textwrap.indent(line, " " * 8) for line in body]
        for method in methods:
            if method.owner == owner:
                lines += ["", *(f"    {line}" for line in method.lines())]
        parts.append("\n".join(lines) + "\n")
    return "\n\n".join(parts)
