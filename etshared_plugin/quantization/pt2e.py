"""Quantize entry points with one quantizer, one calibration, one state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from ..capture.calls import AnyCall, Call, calls_of
from ..capture.entry_points import ExportedEntryPoints
from ..capture.exported_session import ExportedSession, lift_programs, module_of
from ..errors import EtsharedError, QuantizationError
from ..lifted.lifted_state import LiftedProgram
from ..lifted.program_surgery import buffer_tensor, inputs_of
from ..lifted.restored_state import restore
from ..lifted.tensor_views import identity
from ..state import SharedState
from ..wording import kind_of, quoted
from .faithful_quantizer import FaithfulQuantizer
from .folding import program_of
from .observers import (
    Observations,
    observe_constants,
    observer_nodes,
    share_observers,
)

Arguments: TypeAlias = Sequence[Any]
Calibration: TypeAlias = Mapping[str, Iterable[Arguments]] | Iterable[AnyCall]


def quantize(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    quantizer: Quantizer,
    calibration: Calibration = (),
) -> ExportedEntryPoints:
    """Quantize entry points as one model, after training.

    A layer is quantized in the same way wherever it is used: its weight has the same
    integers and scales, and its input and its result the range that they have in all
    calls of all entry points. So it is stored and packed once.

    State keeps its dtype. Layers whose weight or bias is state, or an input, stay as
    they are. Shows progress if standard error is a terminal.

    Args:
        programs: what :func:`etshared_plugin.export` returned, or plain programs, or
            one for ``forward``; plain ones share the buffers that they write. They are
            left as they are, and so is the module that they came from.
        quantizer: annotates operators, as for `torchao`'s `prepare_pt2e`.
        calibration: calls ``(name, args)`` or ``(name, args, kwargs)``, or what
            `etshared_plugin.testing.call` makes, in the order in which a user of the
            model makes them, in one life of the state that starts with the initial
            values; ``("reset_state", ())`` starts another. Or, by entry point, the
            args of its calls. May be a generator. Not needed where all activations
            are quantized dynamically.

    Returns:
        Programs for :func:`etshared_plugin.to_edge_transform_and_lower`, with the
        same state and initial values.

    Raises:
        InputError: a call names no entry point, or does not fit it.
        QuantizationError: the quantizer fails or annotates nothing, or no call shows
            the values of something that is quantized statically.
        StateError: the state of plain programs does not fit together.
    """
    lifted, state = lift_programs(programs)
    _check_quantizer(quantizer)
    prepared = {name: _prepared(name, one, quantizer) for name, one in lifted.items()}
    if not any(True for one in prepared.values() for _ in observer_nodes(one)):
        raise QuantizationError(
            f"{type(quantizer).__name__} annotates no operator of entry points"
            f" {quoted(lifted)};"
            " give it a configuration, such as with set_global, that fits what they use"
        )
    share_observers(prepared, {name: _weights(one) for name, one in lifted.items()})
    observations = Observations(prepared)
    for module in prepared.values():
        observe_constants(module)
    _calibrate(lifted, state, prepared, calibration)
    for name, module in prepared.items():
        unseen = observations.unseen(module)
        if unseen is not None:
            raise QuantizationError(
                f"entry point '{name}' has no calibration data for '{unseen.name}'"
                f"{_place(unseen)}; add calls of '{name}' to 'calibration', or quantize"
                " activations dynamically",
                method_name=name,
            )
    observations.end()
    known: dict[str, list[torch.Tensor]] = {}
    initial_values = {f: buffer.initial_value.clone() for f, buffer in state.items()}
    return ExportedEntryPoints(
        {
            name: restore(_converted(name, one, prepared[name], known), initial_values)
            for name, one in lifted.items()
        },
        state,
    )


def _check_quantizer(quantizer: object) -> None:
    is_instance = not isinstance(quantizer, type)
    if not is_instance or not callable(getattr(quantizer, "annotate", None)):
        raise QuantizationError(
            f"quantizer is {kind_of(quantizer)}, expected a quantizer as for torchao's"
            " prepare_pt2e, such as XNNPACKQuantizer()"
        )


def _weights(lifted: LiftedProgram) -> dict[str, object]:
    """Return what tensors of a program are known by in all programs, by fqn."""
    fqns = {
        str(spec.target)
        for _, spec in inputs_of(lifted.program)
        if spec.kind is not InputKind.USER_INPUT
    }
    known = {fqn: identity(buffer_tensor(lifted.program, fqn)) for fqn in fqns}
    return {fqn: one for fqn, one in known.items() if one is not None}


def _prepared(name: str, lifted: LiftedProgram, quantizer: Quantizer) -> fx.GraphModule:
    with _torchao_errors(name):
        prepared: fx.GraphModule = prepare_pt2e(
            module_of(lifted.program), FaithfulQuantizer(quantizer)
        )
    return prepared


def _calibrate(
    lifted: Mapping[str, LiftedProgram],
    state: SharedState,
    prepared: Mapping[str, fx.GraphModule],
    calibration: Calibration,
) -> None:
    session = ExportedSession(lifted, state, prepared)
    calls: Iterator[Call]
    sources: Iterable[object]
    if isinstance(calibration, Mapping):
        calls, sources = calls_of(_by_turns(calibration)), calibration.values()
    else:
        calls, sources = calls_of(calibration, "calibration"), [calibration]
    sizes = [len(one) if isinstance(one, Sized) else None for one in sources]
    total = None if None in sizes else sum(filter(None, sizes))
    for number, one in enumerate(_shown(calls, total), 1):
        try:
            session.call(one)
        except EtsharedError:
            raise
        except Exception as error:
            raise QuantizationError(
                f"call {number} of the calibration, {one}, fails:"
                f" {type(error).__name__}: {error}; does it have NaN or infinity?",
                method_name=one.name,
            ) from error


def _by_turns(
    calibration: Mapping[str, Iterable[Arguments]],
) -> Iterator[tuple[str, Arguments]]:
    for name, several in calibration.items():
        for args in several:
            yield name, args


def _shown(calls: Iterator[Call], total: int | None) -> Iterator[Call]:
    """Pass calls on, with a bar on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("calibrating"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield from progress.track(calls, total)


def _converted(
    name: str,
    lifted: LiftedProgram,
    prepared: fx.GraphModule,
    known: dict[str, list[torch.Tensor]],
) -> LiftedProgram:
    with _torchao_errors(name):
        module = convert_pt2e(prepared, fold_quantize=False)
        program = program_of(module, lifted.program, len(lifted.inputs), known)
    return replace(lifted, program=program)


@contextmanager
def _torchao_errors(name: str) -> Iterator[None]:
    try:
        yield
    except EtsharedError:
        raise
    except Exception as error:
        raise QuantizationError(
            f"entry point '{name}' cannot be quantized:"
            f" {type(error).__name__}: {error}",
            method_name=name,
        ) from error


def _place(node: fx.Node) -> str:
    """Name the module that a value belongs to, if it is known."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0].removeprefix("L['self']").removeprefix(".") if stack else ""
    return f" of '{path}'" if path else ""
