"""Rows under a step's lanes: what each thread was at, how busy each stream was."""

from __future__ import annotations

from itertools import groupby

from gputui.model.events import StepLanes, ThreadLane
from gputui.model.leaves import DOING, EIGHTHS, LEAVES, ROW_PARTS, Leaf, unpack
from gputui.state import Run
from gputui.tui.widgets.canvas import Row, Span, fit
from gputui.tui.widgets.causes import look
from gputui.tui.widgets.chart import block_rows
from gputui.tui.widgets.step_lanes import FIGURE, LABEL

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
