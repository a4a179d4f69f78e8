"""The bar above the view (views, the run, the pace) and the one below (keys, messages)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Footer, Tab, Tabs

from gputui.model.units import clock_text
from gputui.state import lasting_alerts
from gputui.tui.model import Model
from gputui.tui.shell.keys import KEYS, REPLAY_KEYS, VIEWS, Key
from gputui.tui.shell.views import GROUP_OF, GROUPS, TABS, Group
from gputui.tui.source import MOMENT_KINDS, JobElsewhere, Playback, moment_ahead
from gputui.tui.widgets.canvas import Row, Span, fit, row_width
from gputui.tui.widgets.line_view import LineView
from gputui.tui.widgets.run import MARK, state
from gputui.tui.widgets.view import View

# Which keys deserve a place in the key bar now.


def possible(model: Model, view: View) -> set[str]:
    """The actions, as the keys name them."""
    run, offers = model.run, view.offers
    actions = {"help", "quit", "palette"} | ({"go_home"} if model.visited else set())
    if not view.has_lines:
        offers -= {"activate", "sort", "filter", "recording('mark')"}
    if "scale" in offers and not model.is_read:  # no charts of readings
        offers -= {"scale", "zoom(-1)"}
    if "recording('rename')" in offers:  # what is shown is no run
        return actions | offers
    if run is None:
        offers -= {"activate", "scope", "recording('mark')"}
    if "processes" in offers and not (model.session.gpus and model.is_read):
        offers -= {"processes", "tree", "sort", "filter"}
    actions |= offers | {"pause", "log"}
    if model.can_start:
        active = run is not None and run.is_active
        actions.add("stop_run" if active else "workloads")
    elif (
        not model.readonly
        and run is not None
        and run.is_active
        and (model.is_remote or isinstance(model.source, JobElsewhere))
    ):
        actions.add("stop_run")
    if isinstance(model.source, Playback):
        actions.add("replay_jump")
        if not hasattr(view, "next_note"):  # there the same keys lead to its own steps
            source = model.source
            is_known = source.is_indexed and source.is_read
            actions |= {
                f"replay_{kind}"
                for kind in MOMENT_KINDS
                if not is_known or moment_ahead(source, kind) is not None
            }
    if run is not None:
        actions.add("export")
    return actions


def hinted(model: Model, view: View, current: str, trail: Sequence[str]) -> list[Key]:
    """These keys: Escape says where it leads, space what it does, the view's own key what is
    next."""
    actions = possible(model, view)
    to = trail[-1] if trail else ""
    keys = hints(actions | {"clear"} if to else actions)
    labels = {"clear": f"back to {GROUP_OF[to].title}"} if to else {}
    if model.paused:
        labels["pause"] = "go on"
    elif model.is_at_end:
        labels["pause"] = "play it"
    keys = [replace(one, label=labels.get(one.action, one.label)) for one in keys]
    hinted = view.HINTS if view.has_lines else ()
    own = [Key(shown, action, "", VIEWS, label) for shown, label, action in hinted]
    keys = [one for one in keys if one.shown.split()[0] not in {key.shown for key in own}]
    first = sum(one.action in ("go_home", "clear", "activate") for one in keys)
    keys[first:first] = own
    names = tabs_of(model, GROUP_OF[current])
    if len(names) > 1 and current in names:
        following = TABS[names[(names.index(current) + 1) % len(names)]]
        key = GROUP_OF[current].key
        turns = Key(key, f"views('{key}')", "", VIEWS, following.title.lower())
        keys.insert(len(keys) - 3, turns)
    return keys


def tabs_of(model: Model, group: Group) -> list[str]:
    """The views that a key turns through."""
    several = model.hosts is not None
    names = [
        tab.name
        for tab in group.tabs
        if tab.turns
        and (several or not tab.of_hosts)
        and (not tab.of_operations or model.has_operations)
        and (not tab.of_servers or bool(model.session.servers))
    ]
    return sorted(names, key=lambda name: model.shows_only_ranks and name != "ranks")


_ORDER = (
    *("go_home", "clear", "activate", "recording('mark')", "recording('compare')"),
    *("workloads", "stop_run", "log", "pause", "sort", "filter", "processes", "tree", "zoom(-1)"),
    "scale",
    *("scope", "export", "recording('rename')", "recording('delete')", "recording('folder')"),
    *("replay_jump", "replay_phase", "replay_event", "palette", "help", "quit"),
)
"""The order in the key bar, from the left."""

_ALWAYS = ("help", "quit")


def _hint_width(key: Key) -> int:
    return len(key.shown.split()[0]) + len(key.label) + 3


class ViewTabs(Tabs, can_focus=False):
    """A tab for each key of the views, which a click on it is as good as."""

    def __init__(self, current: str) -> None:
        tabs = [Tab(f"{group.key} {group.title}", id=f"of-{group.key}") for group in GROUPS]
        super().__init__(*tabs, active=f"of-{GROUP_OF[current].key}", id="tabs")

    def mark(self, current: str) -> None:
        """Mark the one of the view that is shown."""
        tab = f"of-{GROUP_OF[current].key}"
        if self.active != tab and self.query(f"#{tab}"):  # there is none before, and as it ends
            self.active = tab

    async def on_tab_clicked(self, event: Tab.Clicked) -> None:
        """Another click turns on, as the key does: Textual's tabs leave it at the first."""
        event.stop()
        event.prevent_default()
        await self.screen.run_action(f"views('{event.tab.label_text[0]}')")


class TopBar(LineView):
    """What the run does, how fast the screen updates."""

    _of: tuple[Model, str] | None = None

    def on_resize(self) -> None:
        if self._of is not None:
            self.update(*self._of)

    def update(self, model: Model, current: str) -> None:
        self._of = model, current
        width = self.size.width
        right = _state(model, width - 2, has_run_row=current in ("overview", "phases"))
        self.show([((" " * max(0, width - row_width(right)), "text"), *right)])


def _state(model: Model, width: int, *, has_run_row: bool) -> Row:
    """As many as fit of: live, paused or where in a replay; the recording, the run, the pace, the
    program's name."""
    parts: list[Row] = []
    if model.source is not None:
        long = _mode(model)
        parts.append(long if row_width(long) + 2 <= width else _mode(model, short=True))
    if lasting := lasting_alerts(model.session):
        parts.append(((f"{MARK} {len(lasting)} alert{'s' * (len(lasting) > 1)}", "hot"),))
    if model.visited:
        parts.append(((fit(model.visited, min(24, cell_len(model.visited))), "warn"),))
    run = model.run
    if run is not None and run.is_active and model.lost_end:
        parts += [(("■ no end recorded", "warn"),)] * (not has_run_row)  # which says it
    elif run is not None and run.is_active:
        text = fit(run.started.name, min(20, cell_len(run.started.name)))
        progress = run.progress
        if progress is not None and progress.total:
            text += f" {int(100 * min(1.0, progress.done / progress.total))} %"
        parts.append(((text, "accent"),))
    elif run is not None:
        mark, _, role = state(run)
        parts.append(((f"{mark} run {run.outcome}", role),))
    if model.source is not None and not isinstance(model.source, Playback):
        parts.append(((f"every {model.interval_s:g} s", "label"),))
    parts.append((("gputui", "title"),))
    kept: list[Span] = []
    for part in parts:
        size = row_width(part) + 2
        if size <= width:
            kept += [*part, ("  ", "text")]
            width -= size
    return (*kept[:-1], (" ", "text")) if kept else ()


def _mode(model: Model, *, short: bool = False) -> Row:
    """A shape and a word: what time is shown."""
    source = model.source
    if isinstance(source, JobElsewhere) and not model.paused and (at := source.goes_on_at):
        up = sum(at.values())
        if up == len(at):
            return (("● live", "good"),)
        return ((f"● {up} of {len(at)}{'' if short else ' hosts'}", "hot"),)
    if isinstance(source, Playback):
        word = "❚❚ paused" if model.paused else "■ the end" if source.has_ended else "▶ replay"
        place = "" if short else f" {_place(source)}"
        return ((f"{word}{place}", "tab-active"),)
    if model.paused:
        return ((" ❚❚ paused ", "tab-active"),)
    if model.hosts is not None:
        up = sum(host.is_up for host in model.hosts.values())
        shown = model.hosts[model.host]
        if len(model.hosts) == 1 or short:
            # Ended, not lost, where its run is over.
            is_over = shown.link.state == "ended"
            mark, role = ("●", "good") if shown.is_up else ("■", "dim") if is_over else ("✗", "hot")
            return ((f"{mark} {fit(model.host, min(24, cell_len(model.host)))}", role),)
        role = "good" if up == len(model.hosts) else "hot"
        return ((f"● {up} of {len(model.hosts)} hosts", role),)
    run = model.run
    since = f" {clock_text(run.duration_ns // 10**9)}" if run is not None and run.is_active else ""
    return ((f"● live{since.removesuffix('.0')}", "good"),)


def _place(playback: Playback) -> str:
    """The position of a replay, its length (so far, while it is still being read), and its
    speed.
    """
    place = f"{clock_text(playback.position_s)}/{clock_text(playback.length_s)}"
    more = "" if playback.is_read else "+"
    if more and playback.share_read is not None:
        return f"{place}{more} reading, Esc stops"
    if playback.has_ended and playback.is_read and playback.is_exact:
        return place
    return f"{place}{more} ×{playback.speed:g}{'' if playback.is_exact else ' reading…'}"


class CaptionBar(LineView):
    """What the demo shows, and that it is one."""

    def update(self, model: Model) -> None:
        if model.caption is None:
            return
        what, who = model.caption
        gap = " " * max(2, self.size.width - cell_len(what) - cell_len(who) - 5)
        self.show([((" ◆ ", "warn"), (what, "title"), (f"{gap}{who} ", "dim"))])


class KeyBar(Footer):
    """Textual's footer: the keys that do something here, as many as have room, with help and quit
    always among them."""

    def __init__(self) -> None:
        super().__init__(id="bottom", show_command_palette=False, compact=True)
        self.keys: list[Key] = []
        self._width = 0

    def update(self, keys: list[Key]) -> None:
        """Offer others, or more or fewer."""
        width = self.size.width or self.app.size.width
        if (keys, width) != (self.keys, self._width) and self.is_attached:  # else it is taken down
            self.keys, self._width = keys, width
            self.screen.refresh_bindings()

    def on_resize(self) -> None:
        self.update(self.keys)

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Draw them, where they are not there already: the focus changes more often. What Textual
        made for the keys before is used again, since making it took a key 80 ms."""
        shown = [*self.bindings()]
        if shown == self._shown:
            return
        self._shown = shown
        if len(shown) > len(self.children):
            super().bindings_changed(screen)
            return
        made: Sequence[Any] = self.children
        for each, binding in zip_longest(made, shown):
            each.display = binding is not None
            if binding is not None:
                each.key, each.action = binding.key, binding.action
                each.key_display, each.description = binding.key_display, binding.description
                each.refresh(layout=True)

    _shown: Sequence[Binding] = ()

    def bindings(self) -> Iterator[Binding]:
        """What is offered, as many as fit in the width there is."""
        room = self._width - 1 - sum(map(_hint_width, self.keys[-2:]))
        for key in self.keys:
            is_last = key.action in _ALWAYS
            size = 0 if is_last else _hint_width(key)
            if size <= room:
                room -= size
                yield key.offered()


def hints(actions: set[str]) -> list[Key]:
    """The keys with a label whose action is among `actions`, in the order of the help."""
    known = {key.action: key for key in (*KEYS, *REPLAY_KEYS) if key.label}
    return [known[action] for action in _ORDER if action in actions]
