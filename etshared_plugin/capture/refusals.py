"""What a traced program does that ExecuTorch 1.5.1 would get wrong in silence."""

from __future__ import annotations

import torch
from executorch.exir.operator.convert import to_out_variant
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from ..errors import EntryPointError, StateError
from ..lifted.control_flow import control_flow_nodes, graph_modules
from ..lifted.graph_surgery import is_mutating, wrapped_operator
from ..lifted.lifted_state import LiftedProgram
from ..lifted.program_surgery import inputs_of, outputs_of
from ..lifted.signatures import leaf_names
from .export_failures import not_lowered

#: How operators call the argument that switches dropout on.
_TRAINING = frozenset({"train", "training"})

#: Control flow that 1.5.1 turns into instructions.
_LOWERED_CONTROL_FLOW = frozenset({"cond", "map_impl", "scan"})


def refuse_unfaithful(name: str, lifted: LiftedProgram) -> None:
    """Refuse a functional program that cannot equal the eager entry point.

    Raises:
        EntryPointError: it writes into an argument, takes or returns a string, draws or
            drops at random, or has a control-flow operator that ExecuTorch lacks.
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
                f"entry point '{name}' writes '{spec.target}', which is not shared"
                " state; register it as a buffer, or name it in 'state'",
                method_name=name,
                fqn=spec.target,
            )
    for node, argument in inputs_of(lifted.program):
        if isinstance(getattr(argument.arg, "value", None), str):
            raise EntryPointError(
                f"entry point '{name}' takes the string"
                f" '{_argument_of(lifted, node.name)}', which ExecuTorch cannot; give"
                " it with functools.partial, one entry point for each",
                method_name=name,
            )
    for value, _ in outputs_of(lifted.program):
        if isinstance(value, str):
            raise EntryPointError(
                f"entry point '{name}' returns the string '{value}', which ExecuTorch"
                " cannot; return a number in its place",
                method_name=name,
            )
    for node in lifted.program.graph.nodes:
        _refuse_randomness(name, node)
    refuse_control_flow(name, lifted.program.graph_module)
    _refuse_operators(name, lifted.program.graph_module)


def refuse_control_flow(name: str, graph_module: fx.GraphModule) -> None:
    """Refuse operators that ExecuTorch lacks.

    Raises:
        EntryPointError: there is one.
    """
    for module in graph_modules(graph_module):
        for node in control_flow_nodes(module.graph):
            if str(node.target) not in _LOWERED_CONTROL_FLOW:
                raise not_lowered(name, str(node.target))


def _refuse_operators(name: str, graph_module: fx.GraphModule) -> None:
    """Refuse mutating operators that ExecuTorch cannot call where they are."""
    for module in graph_modules(graph_module):
        for node in filter(is_mutating, module.graph.nodes):
            target = wrapped_operator(node)
            operator = target._schema.name
            what = (
                f"entry point '{name}' calls operator '{operator}', which writes into"
            )
            if module is not graph_module:
                raise EntryPointError(
                    f"{what} its argument, in a branch of torch.cond or a loop, where"
                    " ExecuTorch 1.5.1 cannot; call it outside",
                    method_name=name,
                )
            if not _has_out_variant(target):
                raise EntryPointError(
                    f"{what} its argument and has no out variant that ExecuTorch could"
                    f" call; register '{operator}.out', and a kernel for it",
                    method_name=name,
                )


def _has_out_variant(target: torch._ops.OpOverload) -> bool:
    try:
        return bool(to_out_variant(target))
    except (AssertionError, AttributeError, RuntimeError):
        # 1.5.1 looks for what an operator without results cannot have.
        return False


def _refuse_randomness(name: str, node: fx.Node) -> None:
    """Refuse dropout, or the like, that is switched on, and what draws numbers."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if _TRAINING.intersection(names):
        is_training = any(given.get(one) for one in _TRAINING)
        if is_training and given.get("dropout", given.get("p")) != 0:
            raise EntryPointError(
                f"entry point '{name}' has {target} in training mode, which gives"
                " other results at each call; call eval() on the module first",
                method_name=name,
            )
    elif "dropout_p" not in names or given.get("dropout_p"):
        raise EntryPointError(
            f"entry point '{name}' draws random numbers with {target}, other"
            " ones at each call; draw them outside, and give them as an input",
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
