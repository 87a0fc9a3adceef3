"""Nested Python values and their leaves, as an entry point's record has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..context import Structure, StructureKind
from ..errors import InputError
from ..wording import kind_of, quoted

_SEQUENCES = {StructureKind.TUPLE: "tuple", StructureKind.LIST: "list"}

#: Makes a result from its leaves.
Rebuild = Callable[[Iterator[object]], object]


def flatten(
    value: object, structure: Structure, place: str, name: str, leaves: list[object]
) -> None:
    """Append the leaves of ``value`` in the order of ``structure``.

    Tuples and lists stand for each other, mappings for instances of classes.

    Args:
        place: How messages call the entry point, for example ``entry point 'f'``.
        name: How they call the value, for example ``x[0]``.

    Raises:
        InputError: if ``value`` is nested otherwise.
    """
    kind = structure.kind
    if kind is StructureKind.LEAF:
        leaves.append(value)
        return
    children = structure.children
    if kind in _SEQUENCES:
        if not isinstance(value, (tuple, list)) or len(value) != len(children):
            raise _mismatch(
                place, name, value, f"a {_SEQUENCES[kind]} of {len(children)}"
            )
        parts: Sequence[object] = value
        names = [f"{name}[{index}]" for index in range(len(children))]
    else:
        parts = _fields(value, structure, place, name)
        access = "{}['{}']" if kind is StructureKind.DICT else "{}.{}"
        names = [access.format(name, key) for key in structure.keys]
    for part, child, child_name in zip(parts, children, names, strict=True):
        flatten(part, child, place, child_name, leaves)


def _fields(value: object, structure: Structure, place: str, name: str) -> list[object]:
    keys = structure.keys
    if isinstance(value, Mapping):
        if set(value) == set(keys):
            return [value[key] for key in keys]
    elif structure.kind is StructureKind.CUSTOM:
        try:
            return [getattr(value, key) for key in keys]
        except AttributeError:
            pass
    what = "a dict" if structure.kind is StructureKind.DICT else structure.type_name
    raise _mismatch(place, name, value, f"{what} with {quoted(keys)}")


def _mismatch(place: str, name: str, value: object, expected: str) -> InputError:
    if isinstance(value, Mapping):
        found = "a dict with " + (quoted(value) or "no keys")
    elif isinstance(value, (tuple, list)):
        found = f"a {type(value).__name__} of {len(value)}"
    else:
        found = f"of type '{type(value).__name__}'"
    return InputError(f"{place}: input '{name}' is {found}, expected {expected}")


def rebuilder(structure: Structure, classes: Mapping[str, type]) -> Rebuild:
    """Return a function that nests leaves as ``structure`` says.

    Classes are only ever taken from ``classes``, by ``module:qualname``; an
    instance of any other class comes back as a dict of its fields.
    """
    kind = structure.kind
    if kind is StructureKind.LEAF:
        return next
    parts = [rebuilder(child, classes) for child in structure.children]
    keys = structure.keys
    if kind is StructureKind.TUPLE:
        return lambda leaves: tuple([part(leaves) for part in parts])
    if kind is StructureKind.LIST:
        return lambda leaves: [part(leaves) for part in parts]
    if kind is StructureKind.DICT or structure.type_name not in classes:
        return lambda leaves: {
            key: part(leaves) for key, part in zip(keys, parts, strict=True)
        }
    make = _constructor(classes[structure.type_name])
    return lambda leaves: make(
        {key: part(leaves) for key, part in zip(keys, parts, strict=True)}
    )


def _constructor(cls: type) -> Callable[[dict[str, object]], object]:
    factory: Any = cls
    if dataclasses.is_dataclass(cls):
        # A registered field may be one that __init__ does not take.
        computed = {field.name for field in dataclasses.fields(cls) if not field.init}
        # What was None at export has no part in the structure.
        required = [
            field.name
            for field in dataclasses.fields(cls)
            if field.init
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ]

        def make(values: dict[str, object]) -> object:
            given = dict.fromkeys(required) | {
                key: value for key, value in values.items() if key not in computed
            }
            instance = factory(**given)
            for key in computed & values.keys():
                object.__setattr__(instance, key, values[key])
            return instance

        return make
    return lambda values: factory(**values)


def named_classes(types: Sequence[type]) -> dict[str, type]:
    """Return the classes that results may be instances of, by their names.

    Raises:
        InputError: if these are no classes.
    """
    if not isinstance(types, Iterable):
        raise InputError(f"types is {kind_of(types)}, expected a list of classes")
    for cls in types:
        if not isinstance(cls, type):
            raise InputError(f"types has {kind_of(cls)}, expected classes")
    return {f"{cls.__module__}:{cls.__qualname__}": cls for cls in types}
