"""Rules for the signature of an entry point: arguments, result, sizes of inputs."""

from __future__ import annotations

from ..errors import ContextFormatError
from .checks import UINT32_MAX, check_name, check_range, check_shape, check_text
from .model import EntryPointRecord, InputSizes, Structure, StructureKind

#: Nesting of one argument's or result's structure.
MAX_STRUCTURE_DEPTH = 32

#: Structures, leaves among them, of all entry points together.
MAX_STRUCTURES = 65536


def check_signature(place: str, entry: EntryPointRecord, structures: int) -> int:
    """Check arguments and result; return how many more structures may follow."""
    names: set[str] = set()
    keyword_only = False
    for argument in entry.arguments:
        check_name(f"{place}: argument", argument.name)
        if argument.name in names:
            raise ContextFormatError(
                f"{place}: argument '{argument.name}' stands twice"
            )
        names.add(argument.name)
        if keyword_only and not argument.keyword_only:
            raise ContextFormatError(
                f"{place}: positional argument '{argument.name}' follows a "
                "keyword-only one"
            )
        keyword_only = argument.keyword_only
        structures = _check_structure(
            f"{place}: argument '{argument.name}'", argument.structure, structures
        )
    structures = _check_structure(f"{place}: result", entry.result, structures)
    leaves = sum(argument.structure.leaf_count for argument in entry.arguments)
    if len(entry.inputs) != leaves:
        raise ContextFormatError(
            f"{place}: sizes of {len(entry.inputs)} inputs, expected {leaves}"
        )
    for index, sizes in enumerate(entry.inputs):
        _check_sizes(f"{place}: input {index}", sizes)
    return structures


def _check_sizes(place: str, sizes: InputSizes) -> None:
    check_shape(place, sizes.max_sizes)
    counts = len(sizes.min_sizes), len(sizes.max_sizes), len(sizes.symbols)
    if len(set(counts)) != 1:
        raise ContextFormatError(
            f"{place}: {counts[0]} min_sizes, {counts[1]} max_sizes and {counts[2]} "
            "symbols, expected one of each for each dimension"
        )
    for lowest, highest in zip(sizes.min_sizes, sizes.max_sizes, strict=True):
        check_range(place, "min_size", lowest, highest)
    for symbol in sizes.symbols:
        check_range(place, "symbol", symbol, UINT32_MAX)


def _check_structure(place: str, structure: Structure, structures: int) -> int:
    level = [structure]
    structures -= 1
    for _ in range(MAX_STRUCTURE_DEPTH):
        structures -= sum(len(node.children) for node in level)
        if structures < 0:
            raise ContextFormatError(
                f"{place}: the record has more than {MAX_STRUCTURES} structures"
            )
        for node in level:
            _check_node(place, node)
        level = [child for node in level for child in node.children]
        if not level:
            return structures
    raise ContextFormatError(f"{place}: nested more than {MAX_STRUCTURE_DEPTH} deep")


def _check_node(place: str, node: Structure) -> None:
    if node.kind is StructureKind.LEAF and node.children:
        raise ContextFormatError(f"{place}: a leaf has children")
    has_keys = node.kind in (StructureKind.DICT, StructureKind.CUSTOM)
    if len(node.keys) != (len(node.children) if has_keys else 0):
        raise ContextFormatError(
            f"{place}: {len(node.keys)} keys for {len(node.children)} children "
            f"of a {node.kind.name}"
        )
    if len(set(node.keys)) != len(node.keys):
        raise ContextFormatError(f"{place}: keys of a {node.kind.name} repeat")
    for key in node.keys:
        check_text(place, key)
    if node.kind is StructureKind.CUSTOM:
        check_name(f"{place}: type", node.type_name)
    elif node.type_name:
        raise ContextFormatError(
            f"{place}: a {node.kind.name} has the type name '{node.type_name}'"
        )
