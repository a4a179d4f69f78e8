"""Send only the cells that changed: Textual repaints a line from its left edge to the last of them.

A flat chart that moves on by a column changes a cell at either end of what is known: without this
each of its rows is sent anew, 5 kB of an idle machine's screen.
"""

from __future__ import annotations

from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate, Compositor


class NarrowUpdate(ChopsUpdate):
    """The changed spans of lines, cut at both ends."""

    def render_segments(self, console: Console) -> str:
        """The sequences for the terminal."""
        sequences: list[str] = []
        for y, start, end in self.spans:
            for stop, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                if strip is None or x >= end or stop <= start:
                    continue
                first, last = max(x, start), min(stop, end)
                sequences.append(Control.move_to(first, y).segment.text)
                sequences.append(strip.crop(first - x, last - x).render(console))
        return "".join(sequences)


class NarrowCompositor(Compositor):
    """Textual's, with such updates."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """What changed since the last one."""
        update = super().render_partial_update()
        if update is None:
            return None
        return NarrowUpdate(update.chops, update.spans, update.chop_ends)
