"""Whether a program still holds the bytes that its record tells of."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

from ..context import CONTEXT_KEY, SharedContext, Weight
from ..pte import PteFile
from ..pte.execution_plan import ExecutionPlan
from .agreement import Problem, recorded_plans
from .stored_twice import WORTH_NBYTES, common_keys


def delegate_problems(context: SharedContext, program: PteFile) -> Iterator[Problem]:
    """Yield delegates that the record or the program lacks, and damaged ones."""
    for entry, plan in recorded_plans(context, program):
        recorded = {
            context.delegates[index].index: context.delegates[index]
            for index in entry.delegates
        }
        for index in sorted(recorded.keys() | set(range(len(plan.delegates)))):
            place = f"entry point '{entry.name}', delegate {index}"
            if index >= len(plan.delegates):
                yield place, "the record names it, the program does not have it"
                continue
            if index not in recorded:
                yield place, "the program has it, the record does not name it"
                continue
            planned, expected = plan.delegates[index], recorded[index]
            if planned.backend_id != expected.backend_id:
                yield (
                    place,
                    f"backend is '{planned.backend_id}', the record says "
                    f"'{expected.backend_id}'",
                )
            payload = program.delegate_payload(planned)
            if len(payload) != expected.payload_nbytes:
                yield (
                    place,
                    f"payload has {len(payload)} bytes, the record says "
                    f"{expected.payload_nbytes}",
                )
            elif _digest(payload) != expected.payload_digest:
                yield place, "payload is damaged: its digest is not the recorded one"


def weight_problems(context: SharedContext, program: PteFile) -> Iterator[Problem]:
    """Yield weights that are missing from the program or damaged."""
    digests: dict[str, set[bytes]] = {}
    for weight in context.weights:
        if weight.external:
            continue
        place = _weight(weight)
        for key in weight.keys:
            if key not in program.named_data_segments:
                yield place, f"the program has no named data '{key}'"
            elif _digest(program.named_data(key)) != weight.digest:
                yield place, f"named data '{key}' is damaged: its digest differs"
        if weight.keys:
            continue
        for index in weight.entry_points:
            plan = program.plans.get(context.entry_points[index].name)
            if plan is None:
                continue
            if plan.name not in digests:
                digests[plan.name] = set(_constant_digests(plan, program))
            if weight.digest not in digests[plan.name]:
                yield (
                    place,
                    f"entry point '{plan.name}' has no constant with the recorded "
                    "digest; it may be damaged",
                )


def repeated_data(program: PteFile, known: Iterable[bytes]) -> Iterator[Problem]:
    """Yield data that the program stores more than once.

    Args:
        known: digests of data whose second copy needs no word.
    """
    known = set(known)
    unnamed = {CONTEXT_KEY, *common_keys(program)}
    places: dict[int, list[str]] = {}
    for key, segment in program.named_data_segments.items():
        if key not in unnamed:
            places.setdefault(segment, []).append(f"named data '{key}'")
    stored = [
        (program.segment_data(segment), names[0]) for segment, names in places.items()
    ]
    stored += [
        (data, f"a constant of entry point '{name}'")
        for data, name in _distinct_constants(program)
    ]
    stored = [item for item in stored if len(item[0]) >= WORTH_NBYTES]
    sizes = Counter(len(data) for data, _ in stored)
    first: dict[bytes, str] = {}
    for data, name in stored:
        if sizes[len(data)] == 1:
            continue
        digest = _digest(data)
        if digest not in first:
            first[digest] = name
        elif digest in known:
            known.remove(digest)
        else:
            yield name, f"its {len(data)} bytes are stored again as {first[digest]}"


def _distinct_constants(program: PteFile) -> Iterator[tuple[memoryview, str]]:
    seen = set[int]()
    for plan in program.plans.values():
        for _, tensor in plan.tensors():
            if not tensor.is_constant or tensor.data_index in seen:
                continue
            data = program.stored_data(tensor)
            if data is not None:
                seen.add(tensor.data_index)
                yield data, plan.name


def _constant_digests(plan: ExecutionPlan, program: PteFile) -> Iterator[bytes]:
    for _, tensor in plan.tensors():
        data = program.stored_data(tensor) if tensor.is_constant else None
        if data is not None:
            yield _digest(data)


def _digest(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def _weight(weight: Weight) -> str:
    return f"weight '{weight.fqns[0] if weight.fqns else weight.identity}'"
