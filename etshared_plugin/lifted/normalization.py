"""Batch normalization with parameters or statistics that change from call to call."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from .graph_surgery import insert_call
from .lifted_state import LiftedProgram
from .program_surgery import CONSTANT_INPUTS, inputs_of

_aten = torch.ops.aten


def use_live_statistics(lifted: LiftedProgram) -> LiftedProgram:
    """Write batch normalization out where it does not take constants only.

    Delegates fold its parameters and statistics into a convolution before it,
    whatever they are. The graph is changed in place.
    """
    inputs = inputs_of(lifted.program)
    constants = {node for node, spec in inputs if spec.kind in CONSTANT_INPUTS}
    graph = lifted.program.graph
    for node in list(graph.nodes):
        if node.target is not _aten._native_batch_norm_legit_no_training.default:
            continue
        given = {value for value in node.args[1:5] if value is not None}
        users = list(node.users)
        if given <= constants or any(
            user.target is not operator.getitem or user.args[1] != 0 for user in users
        ):
            continue
        with graph.inserting_before(node):
            result = _normalize(graph, *node.args)
        for user in users:
            user.replace_all_uses_with(result)
            graph.erase_node(user)
        graph.erase_node(node)
    return lifted


def _normalize(
    graph: fx.Graph,
    x: fx.Node,
    weight: fx.Node | None,
    bias: fx.Node | None,
    mean: fx.Node,
    variance: fx.Node,
    momentum: float,
    eps: float,
) -> fx.Node:
    sizes = [-1] + [1] * (x.meta["val"].dim() - 2)

    def call(target: Any, *args: object) -> fx.Node:  # noqa: ANN401
        return insert_call(graph, target, *args)

    def spread(values: fx.Node) -> fx.Node:
        return call(_aten.view.default, values, sizes)

    scale = call(_aten.rsqrt.default, call(_aten.add.Tensor, variance, eps))
    if weight is not None:
        scale = call(_aten.mul.Tensor, scale, weight)
    result = call(_aten.sub.Tensor, x, spread(mean))
    result = call(_aten.mul.Tensor, result, spread(scale))
    return result if bias is None else call(_aten.add.Tensor, result, spread(bias))
