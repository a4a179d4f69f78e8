"""The nodes of a run's range tree by path: the threads of a process combined."""

from __future__ import annotations

from gputui.model.naming import is_library_domain
from gputui.state import Range, Run

PhaseKey = tuple[int, str, tuple[str, ...]]
"""A path in one process: (process, domain, names from the top)."""


class Paths:
    """`keys` are parents before children, in order of first appearance."""

    def __init__(self, run: Run, library_domains: bool) -> None:
        """`library_domains` adds the ranges of NCCL, CUB and similar."""
        self.nodes: dict[PhaseKey, list[Range]] = {}
        self.children: dict[PhaseKey, list[PhaseKey]] = {}
        self.parents: dict[PhaseKey, PhaseKey | None] = {}
        self.roots: list[PhaseKey] = []
        # If there is nothing but libraries, they were what was requested.
        library_domains = library_domains or all(
            is_library_domain(run.ranges[number].definition.domain) for number in run.roots
        )
        # An explicit stack: a program may nest deeper than Python recurses.
        pending: list[tuple[int, PhaseKey | None]] = [
            (number, None)
            for number in reversed(run.roots)
            if library_domains or not is_library_domain(run.ranges[number].definition.domain)
        ]
        while pending:
            number, parent = pending.pop()
            node = run.ranges[number]
            names = (*(parent[2] if parent else ()), node.definition.name)
            key = (node.definition.process, node.definition.domain, names)
            if key not in self.nodes:
                self.nodes[key] = []
                self.children[key] = []
                self.parents[key] = parent
                (self.children[parent] if parent else self.roots).append(key)
            self.nodes[key].append(node)
            pending.extend((child, key) for child in reversed(node.children))
        self.keys: list[PhaseKey] = []
        stack = self.roots[::-1]
        while stack:
            key = stack.pop()
            self.keys.append(key)
            stack.extend(reversed(self.children[key]))
