"""What a module holds besides registered tensors, remembered and put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from .value_snapshot import OPAQUE_PACKAGES, Snapshot

#: Registered tensors and submodules; tracing looks after them itself.
TENSOR_DICTS = ("_parameters", "_buffers", "_modules")

#: Hooks that assign a tensor, ``name``, before each call of their module.
_REPARAMETRIZATIONS = (WeightNorm, SpectralNorm)


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
        restored = {
            name: current[name] if snapshot is None else snapshot.restore()
            for name, snapshot in before.items()
        }
        current.clear()
        current.update(restored)
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
        if kind.__module__.partition(".")[0] not in OPAQUE_PACKAGES
    }


def _is_class_state(name: str, value: object) -> bool:
    """Tell what a class holds from what it is: methods, properties, other classes."""
    if name.startswith("__") or name == "_abc_impl" or isinstance(value, type):
        return False
    return isinstance(value, torch.Tensor) or not hasattr(value, "__get__")


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
