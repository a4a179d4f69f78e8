"""Keys that the shown view answers, and the message where it has no answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from gputui.tui.model import Model
from gputui.tui.shell.commands import Commands
from gputui.tui.source import Playback
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.view import Notice, View

_NO_CHARTS = "no charts here: 6 shows some"
_NOTHING_TO_SORT = "nothing to sort here"
_NO_PROCESSES = "processes are in GPUs: 6 shows it"
_NO_WAY = {"left": "to the left", "right": "to the right", "up": "above", "page_up": "above",
           "home": "above"}  # fmt: skip


MOST_COPIED = 74_000
"""Bytes in one OSC 52 sequence: more, encoded, is over 100,000, where terminals stop reading."""

_IN_TMUX = "; nothing arrived? tmux set -s set-clipboard on"
"""Said once: tmux drops what programs copy unless it was told to take it (its manual, OSC 52)."""


class ViewKeys(Commands):
    """What the main screen passes on."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._copy_hint = _IN_TMUX if os.environ.get("TMUX") else ""
        self._message: tuple[str, str] | None = None
        """What the bottom line says until the next key, and in which role."""

    @property
    def view(self) -> View:
        """The one that is shown."""
        raise NotImplementedError

    def action_move(self, move: Move) -> None:
        """Arrows and similar keys."""
        why_not = f"there is nothing more {_NO_WAY.get(move, 'below')}"
        act = partial(self.do_or_say, partial(self.view.move, move), why_not)
        if self.view.painted:
            act()
        else:  # keys of one write come before the first frame, which lists what is moved through
            self.call_after_refresh(act)

    def do_or_say(self, act: Callable[[], object], why_not: str) -> None:
        """Do something; where nothing looks different then and nothing was said, say why: no key
        is without an answer."""
        before = self.view.painted
        act()
        if self._message is None and self.view.painted == before:
            self.say(why_not)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._sort(self.view.sort)

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._sort(self.view.reverse)

    def _sort(self, sort: Callable[[], None]) -> None:
        before = self.view.drawn
        sort()
        if not self.view.SORTS or self.view.drawn == before:
            self.say(_NOTHING_TO_SORT)

    def action_libraries(self) -> None:
        """Show or hide ranges of libraries."""
        if told := self.view.toggle_libraries():
            self.say(told)

    def action_raw_names(self) -> None:
        """Fold the numbering of names, or not."""
        if told := self.view.toggle_raw_names():
            self.say(told)

    def action_processes(self) -> None:
        """Show processes in the whole view, or not."""
        self.do_or_say(partial(self._toggle, self.view.toggle_processes), "no process is listed")

    def action_tree(self) -> None:
        """Show processes as a tree, or not."""
        self.do_or_say(
            partial(self._toggle, self.view.toggle_tree),
            "no process that is listed launched another",
        )

    def _toggle(self, toggle: Callable[[], bool]) -> None:
        if not toggle():
            self.say(_NO_PROCESSES)

    def action_zoom(self, step: int) -> None:
        """A longer or shorter time in all charts."""
        before = self.view.painted
        if told := self.view.zoom(step):
            self.say(f"charts show {told}")
        elif self.view.painted == before:
            self.say("no further that way" if self.view.CHARTS else _NO_CHARTS)

    def action_scale(self) -> None:
        """Charts up to all there is, or as large as they can be drawn."""
        if not self.view.SCALES:
            self.say(_NO_CHARTS)
            return
        self.model.own_scale = not self.model.own_scale
        own = "in the scale of their data: ×N says how much larger"
        self.say(f"charts are {own if self.model.own_scale else 'as high as all there is'}")
        self.draw()

    def action_step(self, columns: int) -> None:
        """Read all charts at another moment."""
        before = self.view.drawn
        if not self.view.CHARTS:
            self.say(_NO_CHARTS)
            return
        self.view.step(columns)
        if self.view.drawn == before:
            self.say(f"there is nothing {'later' if columns > 0 else 'earlier'} to read")

    def action_note(self, step: int) -> None:
        """To the next thing of note, or the one before."""
        if not self._went_to_note(step):
            self.say("nothing of note here: 3 goes from slow step to slow step")

    def on_notice(self, message: Notice) -> None:
        self.say(message.text)

    def action_follow(self) -> None:
        """Return to what runs now."""
        run, before = self.model.run, self.view.drawn
        if self.follow():
            return
        self.draw()
        source = self.model.source
        if isinstance(source, Playback) and not source.has_ended and self.view.drawn == before:
            source.seek(source.length_s)
            self.say("at the end of the recording: space plays it from the start")
        elif not self.view.CHARTS and (run is None or not run.is_active):
            self.say("nothing runs now: 0 follows what does")
        elif self.view.drawn == before:
            self.say("the newest is in sight already")

    def follow(self) -> bool:
        """The same, and whether the scope was another than the usual one: this is said."""
        had_ranks, had_scope = bool(self.model.ranks), self.model.scope is not None
        if had_ranks:
            self.model.choose_ranks(())
        elif had_scope:
            self.model.choose_scope(None)
        self.view.follow()
        if had_ranks or had_scope:
            self.draw()
            self.say(f"scope: {'all ranks, ' * had_ranks}steady steps")
        return had_ranks or had_scope

    def action_scope(self) -> None:
        """Let shares be of the next part of the run."""
        run = self.model.run
        if run is None:
            self.say("no run yet: shares are of its steps")
            return
        from gputui.report.scope import STEADY, in_words, scopes, why_no_stretch

        found = scopes(run)
        stretch = self.view.stretch or self.model.stretch
        if stretch is not None and why_no_stretch(run) is None:
            found.insert(-1, stretch)
        if len(found) == 1:
            self.say("no steps were found: shares are of the time since the first kernel")
            return
        parts = [scope.part for scope in found]
        now = self.model.scope or STEADY
        scope = found[(parts.index(now.part) + 1) % len(found)] if now.part in parts else STEADY
        self.model.choose_scope(None if scope == STEADY else scope)
        others = "" if self.view.FOLLOWS_SCOPE else "; GPUs and Runs (6 7) do not follow"
        self.say(f"scope: {in_words(run, scope)}{others}")
        self.draw()

    def action_replay_phase(self) -> None:
        """To the next thing of note of the view; in others the next change of phase."""
        if not self._went_to_note(1):
            super().action_replay_phase()

    def action_replay_event(self) -> None:
        if not self._went_to_note(-1):
            super().action_replay_event()

    def _went_to_note(self, step: int) -> bool:
        why_not = self.view.next_note(step)
        if why_not:
            self.say(why_not)
        return why_not is not None

    def action_recording(self, what: str) -> None:
        """Apply an action to a recording."""
        if not self.view.on_recording(what):
            marked = "m marks ranks of a job in GPUs (6), and " if what == "mark" else ""
            self.say(f"{marked}recordings are in Runs: 7 shows them")

    def action_copy(self) -> None:
        """Copy the full text of what is chosen."""
        self._copy(self.view.copied)

    def action_copy_view(self) -> None:
        """Copy all that the view shows."""
        self._copy("\n".join(line.rstrip() for line in self.view.drawn).strip("\n"))

    def _copy(self, text: str) -> None:
        text = text.encode()[:MOST_COPIED].decode(errors="ignore")
        if not text:
            self.say("nothing to copy here")
            return
        self.app.copy_to_clipboard(text)
        hint, self._copy_hint = self._copy_hint, ""
        self.say(f"copied {len(text)} characters{hint}")
