"""Operators that return lists of tensors keep sizes that are dynamic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from executorch.exir.verification.arg_validator import EdgeOpArgValidator


def check_whole_list(
    self: EdgeOpArgValidator,
    stock: Callable[..., Any],
    target: Any,  # noqa: ANN401
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # noqa: ANN401
    """Check an operator's dtypes as ExecuTorch does, with a list for what is one.

    1.5.1 takes the first tensor of the only list that an operator returns for the
    list, and asks for its length, which fixes a dynamic size of the first dimension
    at that of the example.
    """
    node = self.node
    schema = getattr(target, "_schema", None)
    kinds = [one.type for one in schema.returns] if schema is not None else []
    values = node.meta.get("val")
    if kinds != [torch.ListType.ofTensors()] or not isinstance(values, Sequence):
        return stock(self, target, args, kwargs)
    self.node = SimpleNamespace(
        meta={**node.meta, "val": [values]}, stack_trace=node.stack_trace
    )
    try:
        return stock(self, target, args, kwargs)
    finally:
        self.node = node
