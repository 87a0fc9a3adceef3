from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import quick_export  # noqa: F401


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
        default=9,
        help="how many random models to compare with eager, for each backend",
    )
    parser.addoption(
        "--random-models-seed",
        type=int,
        default=0,
        help="what the random models are drawn from",
    )


@dataclass(frozen=True)
class Batch:
    """Random models that are drawn one after another."""

    seed: int
    start: int
    count: int


#: From the tenth example on Hypothesis varies the one before, mostly in what does
#: not matter.
_BATCH = 9


def pytest_collection_finish() -> None:
    # What torch and ExecuTorch have made on import is half a million objects, which
    # each full collection of garbage looks through.
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "random_models_batch" not in metafunc.fixturenames:
        return
    total = int(metafunc.config.getoption("--random-models"))
    seed = int(metafunc.config.getoption("--random-models-seed"))
    batches = [
        Batch(seed, start, min(_BATCH, total - start))
        for start in range(0, total, _BATCH)
    ]
    metafunc.parametrize("random_models_batch", batches, ids=lambda b: str(b.start))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = Counter[str]()
    for report in terminalreporter.getreports("passed"):
        if "random_models" in report.nodeid:
            counts.update(dict(report.user_properties))
    if counts:
        terminalreporter.write_line(
            f"random models: {counts['pairs']} pairs of a model and a sequence as "
            f"eager, {counts['models']} models, {counts['refused']} of them refused"
        )
