"""State that methods take and return, ``y, new = step(x, old)``, made shared state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import EntryPointError, StateError
from ..lifted.signatures import bind
from ..state import tensor_kind
from .declarations import Bind, EntryPoint
from .nested_values import NoPartError, in_order_of, part, without_parts
from .registered_tensors import RegisteredTensor, registered_tensors


class BoundState:
    """The state that entry points are bound to.

    Args:
        root: the module that the entry points belong to.
        entry_points: with their binds.

    Attributes:
        entry_points: the same without binds: their functions take and return what
            is left, and keep the state in ``values``.
        values: by fqn, what is the state now; at first copies of the examples.

    Raises:
        StateError: entry points bind one name to different values, nothing has its
            initial value, nothing writes it, or a buffer has its name.
        EntryPointError: a bind names no argument.
    """

    def __init__(self, root: nn.Module, entry_points: Mapping[str, EntryPoint]) -> None:
        self.values: dict[str, Any] = {}
        self._initial: dict[str, torch.Tensor] = {}
        self._specs: dict[str, pytree.TreeSpec] = {}
        self._fqns: dict[str, list[str]] = {}
        self._owners: dict[str, tuple[str, Any]] = {}
        bound = {name: one for name, one in entry_points.items() if one.binds}
        functions = {
            name: self._declare(root, name, one) for name, one in bound.items()
        }
        self._check(root, bound)
        self.entry_points = {
            name: functions[name](one) if name in bound else one
            for name, one in entry_points.items()
        }
        self.values.update(self._initial)

    def tensors(self) -> list[RegisteredTensor]:
        """Return the state as if it were registered in the module."""
        return [
            RegisteredTensor(tensor, (fqn,), ((self.values, fqn),))
            for fqn, tensor in self._initial.items()
        ]

    def _declare(
        self, root: nn.Module, name: str, entry_point: EntryPoint
    ) -> Callable[[EntryPoint], EntryPoint]:
        """Take in the example values; return what unbinds the entry point."""
        function, given = bind(
            root, name, entry_point.fn, entry_point.args, entry_point.kwargs or {}
        )
        arguments = dict(given.arguments)
        parameters = {
            key: _argument(name, key, one, given.signature, arguments)
            for key, one in (entry_point.binds or {}).items()
            if one.input is not None
        }
        for key, parameter in parameters.items():
            if parameter not in arguments:
                raise EntryPointError(
                    f"entry point '{name}' binds '{key}' to its input '{parameter}',"
                    " as another bind does",
                    method_name=name,
                )
            self._add(name, key, arguments.pop(parameter))
        binds = dict(entry_point.binds or {})
        taken = {parameter: key for key, parameter in parameters.items()}
        signature = given.signature.replace(
            parameters=[
                p for p in given.signature.parameters.values() if p.name not in taken
            ]
        )

        def unbound(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            own = signature.bind(*args, **kwargs)
            call = inspect.BoundArguments(
                given.signature,
                {
                    p: self._value(taken[p]) if p in taken else own.arguments[p]
                    for p in given.signature.parameters
                    if p in taken or p in own.arguments
                },
            )
            result = function(*call.args, **call.kwargs)
            return self._keep(name, binds, result)

        unbound.__signature__ = signature  # type: ignore[attr-defined]

        def without_binds(one: EntryPoint) -> EntryPoint:
            rest = inspect.BoundArguments(signature, arguments)
            shapes = one.dynamic_shapes
            if isinstance(shapes, Mapping):
                shapes = {k: v for k, v in shapes.items() if k not in taken}
            elif isinstance(shapes, (tuple, list)):
                names = zip(given.arguments, shapes, strict=False)
                shapes = tuple(shape for k, shape in names if k not in taken)
            return replace(
                one,
                fn=unbound,
                args=rest.args,
                kwargs=rest.kwargs,
                dynamic_shapes=shapes,
                binds=None,
            )

        return without_binds

    def _add(self, name: str, key: str, example: object) -> None:
        if key in self._specs:
            example = in_order_of(self._specs[key], example)
        paths, spec = pytree.tree_flatten_with_path(example)
        fqns = [".".join([key, *map(_step, path)]) for path, _ in paths]
        for fqn, (path, leaf) in zip(fqns, paths, strict=True):
            if self._owners.setdefault(fqn, (key, path)) != (key, path):
                raise StateError(
                    f"entry point '{name}' binds two values to '{fqn}': the names of"
                    " binds and of keys in them run together; choose another name",
                    method_name=name,
                    fqn=fqn,
                )
            if not isinstance(leaf, torch.Tensor):
                raise StateError(
                    f"entry point '{name}' binds '{fqn}' to {type(leaf).__name__},"
                    " expected a tensor",
                    method_name=name,
                    fqn=fqn,
                )
            known = self._initial.setdefault(fqn, leaf.detach().clone())
            if not _is_same(known, leaf):
                raise StateError(
                    f"entry point '{name}' binds '{fqn}' with another example value"
                    f" ({tensor_kind(leaf)}) than an entry point before"
                    f" ({tensor_kind(known)}); the example is the initial value, so"
                    " give the same one",
                    method_name=name,
                    fqn=fqn,
                )
        if self._specs.setdefault(key, spec) != spec:
            raise StateError(
                f"entry point '{name}' binds '{key}' to {_one_line(spec)}, an entry"
                f" point before to {_one_line(self._specs[key])}",
                method_name=name,
                fqn=key,
            )
        self._fqns[key] = fqns

    def _check(self, root: nn.Module, bound: Mapping[str, EntryPoint]) -> None:
        taken = {name for tensor in registered_tensors(root) for name in tensor.names}
        for fqn in self._initial:
            if fqn in taken:
                raise StateError(
                    f"'{fqn}' is the name of bound state and of a buffer or parameter;"
                    " bind another name",
                    fqn=fqn,
                )
        written = set()
        for name, one in bound.items():
            for key, its in (one.binds or {}).items():
                written |= {key} if its.output is not None else set()
                if key not in self._specs:
                    raise StateError(
                        f"entry point '{name}' binds '{key}', which no entry point has"
                        " as an input: nothing reads it, and nothing says what it"
                        " starts with",
                        method_name=name,
                        fqn=key,
                    )
        for key in self._specs.keys() - written:
            raise StateError(
                f"no entry point has '{key}' as an output, so that it would never"
                " change; leave out the bind, or name the output",
                fqn=key,
            )

    def _value(self, key: str) -> Any:  # noqa: ANN401
        leaves = [self.values[fqn] for fqn in self._fqns[key]]
        return pytree.tree_unflatten(leaves, self._specs[key])

    def _keep(self, name: str, binds: Mapping[str, Bind], result: Any) -> Any:  # noqa: ANN401
        """Make parts of a result the state; return the rest."""
        paths = []
        for key, one in binds.items():
            if one.path is not None:
                try:
                    self._assign(name, key, part(result, one.path))
                except NoPartError as error:
                    raise EntryPointError(
                        f"entry point '{name}' binds '{key}' to output"
                        f" {one.output!r}, and its result {error}",
                        method_name=name,
                        fqn=key,
                    ) from error
                paths.append(one.path)
        return without_parts(result, paths)

    def _assign(self, name: str, key: str, value: object) -> None:
        leaves, spec = pytree.tree_flatten(in_order_of(self._specs[key], value))
        if spec != self._specs[key]:
            raise StateError(
                f"entry point '{name}' returns {_one_line(spec)} for '{key}', expected"
                f" {_one_line(self._specs[key])} as its example input",
                method_name=name,
                fqn=key,
            )
        for fqn, leaf in zip(self._fqns[key], leaves, strict=True):
            self.values[fqn] = leaf


def _argument(
    name: str,
    key: str,
    one: Bind,
    signature: inspect.Signature,
    arguments: Mapping[str, object],
) -> str:
    """Return the name of a bound argument."""
    names = list(arguments)
    chosen = one.input
    if isinstance(chosen, int) and -len(names) <= chosen < len(names):
        chosen = names[chosen]
    kinds = {p: signature.parameters[p].kind for p in names}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if chosen not in names or kinds[str(chosen)] in variadic:
        raise EntryPointError(
            f"entry point '{name}' binds '{key}' to its input {one.input!r}, expected"
            f" the position or name of an argument with an example: {', '.join(names)}",
            method_name=name,
        )
    return str(chosen)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare bits: a NaN is the same as itself."""
    return tensor_kind(a) == tensor_kind(b) and torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().flatten().view(torch.uint8)


def _one_line(spec: pytree.TreeSpec) -> str:
    return " ".join(str(spec).split())


def _step(key: Any) -> str:  # noqa: ANN401
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
