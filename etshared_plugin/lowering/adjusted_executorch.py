"""ExecuTorch as it is adjusted while this package lowers, and only then."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from executorch.exir.passes import ScalarToTensorPass, base_pre_op_replace_passes
from executorch.exir.verification.arg_validator import EdgeOpArgValidator

from ..errors import LoweringError
from .list_results import check_whole_list
from .typed_scalars import TypedScalarsPass

#: What is adjusted belongs to the process; its passes know what they work on.
_lock = threading.RLock()
_depth = 0


@contextmanager
def adjusted_executorch() -> Iterator[None]:
    """Type numbers as eager does, and keep dynamic sizes; other threads wait.

    What was replaced is put back, and what others change meanwhile stays.

    Raises:
        LoweringError: ExecuTorch does not have what is to be replaced.
    """
    global _depth
    with _lock:
        if _depth:
            yield
            return
        passes = base_pre_op_replace_passes
        found = [
            one for one in passes if type(inspect.unwrap(one)) is ScalarToTensorPass
        ]
        check = vars(EdgeOpArgValidator).get("call_function")
        if len(found) != 1 or check is None:
            raise LoweringError(
                "this ExecuTorch is not the one that this package adjusts; install"
                " executorch 1.5.1"
            )
        typed = TypedScalarsPass()
        passes[passes.index(found[0])] = typed
        own_check = functools.partialmethod(check_whole_list, check)
        EdgeOpArgValidator.call_function = own_check
        _depth = 1
        try:
            yield
        finally:
            _depth = 0
            if vars(EdgeOpArgValidator).get("call_function") is own_check:
                EdgeOpArgValidator.call_function = check
            if typed in passes:
                passes[passes.index(typed)] = found[0]
