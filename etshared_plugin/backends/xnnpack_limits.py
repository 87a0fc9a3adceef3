"""What XNNPACK's partitioner takes although its lowering cannot compute it.

Each limit is one of 1.5.1: without it lowering fails, the program cannot be loaded or
called, or results are wrong without an error.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.backends.xnnpack.utils.quant_utils import (
    is_dequant,
    is_dynamic_qdq,
    is_quant,
)
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import (
    generate_grouped_partitions_from_list_of_nodes,
)
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.dialects._ops import ops as exir_ops
from torch import fx
from torch.export import ExportedProgram
from torch.fx.passes.infra.partitioner import Partition

from .acyclic_partitions import acyclic

_aten = exir_ops.edge.aten

#: The partitioner's names of what XNNPACK has for bfloat16 too.
_PRODUCTS = ("addmm.default", "linear.default", "mm.default")

#: ``XNN_MAX_TENSOR_DIMS``.
_MOST_DIMENSIONS = 6


def within_limits(partitioner: Partitioner) -> Partitioner:
    """Return a partitioner that leaves what it cannot compute to kernels.

    An ``XnnpackPartitioner`` is copied; any other is returned as it is.
    """
    if not isinstance(partitioner, XnnpackPartitioner):
        return partitioner
    limited = copy.copy(partitioner)
    limited.target_partitioner_configs = {
        target: _limited_config(target, config)
        for target, config in partitioner.target_partitioner_configs.items()
    }
    limited.get_matched_nodes_from_configs = functools.partial(_groups, limited)
    limited.generate_partitions = functools.partial(_partitions, limited)
    return limited


def separate_dynamic_inputs(program: ExportedProgram) -> ExportedProgram:
    """Let each convolution quantize its own input, where that is dynamic.

    Called before decomposition; results stay as they are to the bit. The program
    is not changed.
    """
    if not any(_shared_quantization(node) for node in program.graph.nodes):
        return program
    separated: ExportedProgram = program.run_decompositions({})
    for node in list(separated.graph.nodes):
        chain = _shared_quantization(node)
        if chain:
            _copy_for(node, chain)
    separated.graph_module.recompile()
    return separated


def _shared_quantization(node: fx.Node) -> list[fx.Node]:
    """Return what quantizes a convolution's input, if something else uses it."""
    if node.op != "call_function" or not str(node.target).startswith("aten.conv"):
        return []
    chain = _dynamic_quantization(node.args[0])
    users = {user for one in chain for user in one.users}
    return chain if users - {node, *chain} else []


def _copy_for(user: fx.Node, chain: list[fx.Node]) -> None:
    """Let ``user`` take a copy of a chain of values, which stands last first."""
    copies: dict[fx.Node, fx.Node] = {}
    with user.graph.inserting_before(user):
        for one in reversed(chain):
            copies[one] = user.graph.node_copy(one, lambda node: copies.get(node, node))
    user.replace_input_with(chain[0], copies[chain[0]])
    for one in chain:
        if not one.users:
            user.graph.erase_node(one)


def _limited_config(target: str, config: Any) -> Any:  # noqa: ANN401
    limited = copy.copy(config)
    if target == "convolution.default":
        # XNNPACK has no convolution with a bias that is computed.
        limited.force_non_static_weights_for_f32_linear = False
    constraints: Callable[[fx.Node, ExportedProgram], bool] = limited.check_constraints
    limit = _LIMITS.get(target)

    def check_constraints(node: fx.Node, program: ExportedProgram) -> bool:
        return (
            _has_usual_dimensions(node)
            and _has_signed_integers(node)
            and (target in _PRODUCTS or not _has_bfloat16(node))
            and (limit is None or limit(node))
            and constraints(node, program)
        )

    limited.check_constraints = check_constraints
    return limited


def _groups(
    partitioner: XnnpackPartitioner, program: ExportedProgram
) -> list[list[fx.Node]]:
    """Return nodes that belong together.

    What dynamic quantization computes on the way never leaves a delegate.
    """
    inner = type(partitioner).get_matched_nodes_from_configs
    return [
        group
        for group in inner(partitioner, program)
        if all(
            user in group
            for node in group
            for one in _dynamic_quantization(node)
            for user in one.users
        )
    ]


def _partitions(
    partitioner: XnnpackPartitioner, program: ExportedProgram
) -> list[Partition]:
    """Give convolutions of dynamically quantized inputs delegates of their own.

    In a larger one the lowering changes the layout of all that comes before them,
    also for operators that have already been told their axes.
    """
    groups = partitioner.get_matched_nodes_from_configs(program)
    apart = [group for group in groups if any(map(_is_dynamic_convolution, group))]
    if partitioner.per_op_mode or not apart:
        partitions = type(partitioner).generate_partitions(partitioner, program)
        return acyclic(program.graph, partitions, groups)
    partitions = generate_grouped_partitions_from_list_of_nodes(
        program.graph_module, [group for group in groups if group not in apart]
    )
    partitions += [Partition(nodes=group) for group in apart]
    return acyclic(program.graph, partitions, groups)


def _is_dynamic_convolution(node: fx.Node) -> bool:
    return node.target is _aten.convolution.default and is_dynamic_qdq(node.args[0])


def _dynamic_quantization(dequantized: object) -> list[fx.Node]:
    """Return what quantizes and dequantizes a value dynamically, last first."""
    if not (isinstance(dequantized, fx.Node) and is_dynamic_qdq(dequantized)):
        return []
    quantized, *parameters = dequantized.all_input_nodes
    if not is_dynamic_qdq(quantized):
        return []
    return [dequantized, quantized, *parameters, *parameters[0].all_input_nodes]


def _has_usual_dimensions(node: fx.Node) -> bool:
    """Tell whether tensors have one to six dimensions, or none and no scale."""
    # Views around a product are part of the linear layer that it comes from.
    near = {node, *node.all_input_nodes, *node.users}
    near |= {source for one in node.all_input_nodes for source in one.all_input_nodes}
    for one in near:
        value = one.meta.get("val")
        if isinstance(value, torch.Tensor):
            is_quantized = is_quant(one) or is_dequant(one)
            if not is_quantized <= value.dim() <= _MOST_DIMENSIONS:
                return False
    return True


def _has_signed_integers(node: fx.Node) -> bool:
    """Tell whether quantized values are of 8 bits with a sign.

    XNNPACK's lowering in 1.5.1 takes others for such.
    """
    integers = (torch.int8, torch.int32)
    for one in (node, *node.all_input_nodes, *node.users):
        quantized = one if is_quant(one) else one.args[0] if is_dequant(one) else None
        if isinstance(quantized, fx.Node):
            value = quantized.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dtype not in integers:
                return False
    return True


def _has_bfloat16(node: fx.Node) -> bool:
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    return any(getattr(value, "dtype", None) == torch.bfloat16 for value in values)


def _is_of_images(node: fx.Node) -> bool:
    return bool(node.all_input_nodes[0].meta["val"].dim() == 4)


def _is_of_other_operators(norm: fx.Node) -> bool:
    """Tell whether what is normalized is not the result of a normalization itself.

    The lowering makes a convolution of that one first, and leaves its shape unknown.
    """
    before = norm.all_input_nodes[0]
    is_item = before.target is operator.getitem
    return not (is_item and before.all_input_nodes[0].target is norm.target)


def _has_sizes_to_reshape(convolution: fx.Node) -> bool:
    """Tell whether a convolution of sequences leaves one size open at most.

    XNNPACK computes it on images, and cannot reshape to several sizes that are open.
    """
    values = [
        node.meta["val"] for node in (convolution, convolution.all_input_nodes[0])
    ]
    return all(
        value.dim() != 3
        or sum(isinstance(size, torch.SymInt) for size in value.shape) < 2
        for value in values
    )


def _is_linear(addmm: fx.Node) -> bool:
    """Tell whether a bias is added to each row as it is."""
    bias, matrix = addmm.args[0], addmm.args[2]
    assert isinstance(bias, fx.Node) and isinstance(matrix, fx.Node)
    factors = (addmm.kwargs.get("alpha", 1), addmm.kwargs.get("beta", 1))
    return factors == (1, 1) and bias.meta["val"].shape == matrix.meta["val"].shape[1:]


def _is_pooling(maximum: fx.Node) -> bool:
    """Tell whether a maximum is over height or width, which stays."""
    return maximum.args[1] in (2, 3) and maximum.args[2:] == (True,)


def _is_over_columns(softmax: fx.Node) -> bool:
    """Tell whether the last axis is that of the model, not the channels."""
    if not _is_of_images(softmax):
        return True
    found = set(softmax.all_input_nodes)
    values = list(found)
    while values:
        node = values.pop()
        if node.target in ChannelsLastTaggedReshapePass.memory_sensitive_ops_nhwc:
            return False
        if node.target in _WITH_CHANNELS_FIRST:
            continue
        new = set(node.all_input_nodes) - found
        found |= new
        values += new
    return True


#: Operators whose results have the model's layout in XNNPACK's delegates.
_WITH_CHANNELS_FIRST = {
    _aten.view_copy.default,
    *ChannelsLastTaggedReshapePass.memory_sensitive_ops_nchw,
}

#: By the partitioner's name of an operator: what tells that XNNPACK computes a node.
_LIMITS: dict[str, Callable[[fx.Node], bool]] = {
    "_native_batch_norm_legit_no_training.default": _is_of_other_operators,
    "_softmax.default": _is_over_columns,
    "addmm.default": _is_linear,
    "avg_pool2d.default": _is_of_images,
    "convolution.default": _has_sizes_to_reshape,
    "max.dim": _is_pooling,
    "max_pool2d.default": _is_of_images,
    "prelu.default": _is_of_images,
}
