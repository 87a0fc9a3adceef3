"""Where packed weights are kept on disk, and how much of them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from .packed_directory import PackedDirectory
from .packed_file import DamagedFileError
from .packed_lock import UnusableDirectoryError


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file with the packed weights of one program.

    Attributes:
        path: the file.
        label: name of the program that it was made from; None when the file is
            damaged.
        nbytes: its size.
        last_used: when a program was last loaded with it, in seconds since the
            epoch.
    """

    path: Path
    label: str | None
    nbytes: int
    last_used: float


@dataclass(frozen=True, slots=True)
class PackedCache:
    """A directory of packed weights, for ``load(…, packed_cache=…)``.

    Only files that are named as this package names its own are touched. The
    directory must be one that nobody else can write to: damage is found,
    tampering is not.

    Attributes:
        directory: by default ``etshared`` in the user's cache directory
            (``$XDG_CACHE_HOME`` or ``~/.cache``). It is made when it is needed.
        max_nbytes: how much may lie there. When a file is written, those that
            have not been used for longest are removed beyond that; one that is
            larger is not written.

    Raises:
        InputError: if the directory is no path or not a directory, or the size no
            positive number.
    """

    directory: str | os.PathLike[str] | None = None
    max_nbytes: int = 4 * 2**30

    def __post_init__(self) -> None:
        if self.directory is not None:
            if not isinstance(self.directory, (str, os.PathLike)):
                raise InputError(
                    f"the directory of a packed cache is {self.directory!r}, expected "
                    "a path"
                )
            path = os.fspath(self.directory)
            if not isinstance(path, str) or not path or "\0" in path:
                raise InputError(f"the directory of a packed cache is {path!r}")
            if os.path.exists(path) and not os.path.isdir(path):
                raise InputError(f"'{path}' is not a directory for packed weights")
        is_number = isinstance(self.max_nbytes, int)
        if not is_number or isinstance(self.max_nbytes, bool) or self.max_nbytes < 1:
            raise InputError(
                f"max_nbytes is {self.max_nbytes!r}, expected a positive number"
            )

    @property
    def path(self) -> Path:
        """The directory, absolute.

        Raises:
            InputError: if the user has no home directory to have it in.
        """
        if self.directory is not None:
            return Path(self.directory).absolute()
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not base.is_absolute():  # which the specification says to ignore
            with suppress(RuntimeError):
                base = Path.home() / ".cache"
        if not base.is_absolute():
            raise InputError(
                "there is no home directory for a packed cache; give a directory"
            )
        return base / "etshared"

    def entries(self) -> list[PackedFile]:
        """Return the packed files, the last used one first.

        Raises:
            OSError: if the directory cannot be read.
        """
        if not self.path.exists():
            return []
        with PackedDirectory(self.path) as directory:
            return [
                PackedFile(
                    directory.path_of(file.binding),
                    directory.label(file.binding),
                    file.nbytes,
                    file.last_used_ns / 1e9,
                )
                for file in directory.files()
            ]

    def verify(self) -> dict[Path, str | None]:
        """Read every packed file, and say what is wrong with it, or None.

        A damaged file does no harm: loading notices, and packs again.

        Raises:
            OSError: if the directory cannot be read.
        """
        if not self.path.exists():
            return {}
        found: dict[Path, str | None] = {}
        with PackedDirectory(self.path) as directory:
            for file in directory.files():
                path = directory.path_of(file.binding)
                try:
                    directory.verify(file.binding)
                    found[path] = None
                except DamagedFileError as error:
                    found[path] = str(error)
                except OSError as error:
                    found[path] = f"it cannot be read: {error.strerror}"
        return found

    def clear(self) -> list[PackedFile]:
        """Remove all packed files, and return those that are gone.

        Programs that use one of them keep its content.

        Raises:
            OSError: if the directory cannot be read or locked, or, when all others
                are removed, if a file cannot be.
        """
        if not self.path.exists():
            return []
        removed: list[PackedFile] = []
        failures: list[OSError] = []
        with PackedDirectory(self.path) as directory:
            try:
                with directory.locked():
                    for file in self.entries():
                        try:
                            directory.remove(bytes.fromhex(file.path.stem))
                            removed.append(file)
                        except OSError as error:
                            failures.append(
                                OSError(error.errno, error.strerror, str(file.path))
                            )
                    directory.remove_leftovers()
            except UnusableDirectoryError as error:
                raise TimeoutError(f"'{self.path}' is in use: {error}") from error
        if failures:
            raise failures[0]
        return removed


def packed_cache_of(
    given: bool | str | os.PathLike[str] | PackedCache,
) -> PackedCache | None:
    """Return what ``load(packed_cache=…)`` means; None stands for none.

    Raises:
        InputError: if it means nothing.
    """
    if isinstance(given, PackedCache):
        return given
    if isinstance(given, bool):
        return PackedCache() if given else None
    if isinstance(given, (str, os.PathLike)):
        return PackedCache(given)
    raise InputError(
        f"packed_cache is {given!r}, expected True, a directory or a PackedCache"
    )
