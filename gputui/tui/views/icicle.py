"""Time as a picture: phases over what the GPU did in them and why it idled, each as wide as it
took.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from gputui.base.sanitize import cut_middle
from gputui.model.leaves import LEAVES
from gputui.model.units import count, duration, percent
from gputui.report.explain import verdict
from gputui.report.tables.time import IciclePart, divide_by_kernel, icicle_of_step
from gputui.state import Run
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, Span, bar, fit, heading, paragraph, wrap
from gputui.tui.widgets.causes import look, share_bar
from gputui.tui.widgets.run import no_run, unaccounted
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.tree import phase_colors
from gputui.tui.widgets.view import Details, Lead, View

_NAMED = 4
"""Cells from which a box has its name in it."""
_LIST = 8
"""Rows below the picture that are kept for what the chosen box is made of."""
_PART = 0.9
"""Of a step's time from which the picture stands for all of it."""
_HIGHEST = 5
"""Rows of a box, where there is room."""


class _Box(NamedTuple):
    """A part where it is drawn."""

    part: IciclePart
    depth: int
    start: int
    end: int


class StepBoxes(NamedTuple):
    """A step of what is the scope as boxes, how many steps they add up, and the time from one to
    the next."""

    whole: IciclePart
    steps: int
    turn_ns: float


def step_boxes(model: Model, run: Run) -> StepBoxes:
    """Of the run as it is now."""

    def made() -> StepBoxes:
        scoped = model.scoped or run
        analysis = model.analysis(scoped)
        found = verdict(analysis)
        tree = found.shares_tree if found is not None else analysis.tree
        whole, steps = icicle_of_step(scoped, tree)
        divide_by_kernel(whole, model.session, scoped)
        return StepBoxes(whole, steps, tree.step_mean_ns if tree is not None else 0.0)

    return model.once("boxes", made)


def picture(run: Run, whole: IciclePart, steps: int, width: int, height: int) -> list[Row]:
    """The boxes of a step in at most so many rows, to be looked at."""
    boxes = list(_laid_out(whole, 1, width - 1))
    depths = range(min(max(box.depth for box in boxes) + 1, height))
    high = max(1, min(_HIGHEST, height // len(depths)))
    colors = phase_colors(run)
    return [
        _line([box for box in boxes if box.depth == depth], width, steps, colors, None,
              is_named=not part)
        for depth in depths for part in range(high)
    ]  # fmt: skip


def _line(
    boxes: Sequence[_Box], width: int, steps: int, colors: dict[str, int],
    chosen: IciclePart | None, *, is_named: bool,
) -> Row:  # fmt: skip
    spans: list[Span] = []
    at = 0
    for box in boxes:
        spans.append((" " * (box.start - at), "text"))
        size = box.end - box.start
        role = "cursor" if box.part is chosen else _role(box.part, colors)
        spans.append((_inside(box.part, size, steps, is_named=is_named), role))
        at = box.end
    return (*(span for span in spans if span[0]), (" " * (width - at), "text"))


class IcicleView(View):
    """A step from above: the arrows go from box to box, Enter goes into one, Esc comes back."""

    offers = View.offers | {"scope"}

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._path: list[int] = []
        """The way from the step to the part that fills the width, by places."""
        self._at: list[int] = []
        """The same to the chosen part."""
        self._read: StepBoxes | None = None
        self._boxes: list[_Box] = []

    # --- drawing

    def rows(self, width: int, height: int) -> list[Row]:
        """The boxes, and what the chosen one is made of."""
        run = self.model.run
        if run is None:
            return no_run(self.model, width, height)
        whole, steps, turn_ns = self._read = step_boxes(self.model, run)
        if not whole.ns:
            return [heading("Icicle", width), *wrap(unaccounted(run), width - 2, "text", "  ")]
        root, self._path = _followed(whole, self._path)
        chosen, self._at = _followed(whole, self._at)
        if self._at[: len(self._path)] != self._path:
            chosen, self._at = root, list(self._path)
        self._boxes = list(_laid_out(root, 1, width - 1))
        deepest = max(box.depth for box in self._boxes)
        most = max(2, height - 2 - _LIST)
        top = max(0, min(deepest + 1 - most, len(self._at) - len(self._path) - most + 1))
        title = f"{whole.name}  {duration(whole.ns / steps)}"
        title += f" a step, the mean of {count(steps)}" if steps > 1 else ""
        if whole.ns / steps < _PART * turn_ns:  # such as of a range around a part of it
            title += f", of {duration(turn_ns)} from one to the next"
        note = (
            "width: time of the GPU, busy or idle" if run.kernels else "only its idle time was kept"
        )
        rows: list[Row] = [heading(title, width, note)]
        colors = phase_colors(run)
        depths = range(top, min(deepest + 1, top + most))
        below = max(_LIST, len(chosen.parts) + 3)
        high = max(1, min(_HIGHEST, (height - 1 - below) // len(depths)))
        for depth in depths:
            line = [box for box in self._boxes if box.depth == depth]
            for part in range(high):
                row = _line(line, width, steps, colors, chosen, is_named=not part)
                rows.append(self.doing_at(row, partial(self._click, line)))
        rows += self._about(whole, chosen, steps, width, height - len(rows))
        return rows[:height]

    def _about(
        self, whole: IciclePart, chosen: IciclePart, steps: int, width: int, room: int
    ) -> list[Row]:
        path = self._names(whole)
        share = percent(100 * chosen.ns / whole.ns)
        note = f"{duration(chosen.ns / steps)}, {share} of {'a step' if steps > 1 else 'all'}"
        rows: list[Row] = [(), heading(cut_middle(" › ".join(path), width - 10), width, note)]
        if chosen.leaf is not None and not chosen.parts:
            meaning = LEAVES[chosen.leaf]
            state = "GPU idle" if meaning.is_idle else "GPU busy"
            return rows + paragraph(f"  {state}  ", f"{meaning.meaning}.", width - 2)
        inside = sorted((one for one in chosen.parts if one.ns >= steps), key=lambda part: -part.ns)
        label = min(40, max((len(part.name) for part in inside), default=4))
        scale = max(8, width - label - 32)
        for part in inside[: max(0, room - 2)]:
            leaf = None if part.leaf is None else LEAVES[part.leaf]
            kind = "phase" if leaf is None else "idle" if leaf.is_idle else "busy"
            fraction = part.ns / chosen.ns
            drawn = (bar(fraction, scale), "cause-other")
            if part.leaf is not None:
                drawn = share_bar(part.leaf, fraction, scale)
            rows.append((
                (f" {kind:<6}", "dim"), (fit(cut_middle(part.name, label), label), "text"),
                (f" {duration(part.ns / steps):>9}", "value"),
                (f" {percent(100 * fraction):>7}  ", "text"), drawn,
            ))  # fmt: skip
        return rows

    def _names(self, whole: IciclePart) -> list[str]:
        names, part = [whole.name], whole
        for place in self._at:
            part = part.parts[place]
            names.append(part.name)
        return names

    # --- keys

    def move(self, move: Move) -> None:
        """To a neighbour, into the first box below, out to the one around."""
        if self._read is None or not self._read.whole.ns:
            self.nothing_chosen("nothing is accounted for yet")
            return
        at, before = list(self._at), list(self._at)
        around = _part(self._read.whole, at[:-1])
        if move == "down":
            inside = _part(self._read.whole, at).parts
            at += [0] * bool(inside)
        elif move == "up" and len(at) > len(self._path):
            at.pop()
        elif move in ("left", "right") and len(at) > len(self._path):
            step = 1 if move == "right" else -1
            at[-1] = max(0, min(len(around.parts) - 1, at[-1] + step))
        elif move in ("home", "end") and len(at) > len(self._path):
            at[-1] = 0 if move == "home" else len(around.parts) - 1
        if at == before:
            self.nothing_chosen("no further box there: Enter goes in, Esc comes back")
        self._at = at
        self.draw()

    def activate(self) -> Details | Lead | None:
        """The chosen box fills the width; a cause leads to the time tree."""
        if self._read is None or not self._read.whole.ns:
            self.nothing_chosen("nothing is accounted for yet")
            return None
        part = _part(self._read.whole, self._at)
        if part.leaf is not None:
            return Lead("time", LEAVES[part.leaf].key)
        if self._at == self._path:
            return Lead("phases", part.key)
        self._path = list(self._at)
        self.draw()
        return None

    def follow(self) -> None:
        """All of the step."""
        self._path, self._at = [], []
        self.draw()

    def go_back(self) -> bool:
        """Escape: out of the box that fills the width."""
        if not self._path:
            return False
        self._at = list(self._path)
        self._path.pop()
        self.draw()
        return True

    def show_item(self, key: Hashable) -> None:
        """A phase, by its key."""
        del key

    def _click(self, line: Sequence[_Box], x: int) -> None:
        """Choose the box of a line that stands in a column; the chosen one, as Enter."""
        part = next((box.part for box in line if box.start <= x < box.end), None)
        if self._read is None or part is None:
            return
        found = _way_to(self._read.whole, part)
        if found == self._at:
            self.ask("activate")
        elif found is not None:
            self._at = found
            self.draw()

    @property
    def copied(self) -> str:
        """The names of the chosen box."""
        return super().copied if self._read is None else ";".join(self._names(self._read.whole))


def _part(whole: IciclePart, way: Sequence[int]) -> IciclePart:
    for place in way:
        whole = whole.parts[place]
    return whole


def _followed(whole: IciclePart, way: Sequence[int]) -> tuple[IciclePart, list[int]]:
    """As far as it goes: there may be fewer parts than there were."""
    part, gone = whole, []
    for place in way:
        if place >= len(part.parts):
            break
        part = part.parts[place]
        gone.append(place)
    return part, gone


def _way_to(whole: IciclePart, wanted: IciclePart) -> list[int] | None:
    pending: list[tuple[IciclePart, list[int]]] = [(whole, [])]
    while pending:
        part, way = pending.pop()
        if part is wanted:
            return way
        pending += [(one, [*way, place]) for place, one in enumerate(part.parts)]
    return None


def _laid_out(root: IciclePart, start: int, end: int) -> Iterator[_Box]:
    """Every box of at least a cell: parts side by side in the cells of the one around, rounded at
    their edges so that nothing drifts."""
    pending = [_Box(root, 0, start, end)]
    while pending:
        box = pending.pop(0)
        yield box
        at_ns, cells = 0, box.end - box.start
        for part in box.part.parts:
            first = box.start + round(cells * at_ns / box.part.ns)
            at_ns += part.ns
            last = box.start + round(cells * at_ns / box.part.ns)
            if last > first:
                pending.append(_Box(part, box.depth + 1, first, last))


def _role(part: IciclePart, colors: dict[str, int]) -> str:
    if part.leaf is None:
        return f"block-{colors.get(part.name, 1)}"
    meaning = LEAVES[part.leaf]
    return f"cause-{meaning.color}" if meaning.is_idle else f"fill-{meaning.color}"


def _inside(part: IciclePart, size: int, steps: int, *, is_named: bool) -> str:
    """A box's cells: idle time in the texture of its cause, a name where it has room."""
    is_idle = part.leaf is not None and LEAVES[part.leaf].is_idle
    texture = look(part.leaf).texture if part.leaf is not None and is_idle else " "
    if size < _NAMED or not is_named:
        return ("▏" + texture * (size - 1)) if not is_idle else texture * size
    name = cut_middle(part.name, size - 1)
    long = f"{part.name}  {duration(part.ns / steps)}"
    name = long if len(long) < size else name
    if is_idle:
        name = f" {name} " if len(name) + 4 <= size else ""
        return f"{texture * 2}{name}".ljust(size, texture)[:size]
    return f"▏{fit(name, size - 1)}"
