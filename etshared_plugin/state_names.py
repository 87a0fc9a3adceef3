"""What a caller means by a name of state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase


def matching(
    name: str, fqns: Sequence[Collection[str]], groups: Sequence[str] = ()
) -> list[int]:
    """Return the positions of the state that a name stands for.

    It is an fqn or a group; failing that, what the fqns of its parts begin with, such
    as a bind of nested state, or a module; failing that, a glob over whole fqns.

    Args:
        fqns: of each piece of state, its fqn and aliases.
        groups: of each piece of state, its group or "".
    """
    known = [*map(set, fqns)]
    if name:
        for names, group in zip(known, groups, strict=False):
            names |= {group} - {""}
    below = f"{name}."
    for is_meant in (
        lambda one: one == name,
        lambda one: one.startswith(below),
        lambda one: fnmatchcase(one, name),
    ):
        found = [i for i, names in enumerate(known) if any(map(is_meant, names))]
        if found:
            return found
    return []
