from __future__ import annotations

from collections.abc import Sequence

import pytest


@pytest.fixture(params=["portable", "xnnpack"])
def partitioner(request: pytest.FixtureRequest) -> Sequence[object]:
    if request.param == "portable":
        return []
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )

    return [XnnpackPartitioner()]
