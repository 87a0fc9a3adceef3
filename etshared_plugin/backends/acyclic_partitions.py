"""Partitions that can be computed one after another.

Torch 2.13 merges partitions that have nothing to do with each other, and now and then
such that two of them need each other's results, which ExecuTorch then refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from torch import fx
from torch.fx.passes.infra.partitioner import Partition


def acyclic(
    graph: fx.Graph,
    partitions: Sequence[Partition],
    matches: Sequence[Sequence[fx.Node]],
) -> list[Partition]:
    """Take apart partitions that need each other, as far as is needed.

    Args:
        graph: what they are partitions of.
        partitions: no node is in two of them.
        matches: what has to stay together.
    """
    groups = [list(partition.nodes) for partition in partitions]
    while cycle := _cycle(graph, groups):
        apart = [part for group in cycle for part in _connected(group)]
        if len(apart) == len(cycle):
            apart = [part for group in cycle for part in _matched(group, matches)]
        if len(apart) == len(cycle):
            break  # ExecuTorch refuses it
        groups = [group for group in groups if group not in cycle] + apart
    return [Partition(number, group) for number, group in enumerate(groups)]


def _cycle(
    graph: fx.Graph, groups: Sequence[list[fx.Node]]
) -> list[list[fx.Node]] | None:
    """Return groups that need each other's results, or None."""
    homes = {
        node: number
        for number, group in enumerate(groups)
        for node in group
        if node.op != "placeholder"  # constants may belong to several
    }
    sorter: TopologicalSorter[object] = TopologicalSorter()
    for node in graph.nodes:
        home = homes.get(node, node)
        needs = {homes.get(one, one) for one in node.all_input_nodes}
        sorter.add(home, *(needs - {home}))
    try:
        sorter.prepare()
    except CycleError as error:
        found = dict.fromkeys(error.args[1])
        return [groups[one] for one in found if isinstance(one, int)]
    return None


def _connected(group: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Return the parts of a group that no edge connects."""
    left = set(group)
    parts = []
    for first in group:
        if first not in left:
            continue
        left.remove(first)
        part, reached = {first}, [first]
        while reached:
            node = reached.pop()
            near = {*node.all_input_nodes, *node.users} & left
            left -= near
            part |= near
            reached += near
        parts.append([node for node in group if node in part])
    return parts


def _matched(
    group: Sequence[fx.Node], matches: Sequence[Sequence[fx.Node]]
) -> list[list[fx.Node]]:
    """Return the matches in a group, with those that overlap as one."""
    parts: list[set[fx.Node]] = []
    for match in matches:
        part = set(match) & set(group)
        if part:
            overlapping = [one for one in parts if one & part]
            parts = [one for one in parts if one not in overlapping]
            parts.append(part.union(*overlapping))
    return [[node for node in group if node in part] for part in parts]
