"""Weights that torchao has quantized in ways that XNNPACK does not compute."""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram

from ..errors import LoweringError
from ..lifted.program_surgery import CONSTANT_INPUTS, buffer_tensor, inputs_of

#: XNNPACK has groups, and layers of float16, of such weights only.
_FEW_BITS = 4


def refuse_unusual_weights(program: ExportedProgram, method_name: str | None) -> None:
    """Refuse weights with zero points, which 1.5.1 leaves out without an error.

    Called before decomposition: partitioners see no values later.

    Raises:
        LoweringError: a layer has such weights, groups of 8 bits, or 8 bits in float16.
    """
    constants = {
        node: spec for node, spec in inputs_of(program) if spec.kind in CONSTANT_INPUTS
    }
    for node in program.graph.nodes:
        if str(node.target) != "torchao.dequantize_affine.default":
            continue
        values, block, _, zero_point, _, least, most = node.args[:7]
        if values not in constants:
            continue  # of activations
        is_wide = most - least >= 1 << _FEW_BITS
        if is_wide and block[-1] != values.meta["val"].shape[-1]:
            problem = "groups of 8 bits"
            remedy = "use granularity PerAxis(0) or 4 bits"
        elif is_wide and node.meta["val"].dtype is torch.float16:
            problem = "8 bits in float16"
            remedy = "use 4 bits, or layers of float32"
        elif isinstance(zero_point, fx.Node) and not (
            zero_point in constants
            and _is_zero(program, str(constants[zero_point].target))
        ):
            problem = "zero points"
            remedy = "use weight_mapping_type=MappingType.SYMMETRIC"
        else:
            continue
        entry_point = f"entry point '{method_name}'" if method_name else "the program"
        raise LoweringError(
            f"{entry_point} has weights '{constants[values].target}' with {problem},"
            f" which XNNPACK in ExecuTorch 1.5.1 does not compute; {remedy}",
            method_name=method_name,
        )


def _is_zero(program: ExportedProgram, fqn: str) -> bool:
    return not buffer_tensor(program, fqn).any()
