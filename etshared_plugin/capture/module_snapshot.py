"""What a module holds besides registered tensors, remembered and put back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

#: Registered tensors and submodules; tracing looks after them itself.
TENSOR_DICTS = ("_parameters", "_buffers", "_modules")

#: Values whose equality says that nothing changed.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)

#: Packages whose objects are not looked into.
_OPAQUE_PACKAGES = ("torch", "numpy", "builtins", "functools", "weakref", "enum")

#: Hooks that assign a tensor, ``name``, before each call of their module.
_REPARAMETRIZATIONS = (WeightNorm, SpectralNorm)


class Snapshot:
    """One value with everything in it that can change.

    Looks into containers, arrays, tensors and the attributes of plain objects.
    What it cannot see, such as closures, globals and iterators, is compared by
    identity.
    """

    def __init__(self, value: Any, seen: dict[int, Any] | None = None) -> None:  # noqa: ANN401
        self.value = value
        self._held: Any = None
        self._first: Snapshot | None = None
        self._is_matching = False
        seen = {} if seen is None else seen
        if isinstance(value, _PLAIN):
            return
        if id(value) in seen:
            first = seen[id(value)]
            self._first = first if isinstance(first, Snapshot) else None
            return
        seen[id(value)] = self  # keeps the id taken
        if isinstance(value, dict):
            self._held = {key: Snapshot(item, seen) for key, item in value.items()}
        elif isinstance(value, list | tuple | deque):
            self._held = [Snapshot(item, seen) for item in value]
        elif isinstance(value, set):
            self._held = set(value)
        elif isinstance(value, np.ndarray):
            self._held = value.copy()
        elif isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            self._held = value._version, value.detach().clone()
        elif _is_plain_object(value):
            self._held = Snapshot(vars(value), seen)

    def matches(self, current: Any) -> bool:  # noqa: ANN401
        if self._first is not None:
            # What two attributes hold, torch.export may put back as two copies.
            first = self._first
            return current is self.value or first._is_matching or first.matches(current)
        self._is_matching = True
        try:
            return self._matches(current)
        finally:
            self._is_matching = False

    def _matches(self, current: Any) -> bool:  # noqa: ANN401
        value, held = self.value, self._held
        if isinstance(value, _PLAIN):
            return type(current) is type(value) and (
                current == value or (current != current and value != value)
            )
        if isinstance(held, dict):
            return (
                type(current) is type(value)
                and list(current) == list(held)
                and all(item.matches(current[key]) for key, item in held.items())
            )
        if isinstance(held, list):
            return (
                type(current) is type(value)
                and len(current) == len(held)
                and all(i.matches(c) for i, c in zip(held, current, strict=True))
            )
        if isinstance(held, set):
            return bool(current == held)
        if current is not value:
            return False
        if isinstance(held, np.ndarray):
            return bool(np.array_equal(value, held, equal_nan=held.dtype.kind in "fc"))
        if isinstance(held, tuple):
            return bool(value._version == held[0])
        return held is None or held.matches(vars(value))

    def restore(self) -> Any:  # noqa: ANN401
        """Put back what the value held; return it."""
        value, held = self.value, self._held
        if isinstance(held, dict):
            items = {key: item.restore() for key, item in held.items()}
            value.clear()
            value.update(items)
        elif isinstance(held, list):
            originals = [item.restore() for item in held]
            if isinstance(value, list | deque):
                value.clear()
                value.extend(originals)
        elif isinstance(held, set):
            value.clear()
            value.update(held)
        elif isinstance(held, np.ndarray):
            if not np.array_equal(value, held):
                value[...] = held
        elif isinstance(held, tuple):
            if value._version != held[0]:
                with torch.no_grad():
                    value.copy_(held[1])
        elif held is not None:
            held.restore()
        return value


def _is_plain_object(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, type | ModuleType | FunctionType):
        return False
    if isinstance(value, nn.Module):
        return True  # one that is registered nowhere
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and package not in _OPAQUE_PACKAGES


class ModuleSnapshot:
    """Everything of a module tree but the values of registered tensors.

    Taken before tracing, it tells afterwards which attribute has changed, be it
    of a module, of an object in one, or of a module's class.
    """

    def __init__(self, root: nn.Module) -> None:
        self._modules = list(root.named_modules())
        self._registered = [
            {key: dict(module.__dict__[key]) for key in TENSOR_DICTS}
            for _, module in self._modules
        ]
        seen: dict[int, Any] = {id(module): module for _, module in self._modules}
        self._attributes = [
            {
                name: None if name in TENSOR_DICTS else Snapshot(value, seen)
                for name, value in module.__dict__.items()
            }
            for _, module in self._modules
        ]
        self._classes = {
            (kind, name): Snapshot(value, seen)
            for kind in _user_classes(module for _, module in self._modules)
            for name, value in vars(kind).items()
            if _is_class_state(name, value)
        }

    def expect_registered(self) -> None:
        """Take what is registered now for what has to be there in the end."""
        self._expected = [
            {key: dict(module.__dict__[key]) for key in TENSOR_DICTS}
            for _, module in self._modules
        ]

    def changed_attributes(self) -> list[str]:
        """Return the names of attributes that are not as they were."""
        return [
            _join(prefix, name)
            for (prefix, module), attributes in zip(
                self._modules, self._attributes, strict=True
            )
            for name in _changed(module.__dict__, attributes)
            if name not in _computed(module)
        ]

    def restore(self) -> str | None:
        """Put everything back; return the name of something that had changed."""
        changed: list[str] = []
        for (prefix, module), registered, expected, attributes in zip(
            self._modules,
            self._registered,
            self._expected,
            self._attributes,
            strict=True,
        ):
            for key, saved in registered.items():
                target = module.__dict__[key]
                changed += [
                    _join(prefix, name)
                    for name in {**target, **expected[key]}
                    if target.get(name) is not expected[key].get(name)
                ]
                target.clear()
                target.update(saved)
            changed += [
                _join(prefix, name)
                for name in _rewind(module.__dict__, attributes)
                if name not in _computed(module)
            ]
        for (kind, name), snapshot in self._classes.items():
            if not snapshot.matches(vars(kind).get(name)):
                changed.append(f"{kind.__name__}.{name}")
                setattr(kind, name, snapshot.restore())
        return changed[0] if changed else None


def _changed(
    current: Mapping[str, Any], before: Mapping[str, Snapshot | None]
) -> list[str]:
    new = [name for name in current if name not in before]
    return new + [
        name
        for name, snapshot in before.items()
        if snapshot is not None
        and (name not in current or not snapshot.matches(current[name]))
    ]


def _computed(module: nn.Module) -> set[str]:
    """Return the names of what torch makes anew from parameters at each call."""
    hooks = module._forward_pre_hooks.values()
    names = {hook.name for hook in hooks if isinstance(hook, _REPARAMETRIZATIONS)}
    pruned = {hook for hook in hooks if isinstance(hook, BasePruningMethod)}
    if isinstance(module, nn.RNNBase):
        names |= {"_flat_weights", "_flat_weight_refs"}
    return names | {hook._tensor_name for hook in pruned}


def _rewind(current: dict[str, Any], before: dict[str, Snapshot | None]) -> list[str]:
    """Put attributes back in their order; return the names of changed ones."""
    changed = _changed(current, before)
    if changed or list(current) != list(before):
        registered = {name: current[name] for name in TENSOR_DICTS}
        current.clear()
        for name, snapshot in before.items():
            current[name] = registered[name] if snapshot is None else snapshot.restore()
    else:
        for name, snapshot in before.items():
            if snapshot is not None and current[name] is not snapshot.value:
                current[name] = snapshot.restore()
    return changed


def _user_classes(modules: Iterator[nn.Module]) -> set[type]:
    return {
        kind
        for module in modules
        for kind in type(module).__mro__
        if kind.__module__.partition(".")[0] not in _OPAQUE_PACKAGES
    }


def _is_class_state(name: str, value: object) -> bool:
    if name.startswith("__") or name == "_abc_impl":
        return False
    kinds = (*_PLAIN, dict, list, set, deque, np.ndarray, torch.Tensor)
    return isinstance(value, kinds)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
