"""The record of what entry points share, and its encoding; free of torch."""

from .codec import decode, encode
from .model import (
    CONTEXT_KEY,
    CONTEXT_VERSION,
    Access,
    Arena,
    ArenaKind,
    Argument,
    Buffer,
    BufferUse,
    Delegate,
    EntryPointRecord,
    Extension,
    InitialValue,
    InputSizes,
    Producer,
    SharedContext,
    Structure,
    StructureKind,
    Weight,
)
from .scalar_type import ScalarType
from .validation import validate

__all__ = [
    "CONTEXT_KEY",
    "CONTEXT_VERSION",
    "Access",
    "Arena",
    "ArenaKind",
    "Argument",
    "Buffer",
    "BufferUse",
    "Delegate",
    "EntryPointRecord",
    "Extension",
    "InitialValue",
    "InputSizes",
    "Producer",
    "ScalarType",
    "SharedContext",
    "Structure",
    "StructureKind",
    "Weight",
    "decode",
    "encode",
    "validate",
]
