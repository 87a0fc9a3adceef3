"""What random models do that export has to refuse."""

from __future__ import annotations

from hypothesis import strategies as st
from random_expressions import Scope


def write_refused(scope: Scope) -> str:
    """Write a statement that is refused; return what the error's message matches."""
    options = [("self.calls = 1", "changes '.*calls', which is no buffer")]
    for value in scope.inputs:
        name = value.code
        options.append((f"{name}.zero_()", f"writes into its argument '{name}'"))
    for buffer in scope.registered.buffers:
        code = buffer.seen_from(scope.owner)
        if buffer.writes in ("any", "assign") and buffer.kind.shape:
            options.append(
                (
                    f"{code} = torch.cat([{code}, {code}])",
                    f"changes '{buffer.fqn}' from .* state keeps its shape and dtype",
                )
            )
        if buffer.name == "shared":
            options.append(
                (
                    f"{code} = {code}.clone()",
                    "under one of its names only|lies in one memory with",
                )
            )
    line, refusal = scope.draw(st.sampled_from(options))
    scope.lines.append(line)
    return refusal
