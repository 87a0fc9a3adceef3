"""ExecuTorch's complaints, with the entry point that they are about."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram

from ..errors import EtsharedError, LoweringError
from ..lifted.control_flow import nodes_of

_T = TypeVar("_T")

#: What is wrong with an operator, and what to do.
NO_KERNEL = (
    "for which ExecuTorch 1.5.1 has no kernel; compute it in other operators, or"
    " outside of the program"
)

_WITHOUT_KERNEL = re.compile(r"Operator torch\._ops\.(\S+) is not in Core ATen")
_OF_SEVERAL_TYPES = re.compile(
    r"mismatched dtypes:\s*Operator: <EdgeOpOverload: ([\w.]+)>(.*)"
)
_WITHOUT_OUT_VARIANT = re.compile(r"(?<=[{ ]')[\w.]+::\w+(?=')")


@contextmanager
def named_failures(
    lower: Callable[[Mapping[str, _T]], object], given: Mapping[str, _T]
) -> Iterator[None]:
    """Name the entry point that fails where lowering all of them fails.

    ExecuTorch's errors do not say it; so each is lowered alone until one fails.

    Args:
        lower: what failed.
        given: what it was given, by entry point.

    Raises:
        LoweringError: in place of ExecuTorch's own error, which is the cause.
    """
    try:
        yield
    except EtsharedError:
        raise
    except Exception:
        for name, one in given.items():
            try:
                lower({name: one})
            except EtsharedError:
                raise
            except Exception as error:
                raise LoweringError(_text(name, error), method_name=name) from error
        raise


@contextmanager
def named_out_variants(programs: Mapping[str, ExportedProgram]) -> Iterator[None]:
    """Name the entry point that has an operator without an out variant.

    Raises:
        LoweringError: in place of ExecuTorch's own error, which is the cause.
    """
    try:
        yield
    except RuntimeError as error:
        missing = set(_WITHOUT_OUT_VARIANT.findall(str(error)))
        for name, program in programs.items():
            for node in nodes_of(program.graph_module):
                schema = getattr(node.target, "_schema", None)
                if schema is not None and schema.name in missing:
                    raise LoweringError(
                        f"entry point '{name}' uses {schema.name}, which has no out"
                        " variant, as ExecuTorch's kernels are; register one, or"
                        " compute it in other operators",
                        method_name=name,
                    ) from error
        raise


def _text(name: str, error: Exception) -> str:
    if isinstance(error, SpecViolationError):
        if found := _WITHOUT_KERNEL.search(str(error)):
            return f"entry point '{name}' uses {found[1]}, {NO_KERNEL}"
        if found := _OF_SEVERAL_TYPES.search(str(error)):
            problem = "on tensors of several dtypes; bring them to one with '.to()'"
            if "torch.complex" in found[2]:
                problem = "on complex numbers, for which ExecuTorch 1.5.1 has no"
                problem += " kernel; compute with torch.view_as_real(z), the real and"
                problem += " imaginary parts"
            return f"entry point '{name}' uses {found[1]}, {problem}"
    return f"ExecuTorch cannot lower entry point '{name}': {reason_of(error)}"


def reason_of(error: Exception) -> str:
    """Return what an error of ExecuTorch says, in one line; the cause has all."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"
