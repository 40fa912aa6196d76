"""Strongly connected components of a graph: first what lies on no cycle, then Tarjan's algorithm."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


def components(count: int, source: Numbers, target: Numbers) -> Numbers:
    """A number for each of ``count`` nodes, equal for two nodes exactly when each leads to the other."""
    label = np.arange(count)
    kept = _on_cycles(count, source, target)
    if not kept.any():
        return label
    inside = kept[source] & kept[target]
    source, target = source[inside], target[inside]
    order = np.argsort(source, kind="stable")
    nodes = np.flatnonzero(kept)
    offsets = np.searchsorted(source[order], np.arange(count + 1))
    for number, members in enumerate(_tarjan(nodes.tolist(), offsets.tolist(), target[order].tolist())):
        label[members] = count + number
    return label


def _on_cycles(count: int, source: Numbers, target: Numbers) -> NDArray[np.bool_]:
    """Nodes left when those without a way in, or without a way out, are taken away again and again."""
    kept = np.ones(count, np.bool_)
    while True:
        inside = kept[source] & kept[target]
        source, target = source[inside], target[inside]
        there = np.zeros((2, count), np.bool_)
        there[0, source] = there[1, target] = True
        left = kept & there[0] & there[1]
        if (left == kept).all():
            return kept
        kept = left


def _tarjan(nodes: list[int], offsets: list[int], targets: list[int]) -> list[list[int]]:
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, offsets[root])]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, at = work[-1]
            if at < offsets[node + 1]:
                work[-1] = (node, at + 1)
                after = targets[at]
                if after not in index:
                    index[after] = low[after] = len(index)
                    stack.append(after)
                    on_stack.add(after)
                    work.append((after, offsets[after]))
                elif after in on_stack:
                    low[node] = min(low[node], index[after])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                members = []
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    members.append(member)
                    if member == node:
                        break
                found.append(members)
    return found
