"""Parts of nested tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

#: Indices and keys that lead to a part; ``()`` is the whole.
Path: TypeAlias = tuple[int | str, ...]

_NOTHING = object()


class NoPartError(LookupError):
    """A path leads nowhere."""


def part(value: Any, path: Path) -> Any:  # noqa: ANN401
    """Return what a path leads to.

    Raises:
        NoPartError: if it leads nowhere.
    """
    for step in path:
        try:
            value = value[step]
        except (IndexError, KeyError, TypeError) as error:
            raise NoPartError(f"has no {step!r} there") from error
    return value


def without_parts(value: Any, paths: Collection[Path]) -> Any:  # noqa: ANN401
    """Return what is left without some parts.

    A tuple of which one element is left becomes that element, and what has
    nothing left is left out itself; of the whole that leaves None.
    """
    rest = _rest(value, paths)
    return None if rest is _NOTHING else rest


def _rest(value: Any, paths: Collection[Path]) -> Any:  # noqa: ANN401
    if () in paths:
        return _NOTHING
    if not paths:
        return value
    if isinstance(value, dict):
        items = dict(value)
    else:
        items = dict(enumerate(value))
        paths = [(int(path[0]) % len(items), *path[1:]) for path in paths]
    for step in {path[0] for path in paths}:
        items[step] = _rest(items[step], [p[1:] for p in paths if p[0] == step])
    left = {step: item for step, item in items.items() if item is not _NOTHING}
    if not left:
        return _NOTHING
    if isinstance(value, dict):
        return left
    if isinstance(value, list):
        return list(left.values())
    return next(iter(left.values())) if len(left) == 1 else tuple(left.values())
