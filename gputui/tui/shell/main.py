"""The one screen: a bar, the current view, the log if shown, the keys."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult, ScreenStackError
from textual.binding import ActiveBinding, Binding
from textual.containers import Horizontal
from textual.widgets import ContentSwitcher, Static

from gputui.tui.model import Model
from gputui.tui.shell.commands import Commands
from gputui.tui.shell.keys import bindings, is_key
from gputui.tui.shell.views import GROUPS, TABS
from gputui.tui.source import Playback
from gputui.tui.threads import Called
from gputui.tui.widgets.bars import CaptionBar, KeyBar, TopBar, ViewTabs, hinted, tabs_of
from gputui.tui.widgets.line_view import ROLES
from gputui.tui.widgets.run import LogPane
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.view import Lead, Led, Notice, View, is_too_small

if TYPE_CHECKING:
    from textual.widgets import Input

    from gputui.tui.widgets.recordings import RecordingLibrary


_NO_CHARTS = "no charts here: 6 shows some"
_NOTHING_TO_SORT = "nothing to sort here"
_NO_PROCESSES = "processes are in GPUs: 6 shows it"
_NO_WAY = {"left": "to the left", "right": "to the right", "up": "above", "page_up": "above",
           "home": "above"}  # fmt: skip


_LEAST_BESIDE_KEYS = 100

MOST_COPIED = 74_000
"""Bytes in one OSC 52 sequence: more, encoded, is over 100,000, where terminals stop reading."""

_IN_TMUX = "; nothing arrived? tmux set -s set-clipboard on"
"""Said once: tmux drops what programs copy unless it was told to take it (its manual, OSC 52)."""


def _of_view(method: str, elsewhere: str, unmoved: str = "") -> Callable[..., None]:
    """The action that does what the shown view has this method for; of another view it says where
    there is one, `unmoved` where nothing looks different then."""

    def action(screen: MainScreen, *given: int) -> None:
        act = getattr(screen.view, method, None)
        if act is None:
            screen.say(elsewhere)
        else:
            screen.do_or_say(partial(act, *given), unmoved or elsewhere)

    return action


class MainScreen(Commands):
    """Takes the keys and shows one view."""

    BINDINGS = bindings()
    HORIZONTAL_BREAKPOINTS = [(0, "-cramped"), (76, "-close"), (112, "-roomy")]  # noqa: RUF012
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"line--{role}" for role in ROLES}

    def __init__(self, model: Model, first: str) -> None:
        super().__init__(model)
        self._copy_hint = _IN_TMUX if os.environ.get("TMUX") else ""
        self._message: tuple[str, bool] | None = None
        """What the bottom line says until the next key, and whether it is of a failure."""
        self.current = first
        self.tabs = ViewTabs(first)
        self.top = TopBar(id="top")
        self.caption = CaptionBar(id="caption")
        self.bottom = KeyBar()
        self.message = Static(id="message", markup=False)
        self.views: dict[str, View] = {}
        self.trail: list[str] = []
        """The views that Enter led from, in order."""
        self.holder = ContentSwitcher(id="views", initial=first)
        self.log_pane = LogPane(model)
        self.log_pane.display = False

    def compose(self) -> ComposeResult:
        with Horizontal(id="bar"):
            yield self.tabs
            yield self.top
        if self.gputui.tour is not None:
            yield self.caption
        with self.holder:
            yield self._make(self.current)
        yield self.log_pane
        self.message.display = False
        yield self.message
        yield self.bottom

    @property
    def view(self) -> View:
        return self.views[self.current]

    def draw(self) -> None:
        """Draw the newest state, unless a dialog hides the screen."""
        if not self._is_topmost:
            return
        self.view.draw()
        if is_too_small(self.app.size):
            self.top.show([])
            self.bottom.update([])
            return
        self.tabs.mark(self.current)
        self.top.update(self.model, self.current)
        self._draw_reading()
        if self.gputui.tour is not None:
            self.caption.update(self.model)
        if self.log_pane.display:
            self.log_pane.draw()
        self._draw_bottom()

    def _draw_reading(self) -> None:
        """How much of a file is read, and how long the rest takes."""
        source = self.model.source
        share = source.share_read if isinstance(source, Playback) and not source.is_read else None
        if share is None:
            self.query("#reading").remove()
            return
        from textual.widgets import ProgressBar

        if not self.query("#reading"):
            self.mount(ProgressBar(1.0, id="reading"), after="#bar")
        self.query_one("#reading", ProgressBar).update(progress=share)

    def say(self, text: str, *, bad: bool = False) -> None:
        """One line at the bottom until the next key."""
        self._message = (text, bad)
        if self._is_topmost:
            self._draw_bottom()

    def unsay(self, text: str) -> None:
        """Take a line back that no longer holds."""
        if self._message is not None and self._message[0] == text:
            self._message = None
            if self._is_topmost:
                self._draw_bottom()

    # --- events

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.draw)

    def on_key(self, event: events.Key) -> None:
        """A message disappears at the next key."""
        if self._message is not None:
            self._message = None
            self._draw_bottom()
        own = {each.key for each in self.view.BINDINGS if isinstance(each, Binding)}
        is_bound = is_key(event.aliases, self.replays) or not own.isdisjoint(event.aliases)
        if (self.focused is None or self.focused is self.view) and not is_bound:
            shown = event.character if event.is_printable else event.key
            # A key without a meaning says that it has none.
            self.say(f"{shown} does nothing here: ? shows every key")

    # --- keys

    async def action_views(self, key: str) -> None:
        """A key's view; pressed again, its next tab."""
        self.trail.clear()
        names = tabs_of(self.model, next(one for one in GROUPS if one.key == key))
        if names == [self.current]:
            self.say("this view has no further tab")
        shown = names.index(self.current) + 1 if self.current in names else 0
        await self.action_view(names[shown % len(names)])

    async def on_led(self, message: Led) -> None:
        await self.follow_lead(message.to)

    async def follow_lead(self, to: Lead) -> None:
        """Show another view, and choose there; Escape leads back."""
        if to.view != self.current:
            self.trail.append(self.current)
        await self.action_view(to.view)
        if to.key is not None:
            self.view.show_item(to.key)
        self.draw()

    async def action_view(self, name: str) -> None:
        await self._end_filter()
        # A key may come behind the one that quits: then nothing can be mounted any more.
        if name == self.current or not self.holder.is_attached:
            return
        self.current = name
        if name in self.views:
            self.view.is_stale = True
            self.holder.current = name
        else:
            with self.app.batch_update():
                # At once: `add_content` mounts in a task of its own, before which a key may quit.
                mounted = self.holder.mount(self._make(name))
                self.holder.current = name
                await mounted
        self.set_focus(self.view if self.view.can_focus else None)
        self.call_after_refresh(self.draw)

    async def action_activate(self) -> None:
        if self.view.painted:
            await self._activate()
        else:
            # Enter typed in one write with the view's key found nothing chosen before the view's
            # first frame.
            self.call_after_refresh(self._activate)

    async def _activate(self) -> None:
        before = self.view.painted
        details = self.view.activate()
        if details is None and self._message is None and self.view.painted == before:
            self.say("nothing is chosen here that Enter opens")
        if isinstance(details, Lead):
            await self.follow_lead(details)
        elif details is not None:
            from gputui.tui.dialogs.boxes import DetailsBox

            self.app.push_screen(box := DetailsBox(details))
            if details.more is not None:
                self.gputui.in_thread(details.more, box.add, box.failed)

    async def action_filter(self) -> None:
        """Type a filter, in a field in place of the keys."""
        if "filter" not in self.view.offers:
            self.say("nothing to filter here")
            return
        from textual.widgets import Input

        if not self.query(Input) and self.bottom.is_attached:
            field = Input(self.view.needle, self.view.FILTER_PROMPT, compact=True, id="filter")
            self.message.display = self.bottom.display = False
            await self.mount(field, before=self.bottom)
            field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.view.search(event.value, is_last=False)
        self.draw()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        await self._end_filter(event.value)

    async def on_input_blurred(self, event: Input.Blurred) -> None:
        """A click elsewhere is as Enter."""
        if event.input.is_attached:
            await self._end_filter(event.value)

    async def _end_filter(self, text: str | None = None) -> bool:
        """Take the field away, if there is one; `text` is what was typed, None where that does not
        count any more."""
        if not (fields := self.query("#filter")):
            return False
        if text is not None:
            self.view.search(text, is_last=True)
        await fields.remove()
        self.draw()
        return True

    def action_palette(self) -> None:
        """Every action and view by name, phases, kernels and runs."""
        from gputui.tui.dialogs.palette import Palette

        self.library.look()
        self.app.push_screen(Palette())

    @cached_property
    def library(self) -> RecordingLibrary:
        """The recorded runs, read in a thread when a view or the palette first shows some."""
        from gputui.tui.widgets.recordings import RecordingLibrary

        return RecordingLibrary(self.gputui, self.draw, self.gputui.options.folder)

    async def action_clear(self) -> None:
        """Clear the filter; without one hide the log, leave, or follow what runs now."""
        if await self._end_filter(""):
            return
        if self.log_pane.display:
            self.action_log()
            return
        before, was = self.current, self.view.painted
        if self.view.needle:
            self.view.needle = ""
        elif (go_back := getattr(self.view, "go_back", None)) is not None and go_back():
            return
        elif self.trail:
            await self.action_view(self.trail.pop())
        elif self.gputui.tour is not None:
            self.gputui.tour.hand_back()
        elif isinstance(source := self.model.source, Playback) and source.stop_reading():
            self.say("no more of it is read: what was read stays")
            return
        elif self.follow():
            return
        self.draw()
        # Where nothing looks different after a key the bottom line says why: 108 keys were silent
        # in two runs.
        if self.gputui.tour is None and (self.current, self.view.painted) == (before, was):
            if self.model.visited:
                self.gputui.go_home()
            else:
                self.say("no filter to clear, and nothing to go back to")

    def action_log(self) -> None:
        self.log_pane.display = not self.log_pane.display
        self.call_after_refresh(self.draw)

    def action_scroll_log(self, lines: int) -> None:
        log = self.log_pane
        if not log.display:
            self.say("the log is hidden: l shows it")
        elif (log.scroll_y <= 0) if lines > 0 else log.is_vertical_scroll_end:
            self.say(f"the log has no {'older' if lines > 0 else 'newer'} lines")
        else:
            log.scroll_relative(y=-lines, animate=False)

    def action_replay_log(self, lines: int) -> None:
        self.action_scroll_log(lines)

    def action_help(self) -> None:
        """Every key in the palette, which does what the chosen one does."""
        from gputui.tui.dialogs.palette import Palette

        self.app.push_screen(Palette(is_help=True))

    async def action_keys_panel(self) -> None:
        """The keys that do something here, beside the view as long as that is wished."""
        from textual.widgets import KeyPanel

        if panels := self.query(KeyPanel):
            await panels.remove()
        elif self.size.width < _LEAST_BESIDE_KEYS:
            self.say(f"beside the keys a view needs {_LEAST_BESIDE_KEYS} columns")
        else:
            await self.mount(KeyPanel())

    # --- keys that the shown view answers, and the message where it has no answer

    async def action_here(self, action: str) -> None:
        """What a key of the shown view does, though nothing has the focus: a click or a choice of
        the help comes later than what took it away."""
        await self.view.run_action(action)

    def action_move(self, move: Move) -> None:
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
        told = act()
        if isinstance(told, str) and told:
            self.say(told)
        elif self._message is None and self.view.painted == before:
            self.say(why_not)

    action_sort = _of_view("sort", _NOTHING_TO_SORT)
    action_reverse = _of_view("reverse", _NOTHING_TO_SORT)
    action_libraries = _of_view("toggle_libraries", "ranges of libraries are in Phases: 4 shows it")
    action_processes = _of_view("toggle_processes", _NO_PROCESSES, "no process is listed")
    action_tree = _of_view(
        "toggle_tree", _NO_PROCESSES, "no process that is listed launched another"
    )
    action_zoom = _of_view("zoom", _NO_CHARTS, "no further that way")

    def action_scale(self) -> None:
        """Charts up to all there is, or as large as they can be drawn."""
        if "scale" not in self.view.offers:
            self.say(_NO_CHARTS)
            return
        self.model.own_scale = not self.model.own_scale
        own = "in the scale of their data: each says up to what"
        self.say(f"charts are {own if self.model.own_scale else 'as high as all there is'}")
        self.draw()

    def action_step(self, columns: int) -> None:
        why_not = f"there is nothing {'later' if columns > 0 else 'earlier'} to read"
        _of_view("step", _NO_CHARTS, why_not)(self, columns)

    def action_note(self, step: int) -> None:
        """To the next thing of note, or the one before."""
        if not self._went_to_note(step):
            self.say("nothing of note here: 3 goes from slow step to slow step")

    def on_notice(self, message: Notice) -> None:
        self.say(message.text)

    def action_follow(self) -> None:
        run, before = self.model.run, self.view.drawn
        if self.follow():
            return
        self.draw()
        source = self.model.source
        if isinstance(source, Playback) and not source.has_ended and self.view.drawn == before:
            source.seek_end()
            self.say("at the end of the recording: space plays it from the start")
        elif "zoom(-1)" not in self.view.offers and (run is None or not run.is_active):
            # Every key answers: those that change nothing say why.
            self.say("nothing runs now: 0 follows what does")
        elif self.view.drawn == before:
            self.say("the newest is in sight already")

    def follow(self) -> bool:
        """The same, and whether the scope was another than the usual one: this is said."""
        had_ranks, had_scope = bool(self.model.ranks), self.model.scope is not None
        if had_phase := bool(self.model.phase):
            self.model.choose_phase("")
        if had_ranks:
            self.model.choose_ranks(())
        elif had_scope:
            self.model.choose_scope(None)
        self.view.follow()
        if had_ranks or had_scope or had_phase:
            self.draw()
            self.say(f"scope: {'all ranks, ' * had_ranks}{'all phases, ' * had_phase}steady steps")
        # Escape leaves the scope as 0 does, where there is nothing else to clear.
        return had_ranks or had_scope or had_phase

    def action_scope(self) -> None:
        """Let shares be of the next part of the run."""
        run = self.model.run
        if run is None:
            self.say("no run yet: shares are of its steps")
            return
        from gputui.report.scope import STEADY, scope_in_words, scopes, why_no_stretch

        found = scopes(run)
        stretch = getattr(self.view, "stretch", None) or self.model.stretch
        if stretch is not None and why_no_stretch(run) is None:
            found.insert(-1, stretch)
        if len(found) == 1:
            self.say("no steps were found: shares are of the time since the first kernel")
            return
        parts = [scope.part for scope in found]
        now = self.model.scope or STEADY
        scope = found[(parts.index(now.part) + 1) % len(found)] if now.part in parts else STEADY
        self.model.choose_scope(None if scope == STEADY else scope)
        others = "" if "scope" in self.view.offers else "; GPUs and Runs (6 7) do not follow"
        self.say(f"scope: {scope_in_words(run, scope)}{others}")
        self.draw()

    def action_replay_phase(self) -> None:
        """To the next thing of note of the view; in others the next change of phase."""
        if not self._went_to_note(1):
            super().action_replay_phase()

    def action_replay_event(self) -> None:
        if not self._went_to_note(-1):
            super().action_replay_event()

    def _went_to_note(self, step: int) -> bool:
        go = getattr(self.view, "next_note", None)
        if go is not None and (why_not := go(step)):
            self.say(why_not)
        return go is not None

    def action_recording(self, what: str) -> None:
        act = getattr(self.view, "on_recording", None)
        if act is None or not act(what):
            marks = "m marks phases (4), ranks (6) and recordings: 7 shows them"
            self.say(marks if what == "mark" else "recordings are in Runs: 7 shows them")

    def action_copy(self) -> None:
        """Copy the full text of what is chosen."""
        self._copy(self.view.copied)

    def action_copy_view(self) -> None:
        self._copy("\n".join(line.rstrip() for line in self.view.drawn).strip("\n"))

    def _copy(self, text: str) -> None:
        text = text.encode()[:MOST_COPIED].decode(errors="ignore")
        if not text:
            self.say("nothing to copy here")
            return
        self.app.copy_to_clipboard(text)
        hint, self._copy_hint = self._copy_hint, ""
        self.say(f"copied {len(text)} characters{hint}")

    # --- what the keys lead to

    def show_run(self) -> None:
        """Show what limits the run that was just opened."""
        self._message = None
        self.trail.clear()
        self.run_worker(self.action_view("overview"))
        self.call_after_refresh(self.draw)

    async def go_back(self, view: str) -> None:
        """Show the view again from which a recording was opened."""
        self.trail.clear()
        await self.action_view(view)
        self.draw()

    def compare(self, paths: Sequence[Path]) -> None:
        """Show recordings side by side."""

        self.run_worker(self.follow_lead(Lead("compare", tuple(paths))))

    @property
    def _is_topmost(self) -> bool:
        # Textual's `is_current` is also true for a screen visible behind a dialog.
        try:
            return self.app.screen is self
        except ScreenStackError:  # the application is ending, and events still come
            return False

    def _make(self, name: str) -> View:
        tab = TABS[name]
        view: View = getattr(importlib.import_module(tab.module), tab.kind)(self.model)
        view.id = name
        self.views[name] = view
        return view

    def _draw_bottom(self) -> None:
        if self.query("#filter"):
            return
        said = self._message
        self.message.display, self.bottom.display = said is not None, said is None
        if said is not None:
            text, is_bad = said
            self.message.set_class(is_bad, "bad")
            self.message.update(text)
        else:
            self.bottom.update(hinted(self.model, self.view, self.current, self.trail))

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """First those that do something here, for the footer; others say what they lack."""
        offered = {one.key: ActiveBinding(self, one, True, "") for one in self.bottom.bindings()}
        return offered | {
            key: one for key, one in super().active_bindings.items() if key not in offered
        }

    def on_called(self, message: Called) -> None:
        message.then()
