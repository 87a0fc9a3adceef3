"""XNNPACK's partitioner for programs that share state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)

from .xnnpack_constants import ConstantsApartPartitioner


class SharedXnnpackPartitioner(ConstantsApartPartitioner):
    """An ``XnnpackPartitioner`` that never freezes shared state into a delegate.

    Args:
        state: fqns of shared buffers; ``etshared_plugin.to_edge_transform_and_lower``
            knows them itself.
        method_name: for error messages.
        options: of ``XnnpackPartitioner``.
    """

    def __init__(
        self,
        *,
        state: Sequence[str] = (),
        method_name: str | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(XnnpackPartitioner(**options), state, method_name=method_name)
