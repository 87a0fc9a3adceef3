"""Entry points that hold the user's own module, which no copy can replace."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterator, Mapping

from torch import nn
from torch.utils import _pytree as pytree

from ..capture.arguments import check_root
from ..capture.declarations import EntryPoint, check_entry_points
from ..errors import InputError


def refuse_captured_modules(
    root: nn.Module, entry_points: Mapping[str, EntryPoint]
) -> None:
    """Refuse functions that have parts of ``root`` by closures or globals.

    Called on a copy of the module, or held by one, as hooks are, they would still
    read and write the module itself.

    Raises:
        InputError: there is one.
        EntryPointError: these are no module and no entry points.
    """
    check_root(root)
    check_entry_points(entry_points)
    parts: dict[int, str] = {}
    for path, module in root.named_modules():
        parts[id(module)] = f"module '{path}'" if path else "the root"
    for tensors in (root.named_parameters(), root.named_buffers()):
        for fqn, tensor in tensors:
            parts[id(tensor)] = f"'{fqn}'"
    for name, one in entry_points.items():
        for variable, value in _captured(one.fn, set()):
            if id(value) in parts:
                raise InputError(
                    f"entry point '{name}' has {parts[id(value)]} as the variable"
                    f" '{variable}' from outside, so that a copy of the module cannot"
                    " take its place; give a bound method, or a function that takes"
                    " the root as its first argument, (root, x)",
                    method_name=name,
                )
    for module in root.modules():
        for held in pytree.tree_leaves(vars(module)):
            for variable, value in _captured(held, set()):
                if id(value) in parts:
                    raise InputError(
                        f"{parts[id(module)]} holds a function, such as a hook, that"
                        f" has {parts[id(value)]} as the variable '{variable}' from"
                        " outside, so that a copy of the module cannot take its place;"
                        " let it hold a bound method"
                    )


def _captured(fn: object, seen: set[int]) -> Iterator[tuple[str, object]]:
    """Yield what a function has by closures and globals, by the variable's name."""
    while isinstance(fn, (functools.partial, types.MethodType)):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    if not isinstance(fn, types.FunctionType) or id(fn) in seen:
        return
    seen.add(id(fn))
    names = _names_of_globals(fn.__code__) & fn.__globals__.keys()
    variables = [(name, fn.__globals__[name], True) for name in sorted(names)]
    closure = inspect.getclosurevars(fn).nonlocals
    variables += [(name, value, False) for name, value in closure.items()]
    for variable, value, is_global in variables:
        for leaf in pytree.tree_leaves(value):
            method = leaf
            while isinstance(method, functools.partial):
                method = method.func
            yield variable, getattr(method, "__self__", leaf)
            # A function of another file knows the user's module by a closure only.
            if not is_global or getattr(method, "__module__", "") == fn.__module__:
                for _, inner in _captured(method, seen):
                    yield variable, inner


def _names_of_globals(code: types.CodeType) -> set[str]:
    """Return the globals that code reads, not attributes of the same name."""
    names = {
        one.argval
        for one in dis.get_instructions(code)
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_of_globals(constant)
    return names
