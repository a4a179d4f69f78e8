"""Lines of styled text, made by pure functions; LineView draws them.

A row is a tuple of spans; a span is text and a role. Roles are component classes,
so colours live in the style sheet and the themes. Text is drawn as it is, never as markup.
Textual is not needed here: the first frame is drawn before it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter

from rich.cells import cell_len, set_cell_size

from gputui.model.units import MISSING

# Ink that equals a figure: parts of a whole, and scales that fit what is seen.


def apportion(shares: Sequence[float], whole: int) -> list[int]:
    """`whole` units divided like `shares`, by largest remainder: they add up to `whole`."""
    total = sum(shares)
    if total <= 0 or whole <= 0:
        return [0] * len(shares)
    exact = [share / total * whole for share in shares]
    given = [math.floor(part) for part in exact]
    order = sorted(range(len(exact)), key=lambda at: (given[at] - exact[at], at))
    for at in order[: whole - sum(given)]:
        given[at] += 1
    return given


def nice_top(value: float) -> float:
    """The next round figure at or above a value: where an axis ends, a third empty at most."""
    if not (value > 0 and math.isfinite(value)):
        return 1.0
    decade = 10.0 ** math.floor(math.log10(value))
    steps = (each * decade for each in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0))
    return next(top for top in steps if top >= value * (1 - 1e-9))


def grouped(
    values: Sequence[float], columns: int, merge: Callable[[Iterable[float]], float] = max
) -> list[float]:
    """The values in at most `columns` parts in a row, each part merged into one."""
    if len(values) <= columns:
        return list(values)
    bounds = [len(values) * at // columns for at in range(columns + 1)]
    return [merge(values[low:high]) for low, high in pairwise(bounds)]


Span = tuple[str, str]
Row = tuple[Span, ...]

ELLIPSIS = "…"
_LEAST_HALF = 50
"""Cells that a column of labels and figures has at least."""
PHASE_COLORS = 8


def fit(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells: padded, or cut with an ellipsis."""
    used = cell_len(text)
    if used > width:
        return set_cell_size(text, width - 1) + ELLIPSIS if width > 0 else ""
    padding = " " * (width - used)
    return padding + text if right else text + padding


def row_width(row: Row) -> int:
    # Asking Rich costs more than all else here, and most texts are ASCII.
    return sum([len(text) if text.isascii() else cell_len(text) for text, _ in row])


@lru_cache(maxsize=512)
def pad(row: Row, width: int) -> Row:
    """`row` in exactly `width` cells. Most rows are as they were a tick ago."""
    used = row_width(row)
    if used < width:
        return (*row, (" " * (width - used), "text"))
    return row if used == width else clip(row, width)


def clip(row: Row, width: int) -> Row:
    """`row` in at most `width` cells; cut ones end in an ellipsis."""
    if row_width(row) <= width:
        return row
    spans: list[Span] = []
    left = width
    for text, role in row:
        used = cell_len(text)
        if used >= left:
            spans.append((fit(text + " " * (left - used + 1), left), role))
            break
        spans.append((text, role))
        left -= used
    return tuple(spans)


def beside(blocks: Sequence[tuple[Sequence[Row], int]], gap: int = 2) -> list[Row]:
    """Blocks of rows, each with its width, side by side."""
    height = max((len(rows) for rows, _ in blocks), default=0)
    result: list[Row] = []
    for y in range(height):
        spans: list[Span] = []
        for number, (rows, width) in enumerate(blocks):
            if number:
                spans.append((" " * gap, "text"))
            spans.extend(pad(rows[y] if y < len(rows) else (), width))
        result.append(tuple(spans))
    return result


def halved(rows: Sequence[Row], width: int) -> list[Row]:
    """Rows in two columns, where there is room for both; those too long for one below them."""
    if width < 2 * _LEAST_HALF:
        return list(rows)
    each = (width - 2) // 2
    fitting = [row for row in rows if row_width(row) <= each]
    half = (len(fitting) + 1) // 2
    drawn = beside([(fitting[:half], each), (fitting[half:], each)])
    return [*drawn, *(row for row in rows if row_width(row) > each)]


def flow(items: Iterable[Row], width: int, lines: int, gap: int = 3) -> list[Row]:
    """Items one after another over at most `lines` rows. What does not fit is left out whole."""
    rows: list[Row] = []
    current: list[Span] = []
    used = 0
    for item in items:
        size = row_width(item)
        if size > width:
            continue
        if current and used + gap + size > width:
            if len(rows) + 1 >= lines:
                continue
            rows.append(tuple(current))
            current, used = [], 0
        if current:
            current.append((" " * gap, "text"))
            used += gap
        current.extend(item)
        used += size
    if current:
        rows.append(tuple(current))
    return rows


def wrap(text: str, width: int, role: str = "text", indent: str = "") -> list[Row]:
    """A paragraph as rows, broken at spaces; a word longer than a row is cut by cells."""
    rows: list[Row] = []
    line = indent
    room = max(1, width)
    for word in text.split():
        while cell_len(word) > room - len(indent) > 0:
            head = set_cell_size(word, room - len(indent)).rstrip()
            if line.strip():
                rows.append(((line, role),))
            rows.append(((indent + head, role),))
            word, line = word[len(head) :], indent
        joined = f"{line} {word}" if line.strip() else indent + word
        if cell_len(joined) > room:
            rows.append(((line, role),))
            line = indent + word
        else:
            line = joined
    if line.strip():
        rows.append(((line, role),))
    return rows


def at_most(rows: list[Row], most: int, width: int) -> list[Row]:
    """The first so many rows, the last of which ends in an ellipsis where there are more."""
    if len(rows) <= most:
        return rows
    return [*rows[: most - 1], clip((*rows[most - 1], (f" {ELLIPSIS}", "dim")), width)]


def paragraph(
    label: str, text: str, width: int, role: str = "text", of: str = "label"
) -> list[Row]:
    """A label, in the role `of`, and beside it a text whose lines stand under one another."""
    rows = wrap(text, width - cell_len(label), role)
    return [((" " * cell_len(label) if n else label, of), *row) for n, row in enumerate(rows)]


def labelled(pairs: Iterable[tuple[str, str]], label: int, role: str = "text") -> tuple[Row, ...]:
    """A line for each label and figure, the figures under one another."""
    return tuple(((name.ljust(label), "label"), (text, role)) for name, text in pairs)


def fact_rows(facts: Iterable[tuple[str, str]], label: int = 20) -> tuple[Row, ...]:
    """The same of facts, of which some are missing, and of the titles above them, which have no
    text."""
    rows: list[Row] = []
    for name, text in facts:
        said = (text, "dim" if text.startswith(MISSING) else "text")
        rows.append(((name.ljust(label), "label"), said) if text else ((name, "head"),))
    return tuple(rows)


def joined(cells: Iterable[Span]) -> list[Span]:
    """Neighbours of one look as one span."""
    return [
        ("".join([text for text, _ in part]), role)
        for role, part in groupby(cells, key=itemgetter(1))
    ]


def chosen_row(row: Row, width: int) -> Row:
    """A row as it looks under the cursor."""
    return ((fit("".join(text for text, _ in row), width), "cursor"),)


def heading(title: str, width: int, note: str = "") -> Row:
    """A rule across the width with a title, and a note at its right end when it fits."""
    name = fit(title, min(cell_len(title), max(0, width - 6)))
    used = cell_len(name) + 4
    if note and used + cell_len(note) + 4 <= width:
        rule = "─" * (width - used - cell_len(note) - 3)
        return (("─ ", "rule"), (name, "title"), (f" {rule} ", "rule"), (f"{note} ", "dim"))
    return (("─ ", "rule"), (name, "title"), (f" {'─' * (width - used + 1)}", "rule"))


def bar(fraction: float, width: int) -> str:
    """A horizontal bar of `width` cells in eighths."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    if fraction > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


_narrow: set[str] = set()
_MOST_NARROW = 4096


def is_narrow(text: str) -> bool:
    """Whether each character takes one cell."""
    if text.isascii() or _narrow.issuperset(text):
        return True
    unknown = set(text) - _narrow
    if any(cell_len(character) != 1 for character in unknown):
        return False
    if len(_narrow) > _MOST_NARROW:
        _narrow.clear()
    _narrow.update(unknown)
    return True
