"""What a test needs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from etshared_plugin import EntryPoint
from etshared_plugin.testing.drawing import Inputs


@dataclass(frozen=True)
class ModelCase:
    """A model, its entry points, and the inputs that its calls may have.

    ``inputs`` is for entry points whose inputs are not in the likeness of the
    examples, positions in a cache for one. ``types`` are what it returns.
    """

    root: nn.Module
    entry_points: Mapping[str, EntryPoint]
    inputs: Inputs = field(default_factory=dict)
    types: tuple[type, ...] = ()
