"""Files with data that a program keeps outside of itself (``.ptd``)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ..errors import InputError
from ..wording import kind_of
from . import _native

#: A path, or the bytes of a file.
FileSource = (
    str | os.PathLike[str] | os.PathLike[bytes] | bytes | bytearray | memoryview
)


def read_data_files(data_files: Sequence[FileSource]) -> _native.DataFiles:
    """Return what the files hold, verified but for the values.

    Raises:
        InputError: if this is no sequence of paths and bytes.
        ProgramFormatError: if one cannot be read, is damaged or no data file, or
            two hold the same key.
    """
    single = (str, bytes, bytearray, memoryview, os.PathLike)
    if isinstance(data_files, single) or not isinstance(data_files, Iterable):
        raise InputError(
            f"data_files is one {type(data_files).__name__}, expected a list of paths"
        )
    native = _native.DataFiles()
    for index, source in enumerate(data_files):
        if isinstance(source, (bytes, bytearray, memoryview)):
            native.add_bytes(bytes(source), f"data_files[{index}]")
        else:
            native.add_path(encoded_path(source, "data file"))
    return native


def encoded_path(path: object, what: str) -> bytes:
    """Return a path as the system's; ``what`` is what it should be the path of.

    Raises:
        InputError: if it is no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        hint = "; give its 'buffer'" if hasattr(path, "buffer") else ""
        raise InputError(f"a {what} is {kind_of(path)}, expected a path or bytes{hint}")
    try:
        return os.fsencode(path)
    except (TypeError, UnicodeEncodeError) as error:
        raise InputError(f"{path!r:.100} is no path of a {what}: {error}") from error
