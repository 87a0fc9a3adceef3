"""Constants of XNNPACK's delegates, apart for uses that want them in other ways.

XNNPACK's lowering in 1.5.1 writes a constant once for all operators of a delegate,
as the first one wants it: with the input channels last, with the output channels
first or, a bias, in the scale of the input. Where another operator wants it in
another way, results are wrong without an error, or the delegate cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.backends.xnnpack.utils.quant_utils import is_dequant
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.dialects._ops import ops as exir_ops
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument

from ..lifted.program_surgery import (
    CONSTANT_INPUTS,
    copied_program,
    inputs_of,
    insert_clone,
)
from ..lowering.partitioner import SharedStatePartitioner
from .xnnpack_limits import separate_dynamic_inputs, within_limits
from .xnnpack_weights import refuse_unusual_weights

_aten = exir_ops.edge.aten
_CLONE = exir_ops.edge.dim_order_ops._clone_dim_order.default

#: Operators that want a constant in a way that their own arguments tell.
_PRODUCTS = (
    _aten.addmm.default,
    _aten.convolution.default,
    _aten.linear.default,
    _aten.mm.default,
)

#: ExecuTorch gives each user a copy of a constant that has no user with its own tag.
_APART = "etshared_constants_apart"


class ConstantsApartPartitioner(SharedStatePartitioner):
    """Tags constants that uses want in several ways, where ``inner`` takes them.

    Where ``inner`` is an ``XnnpackPartitioner`` it gets the limits of XNNPACK too.
    """

    def __init__(
        self,
        inner: Partitioner,
        state: Sequence[str] = (),
        *,
        method_name: str | None = None,
    ) -> None:
        super().__init__(within_limits(inner), state, method_name=method_name)

    def transform_for_pre_decomposition(self, ep: ExportedProgram) -> ExportedProgram:
        if isinstance(self.inner, XnnpackPartitioner):
            refuse_unusual_weights(ep, self.method_name)
        program = separate_dynamic_inputs(super().transform_for_pre_decomposition(ep))
        return _with_copies_as_results(program)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        result = super().partition(exported_program)
        tags = {
            tag: spec
            for tag, spec in result.partition_tags.items()
            if spec.backend_id == XnnpackBackend.__name__
        }
        _leave_copies_outside(result.tagged_exported_program.graph, tags)
        apart = [
            node
            for node, spec in inputs_of(result.tagged_exported_program)
            if spec.kind in CONSTANT_INPUTS
            and node.meta.get("delegation_tag") in tags
            and len({_way(user, node) for user in node.users}) > 1
        ]
        if not apart:
            return result
        for node in apart:
            node.meta["delegation_tag"] = _APART
        delegation = next(iter(tags.values()))
        return replace(
            result, partition_tags={**result.partition_tags, _APART: delegation}
        )


def _leave_copies_outside(graph: fx.Graph, tags: Collection[str]) -> None:
    """Let kernels make copies that only leave a delegate.

    Its lowering drops copies, and fails where the value leaves the delegate too.
    """
    for node in graph.nodes:
        tag = node.meta.get("delegation_tag")
        if tag in tags and node.target is _CLONE:
            if all(user.meta.get("delegation_tag") != tag for user in node.users):
                del node.meta["delegation_tag"]


def _with_copies_as_results(program: ExportedProgram) -> ExportedProgram:
    """Let results be copies of constants that have other uses too.

    ExecuTorch 1.5.1 fails where a constant that belongs to a delegate is a result.
    """
    output = program.graph.output_node()
    shared = {
        node.name
        for node, spec in inputs_of(program)
        if spec.kind in CONSTANT_INPUTS and output in node.users and len(node.users) > 1
    }
    if not shared:
        return program
    changed = copied_program(program)
    output = changed.graph.output_node()
    for node, _ in inputs_of(changed):
        if node.name in shared:
            copy = insert_clone(changed, changed.graph, node)
            output.replace_input_with(node, copy)
            for result in changed.graph_signature.output_specs:
                if result.arg.name == node.name:
                    result.arg = TensorArgument(name=copy.name)
    changed.graph_module.recompile()
    return changed


def _way(user: fx.Node, constant: fx.Node) -> object:
    """Return what is equal for users that want a constant in the same way."""
    arguments = [one for one in user.args if isinstance(one, fx.Node)]
    if user.target not in _PRODUCTS or any(is_dequant(one) for one in arguments):
        return user
    settings = tuple(
        (position, repr(argument))
        for position, argument in enumerate(user.args)
        if argument is constant or not isinstance(argument, fx.Node | type(None))
    )
    return user.target, settings
