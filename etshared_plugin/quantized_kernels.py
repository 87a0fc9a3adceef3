"""Operators of quantization that no delegate has taken."""

from __future__ import annotations

import importlib

from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch import fx
from torch.export import ExportedProgram

from .errors import LoweringError


def prepare_quantized_kernels(method_name: str, program: ExportedProgram) -> None:
    """Register ExecuTorch's quantized kernels if ``program`` needs them.

    Raises:
        LoweringError: it has an operator that ExecuTorch has no kernel for.
    """
    for node in program.graph.nodes:
        namespace = _namespace(node)
        if namespace == "quantized_decomposed":
            importlib.import_module("executorch.kernels.quantized")
        elif namespace == "torchao":
            raise LoweringError(
                f"entry point '{method_name}' has {node.target._op}, which no"
                " partitioner takes and ExecuTorch 1.5.1 has no kernel for; quantize"
                " in a way that the backend computes with (XNNPACK: dynamic 8-bit"
                " activations with 4- or 8-bit weights), or leave the layer as it is",
                method_name=method_name,
            )


def _namespace(node: fx.Node) -> str | None:
    target = node.target
    return target.namespace if isinstance(target, EdgeOpOverload) else None
