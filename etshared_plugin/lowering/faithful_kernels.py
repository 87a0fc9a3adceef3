"""Kernels of ExecuTorch 1.5.1 that do not as eager does, put another way.

What delegates have taken is left to them. The operators used instead are stock ones.
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ExportPass, NodeMetadata, ProxyValue
from torch import fx
from torch.export import ExportedProgram

from ..lifted.control_flow import attributes_of, nodes_of
from ..lifted.program_surgery import assemble, clone_operator, inputs_of, outputs_of
from .arithmetic import ARITHMETIC
from .kernel_rewrite import Rewrite
from .sums import SUMS

_aten = exir_ops.edge.aten

_REWRITES = ARITHMETIC | SUMS

_WITH_DIM_ORDER = {
    _aten._to_copy.default: exir_ops.edge.dim_order_ops._to_dim_order_copy.default,
    _aten.clone.default: exir_ops.edge.dim_order_ops._clone_dim_order.default,
}


def with_faithful_kernels(program: ExportedProgram) -> ExportedProgram:
    """Return an edge program whose kernels agree with eager, or ``program`` itself.

    Inputs, outputs and delegates stay what they are.
    """
    if not any(map(_is_unlike_eager, nodes_of(program.graph_module))):
        return program
    result = _FaithfulKernelsPass(program)(program.graph_module)
    graph = result.graph_module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    values = graph.output_node().args[0]
    assert isinstance(values, tuple | list)
    specs = [spec for _, spec in inputs_of(program)]
    return assemble(
        program,
        graph,
        list(zip(placeholders, specs, strict=True)),
        [
            (value, spec)
            for value, (_, spec) in zip(values, outputs_of(program), strict=True)
        ],
        attributes=attributes_of(result.graph_module),
    )


class _FaithfulKernelsPass(ExportPass):  # type: ignore[misc]
    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        self._has_dim_order = clone_operator(program) is not _aten.clone.default

    def call_operator(
        self,
        op: Any,  # noqa: ANN401
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        meta: NodeMetadata,
    ) -> Any:  # noqa: ANN401
        inner = super().call_operator

        def call(target: Any, *values: Any, **options: Any) -> Any:  # noqa: ANN401
            if self._has_dim_order and target in _WITH_DIM_ORDER:
                target = _WITH_DIM_ORDER[target]
                options["dim_order"] = list(values[0].data.dim_order())
            return inner(target, values, options, meta)

        values = [one.data if isinstance(one, ProxyValue) else one for one in args]
        rewrite = _rewrite_of(op, meta.data.get("val"), values)
        result = rewrite.make(call, *args, **kwargs) if rewrite else None
        return inner(op, args, kwargs, meta) if result is None else result

    def call_getitem(self, value: Any, key: int, meta: NodeMetadata) -> Any:  # noqa: ANN401
        if isinstance(value, tuple):
            return value[key]
        return super().call_getitem(value, key, meta)


def _is_unlike_eager(node: fx.Node) -> bool:
    values = [
        one.meta.get("val") if isinstance(one, fx.Node) else one for one in node.args
    ]
    return _rewrite_of(node.target, node.meta.get("val"), values) is not None


def _rewrite_of(target: object, result: object, values: list[Any]) -> Rewrite | None:
    rewrite = _REWRITES.get(target)
    first = result[0] if isinstance(result, list | tuple) and result else result
    if rewrite is None or not isinstance(first, torch.Tensor):
        return None
    return rewrite if rewrite.when(first, *values) else None
