"""Programs in which every tensor is contiguous."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .graph_surgery import clone_before_use
from .lifted_state import LiftedProgram, functionalize
from .program_surgery import inputs_of

_FORMATS = (torch.channels_last, torch.channels_last_3d)


def use_contiguous_layouts(lifted: LiftedProgram) -> LiftedProgram:
    """Let a program compute with contiguous tensors only.

    Kernels of 1.5.1 refuse tensors of several layouts, and delegates weights in
    another than the contiguous one. Inputs that are channels-last stay so and are
    copied; in other layouts ``executorch.runtime`` takes none. Values do not depend on
    layouts. The program is changed in place.
    """
    program = lifted.program
    changed = False
    for node, spec in inputs_of(program):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        is_input = spec.kind is InputKind.USER_INPUT
        if is_input and value.is_contiguous(memory_format=torch.channels_last):
            if not _is_contiguous(value):
                clone_before_use(node, memory_format=torch.contiguous_format)
                changed = True
            continue
        # State that stays constant here was traced contiguous, whatever it is.
        for tensors in (program.state_dict, program.constants):
            tensor = tensors.get(str(spec.target))
            if isinstance(tensor, torch.Tensor) and not _is_contiguous(tensor):
                tensors[str(spec.target)] = _contiguous(tensor)
                changed = True
        if not _is_contiguous(value):
            node.meta["val"] = value.clone(memory_format=torch.contiguous_format)
            changed = True
    for node in program.graph.nodes:
        if node.kwargs.get("memory_format") in _FORMATS:
            node.kwargs = {**node.kwargs, "memory_format": torch.contiguous_format}
            changed = True
    return functionalize(lifted) if changed else lifted


def _is_contiguous(tensor: torch.Tensor) -> bool:
    """Tell whether strides say so, also those of dimensions of size one."""
    strides = pairwise(tensor.stride())
    return tensor.is_contiguous() and all(
        statically_known_true(outer >= inner) for outer, inner in strides
    )


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy
