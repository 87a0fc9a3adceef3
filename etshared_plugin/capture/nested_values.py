"""Parts of nested containers, as torch's pytrees know them."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ..lifted.signatures import DICTS

#: Indices, keys and names of fields that lead to a part; ``()`` is the whole.
Path: TypeAlias = tuple[int | str, ...]

_NOTHING = object()


class NoPartError(LookupError):
    """A path leads nowhere."""


def part(value: Any, path: Path) -> Any:  # noqa: ANN401
    """Return what a path leads to.

    Raises:
        NoPartError: if it leads nowhere; tensors have no parts.
    """
    for step in path:
        names, children = _parts(value)
        value = children[_position(value, names, step)]
    return value


def in_order_of(spec: pytree.TreeSpec, value: Any) -> Any:  # noqa: ANN401
    """Return a value with the keys of its dicts in the order that ``spec`` has."""
    if type(value) is not spec.type or spec.type not in (dict, list, tuple):
        return value
    if len(value) != spec.num_children:
        return value
    if spec.type is not dict:
        pairs = zip(spec.children(), value, strict=True)
        return spec.type(in_order_of(child, one) for child, one in pairs)
    if value.keys() != set(spec.context):
        return value
    pairs = zip(spec.children(), spec.context, strict=True)
    return {key: in_order_of(child, value[key]) for child, key in pairs}


def without_parts(value: Any, paths: Collection[Path]) -> Any:  # noqa: ANN401
    """Return what is left without some parts.

    Tuples, lists and dicts become shorter, and a tuple of which one element is left
    becomes that element. Instances of classes, named tuples among them, have fixed
    fields and get None instead. What has nothing left is left out itself; of the
    whole that leaves None.

    Raises:
        NoPartError: if a path leads nowhere.
    """
    rest = _rest(value, paths)
    return None if rest is _NOTHING else rest


def _rest(value: Any, paths: Collection[Path]) -> Any:  # noqa: ANN401
    if () in paths:
        return _NOTHING
    if not paths:
        return value
    names, children = _parts(value)
    inner: dict[int, list[Path]] = {}
    for step, *further in paths:
        inner.setdefault(_position(value, names, step), []).append(tuple(further))
    for position, its_paths in inner.items():
        children[position] = _rest(children[position], its_paths)
    left = [child for child in children if child is not _NOTHING]
    if not left:
        return _NOTHING
    if type(value) is tuple:
        return left[0] if len(left) == 1 else tuple(left)
    if type(value) is list:
        return left
    if type(value) in DICTS:
        shorter = copy.copy(value)
        for name, child in zip(names, children, strict=True):
            if child is _NOTHING:
                del shorter[name]
            else:
                shorter[name] = child
        return shorter
    spec = pytree.tree_structure(value, is_leaf=lambda child: child is not value)
    return pytree.tree_unflatten(
        [None if child is _NOTHING else child for child in children], spec
    )


def _parts(value: Any) -> tuple[list[Any], list[Any]]:  # noqa: ANN401
    """Return indices, keys or names of fields, and what they stand for."""
    if pytree.tree_is_leaf(value):
        return [], []
    try:
        found, _ = pytree.tree_flatten_with_path(
            value, is_leaf=lambda child: child is not value
        )
    except ValueError as error:  # of a class that was registered without names
        raise NoPartError(f"has a {type(value).__name__} there: {error}") from error
    return [_name(path[0]) for path, _ in found], [child for _, child in found]


def _name(key: Any) -> Any:  # noqa: ANN401
    if isinstance(key, pytree.SequenceKey):
        return key.idx
    return key.key if isinstance(key, pytree.MappingKey) else key.name


def _position(value: Any, names: list[Any], step: int | str) -> int:  # noqa: ANN401
    if step in names:
        return names.index(step)
    is_index = isinstance(step, int) and isinstance(value, (tuple, list))
    if is_index and -len(names) <= int(step) < len(names):
        return int(step) % len(names)
    kind = "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
    raise NoPartError(
        f"has no {step!r} there, but a {kind}"
        + (f" with {', '.join(map(repr, names))}" if names else "")
    )
