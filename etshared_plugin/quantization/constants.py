"""Values of a module's graph that are the same in each call."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx


class Constants:
    """The nodes that depend on no input, and their values.

    Args:
        module: its graph must have no in-place operators.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._nodes: set[fx.Node] = set()
        self._values: dict[fx.Node, Any] = {}
        for node in module.graph.nodes:
            if node.op == "get_attr" or (
                node.op in ("call_function", "call_module")
                and node.all_input_nodes
                and self._nodes.issuperset(node.all_input_nodes)
            ):
                self._nodes.add(node)

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    @torch.no_grad()
    def value(self, node: fx.Node) -> Any:  # noqa: ANN401
        """Compute a constant, once; observers on the way see it."""
        if node not in self._values:
            function: Any = node.target
            if node.op == "get_attr":
                self._values[node] = operator.attrgetter(function)(self._module)
            else:
                if node.op == "call_module":
                    function = self._module.get_submodule(function)
                args, kwargs = fx.map_arg((node.args, node.kwargs), self.value)
                self._values[node] = function(*args, **kwargs)
        return self._values[node]
