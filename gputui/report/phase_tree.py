"""The phases of a run: ranges by path, the threads of a process combined, numbering folded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gputui.model.naming import is_library_domain, sibling_names
from gputui.state import Range, Run

PhaseKey = tuple[int, str, tuple[str, ...]]
"""A path in one process: (process, domain, names from the top)."""


@dataclass(slots=True, eq=False)
class Phase:
    """One path of the tree, with the ranges that it stands for, in order of first appearance."""

    key: PhaseKey
    parent: Phase | None
    nodes: list[Range] = field(default_factory=list)
    children: list[Phase] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last name of its path."""
        return self.key[2][-1]

    @property
    def path(self) -> str:
        """The names from the outermost phase on."""
        return "/".join(self.key[2])


class PhaseTree:
    """`phases` are parents before children, in order of first appearance."""

    def __init__(self, run: Run, library_domains: bool) -> None:
        """`library_domains` adds the ranges of NCCL, CUB and similar."""
        ranges = run.ranges
        self.roots: list[Phase] = []
        self.of_range: dict[int, Phase] = {}
        """The phase of each range, by the range's number. Ranges of libraries may be absent."""
        # If there is nothing but libraries, they were what was requested.
        library_domains = library_domains or all(
            is_library_domain(ranges[number].definition.domain) for number in run.roots
        )
        roots = [
            ranges[number]
            for number in run.roots
            if library_domains or not is_library_domain(ranges[number].definition.domain)
        ]
        raw = run.raw_names
        self._has_shapes = run.started.operator_shapes
        self.phases: list[Phase] = []
        # An explicit stack: a program may nest deeper than Python recurses.
        pending = self._grouped(None, roots, raw)[::-1]
        while pending:
            phase = pending.pop()
            self.phases.append(phase)
            inside = [ranges[child] for node in phase.nodes for child in node.children]
            if inside:
                pending.extend(reversed(self._grouped(phase, inside, raw)))

    def _shaped(self, node: Range) -> tuple[str, str]:
        """A range's name, and the shapes behind it that were asked for: these are not numbering."""
        name = node.definition.name
        place = name.find(" [[") if self._has_shapes else -1
        return (name, "") if place < 0 else (name[:place], name[place:])

    def _grouped(self, parent: Phase | None, nodes: list[Range], raw: bool) -> list[Phase]:
        """The phases directly inside `parent`."""
        above = parent.key[2] if parent else ()
        phases: dict[PhaseKey, Phase] = {}
        names = {} if raw else sibling_names((_kind(node), self._shaped(node)[0]) for node in nodes)
        for node in nodes:
            name, shapes = self._shaped(node)
            process, domain = _kind(node)
            key = (process, domain, (*above, names.get(((process, domain), name), name) + shapes))
            phase = phases.get(key)
            if phase is None:
                phase = phases[key] = Phase(key, parent)
            phase.nodes.append(node)
            self.of_range[node.definition.range] = phase
        groups = [*phases.values()]
        if parent:
            parent.children = groups
        else:
            self.roots = groups
        return groups


def _kind(node: Range) -> tuple[int, str]:
    return node.definition.process, node.definition.domain


# The newest trees: a screen asks for the same ones in every frame.
_built: list[tuple[Run, int, bool, PhaseTree]] = []

# Room for the tree of a run with the domains of libraries and the one without them.
_KEPT = 2


def phase_tree(run: Run, *, library_domains: bool = False) -> PhaseTree:
    """The phases of a run as it is now."""
    size = len(run.ranges)
    for of_run, of_size, libraries, tree in _built:
        if (
            of_run.ranges is run.ranges
            and of_run.raw_names == run.raw_names
            and (of_size, libraries) == (size, library_domains)
        ):
            return tree
    tree = PhaseTree(run, library_domains)
    _built.insert(0, (run, size, library_domains, tree))
    del _built[_KEPT:]
    return tree


def phase_path(run: Run, number: int) -> str | None:
    """The path of the phase that a range belongs to; None outside every range."""
    phase = phase_tree(run).of_range.get(number)
    if phase is not None:
        return phase.path
    node = run.ranges.get(number)  # a library's
    return node.path if node is not None else None


def ranges_below(phase: Phase) -> set[int]:
    """The ranges of a phase, of all threads, and everything inside them."""
    numbers: set[int] = set()
    pending = [phase]
    while pending:
        phase = pending.pop()
        numbers.update(node.definition.range for node in phase.nodes)
        pending.extend(phase.children)
    return numbers


def phases_around(phase: Phase | None) -> Iterable[Phase]:
    """A phase and the phases around it, from the inside out."""
    while phase is not None:
        yield phase
        phase = phase.parent
