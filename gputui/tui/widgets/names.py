"""Names of kernels in little room: cut in the middle, and no two alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from gputui.model.naming import short_name
from gputui.tui.widgets.canvas import ELLIPSIS

_PARTS = re.compile(r"[A-Za-z_]\w*|\d+")
_PLAIN = frozenset(
    ("void", "at", "native", "anonymous", "namespace", "const", "int", "unsigned", "long", "char",
     "bool", "std", "detail", "c10", "cub", "thrust", "cutlass", "Params", "operator", "array")
)  # fmt: skip
_MOST_PARTS = 3


def cut_middle(text: str, width: int) -> str:
    """`text` in at most `width` cells: its head and its tail, where that can be at underscores or
    `::`."""
    if cell_len(text) <= width:
        return text
    if width < 8:
        return set_cell_size(text, width - 1).rstrip() + ELLIPSIS if width > 0 else ""
    tail_room = (width - 1) // 2
    tail = text[-tail_room:]
    while cell_len(tail) > tail_room:
        tail = tail[1:]
    at = max(tail.find("_"), 0) if 0 <= tail.find("_") <= tail_room // 2 else 0
    tail = tail[at:]
    head = set_cell_size(text, width - 1 - cell_len(tail)).rstrip()
    return head.rstrip(ELLIPSIS) + ELLIPSIS + tail.lstrip(ELLIPSIS)


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Kernels' own names; those that share one get the words of their full names that tell them
    apart, and what still reads alike gets a number."""
    shorts = [short_name(name) for name in names]
    groups: dict[str, list[str]] = {}
    for name, short in zip(names, shorts, strict=True):
        groups.setdefault(short, []).append(name)
    occurs = {
        short: Counter(part for name in group for part in dict.fromkeys(_PARTS.findall(name)))
        for short, group in groups.items()
        if len(group) > 1
    }
    named: list[str] = []
    for name, short in zip(names, shorts, strict=True):
        if short not in occurs:
            named.append(cut_middle(short, width))
            continue
        many, seen_in = len(groups[short]), occurs[short]
        own = [part for part in dict.fromkeys(_PARTS.findall(name)) if part not in _PLAIN]
        apart = sorted((part for part in own if seen_in[part] < many), key=seen_in.__getitem__)
        label = f" ‹{' '.join(apart[:_MOST_PARTS])}›" if apart else ""
        label = cut_middle(label, max(10, width * 2 // 3))
        named.append(cut_middle(short, max(8, width - cell_len(label))) + label)
    seen: Counter[str] = Counter()
    repeated = Counter(named)
    result = []
    for text in named:
        if repeated[text] > 1:
            seen[text] += 1
            suffix = f" #{seen[text]}"
            text = cut_middle(text, width - len(suffix)) + suffix
        result.append(text)
    return result
