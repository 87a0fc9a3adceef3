"""Words of messages."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import EtsharedError


def kind_of(value: object) -> str:
    """Say what was given instead of what is expected."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an instance of {type(value).__name__}"


def quoted(names: Iterable[object]) -> str:
    """Return ``'a', 'b'``."""
    return ", ".join(f"'{name}'" for name in names)


def names_in(given: object, what: str, error: type[EtsharedError]) -> list[str]:
    """Return the one name or the several that a caller gives.

    Raises:
        EtsharedError: of the kind ``error``, that they are no names.
    """
    if isinstance(given, str):
        return [given]
    names = []
    for name in given if isinstance(given, Iterable) else [given]:
        if not isinstance(name, str):
            raise error(f"{what} has {kind_of(name)}, expected names, such as ['h']")
        names.append(name)
    return names


def dtype_name(dtype: object) -> str:
    """Return ``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def counted(count: int, noun: str) -> str:
    """Return ``1 buffer``, ``2 buffers``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
