"""Where the time goes as nested parts: phases, and in each what its GPU did and why it idled, whose
widths add up to the time of what is around them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gputui.model.leaves import LEAVES, Leaf, leaf_of_number
from gputui.report.explain.time_tree import TimeTree
from gputui.report.phase_tree import Phase, PhaseKey, phase_tree
from gputui.report.phases import main_step, phase_rows
from gputui.state import Run


@dataclass(slots=True)
class IciclePart:
    """A phase, or a leaf of time in one: `key` or `leaf` says which. `ns` is wall time of the GPU,
    busy or idle, over all that was recorded, those of parts inside included."""

    name: str
    ns: int = 0
    key: PhaseKey | None = None
    leaf: Leaf | None = None
    parts: list[IciclePart] = field(default_factory=list)

    def stacks(self, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
        """Each innermost part with the names around it, from the outermost, and its time."""
        names = (*above, self.name)
        for part in self.parts:
            yield from part.stacks(names)
        own_ns = self.ns - sum(part.ns for part in self.parts)
        if own_ns > 0:
            yield names, own_ns


def icicle(run: Run) -> IciclePart:
    """All of the run's time on its GPUs, as far as it was accounted for by range. Phases are in the
    order in which they first began, then what is no phase's."""
    own: dict[int, dict[Leaf, int]] = defaultdict(lambda: defaultdict(int))
    for time in run.timing.range_leaves.values():
        leaf = leaf_of_number(time.leaf)
        if leaf in LEAVES:
            own[time.range][leaf] += time.ns
    whole = IciclePart(run.started.name or "run")
    made: dict[Phase, IciclePart] = {}
    for phase in phase_tree(run).phases:
        part = made[phase] = IciclePart(phase.name, key=phase.key)
        around = made[phase.parent] if phase.parent is not None else whole
        around.parts.append(part)
        for node in phase.nodes:
            _add(part, own.pop(node.definition.range, {}))
    for leaves in own.values():  # outside every phase
        _add(whole, leaves)
    _sum(whole)
    return whole


def of_step(run: Run, tree: TimeTree | None) -> tuple[IciclePart, int]:
    """The part that is the program's main step, and how many steps it adds up. Where the program
    names no phase, the causes of the steps that were found in it; where it names no step, all that
    was recorded, once."""
    whole = icicle(run)
    step = main_step(run, phase_rows(run))
    pending = [whole] if step is not None else []
    while pending and step is not None:
        part = pending.pop()
        if part.key == step.key and part.ns:
            return part, max(1, step.instances)
        pending += part.parts
    if tree is None or any(part.key is not None for part in whole.parts):
        return whole, 1
    causes = IciclePart("step" if tree.has_steps else whole.name)
    _add(causes, tree.leaves)
    _sum(causes)
    of = tree.steps * tree.of_processes if tree.has_steps else tree.devices
    return causes, max(1, round(of))


def _add(part: IciclePart, leaves: Mapping[Leaf, int]) -> None:
    known = {one.leaf: one for one in part.parts if one.leaf is not None}
    for leaf, ns in leaves.items():
        if leaf in known:
            known[leaf].ns += ns
        else:
            part.parts.append(IciclePart(LEAVES[leaf].label, ns, leaf=leaf))


def _sum(whole: IciclePart) -> None:
    """Add up from the inside, drop what took nothing, and let leaves follow phases by size. Without
    recursion: a program may nest deeper than Python does."""
    order = [whole]
    for part in order:
        order += part.parts
    for part in reversed(order):
        part.parts = [one for one in part.parts if one.ns > 0]
        part.parts.sort(key=lambda one: (one.leaf is not None, -one.ns if one.leaf else 0))
        if part.leaf is None:
            part.ns = sum(one.ns for one in part.parts)
