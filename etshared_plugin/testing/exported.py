"""What exported programs do for a sequence of calls, in torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..capture.calls import AnyCall, calls_of, is_reset
from ..capture.exported_session import ExportedSession, lift_programs
from ..capture.given_inputs import flat_inputs
from .eager import Outcome


def exported_outcomes(
    programs: ExportedProgram | Mapping[str, ExportedProgram], calls: Iterable[AnyCall]
) -> list[Outcome]:
    """Make calls on exported programs, such as those that were quantized.

    They are the reference for what a backend makes of them, to the accuracy of its
    rounding, while the eager module is what shows how good the quantization is.

    Raises:
        InputError: a call names no entry point, or does not fit it.
    """
    lifted, state = lift_programs(programs)
    session = ExportedSession(lifted, state)
    outcomes = []
    for one in calls_of(calls):
        result = session.call(one)
        inputs = (
            []
            if is_reset(one, lifted)
            else flat_inputs(one.name, lifted[one.name], one.args, one.kwargs)
        )
        values = pytree.tree_map_only(
            torch.Tensor, torch.clone, (result, dict(session.state))
        )
        outcomes.append(Outcome(one, inputs, *values))
    return outcomes
