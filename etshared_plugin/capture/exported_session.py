"""Call exported programs in torch, with the state that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ..lifted.control_flow import attributes_of
from ..lifted.lifted_state import LiftedProgram
from ..lifted.program_surgery import buffer_tensor, copy_graph, inputs_of
from ..state import SharedState
from .arguments import programs_of
from .calls import Call, is_reset
from .entry_points import ExportedEntryPoints
from .given_inputs import flat_inputs
from .plain_programs import lift_declared, lift_plain_programs


def lift_programs(
    given: ExportedProgram | Mapping[str, ExportedProgram],
) -> tuple[dict[str, LiftedProgram], SharedState]:
    """Lift the declared state of programs, or all that plain ones write.

    Raises:
        EntryPointError: they are no programs by name.
    """
    programs = programs_of(given)
    if isinstance(programs, ExportedEntryPoints):
        return lift_declared(programs, programs.state), programs.state
    return lift_plain_programs(programs, None)


def module_of(program: ExportedProgram) -> fx.GraphModule:
    """Make a module of a functional program; parameters and constants are shared.

    It takes and returns what the program's graph does, as flat values, and has
    its tensors under their fqns.
    """
    graph, nodes = copy_graph(program)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    attributes = attributes_of(program.graph_module)
    for old, spec in inputs_of(program):
        if spec.kind is InputKind.USER_INPUT:
            continue
        fqn = str(spec.target)
        attributes[fqn] = buffer_tensor(program, fqn)
        with graph.inserting_before(first):
            attribute = graph.get_attr(fqn)
        attribute.meta.update(nodes[old].meta)
        nodes[old].replace_all_uses_with(attribute)
        graph.erase_node(nodes[old])
    return fx.GraphModule(attributes, graph)


class ExportedSession:
    """One life of the state of exported programs.

    Args:
        lifted: the programs.
        state: what they share. Calls change copies of the initial values.
        modules: what to call instead of the programs' own modules, with the same
            flat inputs and outputs.
    """

    def __init__(
        self,
        lifted: Mapping[str, LiftedProgram],
        state: SharedState,
        modules: Mapping[str, fx.GraphModule] | None = None,
    ) -> None:
        self._lifted = lifted
        self._initial = state
        if modules is None:
            modules = {n: module_of(one.program) for n, one in lifted.items()}
        self._modules = modules
        self.reset()

    def reset(self) -> None:
        """Give all state its initial values back."""
        self.state = {f: one.initial_value.clone() for f, one in self._initial.items()}

    @torch.no_grad()
    def call(self, one: Call) -> Any:  # noqa: ANN401
        """Call an entry point, or the generated one that resets the state.

        Raises:
            InputError: there is no such entry point, or the inputs do not fit.
        """
        name = one.name
        if is_reset(one, self._lifted):
            return self.reset()
        lifted = self._lifted[name]
        inputs = flat_inputs(name, lifted, one.args, one.kwargs)
        old = [self.state[fqn] for fqn in lifted.inputs]
        results = self._modules[name](*old, *inputs)
        count = len(lifted.outputs)
        self.state.update(zip(lifted.outputs, results[:count], strict=True))
        return pytree.tree_unflatten(results[count:], lifted.call.out_spec)
