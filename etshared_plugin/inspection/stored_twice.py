"""Weights that a program holds for its own kernels and once more for delegates."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..context import SharedContext, Weight
from ..pte import PteFile
from ..wording import quoted
from .findings import Finding, Severity

#: Below this a second copy is not worth a note.
WORTH_NBYTES = 1024


@dataclass(frozen=True, slots=True)
class StoredTwice:
    """A weight with what is to be said of it; ``digest`` is that of the kernels'."""

    digest: bytes
    finding: Finding


def common_keys(program: PteFile) -> set[str]:
    """Return the keys of named data that are the very bytes of a constant."""
    places = program.constant_places()
    return {
        key
        for key, index in program.named_data_segments.items()
        if program.segments[index] in places
    }


def weights_stored_twice(context: SharedContext, program: PteFile) -> list[StoredTwice]:
    """Return what kernels read from the constant segment and delegates as named data.

    Delegates have the same bytes, or those of the same name in another order.
    """
    found: list[StoredTwice] = []
    of_kernels: dict[bytes, list[Weight]] = {}
    for weight in context.weights:
        if not weight.keys and weight.nbytes >= WORTH_NBYTES:
            of_kernels.setdefault(weight.digest, []).append(weight)
    once = common_keys(program)
    of_delegates = [
        weight
        for weight in context.weights
        if weight.keys and not weight.external and once.isdisjoint(weight.keys)
    ]
    for digest, in_kernels in of_kernels.items():
        in_delegates = [
            weight
            for weight in of_delegates
            if weight.delegates
            and weight.nbytes == in_kernels[0].nbytes
            and (
                weight.digest == digest
                or any(_is_reordered(context, program, w, weight) for w in in_kernels)
            )
        ]
        if in_delegates:
            finding = _finding(context, in_kernels, in_delegates)
            found.append(StoredTwice(digest, finding))
    return sorted(found, key=lambda one: one.finding.place)


def _finding(
    context: SharedContext, in_kernels: list[Weight], in_delegates: list[Weight]
) -> Finding:
    names = {fqn for weight in (*in_kernels, *in_delegates) for fqn in weight.fqns}
    of_kernels = {i for weight in in_kernels for i in weight.entry_points}
    delegates = [
        context.delegates[i] for weight in in_delegates for i in weight.delegates
    ]
    backends = sorted({delegate.backend_id for delegate in delegates})
    of_delegates = {delegate.entry_point for delegate in delegates}
    same_bytes = all(one.digest == in_kernels[0].digest for one in in_delegates)
    return Finding(
        Severity.NOTE,
        "stored-twice",
        f"its {in_kernels[0].nbytes} bytes are stored for kernels of "
        f"{_methods(context, of_kernels)} and again"
        f"{'' if same_bytes else ', in another layout,'} for {', '.join(backends)} in "
        f"{_methods(context, of_delegates)}: kernels read the program's constants, "
        "delegates its named data; with a partitioner that takes the operators of "
        "this weight in all of these entry points it is stored once",
        f"weight {quoted(sorted(names) or list(in_delegates[0].keys))}",
    )


def _is_reordered(
    context: SharedContext, program: PteFile, constant: Weight, named: Weight
) -> bool:
    if (
        set(constant.fqns).isdisjoint(named.fqns)
        or constant.scalar_type is not named.scalar_type
        or _factors(constant.sizes) != _factors(named.sizes)
        or named.keys[0] not in program.named_data_segments
    ):
        return False
    # One name may stand for several tensors where modules were lowered together.
    data = program.named_data(named.keys[0])
    mine = _stored(context, program, constant)
    itemsize = len(data) // max(1, math.prod(named.sizes))
    if mine is None or len(mine) != len(data) or itemsize not in (1, 2, 4, 8):
        return False
    first, second = (
        np.sort(np.frombuffer(one, f"u{itemsize}")) for one in (mine, data)
    )
    return bool(np.array_equal(first, second))


def _stored(
    context: SharedContext, program: PteFile, constant: Weight
) -> memoryview | None:
    for index in constant.entry_points:
        plan = program.plans.get(context.entry_points[index].name)
        for _, tensor in () if plan is None else plan.tensors():
            data = program.stored_data(tensor) if tensor.is_constant else None
            if data is None or len(data) != constant.nbytes:
                continue
            if hashlib.sha256(data).digest() == constant.digest:
                return data
    return None


def _factors(sizes: tuple[int, ...]) -> list[int]:
    return sorted(size for size in sizes if size != 1)


def _methods(context: SharedContext, indices: Iterable[int]) -> str:
    names = [context.entry_points[index].name for index in sorted(indices)]
    return f"{'entry point' if len(names) == 1 else 'entry points'} {quoted(names)}"
