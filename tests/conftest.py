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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--random-models",
        type=int,
        default=11,
        help="how many random models to compare with eager, for each backend",
    )
    parser.addoption(
        "--random-models-seed",
        type=int,
        default=0,
        help="what the random models are drawn from",
    )


@pytest.fixture
def random_model_count(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--random-models"))


@pytest.fixture
def random_model_seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--random-models-seed"))
