"""Programs in which every tensor is contiguous."""

from __future__ import annotations

import torch
from torch import nn
from torch.export.graph_signature import InputKind

from .branch_results import own_operands
from .control_flow import control_flow_nodes, graph_modules
from .graph_surgery import clone_before_use, is_contiguous
from .lifted_state import LiftedProgram, functionalize
from .program_surgery import inputs_of

_FORMATS = (torch.channels_last, torch.channels_last_3d)

#: Fail where a value lies otherwise than when they were traced.
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


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
            if not is_contiguous(value):
                clone_before_use(node, memory_format=torch.contiguous_format)
                changed = True
            continue
        # State that stays constant here is contiguous in the graph, whatever it is.
        for tensors in (program.state_dict, program.constants):
            tensor = tensors.get(str(spec.target))
            if isinstance(tensor, torch.Tensor) and not is_contiguous(tensor):
                tensors[str(spec.target)] = _contiguous(tensor)
                changed = True
        if not is_contiguous(value):
            node.meta["val"] = value.clone(memory_format=torch.contiguous_format)
            changed = True
    for node in program.graph.nodes:
        if node.kwargs.get("memory_format") in _FORMATS:
            node.kwargs = {**node.kwargs, "memory_format": torch.contiguous_format}
            changed = True
    return _in_new_layouts(lifted) if changed else lifted


def copy_in_layout(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor in its layout, which tells whether ``contiguous()`` copies.

    Strides of dimensions of size one, which say nothing, become usual ones.
    """
    is_usual = tensor.is_contiguous()
    return tensor.clone(
        memory_format=torch.contiguous_format if is_usual else torch.preserve_format
    )


def is_apart(tensor: torch.Tensor) -> bool:
    """Tell whether a copy cannot have a tensor's layout.

    There are gaps between its elements, or several lie in one place.
    """
    like = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
    strides = zip(tensor.shape, tensor.stride(), like.clone().stride(), strict=True)
    return any(size > 1 and stride != copied for size, stride, copied in strides)


def use_contiguous_state(lifted: LiftedProgram) -> LiftedProgram:
    """Let a functional program take and return its state contiguous.

    The program is changed in place.
    """
    changed = False
    for node in lifted.state_placeholders().values():
        value = node.meta["val"]
        if not value.is_contiguous():
            node.meta["val"] = value.clone(memory_format=torch.contiguous_format)
            changed = True
    return _in_new_layouts(lifted) if changed else lifted


def _in_new_layouts(lifted: LiftedProgram) -> LiftedProgram:
    """Trace again what became of all values, now that some inputs lie otherwise."""
    for module in graph_modules(lifted.program.graph_module):
        for node in module.graph.nodes:
            if node.target in _VIEWS:
                node.target = torch.ops.aten.reshape.default
        for node in control_flow_nodes(module.graph):
            own_operands(node)
        module.recompile()
    return functionalize(lifted)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy
