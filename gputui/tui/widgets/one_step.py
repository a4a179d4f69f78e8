"""One step that was kept in parts: its lanes, rows of threads and streams, and a cursor in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from textual import events

from gputui.model.events import IdleLane, StepLanes, ThreadLane
from gputui.model.leaves import DOING, EIGHTHS, LEAVES, ROW_PARTS, Leaf, unpack
from gputui.model.units import duration
from gputui.report.explain.time_tree import TimeTree
from gputui.report.scope import what_it_is
from gputui.state import Run
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, Span, fit, heading, wrap
from gputui.tui.widgets.causes import look
from gputui.tui.widgets.chart import block_rows
from gputui.tui.widgets.run_panels import Panel
from gputui.tui.widgets.view import Place, View

# A stretch of a view's columns, chosen by dragging over them.


class DraggedView(View):
    """A view with lanes whose columns can be chosen, several at once, with the mouse."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.dragged: tuple[int, int] | None = None
        """What is being chosen: the first and the last of what the columns show."""
        self._lanes_of: tuple[range, int, Sequence[int]] = (range(0), 0, ())
        """The lines of the lanes, where their columns begin, and what each of them shows."""
        self._from: int | None = None
        self._has_dragged = False

    def take_stretch(self, first: int, last: int) -> None:
        """What was chosen."""
        raise NotImplementedError

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """A stretch may begin here."""
        self._has_dragged = False
        lines, _, shown = self._lanes_of
        if event.button == 1 and event.y in lines and shown:
            self._from = self._shown_at(event.x)
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseEvent) -> None:
        """It reaches to here."""
        if self._from is None:
            return
        at = self._shown_at(event.x)
        if at != self._from or self.dragged is not None:
            self.dragged = min(at, self._from), max(at, self._from)
            self.draw()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """It ends here."""
        if self._from is None:
            return
        self.on_mouse_move(event)
        self.release_mouse()
        self._from, dragged, self.dragged = None, self.dragged, None
        if dragged is not None:
            self._has_dragged = True
            self.take_stretch(*dragged)

    def on_click(self, event: events.Click) -> None:
        """The end of a drag is no click. Another one is the base class's, which hears it too."""
        if self._has_dragged:
            event.prevent_default()

    def _shown_at(self, x: int) -> int:
        _, start, shown = self._lanes_of
        return shown[max(0, min(len(shown) - 1, x - start))]


# One step of a device as lanes whose ink is the figure beside them, and the gap under a
# cursor.


LABEL, FIGURE = 14, 8
_SEEN = 0.125
"""Idle share of a column from which its cause has a texture."""

_BUSY = 0.5
"""Busy share of a column from which it is no gap."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its busy share, and the idle ones by cause, 0 to 1."""

    busy: float
    idle: dict[Leaf, float]


def columns_of(step: StepLanes, first: int, last: int, width: int) -> list[Column]:
    """Parts `first` to `last` of a step over `width` columns; each holds the mean of what it
    covers, so that the mean of all is that of the parts."""
    parts = last - first
    found = []
    for at in range(width):
        low, high = first + parts * at / width, first + parts * (at + 1) / width
        weights = {
            part: min(high, part + 1) - max(low, part)
            for part in range(int(low), min(last, int(high) + 1))
            if min(high, part + 1) > max(low, part)
        }
        whole = sum(weights.values()) * 1000 or 1.0

        def mean(values: tuple[int, ...], weights: dict[int, float] = weights,
                 whole: float = whole) -> float:  # fmt: skip
            return sum(values[part] * weight for part, weight in weights.items()) / whole

        idle = {Leaf(lane.leaf): mean(lane.parts) for lane in step.idle if _fits(lane, step)}
        found.append(Column(mean(step.busy), idle))
    return found


def _fits(lane: IdleLane, step: StepLanes) -> bool:
    """Recordings are untrusted: a lane may have other parts, and a leaf that nobody knows."""
    return lane.leaf in LEAVES and len(lane.parts) == len(step.busy)


def lane_rows(
    columns: list[Column], device: int, at: int, start_ns: float, span_ns: float
) -> list[Row]:
    """GPU busy, why it idled, the cursor; the figures at the right are the means of the ink."""
    count = max(1, len(columns))
    busy = sum(column.busy for column in columns) / count
    [line] = block_rows([column.busy for column in columns], 1.0, 1)
    because: list[Span] = []
    for column in columns:
        idle = sum(column.idle.values())
        if idle < _SEEN:
            because.append((" ", "text"))
        else:
            texture, role = look(max(column.idle, key=lambda leaf: column.idle[leaf]))
            because.append((texture, role))
    cursor = "".join("▲" if n == at else " " for n in range(len(columns)))
    return [
        _axis(len(columns), start_ns, span_ns),
        ((f" {f'GPU {device} busy':<{LABEL - 1}}", "label"), (line, "cause-matmul"),
         (f"{100 * busy:.1f} %".rjust(FIGURE), "value")),
        ((f" {'idle because':<{LABEL - 1}}", "label"), *because,
         (f"{100 * (1 - busy):.1f} %".rjust(FIGURE), "value")),
        ((" " * LABEL, "text"), (cursor, "key")),
    ]  # fmt: skip


def newest_step(step: StepLanes, width: int) -> Panel:
    """The lanes of the last step that was kept in parts, for a view that leads to them."""
    columns = columns_of(step, 0, len(step.busy), max(1, width - LABEL - FIGURE - 1))
    rows = lane_rows(columns, step.device, -1, 0.0, step.duration_ns)[:-1]
    title = f"Timeline  the last step kept, {duration(step.duration_ns)}"
    return Panel(title, rows, "lanes, threads, streams: 3", view="timeline")


def gap_words(columns: list[Column], at: int, start_ns: float, span_ns: float) -> list[str]:
    """What is under the cursor: a stretch of work, or one of idle time with one cause in front.
    `columns` begin at `start_ns` of the step and last `span_ns`."""
    if not columns:
        return []
    each = span_ns / len(columns)
    at = max(0, min(at, len(columns) - 1))
    is_gap = columns[at].busy < _BUSY
    low = high = at
    while low > 0 and _kind(columns[low - 1]) == _kind(columns[at]):
        low -= 1
    while high + 1 < len(columns) and _kind(columns[high + 1]) == _kind(columns[at]):
        high += 1
    inside = columns[low : high + 1]
    where = f"from {duration(start_ns + low * each)} to {duration(start_ns + (high + 1) * each)}"
    busy = sum(column.busy for column in inside) * each
    sums: dict[Leaf, float] = {}
    for column in inside:
        for leaf, part in column.idle.items():
            sums[leaf] = sums.get(leaf, 0.0) + part * each
    if not is_gap:
        return [f"Work {where}: busy {duration(busy)} of {duration(len(inside) * each)}."]
    ranked = sorted(sums, key=lambda leaf: -sums[leaf])
    causes = ", ".join(
        f"{LEAVES[leaf].label} {duration(sums[leaf])}" for leaf in ranked[:3] if sums[leaf] >= 1
    )
    idle, whole = duration(sum(sums.values())), duration(len(inside) * each)
    of = "" if idle == whole else f" of {whole},"
    lines = [f"Idle {idle}{of} {where}: {causes or 'cause unknown'}."]
    if ranked:
        lines.append(f"{LEAVES[ranked[0]].label}: {LEAVES[ranked[0]].meaning}.")
    return lines


def longest_gap(columns: list[Column]) -> int:
    """The middle of the longest stretch of idle time with one cause in front; 0 without one."""
    longest, at = (0, 0), 0
    while at < len(columns):
        kind, first = _kind(columns[at]), at
        while at < len(columns) and _kind(columns[at]) == kind:
            at += 1
        if kind is not None and at - first > longest[0]:
            longest = at - first, (first + at - 1) // 2
    return longest[1]


def _kind(column: Column) -> Leaf | None:
    """What leads in a column: work, or the largest cause."""
    if column.busy >= _BUSY or not column.idle:
        return None
    return max(column.idle, key=lambda leaf: column.idle[leaf])


def _axis(width: int, start_ns: float, span_ns: float) -> Row:
    line = [" "] * width
    ticks = max(1, width // 18)
    for tick in range(ticks):
        text = duration(start_ns + span_ns * tick / ticks) if tick or start_ns else "0"
        at = width * tick // ticks
        line[at : at + len(text)] = text
    return ((" " * LABEL, "text"), ("".join(line)[:width], "dim"))


# Rows under a step's lanes: what each thread was at, how busy each stream was.


_ASLEEP = {Leaf.WAIT, Leaf.SCHEDULER}

_WORDS = {
    Leaf.LAUNCH: "launching",
    Leaf.SYNC: "waits for the GPU",
    Leaf.ALLOCATION: "allocating",
    Leaf.CUDA: "in another CUDA call",
    Leaf.HOST: "in the program's own code",
    Leaf.SCHEDULER: "wants a core",
    Leaf.INPUT: "reads input",
    Leaf.WAIT: "asleep",
}


def step_rows(step: StepLanes, run: Run, first: int, last: int, width: int) -> list[Row]:
    """Threads, then streams, for parts `first` to `last` of the step's lanes."""
    whole = max(1, len(step.busy))
    rows: list[Row] = []
    for thread in step.threads:
        leaves = [DOING.get(letter) for letter in _seen(thread.doing, first, last, whole, width)]
        awake = sum(leaf is not None and leaf not in _ASLEEP for leaf in leaves)
        rows.append((
            _label(_name(thread, step, run)),
            *_textures(leaves),
            (f"{100 * awake / max(1, width):.0f} %".rjust(FIGURE), "value"),
        ))  # fmt: skip
    for stream in step.streams:
        known = run.processes.get(step.process)
        name = known.stream_name(step.device, stream.stream) if known else None
        letters = _seen(stream.ink, first, last, whole, width)
        ink = [max(0, EIGHTHS.find(letter)) / 8 for letter in letters]
        ink += [0.0] * (width - len(ink))
        [line] = block_rows(list(ink), 1.0, 1)
        share = 100 * sum(ink) / max(1, width)
        if (first, last) == (0, whole) and step.duration_ns:
            share = min(100.0, 100 * stream.busy_ns / step.duration_ns)
        rows.append((
            _label(name or f"stream {stream.stream}"),
            (line, "cause-matmul"),
            (f"{share:.1f} %".rjust(FIGURE), "value"),
        ))  # fmt: skip
    return rows


def thread_words(step: StepLanes, run: Run, at: float) -> list[str]:
    """What each thread was at when `at` of the step, 0 to 1, was over."""
    lines = []
    for thread in step.threads:
        letters = unpack(thread.doing)
        leaf = DOING.get(letters[min(len(letters) - 1, int(at * ROW_PARTS))]) if letters else None
        if leaf is None:
            continue
        line = run.lines.get((step.process, thread.line)) if thread.line is not None else None
        place = f", last seen at {line.path.rpartition('/')[2]}:{line.number} {line.function}" if (
            line is not None) else ""  # fmt: skip
        lines.append(f"{_name(thread, step, run)}: {_WORDS.get(leaf, LEAVES[leaf].label)}{place}.")
    return lines


def _seen(text: str, first: int, last: int, whole: int, width: int) -> str:
    """The letter of each of `width` columns."""
    letters = unpack(text).ljust(ROW_PARTS)
    found = []
    for x in range(width):
        part = (first + (last - first) * (x + 0.5) / max(1, width)) / whole
        found.append(letters[min(ROW_PARTS - 1, int(part * ROW_PARTS))])
    return "".join(found)


def _textures(leaves: list[Leaf | None]) -> list[Span]:
    spans: list[Span] = []
    for leaf, run in groupby(leaves):
        count = len(list(run))
        if leaf is None or leaf in _ASLEEP:
            spans.append((" " * count, "text"))
        else:
            texture, role = look(leaf)
            spans.append((texture * count, role))
    return spans


def _label(text: str) -> Span:
    return f" {fit(text, LABEL - 2)} ", "label"


def _name(thread: ThreadLane, step: StepLanes, run: Run) -> str:
    known = run.processes.get(step.process)
    if known is not None and thread.thread == known.attached.pid:
        return "main thread"
    named = known.threads.get(thread.thread) if known is not None else None
    return named.name if named is not None else f"thread {thread.thread}"


_BUTTONS = "[−] [+] [fit]"


class OneStepView(DraggedView):
    """A view that shows such a step."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.step_back: int = 0
        """Which of the steps that were kept in parts: 0 is the newest."""
        self.inside: int | None = None
        """The column under the cursor in that step; None where steps are chosen."""
        self.parts: tuple[int, int] | None = None
        """The parts of that step in sight; None for all."""
        self._lane_columns = 0
        self._kept: list[StepLanes] = []
        self._step_lines = range(0)
        """The lines of its lanes."""

    def _press(self, step: int) -> None:
        """Zoom in the step, around the cursor or its middle."""
        self.inside = self._lane_columns // 2 if self.inside is None else self.inside
        self._zoom_inside(step)

    def _zoom_inside(self, step: int) -> str:
        """Fewer or more parts of a step, around the cursor."""
        kept = self._kept[-1 - self.step_back]
        whole = len(kept.busy)
        low, high = self.parts or (0, whole)
        seen = high - low
        assert self.inside is not None
        middle = low + seen * self.inside // max(1, self._lane_columns)
        seen = max(min(8, whole), seen // 2) if step < 0 else min(whole, seen * 2)
        low = max(0, min(middle - seen // 2, whole - seen))
        self.parts = None if seen == whole else (low, low + seen)
        self.inside = self._lane_columns * (middle - low) // max(1, seen)
        self.draw()
        each = kept.duration_ns / max(1, whole)
        return f"{duration(each * low)} to {duration(each * (low + seen))} of the step"

    def _put_inside(self, at: int) -> None:
        """The cursor at a column; beyond an edge of a zoomed step the parts in sight move on."""
        if self.parts is not None and self._kept and not 0 <= at < self._lane_columns:
            low, high = self.parts
            seen, whole = high - low, len(self._kept[-1 - self.step_back].busy)
            new = max(0, min(whole - seen, low + (seen if at > 0 else -seen) // 2))
            at -= self._lane_columns * (new - low) // max(1, seen)
            self.parts = new, new + seen
        self.inside = max(0, min(self._lane_columns - 1, at))
        self.draw()

    def _step(
        self, run: Run, tree: TimeTree | None, width: int, top: int, height: int
    ) -> list[Row]:
        """A step in parts, and the gap under the cursor."""
        self._step_lines = range(0)
        if not self._kept or height - top < 8:
            return []
        self.step_back = min(self.step_back, len(self._kept) - 1)
        step = self._kept[-1 - self.step_back]
        self._lane_columns = max(1, width - LABEL - FIGURE - 1)
        low, high = self.parts or (0, len(step.busy))
        high = min(high, len(step.busy))
        columns = columns_of(step, low, high, self._lane_columns)
        each = step.duration_ns / max(1, len(step.busy))
        start_ns, span_ns = low * each, (high - low) * each
        # What a gap is does not depend on how many columns the screen has.
        fine = columns_of(step, 0, len(step.busy), len(step.busy))
        at, part = self.inside, longest_gap(fine)
        if at is None:
            at = max(0, min(len(columns) - 1, (part - low) * len(columns) // max(1, high - low)))
        else:
            part = int(low + (high - low) * (at + 0.5) / len(columns))
        which = f"{len(self._kept) - self.step_back} of {len(self._kept)} kept"
        named = "; ".join(filter(None, (what_it_is(step, tree), which)))
        others = "another step" if len(self._kept) > 1 else "into it"
        keys = f"↑ ↓ {others}, then ← → − +"
        title = f"One step, {duration(step.duration_ns)}: {named}"
        notes = (f"{keys}  {_BUTTONS}", f"↑ ↓ {_BUTTONS}", _BUTTONS)
        note = next((one for one in notes if len(title) + len(one) + 8 <= width), "")
        rows: list[Row] = [(), heading(title, width, note)]
        line = "".join(text for text, _ in rows[1])
        for text, act in (("[−]", lambda: self._press(1)), ("[+]", lambda: self._press(-1)),
                          ("[fit]", self.follow)):  # fmt: skip
            if (x := line.find(text)) >= 0:
                self.places.append(Place(top + 1, x, x + len(text), act))
        *lanes, cursor = lane_rows(columns, step.device, at, start_ns, span_ns)
        lanes += step_rows(step, run, low, high, len(columns))[: max(0, height - top - 9)]
        rows += [*lanes, cursor]
        self._step_lines = range(top + 2, top + 3 + len(lanes))
        for y in range(top + 3, top + 2 + len(lanes)):
            for x in range(len(columns)):
                act = partial(self._put_inside, x)
                self.places.append(Place(y, LABEL + x, LABEL + x + 1, act))
        place = (part + 0.5) / max(1, len(step.busy))
        words = gap_words(fine, part, 0.0, step.duration_ns)
        for line in (*words[:1], *thread_words(step, run, place), *words[1:]):
            rows += wrap(line, width - 2, "text", "  ")
        return rows
