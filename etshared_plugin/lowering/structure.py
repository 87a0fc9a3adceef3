"""Python signatures and pytrees as Structures of the record."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from torch.utils import _pytree as pytree

from ..context import Argument, Structure, StructureKind
from ..errors import EntryPointError
from ..lifted.signatures import DICTS, CallingConvention, is_named_result


def arguments_of(method_name: str, call: CallingConvention) -> tuple[Argument, ...]:
    """Describe the arguments of an entry point in the order of its inputs."""
    args, kwargs = call.in_spec.children()
    positional = args.children()
    specs = [*positional, *kwargs.children()]
    names = call.argument_names
    if len(names) != len(specs):
        names = (*(f"arg{i}" for i in range(len(positional))), *kwargs.context)
    return tuple(
        Argument(
            name, structure_of(method_name, spec), keyword_only=i >= len(positional)
        )
        for i, (name, spec) in enumerate(zip(names, specs, strict=True))
    )


def structure_of(method_name: str, spec: pytree.TreeSpec) -> Structure:
    """Describe how the leaves of a value are nested.

    Raises:
        EntryPointError: a dict has keys that are no strings, or a dataclass None in a
            field with another default.
    """
    if spec.is_leaf():
        return Structure()
    children = tuple(structure_of(method_name, child) for child in spec.children())
    if spec.type is tuple or is_named_result(spec.type):
        return Structure(StructureKind.TUPLE, children)
    if spec.type is list:
        return Structure(StructureKind.LIST, children)
    if spec.type in DICTS:
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        for key in keys:
            if not isinstance(key, str):
                raise EntryPointError(
                    f"entry point '{method_name}' has a dict with the key {key!r} among"
                    " its inputs or results; use strings as keys",
                    method_name=method_name,
                )
        return Structure(StructureKind.DICT, children, tuple(keys))
    # torch keeps the class of a namedtuple in the context.
    kind: Any = spec.context if isinstance(spec.context, type) else spec.type
    return Structure(
        StructureKind.CUSTOM,
        children,
        _field_names(method_name, spec, kind),
        f"{kind.__module__}:{kind.__qualname__}",
    )


def _field_names(
    method_name: str,
    spec: pytree.TreeSpec,
    kind: Any,  # noqa: ANN401
) -> tuple[str, ...]:
    """Name the children of a registered class, by number where it has no names."""
    names = getattr(kind, "_fields", None)
    context = spec.context if isinstance(spec.context, (tuple, list)) else ()
    if context and all(isinstance(one, str) for one in context):
        names = context  # as classes register themselves that are dicts too
    elif names is None and dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        if context:  # torch leaves out fields that are None
            names, empty = context
            _check_empty_fields(method_name, kind, empty)
    count = spec.num_children
    if names is None or len(names) != count:
        return tuple(map(str, range(count)))
    return tuple(map(str, names))


def _check_empty_fields(method_name: str, kind: Any, empty: Collection[str]) -> None:  # noqa: ANN401
    """Refuse None where a program's user would get another default."""
    for field in dataclasses.fields(kind):
        has_default = (
            field.default not in (dataclasses.MISSING, None)
            or field.default_factory is not dataclasses.MISSING
        )
        if field.name in empty and has_default:
            raise EntryPointError(
                f"entry point '{method_name}' has a {kind.__name__} whose"
                f" '{field.name}' is None, among its inputs or results, and not its"
                " default; make None the default",
                method_name=method_name,
            )


def with_serializable_types(call: CallingConvention) -> CallingConvention:
    """Flatten values of classes that ExecuTorch cannot write into a program.

    Only the record then tells how they are nested.
    """
    return dataclasses.replace(
        call,
        in_spec=_serializable(call.in_spec, ((0,) * call.in_spec.num_leaves, {})),
        out_spec=_serializable(call.out_spec, (0,) * call.out_spec.num_leaves),
    )


def _serializable(spec: pytree.TreeSpec, flat: object) -> pytree.TreeSpec:
    try:
        pytree.treespec_dumps(spec)
    except NotImplementedError:
        # pytree has no name to write for such a class
        return pytree.tree_structure(flat)
    return spec
