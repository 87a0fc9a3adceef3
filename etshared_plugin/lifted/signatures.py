"""Python signatures of entry points: arguments, their names, dynamic shapes."""

from __future__ import annotations

import functools
import inspect
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallSignature
from torch.utils import _pytree as pytree

from ..errors import EntryPointError
from ..wording import counted, kind_of

#: Classes that torch.export takes for dicts; results have the first.
DICTS = (dict, OrderedDict, defaultdict)


def is_named_result(kind: type) -> bool:
    """Tell a class such as that of ``torch.topk``'s result, a tuple with names."""
    return kind.__module__ == torch.return_types.__name__


@dataclass(frozen=True, slots=True)
class CallingConvention:
    """How the user's arguments and results are nested, and their names."""

    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    argument_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, program: ExportedProgram) -> CallingConvention:
        signature = program.module_call_graph[0].signature
        assert signature is not None
        return cls(
            signature.in_spec,
            signature.out_spec,
            tuple(signature.forward_arg_names or ()),
        )

    def signature(self) -> ModuleCallSignature:
        return ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=self.in_spec,
            out_spec=self.out_spec,
            forward_arg_names=list(self.argument_names) or None,
        )


def check_names(names: Iterable[object]) -> None:
    """Refuse what cannot be the name of an entry point.

    Raises:
        EntryPointError: a name is empty, holds a NUL, or is no string.
    """
    for name in names:
        if not isinstance(name, str) or not name or "\0" in name:
            raise EntryPointError(f"an entry point is named {name!r}, expected a name")


def bind(
    root: nn.Module,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Callable[..., Any], inspect.BoundArguments]:
    """Bind example inputs to the Python signature of an entry point.

    Returns:
        What to call, and the arguments as it gets them. A method of the root's class
        is called on ``root``, and a function of no module that takes one more
        positional argument gets ``root`` as its first.

    Raises:
        EntryPointError: the method is no part of ``root``, or the inputs do not
            fit the signature.
    """
    method = function
    while isinstance(method, functools.partial):
        method = method.func
    owner = getattr(method, "__self__", None)
    if isinstance(method, nn.Module):
        owner = method
    if isinstance(owner, nn.Module) and all(m is not owner for m in root.modules()):
        raise EntryPointError(
            f"entry point '{name}' belongs to a {type(owner).__name__} that is not"
            f" part of the root {type(root).__name__}; pass a root that holds it",
            method_name=name,
        )
    if _is_method_of(root, name, function):
        function, owner = functools.partial(function, root), root
    try:
        signature = inspect.signature(
            function.forward if isinstance(function, nn.Module) else function
        )
    except (TypeError, ValueError) as error:
        raise EntryPointError(
            f"entry point '{name}' is {function!r:.100}, which has no Python signature;"
            " wrap it in a function",
            method_name=name,
        ) from error
    try:
        return function, signature.bind(*args, **kwargs)
    except TypeError as error:
        if owner is None:
            with_root = functools.partial(function, root)
            try:
                return with_root, inspect.signature(with_root).bind(*args, **kwargs)
            except TypeError:
                pass
        raise EntryPointError(
            f"example inputs of entry point '{name}' do not fit its signature"
            f" {signature}: {error}",
            method_name=name,
        ) from error


def _is_method_of(root: nn.Module, name: str, function: Callable[..., Any]) -> bool:
    """Tell whether a function is a method of the root's class, without its instance.

    Raises:
        EntryPointError: it is no function, or a method of another class.
    """
    if isinstance(function, type) or not callable(function):
        raise EntryPointError(
            f"entry point '{name}' is {kind_of(function)}, expected a method; write"
            f" EntryPoint(model.{name}, (x,))",
            method_name=name,
        )
    if not isinstance(function, types.FunctionType):
        return False
    if any(vars(c).get(function.__name__) is function for c in type(root).__mro__):
        return True
    holder, _, method = function.__qualname__.rpartition(".")
    has_class = bool(holder) and not holder.endswith("<locals>")
    if has_class and next(iter(inspect.signature(function).parameters), "") == "self":
        holder = holder.rpartition(".")[2]
        raise EntryPointError(
            f"entry point '{name}' is {holder}.{method} without an instance, and the"
            f" root is a {type(root).__name__}; write EntryPoint(part.{method}, (x,))"
            f" with the {holder} that is part of the root",
            method_name=name,
        )
    return False


def argument_names(bound: inspect.BoundArguments) -> list[str]:
    """Name each value of ``bound.args`` and then of ``bound.kwargs``."""
    names: list[str] = []
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}[{i}]" for i in range(len(value))]
        elif len(names) < len(bound.args):
            names.append(name)
    return [*names, *bound.kwargs]


def dynamic_shapes(
    name: str,
    shapes: Any,  # noqa: ANN401
    bound: inspect.BoundArguments,
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Bring a caller's dynamic shapes into the form (args, kwargs)."""
    if shapes is None:
        return None
    if hasattr(shapes, "dynamic_shapes"):  # ShapesCollection, AdditionalInputs
        shapes = shapes.dynamic_shapes(_Callable(bound), bound.args, bound.kwargs)
    if isinstance(shapes, tuple | list):
        if len(shapes) != len(bound.arguments):
            raise EntryPointError(
                f"entry point '{name}' has dynamic shapes for"
                f" {counted(len(shapes), 'argument')}, expected {len(bound.arguments)}",
                method_name=name,
            )
        shapes = dict(zip(bound.arguments, shapes, strict=True))
    if not isinstance(shapes, Mapping):
        raise EntryPointError(
            f"dynamic shapes of entry point '{name}' are {kind_of(shapes)}, expected a"
            " dict by argument; write {'x': {0: torch.export.Dim('n')}}",
            method_name=name,
        )
    unknown = [
        key
        for key in shapes
        if key not in bound.signature.parameters and key not in bound.kwargs
    ]
    if unknown:
        raise EntryPointError(
            f"dynamic shapes of entry point '{name}' name '{unknown[0]}', which is no"
            f" argument; its arguments are {', '.join(bound.arguments)}",
            method_name=name,
        )
    args: list[Any] = []
    for argument, value in bound.arguments.items():
        shape = shapes.get(argument)
        if bound.signature.parameters[argument].kind is (
            inspect.Parameter.VAR_POSITIONAL
        ):
            args += list(shape) if shape is not None else [None] * len(value)
        else:
            args.append(shape)
    nested: dict[str, Any] = {}
    for argument, shape in shapes.items():
        parameter = bound.signature.parameters.get(argument)
        if parameter is not None and parameter.kind is parameter.VAR_KEYWORD:
            nested.update(shape or {})
    kwargs = {key: {**shapes, **nested}.get(key) for key in bound.kwargs}
    return tuple(args[: len(bound.args)]), kwargs


class _Callable(nn.Module):
    """Has the signature that torch resolves a ShapesCollection against."""

    def __init__(self, bound: inspect.BoundArguments) -> None:
        super().__init__()
        self.forward = lambda *args, **kwargs: None
        self.forward.__signature__ = bound.signature  # type: ignore[attr-defined]


def leaf_names(call: CallingConvention) -> list[str]:
    """Name each flat input after the argument that it belongs to."""
    args, kwargs = call.in_spec.children()
    arguments = [*args.children(), *kwargs.children()]
    return [
        argument if spec.num_leaves == 1 else f"{argument}_{i}"
        for argument, spec in zip(call.argument_names, arguments, strict=True)
        for i in range(spec.num_leaves)
    ]
