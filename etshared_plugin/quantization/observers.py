"""What observers of several entry points have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import fx, nn
from torchao.quantization.pt2e import (
    DerivedObserverOrFakeQuantize,
    FakeQuantizeBase,
    ObserverBase,
    PlaceholderObserver,
)
from torchao.quantization.pt2e.observer import (
    AffineQuantizedObserverBase,
    FixedQParamsObserver,
)

from .constants import Constants

_KINDS = (ObserverBase, FakeQuantizeBase, AffineQuantizedObserverBase)

#: These need no data.
_WITHOUT_RANGE = (
    DerivedObserverOrFakeQuantize,
    FixedQParamsObserver,
    PlaceholderObserver,
)

_aten = torch.ops.aten
_ACTIVATIONS = (_aten.relu.default, _aten.relu_.default, _aten.hardtanh.default)


def observer_nodes(module: fx.GraphModule) -> Iterator[tuple[fx.Node, nn.Module]]:
    """Yield the calls of observers."""
    for node in module.graph.nodes:
        if node.op == "call_module":
            observer = module.get_submodule(node.target)
            if isinstance(observer, _KINDS):
                yield node, observer


def argument(node: fx.Node, name: str) -> object:
    """Return what an operator gets for an argument of its schema, or None."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    for position, one in enumerate(node.target._schema.arguments):
        if one.name == name:
            given = node.args[position : position + 1]
            return given[0] if given else node.kwargs.get(name)
    return None


def observe_constants(module: fx.GraphModule) -> None:
    """Show constants to their observers, whether the entry point is called or not."""
    constants = Constants(module)
    for node, _ in observer_nodes(module):
        if node in constants:
            constants.value(node)


def share_observers(
    modules: Mapping[str, fx.GraphModule],
    weights: Mapping[str, Mapping[str, object]],
) -> None:
    """Let all uses of a layer have one observer for its inputs, one for its results.

    A layer is known by its weight. Quantized with the same ranges everywhere, it
    is packed once.

    Args:
        modules: what is quantized, by entry point.
        weights: for each entry point, what the tensor of an fqn is known by in all
            of them; in two entry points one fqn may stand for different tensors.
    """
    first: dict[tuple[object, ...], nn.Module] = {}
    replaced: dict[nn.Module, nn.Module] = {}

    def current(observer: nn.Module) -> nn.Module:
        while observer in replaced:
            observer = replaced[observer]
        return observer

    for name, module in modules.items():
        for node, observer in observer_nodes(module):
            for fqn, *use in _places(node):
                # Preparing may have made a tensor, which no other module has.
                weight = weights[name].get(fqn, (name, fqn))
                one = current(observer)
                other = current(first.setdefault((weight, *use, *_kind(one)), one))
                if one is not other:
                    replaced[one] = other
    for module in modules.values():
        for node, observer in list(observer_nodes(module)):
            if isinstance(observer, DerivedObserverOrFakeQuantize):
                observer.obs_or_fqs = [current(o) for o in observer.obs_or_fqs]
            module.set_submodule(str(node.target), current(observer))


def _places(node: fx.Node) -> Iterator[tuple[str, object, object]]:
    """Yield the layers whose input or result a call of an observer sees.

    A layer is the fqn of its weight and its operator; the third is which value.
    """
    for user in node.users:
        fqn = _weight_fqn(user)
        if fqn is not None and user.args[0] is node:
            yield fqn, user.target, "input"
    (source,) = node.all_input_nodes
    activation = None
    if source.target in _ACTIVATIONS:
        activation = source.target
        (source,) = source.all_input_nodes
    fqn = _weight_fqn(source)
    if fqn is not None:
        yield fqn, source.target, activation


def _weight_fqn(node: fx.Node) -> str | None:
    """Return the name of the weight of a layer's node, if it is one."""
    value = argument(node, "weight")
    while isinstance(value, fx.Node) and value.op != "get_attr":
        value = value.args[0] if value.args else None
    return str(value.target) if isinstance(value, fx.Node) else None


def _kind(observer: nn.Module) -> tuple[object, ...]:
    names = ("dtype", "quant_min", "quant_max", "qscheme", "ch_axis", "is_dynamic")
    return type(observer), *(getattr(observer, name, None) for name in names)


class Observations:
    """Tells which observers have seen a value."""

    def __init__(self, modules: Mapping[str, fx.GraphModule]) -> None:
        self._seen: set[nn.Module] = set()
        self._hooks = [
            observer.register_forward_hook(lambda one, *_: self._seen.add(one))
            for observer in {
                observer
                for module in modules.values()
                for _, observer in observer_nodes(module)
            }
        ]

    def unseen(self, module: fx.GraphModule) -> fx.Node | None:
        """Return a node whose values a static observer should have seen."""
        for node, observer in observer_nodes(module):
            if (
                observer not in self._seen
                and not isinstance(observer, _WITHOUT_RANGE)
                and not getattr(observer, "is_dynamic", False)
            ):
                source = node.args[0]
                assert isinstance(source, fx.Node)
                return source
        return None

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()
