"""Rules that a record must satisfy; ``schema/README.md`` states them in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import ContextFormatError
from ..wording import quoted
from .checks import (
    NBYTES_MAX,
    UINT32_MAX,
    check_ascending,
    check_digest,
    check_index,
    check_name,
    check_names,
    check_range,
    check_shape,
    check_text,
)
from .model import (
    CONTEXT_VERSION,
    Access,
    Arena,
    ArenaKind,
    Buffer,
    Delegate,
    SharedContext,
    Weight,
)
from .signatures import MAX_STRUCTURES, check_signature


def validate(context: SharedContext) -> None:
    """Check everything that a reader relies on.

    Raises:
        ContextFormatError: naming the first thing that is wrong.
    """
    if context.version != CONTEXT_VERSION:
        raise ContextFormatError(
            f"the record has version {context.version}, expected {CONTEXT_VERSION}; "
            "use the release of etshared_plugin that the program was made with"
        )
    producer = context.producer
    for value in (producer.package, producer.executorch, producer.torch):
        check_text("producer", value)
    _check_arenas(context.arenas)
    _check_buffers(context.buffers, {arena.mem_id: arena for arena in context.arenas})
    _check_entry_points(context)
    _check_delegates(context)
    _check_weights(context)
    plugins = [extension.plugin for extension in context.extensions]
    check_ascending("extensions", plugins)
    for extension in context.extensions:
        check_name("extension", extension.plugin)
        place = f"extension '{extension.plugin}'"
        check_range(place, "version", extension.version, UINT32_MAX)


def _check_arenas(arenas: Sequence[Arena]) -> None:
    check_ascending("arenas", [arena.mem_id for arena in arenas])
    for arena in arenas:
        place = f"arena {arena.mem_id}"
        check_range(place, "mem_id", arena.mem_id, UINT32_MAX, lowest=1)
        check_range(place, "nbytes", arena.nbytes, NBYTES_MAX)
        check_range(place, "alignment", arena.alignment, UINT32_MAX, lowest=1)
        if arena.alignment & (arena.alignment - 1):
            raise ContextFormatError(
                f"{place}: alignment {arena.alignment} is not a power of two"
            )
        if (arena.kind is ArenaKind.ACTIVATIONS) != (arena.mem_id == 1):
            raise ContextFormatError(
                f"{place}: kind is {arena.kind.name}; activations, and nothing "
                "else, have mem_id 1"
            )


def _check_buffers(buffers: Sequence[Buffer], arenas: dict[int, Arena]) -> None:
    names: set[str] = set()
    groups: list[str] = []
    previous: Buffer | None = None
    for buffer in buffers:
        check_name("buffer", buffer.fqn)
        place = f"buffer '{buffer.fqn}'"
        check_names(f"{place}: aliases", buffer.aliases)
        check_text(place, buffer.group)
        for name in (buffer.fqn, *buffer.aliases):
            if name in names:
                raise ContextFormatError(f"{place}: name '{name}' is used twice")
            names.add(name)
        if not groups or groups[-1] != buffer.group:
            if buffer.group in groups:
                raise ContextFormatError(
                    f"{place}: group '{buffer.group}' is not contiguous"
                )
            groups.append(buffer.group)
        check_shape(place, buffer.sizes)
        if sorted(buffer.dim_order) != list(range(len(buffer.sizes))):
            raise ContextFormatError(
                f"{place}: dim order {list(buffer.dim_order)} is not a permutation "
                f"of {len(buffer.sizes)} dimensions"
            )
        expected = math.prod(buffer.sizes) * buffer.scalar_type.itemsize
        if buffer.nbytes != expected:
            raise ContextFormatError(
                f"{place}: {buffer.nbytes} bytes, expected {expected} for "
                f"{buffer.scalar_type.dtype_name}{list(buffer.sizes)}"
            )
        _check_placement(place, buffer, arenas.get(buffer.mem_id))
        if previous is not None:
            _check_order(place, previous, buffer)
        previous = buffer


def _check_placement(place: str, buffer: Buffer, arena: Arena | None) -> None:
    if arena is None or arena.kind is not ArenaKind.SHARED_STATE:
        raise ContextFormatError(
            f"{place}: mem_id {buffer.mem_id} is no arena of shared state"
        )
    check_range(place, "offset", buffer.offset, NBYTES_MAX)
    if buffer.offset % math.lcm(arena.alignment, buffer.scalar_type.itemsize):
        raise ContextFormatError(
            f"{place}: offset {buffer.offset} is not aligned to {arena.alignment}"
        )
    if buffer.offset + buffer.nbytes > arena.nbytes:
        raise ContextFormatError(
            f"{place}: bytes {buffer.offset} to {buffer.offset + buffer.nbytes} lie "
            f"outside arena {arena.mem_id} of {arena.nbytes} bytes"
        )


def _check_order(place: str, previous: Buffer, buffer: Buffer) -> None:
    if (previous.mem_id, previous.offset) > (buffer.mem_id, buffer.offset):
        raise ContextFormatError(
            f"{place}: buffers are not ascending by mem_id and offset"
        )
    end = previous.offset + previous.nbytes
    if previous.mem_id == buffer.mem_id and buffer.offset < end:
        raise ContextFormatError(f"{place}: overlaps buffer '{previous.fqn}'")


def _check_entry_points(context: SharedContext) -> None:
    check_ascending("entry points", [entry.name for entry in context.entry_points])
    delegates: list[list[int]] = [[] for _ in context.entry_points]
    for index, delegate in enumerate(context.delegates):
        check_index(f"delegate {index}: entry point", delegate.entry_point, delegates)
        delegates[delegate.entry_point].append(index)
    activation_nbytes = sum(
        arena.nbytes for arena in context.arenas if arena.kind is ArenaKind.ACTIVATIONS
    )
    structures = MAX_STRUCTURES
    for entry, expected in zip(context.entry_points, delegates, strict=True):
        check_name("entry point", entry.name)
        place = f"entry point '{entry.name}'"
        structures = check_signature(place, entry, structures)
        uses = [use.buffer for use in entry.buffers]
        check_ascending(f"{place}: buffers", uses)
        for use in uses:
            check_index(f"{place}: buffer", use, context.buffers)
        if list(entry.delegates) != expected:
            raise ContextFormatError(
                f"{place}: delegates are {list(entry.delegates)}, expected {expected}"
            )
        check_range(
            place, "activation_nbytes", entry.activation_nbytes, activation_nbytes
        )
    _check_generated(context)


def _check_generated(context: SharedContext) -> None:
    generated = [entry for entry in context.entry_points if entry.generated]
    if len(generated) > 1:
        names = quoted(entry.name for entry in generated)
        raise ContextFormatError(
            f"entry points {names} are all generated, expected one"
        )
    written = {
        use.buffer
        for entry in generated
        for use in entry.buffers
        if use.access is not Access.READ
    }
    for index, buffer in enumerate(context.buffers):
        if index not in written:
            raise ContextFormatError(
                f"buffer '{buffer.fqn}': no generated entry point writes its "
                "initial value"
            )
    for entry in generated:
        if entry.arguments:
            raise ContextFormatError(
                f"entry point '{entry.name}': generated, but has arguments"
            )


def _check_delegates(context: SharedContext) -> None:
    order = [(delegate.entry_point, delegate.index) for delegate in context.delegates]
    check_ascending("delegates", order)
    users: list[list[int]] = [[] for _ in context.weights]
    for position, delegate in enumerate(context.delegates):
        place = f"delegate {position}"
        _check_delegate(place, delegate)
        for weight in delegate.weights:
            check_index(f"{place}: weight", weight, users)
            users[weight].append(position)
    for position, (weight_record, expected) in enumerate(
        zip(context.weights, users, strict=True)
    ):
        if list(weight_record.delegates) != expected:
            raise ContextFormatError(
                f"weight {position}: delegates are {list(weight_record.delegates)}, "
                f"but {expected} use it"
            )


def _check_delegate(place: str, delegate: Delegate) -> None:
    check_name(f"{place}: backend id", delegate.backend_id)
    check_range(place, "index", delegate.index, UINT32_MAX)
    check_range(place, "payload_nbytes", delegate.payload_nbytes, NBYTES_MAX)
    check_digest(place, delegate.payload_digest)
    check_names(f"{place}: operators", [name for name, _ in delegate.operators])
    for name, count in delegate.operators:
        check_range(place, f"count of '{name}'", count, UINT32_MAX, lowest=1)
    check_ascending(f"{place}: weights", delegate.weights)
    keys = [key for key, _ in delegate.options]
    if len(set(keys)) != len(keys):
        raise ContextFormatError(f"{place}: an option stands twice")
    for key, value in delegate.options:
        check_name(f"{place}: option", key)
        check_text(place, value)


def _check_weights(context: SharedContext) -> None:
    identities: set[str] = set()
    for position, weight in enumerate(context.weights):
        place = f"weight {position}"
        check_name(f"{place}: identity", weight.identity)
        if weight.identity in identities:
            raise ContextFormatError(
                f"{place}: identity '{weight.identity}' stands twice"
            )
        identities.add(weight.identity)
        _check_weight(place, weight)
        for user in weight.entry_points:
            check_index(f"{place}: entry point", user, context.entry_points)


def _check_weight(place: str, weight: Weight) -> None:
    check_digest(place, weight.digest)
    check_range(place, "nbytes", weight.nbytes, NBYTES_MAX)
    check_shape(place, weight.sizes)
    check_names(f"{place}: keys", weight.keys)
    check_names(f"{place}: fqns", weight.fqns)
    check_text(place, weight.quantization)
    check_ascending(f"{place}: entry points", weight.entry_points)
    if weight.external and not (weight.keys and weight.delegates):
        raise ContextFormatError(f"{place}: external, but without key or delegate")
