"""Programs in which every tensor is contiguous."""

from __future__ import annotations

import torch
from torch import nn
from torch.export.graph_signature import InputKind

from .graph_surgery import clone_before_use
from .lifted_state import LiftedProgram, functionalize
from .program_surgery import inputs_of

_FORMATS = (torch.channels_last, torch.channels_last_3d)


def use_contiguous_layouts(lifted: LiftedProgram) -> LiftedProgram:
    """Let a program compute with contiguous tensors only.

    Kernels of 1.5.1 refuse tensors of several layouts, and delegates weights in
    another than the contiguous one. Inputs keep their layout and are copied; values
    do not depend on layouts. The program is changed in place.
    """
    program = lifted.program
    changed = False
    for node, spec in inputs_of(program):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.is_contiguous():
            continue
        changed = True
        if spec.kind is InputKind.USER_INPUT:
            clone_before_use(node, memory_format=torch.contiguous_format)
            continue
        for tensors in (program.state_dict, program.constants):
            tensor = tensors.get(str(spec.target))
            if isinstance(tensor, torch.Tensor):
                tensors[str(spec.target)] = _contiguous(tensor)
        node.meta["val"] = value.contiguous()
    for node in program.graph.nodes:
        if node.kwargs.get("memory_format") in _FORMATS:
            node.kwargs = {**node.kwargs, "memory_format": torch.contiguous_format}
            changed = True
    return functionalize(lifted) if changed else lifted


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach().contiguous()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy
