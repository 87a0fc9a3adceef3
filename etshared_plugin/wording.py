"""Words of messages."""

from __future__ import annotations


def kind_of(value: object) -> str:
    """Say what was given instead of what is expected."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an instance of {type(value).__name__}"


def dtype_name(dtype: object) -> str:
    """Return ``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def counted(count: int, noun: str) -> str:
    """Return ``1 buffer``, ``2 buffers``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
