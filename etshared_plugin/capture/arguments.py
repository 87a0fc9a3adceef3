"""What callers may pass as a module and as programs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.export import ExportedProgram

from ..errors import EntryPointError
from ..lifted.signatures import check_names
from ..wording import kind_of

_PROGRAMS = "what etshared_plugin.export returns, or ExportedPrograms by name"


def check_root(root: object) -> None:
    """Refuse a root that is no module of Python.

    Raises:
        EntryPointError: it is none, or has a part that TorchScript has compiled.
    """
    if not isinstance(root, nn.Module):
        expected = "a torch.nn.Module, the one that the entry points belong to"
        if isinstance(root, type):
            expected = f"an instance of it; write {root.__name__}(…)"
        raise EntryPointError(f"root is {kind_of(root)}, expected {expected}")
    for name, module in root.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise EntryPointError(
                f"'{name}' is a module of TorchScript, which torch.export does not"
                " trace; put the Python module that it was made of in its place"
                if name
                else "root is a module of TorchScript, which torch.export does not"
                " trace; pass the Python module that it was made of",
            )


def programs_of(given: object) -> Mapping[str, ExportedProgram]:
    """Return programs by entry point; one alone is ``forward``.

    Raises:
        EntryPointError: there are none, or something has no name or is no program.
    """
    if isinstance(given, ExportedProgram):
        return {"forward": given}
    if not isinstance(given, Mapping):
        raise EntryPointError(f"programs is {kind_of(given)}, expected {_PROGRAMS}")
    if not given:
        raise EntryPointError("there is no program to lower, quantize or call")
    check_names(given)
    for name, one in given.items():
        if not isinstance(one, ExportedProgram):
            raise EntryPointError(
                f"program '{name}' is {kind_of(one)}, expected {_PROGRAMS}",
                method_name=name,
            )
    return given
