"""Comparison of programs with the eager module, for users' own test suites.

One line under pytest exports a module, lowers it, runs sequences of calls over
sessions of several kinds, and fails at the first value that differs::

    from etshared_plugin.testing import assert_matches_eager

    def test_model() -> None:
        assert_matches_eager(model, entry_points, partitioner=[XnnpackPartitioner()])

Needs torch.
"""

from ..capture.calls import Call, call
from .comparison import (
    MismatchError,
    assert_matches_eager,
    assert_program_matches,
    assert_stock_runtime_matches,
)
from .drawing import draw_calls
from .eager import Outcome, eager_outcomes
from .exported import exported_outcomes

__all__ = [
    "Call",
    "MismatchError",
    "Outcome",
    "assert_matches_eager",
    "assert_program_matches",
    "assert_stock_runtime_matches",
    "call",
    "draw_calls",
    "eager_outcomes",
    "exported_outcomes",
]
