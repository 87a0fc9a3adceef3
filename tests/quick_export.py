"""Makes exporting quicker: imported by conftest.py, for it is most of a test run.

What torch and ExecuTorch compute stays the same. Processes that tests start export
without this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C import DispatchKey
from torch._export.utils import _collect_all_valid_cia_ops
from torch._ops import OperatorBase
from torch.export import decomp_utils, exported_program
from torch.fx.traceback import NodeSource

# torch 2.13 lists all composite operators anew for each decomposition: 40 % of
# the time that lowering a tiny model takes.
_composite_operators = functools.cache(_collect_all_valid_cia_ops)
decomp_utils._collect_all_valid_cia_ops = _composite_operators
exported_program._collect_all_valid_cia_ops = _composite_operators

# It then registers some 6,000 kernels for them, twice, with type annotations that are
# built for each: 30 % of what is left.
_register_kernel = OperatorBase.py_impl


def _quick_register(self: OperatorBase, key: Any) -> Callable[[Any], Any]:  # noqa: ANN401
    if (
        not isinstance(key, DispatchKey)
        or key == DispatchKey.Python
        or key in self.py_kernels
    ):
        return _register_kernel(self, key)

    def register(kernel: Any) -> Any:  # noqa: ANN401
        self.py_kernels[key] = kernel
        self._dispatch_cache.clear()
        return kernel

    return register


OperatorBase.py_impl = _quick_register

# Each pass copies the history of each node, which grows with every pass.
NodeSource.__deepcopy__ = lambda self, memo: self
