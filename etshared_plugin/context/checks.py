"""Checks of single values of a record; each names what it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import ContextFormatError

#: Bytes of a SHA-256 digest.
DIGEST_NBYTES = 32

#: ExecuTorch's kTensorDimensionLimit.
MAX_DIMENSIONS = 16

_INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
#: C++ computes with signed 64-bit sizes in places, and no memory is larger.
NBYTES_MAX = 2**63 - 1


def check_shape(place: str, sizes: Sequence[int]) -> None:
    if len(sizes) > MAX_DIMENSIONS:
        raise ContextFormatError(
            f"{place}: {len(sizes)} dimensions, expected at most {MAX_DIMENSIONS}"
        )
    for size in sizes:
        check_range(place, "size", size, _INT32_MAX)


def check_digest(place: str, digest: bytes) -> None:
    if len(digest) != DIGEST_NBYTES:
        raise ContextFormatError(
            f"{place}: digest has {len(digest)} bytes, expected {DIGEST_NBYTES}"
        )


def check_range(
    place: str, what: str, value: int, highest: int, *, lowest: int = 0
) -> None:
    if not lowest <= value <= highest:
        raise ContextFormatError(
            f"{place}: {what} is {value}, expected {lowest} to {highest}"
        )


def check_index(place: str, index: int, referred: Sequence[object]) -> None:
    if not 0 <= index < len(referred):
        raise ContextFormatError(f"{place} {index} is none of {len(referred)}")


def check_ascending(place: str, values: Iterable[object]) -> None:
    listed = list(values)
    if any(not a < b for a, b in zip(listed, listed[1:], strict=False)):  # type: ignore[operator]
        raise ContextFormatError(f"{place} are not strictly ascending")


def check_names(place: str, names: Sequence[str]) -> None:
    for name in names:
        check_name(place, name)
    check_ascending(place, names)


def check_name(place: str, name: str) -> None:
    if not name:
        raise ContextFormatError(f"{place}: a name is empty")
    check_text(place, name)


def check_text(place: str, value: str) -> None:
    # C++ readers may treat strings as NUL-terminated.
    if "\0" in value:
        raise ContextFormatError(f"{place}: a text holds a NUL character")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as cause:
        raise ContextFormatError(f"{place}: a text is not valid UTF-8") from cause
