"""What a traced program does that ExecuTorch 1.5.1 would get wrong in silence."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from .errors import EntryPointError, StateError
from .lifted_state import LiftedProgram
from .program_surgery import inputs_of
from .signatures import leaf_names


def refuse_unfaithful(name: str, lifted: LiftedProgram) -> None:
    """Refuse a functional program that cannot equal the eager entry point.

    Raises:
        EntryPointError: it writes into an argument, or has several control-flow
            operators.
        StateError: it writes something that is no buffer.
    """
    for spec in lifted.program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise EntryPointError(
                f"entry point '{name}' writes into its argument"
                f" '{_argument_of(lifted, str(spec.target))}', and ExecuTorch"
                " leaves the caller's tensor as it is; return the value instead",
                method_name=name,
            )
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise StateError(
                f"entry point '{name}' writes '{spec.target}', which is no buffer;"
                " register it as a buffer",
                method_name=name,
                fqn=spec.target,
            )
    operators = list(_control_flow(lifted.program.graph_module))
    if len(operators) > 1:
        raise EntryPointError(
            f"entry point '{name}' has {len(operators)} control-flow operators"
            f" ({', '.join(operators)}), and in ExecuTorch 1.5.1 one overwrites the"
            " results of another; use torch.where, or split the entry point",
            method_name=name,
        )


def _argument_of(lifted: LiftedProgram, placeholder: str) -> str:
    nodes = [
        node.name
        for node, spec in inputs_of(lifted.program)
        if spec.kind is InputKind.USER_INPUT
    ][len(lifted.inputs) :]
    names = leaf_names(lifted.call)
    return dict(zip(nodes, names, strict=False)).get(placeholder, placeholder)


def _control_flow(graph_module: fx.GraphModule) -> Iterator[str]:
    for node in graph_module.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            yield str(node.target)
    for child in graph_module.children():
        if isinstance(child, fx.GraphModule):
            yield from _control_flow(child)
