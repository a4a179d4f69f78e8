"""What a screen reader says between keys: a new run, the end of a run, a new verdict."""

from __future__ import annotations

from gputui.report.explain.verdict import Headline
from gputui.tui.model import Model
from gputui.tui.widgets.run import state


class News:
    """Remembers what it said last."""

    def __init__(self) -> None:
        self._headline = Headline()
        self._said: tuple[int, str, str] | None = None

    def of(self, model: Model) -> str:
        """A line about what is new; "" where nothing is."""
        run = model.run
        if run is None:
            is_first, self._said = self._said is None, (0, "", "")
            return "no run yet" if is_first else ""
        found = self._headline.update(run, model.found[0])
        word = found.word if found is not None else ""
        now = (run.started.run, run.outcome, word)
        if now == self._said:
            return ""
        before, self._said = self._said, now
        if found is not None and (before is None or before[2] != word):
            return f"{found.word}: {found.headline}"
        return f"{run.started.name} {state(run, lost_end=model.lost_end).words}"
