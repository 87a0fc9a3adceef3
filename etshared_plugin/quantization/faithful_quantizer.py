"""A quantizer that leaves alone what must not be quantized."""

from __future__ import annotations

from typing import Any

from torch import fx
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, Quantizer
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from .constants import Constants
from .observers import argument


class FaithfulQuantizer(Quantizer):  # type: ignore[misc]
    """Passes on what ``inner`` annotates, with two exceptions.

    Layers whose weight or bias comes from outside, state for one, stay as they are:
    fixed ranges would cut off the values that it takes later, and no backend packs
    it. So do operators on integers: in executorch 1.5.1 XNNPACKQuantizer makes
    floating-point tensors of their numbers, and counters would become floats.
    """

    def __init__(self, inner: Quantizer) -> None:
        super().__init__()
        self._inner = inner

    def transform_for_annotation(self, model: fx.GraphModule) -> fx.GraphModule:
        before = {
            node: (node.args, node.kwargs)
            for node in model.graph.nodes
            if _computes_integers(node)
        }
        model = self._inner.transform_for_annotation(model)
        for node in model.graph.nodes:
            if node in before:
                node.args, node.kwargs = before[node]
        model.graph.eliminate_dead_code()
        model.recompile()
        return model

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        constants = Constants(model)
        for node in model.graph.nodes:
            operands = (argument(node, "weight"), argument(node, "bias"))
            if _computes_integers(node) or any(
                isinstance(one, fx.Node) and one not in constants for one in operands
            ):
                node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(_annotated=True)
        annotated: fx.GraphModule = self._inner.annotate(model)
        return annotated

    def validate(self, model: fx.GraphModule) -> None:
        self._inner.validate(model)

    def prepare_obs_or_fq_callback(
        self, model: fx.GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]
    ) -> None:
        self._inner.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)


def _computes_integers(node: fx.Node) -> bool:
    dtype = getattr(node.meta.get("val"), "dtype", None)
    return (
        node.op == "call_function"
        and dtype is not None
        and not (dtype.is_floating_point or dtype.is_complex)
    )
