"""Makes exporting quicker: imported by conftest.py, for it is most of a test run.

What torch and ExecuTorch compute stays the same. Processes that tests start export
without this.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey, _dispatch_get_registrations_for_dispatch_key
from torch._export.utils import _collect_all_valid_cia_ops
from torch._ops import OperatorBase
from torch._subclasses import fake_impls
from torch.export import decomp_utils, exported_program
from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.traceback import NodeSource


# torch 2.13 lists all composite operators anew for each decomposition: 40 % of
# the time that lowering a tiny model takes.
@functools.lru_cache(maxsize=1)
def _composite_operators_of(
    kernels: frozenset[str],  # noqa: ARG001
    namespaces: frozenset[str],  # noqa: ARG001
) -> set[OperatorBase]:
    return _collect_all_valid_cia_ops()


def _composite_operators() -> set[OperatorBase]:
    # Packages such as torchao register theirs when a test imports them.
    kernels = _dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return _composite_operators_of(frozenset(kernels), frozenset(torch.ops._dir))


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

# And these are the same each time, but for what decomposes the operator.
_override_kernels = exported_program._override_composite_implicit_decomp
_overridden_kernels: dict[OperatorBase, dict[Any, Any]] = {}
_overridden_rules: dict[OperatorBase, Any] = {}


@contextlib.contextmanager
def _override_remembered_kernels(
    decompositions: dict[OperatorBase, Callable[..., Any]],
) -> Iterator[None]:
    rules = fake_impls.op_implementations_dict
    new = {op: f for op, f in decompositions.items() if op not in _overridden_kernels}
    with _override_kernels(new):
        for op in new:
            _overridden_kernels[op] = op.py_kernels.copy()
            _overridden_rules[op] = rules[op]
    original = {op: op.py_kernels.copy() for op in decompositions}
    for op, decomposition in decompositions.items():
        op.py_kernels.update(_overridden_kernels[op])
        op.py_kernels[DispatchKey.CompositeImplicitAutograd] = decomposition
        op._dispatch_cache.clear()
        rules.setdefault(op, _overridden_rules[op])
    try:
        yield
    finally:
        for op, kernels in original.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
            rules.pop(op, None)


exported_program._override_composite_implicit_decomp = _override_remembered_kernels

# Each pass copies the history of each node, which grows with every pass.
NodeSource.__deepcopy__ = lambda self, memo: self


# Each pass makes a module, and code for it that hardly anything runs, as what lowers a
# program goes over its nodes: a seventh of the time that is left. Code that is asked
# for is that of the graph as it is then, also after a change without ``recompile()``.
_generate = GraphModule.recompile
_GENERATED = ("forward", "__call__", "_code", "_lineno_map", "_prologue_start")


class _Later:
    """What is generated for a module, once something asks for it."""

    def __init__(self, name: str, module: GraphModule) -> None:
        self.name = name
        self.module = weakref.ref(module)

    def __get__(self, instance: GraphModule | None, owner: type) -> Any:  # noqa: ANN401
        module = self.module()
        assert module is not None
        for name in _GENERATED:
            delattr(type(module), name)
        _generate(module)
        return getattr(owner if instance is None else instance, self.name)


def _generate_later(self: GraphModule) -> None:
    code = self._graph._codegen
    if isinstance(code, _PyTreeCodeGen):
        self._in_spec = code.pytree_info.in_spec
        self._out_spec = code.pytree_info.out_spec
    for name in _GENERATED:
        self.__dict__.pop(name, None)
        setattr(type(self), name, _Later(name, self))
    self._recompile_submodules()


GraphModule.recompile = _generate_later
