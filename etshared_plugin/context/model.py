"""The record of what entry points share, as plain data.

Planning writes one :class:`SharedContext`, the file holds it, the runtime and
the inspector read it. ``schema/README.md`` specifies every field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from .scalar_type import ScalarType

#: Version of the record that this package writes.
CONTEXT_VERSION = 1

#: Key of the record in the program's named data.
CONTEXT_KEY = "etshared.context"


class StructureKind(IntEnum):
    LEAF = 0
    TUPLE = 1
    LIST = 2
    DICT = 3
    CUSTOM = 4


class Access(IntEnum):
    READ = 1
    WRITE = 2
    READ_WRITE = 3


class InitialValue(IntEnum):
    ZERO = 0
    GIVEN = 1


class ArenaKind(IntEnum):
    ACTIVATIONS = 0
    SHARED_STATE = 1
    CUSTOM = 2


@dataclass(frozen=True, slots=True)
class Producer:
    """Versions of the packages that wrote the record."""

    package: str
    executorch: str
    torch: str


@dataclass(frozen=True, slots=True)
class Structure:
    """How the leaves of a Python value are nested; a leaf by default.

    ``keys`` are a dict's keys or a custom class's field names, one per child.
    """

    kind: StructureKind = StructureKind.LEAF
    children: tuple[Structure, ...] = ()
    keys: tuple[str, ...] = ()
    type_name: str = ""

    @property
    def leaf_count(self) -> int:
        if self.kind is StructureKind.LEAF:
            return 1
        return sum(child.leaf_count for child in self.children)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the Python signature."""

    name: str
    structure: Structure = Structure()
    keyword_only: bool = False


@dataclass(frozen=True, slots=True)
class InputSizes:
    """Which sizes one input may have, by dimension; empty for what is no tensor.

    Dimensions of one entry point with the same symbol, other than 0, have the same
    size in a call.
    """

    min_sizes: tuple[int, ...] = ()
    max_sizes: tuple[int, ...] = ()
    symbols: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferUse:
    """``buffer`` indexes :attr:`SharedContext.buffers`."""

    buffer: int
    access: Access


@dataclass(frozen=True, slots=True)
class EntryPointRecord:
    """One entry point; the generated one writes the initial values of all state.

    ``inputs`` has one element for each leaf of ``arguments``.
    """

    name: str
    arguments: tuple[Argument, ...] = ()
    result: Structure = Structure()
    buffers: tuple[BufferUse, ...] = ()
    delegates: tuple[int, ...] = ()
    activation_nbytes: int = 0
    generated: bool = False
    inputs: tuple[InputSizes, ...] = ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """One piece of shared state; ``offset`` and ``nbytes`` are bytes in ``mem_id``."""

    fqn: str
    scalar_type: ScalarType
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    mem_id: int
    offset: int
    nbytes: int
    initial_value: InitialValue = InitialValue.ZERO
    aliases: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True, slots=True)
class Arena:
    """One memory of the program; ``nbytes`` is the most that any method plans."""

    mem_id: int
    nbytes: int
    alignment: int
    kind: ArenaKind


@dataclass(frozen=True, slots=True)
class Weight:
    """One distinct constant; ``digest`` is the SHA-256 of its stored bytes."""

    identity: str
    digest: bytes
    nbytes: int
    scalar_type: ScalarType
    sizes: tuple[int, ...]
    keys: tuple[str, ...] = ()
    fqns: tuple[str, ...] = ()
    quantization: str = ""
    delegates: tuple[int, ...] = ()
    entry_points: tuple[int, ...] = ()
    external: bool = False


@dataclass(frozen=True, slots=True)
class Delegate:
    """One lowered piece of one entry point."""

    backend_id: str
    entry_point: int
    index: int
    payload_digest: bytes
    payload_nbytes: int
    operators: tuple[tuple[str, int], ...] = ()
    weights: tuple[int, ...] = ()
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Extension:
    """A plugin's own record."""

    plugin: str
    version: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class SharedContext:
    """Everything that the entry points of one program share."""

    producer: Producer
    entry_points: tuple[EntryPointRecord, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    arenas: tuple[Arena, ...] = ()
    weights: tuple[Weight, ...] = ()
    delegates: tuple[Delegate, ...] = ()
    extensions: tuple[Extension, ...] = ()
    version: int = field(default=CONTEXT_VERSION)
