"""What torch.export cannot trace, said in terms of the entry point."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..errors import EntryPointError

_TORCH = Path(torch.__file__).parent
_PACKAGE = Path(__file__).parent.parent

#: Contexts that torch traces as operators: what they are, and what to do instead.
_CONTEXTS = {
    "wrap_with_autocast": (
        "torch.autocast",
        "take it out of the method, and cast inputs and weights with '.to()'",
    ),
    "wrap_with_set_grad_enabled": (
        "torch.enable_grad, torch.set_grad_enabled or a transform of torch.func",
        "take it out of the method: a program has no gradients",
    ),
}

#: What tracing complains of when it meets gradients.
_GRADIENT_COMPLAINTS = (
    "a fake tensor in the exported program constant",
    "functorch tensor",
    "does not require grad",
)


def not_lowered(name: str, operator: str) -> EntryPointError:
    """Make the error for control flow, or a context, that ExecuTorch lacks."""
    what, remedy = _CONTEXTS.get(
        operator, (operator, "use torch.cond, or call the entry point repeatedly")
    )
    return EntryPointError(
        f"entry point '{name}' uses {what}, which ExecuTorch 1.5.1 has not; {remedy}",
        method_name=name,
    )


def not_exported(name: str, error: Exception) -> EntryPointError:
    """Make the error for an entry point that torch cannot export; it is the cause."""
    causes = list(_causes(error))
    reason = str(error) or type(error).__name__
    if any(_passed_through(one, "while_loop.py") for one in causes):
        return not_lowered(name, "while_loop")
    if "unbacked symbols" in reason or any(
        isinstance(one, (DataDependentOutputException, GuardOnDataDependentSymNode))
        for one in causes
    ):
        if any(_passed_through(one, "batchnorm.py") for one in causes):
            return EntryPointError(
                f"entry point '{name}' has a batch norm that is training and has"
                " momentum=None, which reads its counter as a Python number; give it a"
                " momentum, or call its eval()",
                method_name=name,
            )
        return EntryPointError(
            f"entry point '{name}' uses the value of a tensor as a Python number"
            f"{_place(error)}, in a branch, a loop, a size or an index, and the program"
            " would keep the value it had at export; use torch.cond or torch.where, or"
            " index with a tensor of one dimension",
            method_name=name,
        )
    if any(complaint in reason for complaint in _GRADIENT_COMPLAINTS):
        reason = (
            "a program has no gradients; take torch.autograd.grad, backward() and"
            f" transforms of torch.func out of the method. {reason}"
        )
    if "specialized it to be a constant" in reason:
        reason = (
            "the method allows one size only: that of a buffer or weight beside the"
            " input, that of the example in a loop over the dimension, as in nn.GRU and"
            " nn.LSTM, or in what Python computes, as in float(x.shape[0]); leave the"
            " size out of dynamic_shapes, export one step per call, or let tensors"
            f" compute, as in t + x.shape[0]. {reason}"
        )
    if "satisfy the generated guard" in reason:
        reason = (
            "for some sizes in the range of dynamic_shapes the method does something"
            " else, for the full size of a buffer that it takes a slice of, for one;"
            f" leave them out with min and max of the Dim. {reason}"
        )
    if ".numpy() is not supported" in reason:
        reason = f"NumPy is not traced; compute with torch. {reason}"
    if "Higher Order Operator: " in reason:
        reason = (
            "branches of torch.cond may write state in place; all else has to be"
            " returned by branches and loops, and be written afterwards."
            f" {reason}"
        )
    return EntryPointError(
        f"entry point '{name}' cannot be exported: {reason}", method_name=name
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _passed_through(error: BaseException, file_name: str) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any(Path(frame.filename).name == file_name for frame in frames)


def _place(error: BaseException) -> str:
    """Say which line of the user's code an error comes from, if one is known."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.exists() and not {_TORCH, _PACKAGE} & set(path.parents):
            return f" ({path.name}, line {frame.lineno})"
    return ""
