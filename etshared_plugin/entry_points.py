"""Export several methods of one module, with the state that they share."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from .errors import EntryPointError, EtsharedError, StateError
from .lifted_state import (
    CallingConvention,
    LiftedProgram,
    functionalize,
    keep,
    restore,
)
from .program_surgery import assemble, inputs_of, outputs_of, rename_placeholder
from .state import SharedState, select_state
from .tracing import TracedMethod, aliases, buffer_owners, untouched


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A method to export, with example inputs.

    Args:
        fn: a bound method of the root or of one of its submodules, a
            `functools.partial` of one, or a function. A function that takes one
            more positional argument than ``args`` gives gets the root as its
            first.
        args: example positional inputs, as for `torch.export.export`.
        kwargs: example keyword inputs.
        dynamic_shapes: as for `torch.export.export`, by the names of the
            function's own arguments.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None


class ExportedEntryPoints(dict[str, ExportedProgram]):
    """Exported programs by entry-point name, with the state that they share.

    Names in every program are relative to the root. ``state`` maps the fqn of
    each shared buffer to its initial value and other names.
    """

    def __init__(
        self, programs: Mapping[str, ExportedProgram], state: SharedState
    ) -> None:
        super().__init__(programs)
        self.state = state


def export(
    root: nn.Module,
    entry_points: Mapping[str, EntryPoint],
    *,
    state: Sequence[str] | None = None,
) -> ExportedEntryPoints:
    """Export methods of ``root`` so that they share weights and state.

    Args:
        root: the module that all names are relative to. It is left as it was.
        entry_points: what to export, by the names to export it under.
        state: fqns of the buffers to share, or globs that match whole fqns; by
            default every buffer that any entry point writes.

    Returns:
        A dict of ExportedPrograms, functional, with their state as mutated
        buffers. Their parameters and constants share memory with ``root``;
        initial values of state are copies.

    Raises:
        EntryPointError: an entry point does what cannot be exported faithfully.
        StateError: the state of the entry points does not fit together.
    """
    if not entry_points:
        raise EntryPointError("there is no entry point to export")
    owners = buffer_owners(root)
    tensors = {
        fqn: places[0][0]._buffers[places[0][1]] for fqn, places in owners.items()
    }
    buffers = {fqn: t for fqn, t in tensors.items() if t is not None}
    lifted = {
        name: _trace(root, name, entry_point, owners, buffers)
        for name, entry_point in entry_points.items()
    }
    written_by: dict[str, list[str]] = {}
    for name, program in lifted.items():
        for fqn in program.outputs:
            written_by.setdefault(fqn, []).append(name)
    shared = select_state(buffers, written_by, state, aliases(root, owners))
    initial_values = {fqn: buffer.initial_value for fqn, buffer in shared.items()}
    return ExportedEntryPoints(
        {
            name: restore(keep(program, shared), initial_values)
            for name, program in lifted.items()
        },
        shared,
    )


def _trace(
    root: nn.Module,
    name: str,
    entry_point: EntryPoint,
    owners: Mapping[str, list[tuple[nn.Module, str]]],
    buffers: Mapping[str, torch.Tensor],
) -> LiftedProgram:
    function, bound = _bind(root, name, entry_point)
    shapes = _dynamic_shapes(name, entry_point.dynamic_shapes, bound)
    names = _argument_names(bound)
    # Copies: an example that is a buffer of the module, or given twice, would
    # be taken for one tensor.
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone(), (bound.args, dict(bound.kwargs))
    )
    state = [
        t.detach().clone(memory_format=torch.contiguous_format)
        for t in buffers.values()
    ]
    try:
        with untouched(root, name), torch.no_grad(), warnings.catch_warnings():
            # Lists of RNN weights follow the parameters that tracing swaps in.
            warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights")
            for places in owners.values():
                for module, buffer in places:
                    del module._buffers[buffer]
            program = torch.export.export(
                TracedMethod(root, name, function, owners),
                (state, args, kwargs),
                dynamic_shapes=shapes and ([None] * len(state), *shapes),
            )
        _, in_spec = pytree.tree_flatten((args, kwargs))
        assert program.call_spec.out_spec is not None
        out_spec = program.call_spec.out_spec.child(1)
        lifted = LiftedProgram(
            program,
            inputs=tuple(buffers),
            outputs=tuple(buffers),
            call=CallingConvention(in_spec, out_spec, tuple(names)),
        )
        # Buffers are no longer the module's: the program holds them.
        program.state_dict.update(buffers)
        lifted = functionalize(lifted)
    except EtsharedError:
        raise
    except Exception as error:
        raise EntryPointError(
            f"entry point '{name}' cannot be exported: {error}", method_name=name
        ) from error
    _refuse_other_writes(name, lifted)
    return _name_inputs(lifted, names)


def _bind(
    root: nn.Module, name: str, entry_point: EntryPoint
) -> tuple[Callable[..., Any], inspect.BoundArguments]:
    function = entry_point.fn
    method = function
    while isinstance(method, functools.partial):
        method = method.func
    owner = getattr(method, "__self__", None)
    if isinstance(method, nn.Module):
        owner = method
    if isinstance(owner, nn.Module) and all(m is not owner for m in root.modules()):
        raise EntryPointError(
            f"entry point '{name}' belongs to a {type(owner).__name__} that is not"
            f" part of the root {type(root).__name__}; pass a root that holds it",
            method_name=name,
        )
    if not callable(function):
        raise EntryPointError(
            f"entry point '{name}' is a {type(function).__name__}, expected a method",
            method_name=name,
        )
    signature = inspect.signature(
        function.forward if isinstance(function, nn.Module) else function
    )
    kwargs = dict(entry_point.kwargs or {})
    try:
        return function, signature.bind(*entry_point.args, **kwargs)
    except TypeError as error:
        if owner is None:
            with_root = functools.partial(function, root)
            try:
                return with_root, inspect.signature(with_root).bind(
                    *entry_point.args, **kwargs
                )
            except TypeError:
                pass
        raise EntryPointError(
            f"example inputs of entry point '{name}' do not fit its signature"
            f" {signature}: {error}",
            method_name=name,
        ) from error


def _argument_names(bound: inspect.BoundArguments) -> list[str]:
    """Name each value of ``bound.args`` and then of ``bound.kwargs``."""
    names: list[str] = []
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}[{i}]" for i in range(len(value))]
        elif len(names) < len(bound.args):
            names.append(name)
    return [*names, *bound.kwargs]


def _dynamic_shapes(
    name: str,
    shapes: Any,
    bound: inspect.BoundArguments,  # noqa: ANN401
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Bring a caller's dynamic shapes into the form (args, kwargs)."""
    if shapes is None:
        return None
    if hasattr(shapes, "dynamic_shapes"):  # ShapesCollection, AdditionalInputs
        shapes = shapes.dynamic_shapes(_Callable(bound), bound.args, bound.kwargs)
    if isinstance(shapes, tuple | list):
        shapes = dict(zip(bound.arguments, shapes, strict=False))
    unknown = [
        key
        for key in shapes
        if key not in bound.signature.parameters and key not in bound.kwargs
    ]
    if unknown:
        raise EntryPointError(
            f"dynamic shapes of entry point '{name}' name '{unknown[0]}', which is no"
            f" argument; its arguments are {', '.join(bound.arguments)}",
            method_name=name,
        )
    args: list[Any] = []
    for argument, value in bound.arguments.items():
        shape = shapes.get(argument)
        if bound.signature.parameters[argument].kind is (
            inspect.Parameter.VAR_POSITIONAL
        ):
            args += list(shape) if shape is not None else [None] * len(value)
        else:
            args.append(shape)
    nested = {}
    for argument, shape in shapes.items():
        parameter = bound.signature.parameters.get(argument)
        if parameter is not None and parameter.kind is parameter.VAR_KEYWORD:
            nested.update(shape or {})
    kwargs = {key: {**shapes, **nested}.get(key) for key in bound.kwargs}
    return tuple(args[: len(bound.args)]), kwargs


class _Callable(nn.Module):
    """Has the signature that torch resolves a ShapesCollection against."""

    def __init__(self, bound: inspect.BoundArguments) -> None:
        super().__init__()
        self.forward = lambda *args, **kwargs: None
        self.forward.__signature__ = bound.signature  # type: ignore[attr-defined]


def _refuse_other_writes(name: str, lifted: LiftedProgram) -> None:
    """Refuse writes to anything but buffers."""
    for spec in lifted.program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            continue
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise EntryPointError(
                f"entry point '{name}' writes into its argument"
                f" '{_argument_of(lifted, str(spec.target))}', and ExecuTorch"
                " leaves the caller's tensor as it is; return the value instead",
                method_name=name,
            )
        raise StateError(
            f"entry point '{name}' writes '{spec.target}', which is no buffer;"
            " register it as a buffer",
            method_name=name,
            fqn=spec.target,
        )


def _argument_of(lifted: LiftedProgram, placeholder: str) -> str:
    names = _leaf_names(lifted.call)
    nodes = [
        node.name
        for node, spec in inputs_of(lifted.program)
        if spec.kind is InputKind.USER_INPUT
    ][len(lifted.inputs) :]
    return dict(zip(nodes, names, strict=True)).get(placeholder, placeholder)


def _leaf_names(call: CallingConvention) -> list[str]:
    """Name each flat input after the argument that it belongs to."""
    args, kwargs = call.in_spec.children()
    arguments = [*args.children(), *kwargs.children()]
    return [
        argument if spec.num_leaves == 1 else f"{argument}_{i}"
        for argument, spec in zip(call.argument_names, arguments, strict=True)
        for i in range(spec.num_leaves)
    ]


def _name_inputs(lifted: LiftedProgram, names: Sequence[str]) -> LiftedProgram:
    """Name placeholders after the arguments of the Python signature."""
    program = lifted.program
    taken = set(lifted.inputs)
    inputs = inputs_of(program)
    user_inputs = [n for n, spec in inputs if spec.kind is InputKind.USER_INPUT]
    for node, name in zip(
        user_inputs[len(lifted.inputs) :], _leaf_names(lifted.call), strict=True
    ):
        readable = "".join(c if c.isalnum() else "_" for c in name).strip("_")
        rename_placeholder(node, readable, taken)
    return replace(
        lifted,
        program=assemble(program, program.graph, inputs, outputs_of(program)),
    )
