"""Random ``torch.cond`` whose branches read and write state."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from random_expressions import Scope
from random_kinds import Kind, Value
from random_writes import Statements


def write_branches(scope: Scope) -> None:
    """Write two functions, of which a condition selects one."""
    draw = scope.draw
    buffer = draw(st.sampled_from(scope.registered.buffers))
    operand = scope.own(scope.make(buffer.kind, 1))
    condition = scope.make(Kind(torch.bool, ()), 1).code
    result = draw(st.sampled_from([b.kind for b in scope.registered.buffers]))
    name = scope.new_name()
    functions = [_write_branch(scope, f"{name}_{one}", operand, result) for one in "ab"]
    call = f"cond({condition}, {', '.join(functions)}, ({operand.code},))"
    scope.local(Value(call, result))


def _write_branch(scope: Scope, name: str, operand: Value, result: Kind) -> str:
    """Write a function of one tensor and of state."""
    # A branch may use state under one of its names only.
    registered = scope.registered.without_shared()
    argument = Value("x", operand.kind, False)
    inner = Scope(scope.draw, scope.owner, registered, [argument])
    buffer = scope.draw(st.sampled_from(registered.buffers))
    if buffer.writes != "assign" and scope.draw(st.booleans()):
        statements = Statements(inner, buffer)
        groups = [statements.copies(), statements.updates(), statements.slices()]
        scope.draw(st.sampled_from([one for group in groups for one in group]))()
    # Both branches have to return the same strides, also of dimensions of size 1.
    code = f"fresh({inner.make(result, 1).code})"
    scope.lines.append(f"def {name}(x):")
    for line in (*inner.lines, f"return {code}"):
        # Tracing does not see an assignment there, which += is too.
        scope.lines.append(f"    {line}".replace(" += 1", ".add_(1)"))
    return name
