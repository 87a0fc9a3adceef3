"""What the content of a packed file depends on."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from functools import cache

from . import _native
from ._libraries import EXECUTORCH_VERSION

#: Names what a packed file is; whoever changes its format must change this too.
_FORMAT = "etshared packed file 1"

#: Which lines of /proc/cpuinfo tell CPUs apart that compute differently, on
#: x86-64 and on ARM.
_CPU_KEYS = frozenset(
    {
        *("vendor_id", "cpu family", "model", "stepping", "flags"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
        *("CPU revision", "Features"),
    }
)


class UnknownFactError(Exception):
    """Something that decides what packed weights are cannot be found out."""


@dataclass(frozen=True, slots=True)
class PackingFacts:
    """All that decides what XNNPACK makes of a program's weights.

    Attributes:
        executorch: its version.
        xnnpack_build_id: GNU build id of the library that holds XNNPACK.
        xnnpack_identifier: what XNNPACK itself calls its build.
        cpu: distinct lines about the CPUs, ascending.
        record: SHA-256 of the program's record, which has the digests of its
            weights and of what its delegates do with them.
    """

    executorch: str
    xnnpack_build_id: bytes
    xnnpack_identifier: bytes
    cpu: tuple[str, ...]
    record: bytes

    def binding(self) -> bytes:
        """Return 32 bytes that are others where any fact is another."""
        return hashlib.sha256(repr((_FORMAT, *astuple(self))).encode()).digest()


def packing_facts(record: bytes) -> PackingFacts:
    """Return the facts of this process and a program's record.

    Raises:
        UnknownFactError: if one cannot be found out.
    """
    build_id, identifier = _native.xnnpack_build()
    if not build_id:
        raise UnknownFactError("the library with XNNPACK has no build id")
    return PackingFacts(
        EXECUTORCH_VERSION,
        build_id,
        identifier,
        _cpu_lines(),
        hashlib.sha256(record).digest(),
    )


@cache
def _cpu_lines() -> tuple[str, ...]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = {
                f"{key.strip()}: {value.strip()}"
                for key, _, value in (line.partition(":") for line in file)
                if key.strip() in _CPU_KEYS
            }
    except OSError as error:
        raise UnknownFactError(
            f"the CPU is unknown: '/proc/cpuinfo': {error.strerror}"
        ) from error
    if not lines:
        raise UnknownFactError("the CPU is unknown: '/proc/cpuinfo' says nothing of it")
    return tuple(sorted(lines))
