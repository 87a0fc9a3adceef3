"""Operators that no delegate has taken: kernels that have to be loaded, or none."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.schema import ExecutionPlan
from torch.export import ExportedProgram

from ..errors import LoweringError
from ..lifted.control_flow import nodes_of
from .operator_errors import NO_KERNEL

_CONVOLUTION = exir_ops.edge.aten.convolution.default
_NONZERO = exir_ops.edge.aten.nonzero.default


def prepare_kernels(method_name: str, program: ExportedProgram) -> None:
    """Register ExecuTorch's quantized kernels if ``program`` needs them.

    Branches of control flow are looked at too.

    Raises:
        LoweringError: it has an operator that ExecuTorch has no kernel for, or one
            that gives something else than torch's.
    """
    for node in nodes_of(program.graph_module):
        target = node.target
        if not isinstance(target, EdgeOpOverload):
            continue
        if target.namespace == "quantized_decomposed":
            importlib.import_module("executorch.kernels.quantized")
        elif target.namespace == "torchao":
            raise LoweringError(
                f"entry point '{method_name}' has {target._op} of"
                f" '{_name_of(node.args[0], program)}', which no partitioner takes and"
                " ExecuTorch 1.5.1 has no kernel for; quantize in a way that the"
                " backend computes with (XNNPACK: dynamic 8-bit activations, symmetric"
                " weights without zero points, of 4 bits, or of 8 bits with"
                " granularity PerAxis(0)), or leave the layer as it is",
                method_name=method_name,
            )
        elif target is _CONVOLUTION and node.meta["val"].dim() > 4:
            raise LoweringError(
                f"entry point '{method_name}' has a convolution of volumes, which"
                " ExecuTorch 1.5.1 has no kernel for; compute it as the sum of"
                " two-dimensional convolutions of its slices",
                method_name=method_name,
            )
        elif target is _NONZERO:
            # torch lays the result out by columns, the kernel by rows.
            raise LoweringError(
                f"entry point '{method_name}' uses the indices of torch.nonzero, or of"
                " torch.where with one argument, which ExecuTorch 1.5.1 mixes up; use"
                " the mask itself: x[mask], or torch.where(mask, a, b)",
                method_name=method_name,
            )


def refuse_missing_kernels(plans: Sequence[ExecutionPlan]) -> None:
    """Refuse operators of torch that the installed ExecuTorch cannot run.

    Other operators are the user's, whose kernels may be elsewhere.

    Raises:
        LoweringError: naming entry point and operator.
    """
    if next(_without_kernel(plans), None) is not None:
        from ..runtime._libraries import load_plugin_libraries

        load_plugin_libraries()
    for method_name, operator in _without_kernel(plans):
        raise LoweringError(
            f"entry point '{method_name}' uses {operator}, {NO_KERNEL}, or announce a"
            " library that has the kernel with a plugin's etshared_native_libraries",
            method_name=method_name,
        )


def _without_kernel(plans: Sequence[ExecutionPlan]) -> Iterator[tuple[str, str]]:
    # Not before it is needed: importing this module loads no runtime.
    from executorch.runtime import Runtime

    registered = Runtime.get().operator_registry.operator_names
    for plan in plans:
        for operator in plan.operators:
            name = ".".join(filter(None, (operator.name, operator.overload)))
            if name.startswith("aten::") and name not in registered:
                yield plan.name, name


def _name_of(value: object, program: ExportedProgram) -> str:
    """Return the fqn of a weight, or the name of another value."""
    signature = program.graph_signature
    name = str(value)
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return str(weights.get(name, name))
