"""ExecuTorch's complaints about operators, with the entry point that has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from executorch.exir.tracer import _default_decomposition_table
from torch import fx
from torch._export.verifier import SpecViolationError

from ..errors import LoweringError
from ..lifted.lifted_state import LiftedProgram

#: What is wrong with an operator, and what to do.
NO_KERNEL = (
    "for which ExecuTorch 1.5.1 has no kernel; compute it in other operators, or"
    " outside of the program"
)

_WITHOUT_KERNEL = re.compile(r"Operator torch\._ops\.(\S+) is not in Core ATen")
_OF_SEVERAL_TYPES = re.compile(
    r"mismatched dtypes:\s*Operator: <EdgeOpOverload: ([\w.]+)>(.*)"
)


@contextmanager
def named_operators(programs: Mapping[str, LiftedProgram]) -> Iterator[None]:
    """Name entry point and operator where ExecuTorch refuses an operator.

    Raises:
        LoweringError: in place of ExecuTorch's own error, which is the cause.
    """
    try:
        yield
    except SpecViolationError as error:
        if found := _WITHOUT_KERNEL.search(str(error)):
            problem = NO_KERNEL
        elif found := _OF_SEVERAL_TYPES.search(str(error)):
            problem = "on tensors of several dtypes; bring them to one with '.to()'"
            if "torch.complex" in found[2]:
                problem = "on complex numbers, for which ExecuTorch 1.5.1 has no"
                problem += " kernel; compute with torch.view_as_real(z), the real and"
                problem += " imaginary parts"
        else:
            raise
        name = next(_users(found[1], programs), None)
        place = "an entry point" if name is None else f"entry point '{name}'"
        raise LoweringError(
            f"{place} uses {found[1]}, {problem}", method_name=name
        ) from error


def _users(operator: str, programs: Mapping[str, LiftedProgram]) -> Iterator[str]:
    """Yield the entry points that have an operator once they are decomposed."""
    for name, lifted in programs.items():
        decomposed = lifted.program.run_decompositions(_default_decomposition_table())
        modules = [decomposed.graph_module]
        modules += [m for m in modules[0].modules() if isinstance(m, fx.GraphModule)]
        if any(
            isinstance(node.target, torch._ops.OpOverload)
            and str(node.target) == operator
            for module in modules
            for node in module.graph.nodes
        ):
            yield name
