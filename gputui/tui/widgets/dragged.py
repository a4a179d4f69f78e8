"""Views with lanes, a stretch of which is chosen by dragging over them."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events

from gputui.tui.model import Model
from gputui.tui.widgets.view import View


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
