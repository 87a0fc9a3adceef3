"""What Python code finds under a tensor while a method is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .tensor_indices import SET_ITEM, set_item

_GET_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class TensorSubstitution(TorchFunctionMode):
    """Lets operators see other tensors than those that they are given.

    An attribute, a list or a closure may hold a registered tensor; what stands for
    it while tracing takes its place. ``x.data`` becomes a view that tracing can see
    writes through, ``x.data = value`` makes ``x`` stand for ``value``, and
    ``x[i] = value`` may have a tensor without dimensions for ``i``.

    Args:
        stand_ins: tensors with what takes their place.
    """

    def __init__(self, stand_ins: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._kept = list(stand_ins)  # keeps ids taken
        self._stand_ins = {id(t): other for t, other in self._kept if t is not other}
        self._data: dict[int, torch.Tensor] = {}

    def current(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for ``tensor`` now."""
        tensor = self._stand_ins.get(id(tensor), tensor)
        return self._data.get(id(tensor), tensor)

    def has_new_data(self, tensor: torch.Tensor) -> bool:
        """Tell whether ``.data`` of a tensor was assigned."""
        return id(self._stand_ins.get(id(tensor), tensor)) in self._data

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func == _SET_DATA:
            target, value = args
            target = self._stand_ins.get(id(target), target)
            self._kept.append((target, target))
            self._data[id(target)] = self.current(value).detach()
            return None
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, self.current, (args, dict(kwargs or {}))
        )
        if func == _GET_DATA:
            return args[0].detach()
        if func == SET_ITEM:
            return set_item(*args)
        return func(*args, **kwargs)
