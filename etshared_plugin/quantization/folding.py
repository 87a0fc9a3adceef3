"""A converted module as an ExportedProgram, with weights stored quantized."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    TensorArgument,
)

from ..lifted.graph_surgery import as_identifier
from ..lifted.program_surgery import (
    Inputs,
    assemble,
    buffer_input,
    inputs_of,
    order_inputs,
    outputs_of,
)
from .constants import Constants

#: Arguments of quantize and dequantize operators that may be tensors.
_PARAMETERS = {1: "scale", 2: "zero_point"}


def program_of(
    module: fx.GraphModule,
    program: ExportedProgram,
    state_count: int,
    known: dict[str, list[torch.Tensor]],
) -> ExportedProgram:
    """Make a program of a module that `convert_pt2e` has left unfolded.

    Weights that are quantized are stored so under the fqn that they had, or that
    and a number where the same program uses it otherwise too. Their scales and
    zero points have the fqn with ``_scale`` and ``_zero_point`` behind it.

    Args:
        module: changed.
        program: what the module was made of, for its inputs and outputs.
        state_count: how many user inputs are state.
        known: constants of other programs, by fqn, to share; is added to.
    """
    graph = module.graph
    folded = _fold_quantized(module)
    graph.eliminate_dead_code()
    attributes: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            attributes.setdefault(str(node.target), []).append(node)
    names = _names(graph, folded, {*attributes})
    user_inputs: Inputs = list(
        zip(
            [node for node in graph.nodes if node.op == "placeholder"],
            [s for _, s in inputs_of(program) if s.kind is InputKind.USER_INPUT],
            strict=True,
        )
    )
    fake_mode = torch._guards.detect_fake_mode(
        [node.meta["val"] for node in graph.nodes if "val" in node.meta]
    )
    constants: Inputs = []
    tensors: dict[str, torch.Tensor] = {}
    first = next(iter(graph.nodes))
    for target, nodes in attributes.items():
        tensor = operator.attrgetter(target)(module)
        if isinstance(tensor, nn.Module):
            continue  # a branch of control flow
        fqn = names.get(target, target)
        tensors[fqn] = tensor = _shared(tensor, known.setdefault(fqn, []))
        with graph.inserting_before(first):
            placeholder = graph.placeholder(as_identifier(f"c_{fqn}"))
        if fake_mode is not None:
            placeholder.meta["val"] = fake_mode.from_tensor(tensor, static_shapes=True)
        for node in nodes:
            node.replace_all_uses_with(placeholder)
            graph.erase_node(node)
        constants.append((placeholder, _constant_input(placeholder, fqn, tensor)))
    _infer(graph, fake_mode)
    values = graph.output_node().args[0]
    assert isinstance(values, tuple | list)
    return assemble(
        program,
        graph,
        order_inputs(
            [*constants, *user_inputs[state_count:]], user_inputs[:state_count]
        ),
        [
            (value, spec)
            for value, (_, spec) in zip(values, outputs_of(program), strict=True)
        ],
        state_dict=tensors,
    )


def _constant_input(node: fx.Node, fqn: str, tensor: torch.Tensor) -> InputSpec:
    if isinstance(tensor, nn.Parameter):
        return InputSpec(InputKind.PARAMETER, TensorArgument(node.name), fqn)
    return buffer_input(node, fqn)


def _shared(tensor: torch.Tensor, known: list[torch.Tensor]) -> torch.Tensor:
    """Return an equal tensor that another program has, if there is one."""
    for one in known:
        if one is tensor or (
            type(one) is type(tensor)
            and one.dtype == tensor.dtype
            and one.shape == tensor.shape
            and one.stride() == tensor.stride()
            and torch.equal(one, tensor)
        ):
            return one
    known.append(tensor)
    return tensor


def _fold_quantized(module: fx.GraphModule) -> dict[str, str]:
    """Replace quantization of constants by its results.

    Returns:
        The fqn of the tensor that was quantized, by the result's.
    """
    graph = module.graph
    constants = Constants(module)
    folded: dict[str, str] = {}
    for node in list(graph.nodes):
        if node not in constants or not _quantizes(node):
            continue
        target = f"_quantized_{len(folded)}"
        module.register_buffer(target, constants.value(node))
        folded[target] = _source(node)
        with graph.inserting_before(node):
            stored = graph.get_attr(target)
        node.replace_all_uses_with(stored)
        graph.erase_node(node)
    return folded


def _quantizes(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in (
        "quantized_decomposed::quantize_per_tensor",
        "quantized_decomposed::quantize_per_channel",
        "torchao::quantize_affine",
    )


def _source(node: fx.Node) -> str:
    while node.op != "get_attr":
        node = node.all_input_nodes[0]
    return str(node.target)


def _names(graph: fx.Graph, folded: dict[str, str], taken: set[str]) -> dict[str, str]:
    """Name folded weights and their parameters after the weights."""
    names: dict[str, str] = {}

    def name(target: str, wanted: str) -> None:
        candidate, count = wanted, 0
        while candidate in taken:
            count += 1
            candidate = f"{wanted}_{count}"
        taken.add(candidate)
        names[target] = candidate

    for target, fqn in folded.items():
        if target in taken:
            name(target, fqn)
    for node in graph.nodes:
        if node.op != "get_attr" or node.target not in folded:
            continue
        for user in node.users:
            for position, suffix in _PARAMETERS.items():
                one = user.args[position] if position < len(user.args) else None
                if isinstance(one, fx.Node) and one.op == "get_attr":
                    if str(one.target) not in names:
                        name(str(one.target), f"{names[str(node.target)]}_{suffix}")
    return names


def _infer(graph: fx.Graph, fake_mode: Any) -> None:  # noqa: ANN401
    """Give nodes that quantization has added the values that torch.export gives."""

    def known(node: fx.Node) -> Any:  # noqa: ANN401
        return node.meta["val"]

    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            args, kwargs = fx.map_arg((node.args, node.kwargs), known)
            with fake_mode:
                node.meta["val"] = node.target(*args, **kwargs)
