"""Textual's command palette, and what it offers here: every action and view by name, themes, and
once something is typed also phases, kernels and recorded runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.css.query import NoMatches
from textual.errors import NoWidget
from textual.geometry import Region
from textual.widget import Widget
from textual.widgets import OptionList
from textual.worker import Worker

from gputui.base import ManualPage, manual_pages
from gputui.tui.dialogs.boxes import LEAVE, DetailsBox, Options
from gputui.tui.shell.keys import MOVE, keys_of, named, own_keys
from gputui.tui.shell.views import GROUPS
from gputui.tui.textual_internals import Resized
from gputui.tui.themes import NAMES
from gputui.tui.widgets.view import Details, Lead

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp
    from gputui.tui.model import Tables

MOST_NAMED = 5000
"""Phases, and kernels, the longest, that are looked through."""

MOST_FOUND = 100
"""Of these that are listed."""

_WAIT_S, _WAITS = 0.05, 40
"""How long what is typed waits for the folder of recordings to be read."""

Do = Callable[[], Awaitable[object] | object]


class Entry(NamedTuple):
    """What can be done or gone to, in words; a key or what it is; and doing it."""

    text: str
    note: str
    do: Do
    name: str = ""
    """How it is shown where it is too long."""

    @property
    def shown(self) -> Content:
        """With the note behind it."""
        return Content.assemble(self.name or self.text, "  ", (self.note, "$gp-accent"))


class _Provider(Provider):
    """Entries in which every typed word occurs, in any case, those with the words first first."""

    @property
    def gputui(self) -> GputuiApp:
        return cast("GputuiApp", self.app)

    def entries(self) -> Sequence[Entry]:
        raise NotImplementedError

    async def search(self, query: str) -> Hits:
        words = query.lower().split()
        number = 0
        for one in self.entries():
            text = f"{one.text} {one.note}".lower()
            places = [text.find(word) for word in words]
            if min(places, default=0) < 0:
                continue
            yield Hit(1 / (2 + sum(places)), one.shown, one.do, one.text)
            number += 1
            if number == MOST_FOUND:
                return


class Actions(_Provider):
    """The tabs of all views, then every key that does not move."""

    def entries(self) -> Sequence[Entry]:
        main = self.gputui.main
        tabs = [
            Entry(
                tab.title if tab.title == group.title else f"{group.title}: {tab.title}",
                group.key,
                partial(main.action_view, tab.name),
            )
            for group in GROUPS
            for tab in group.tabs
        ]
        views = {f"views('{group.key}')" for group in GROUPS}
        tabs.append(Entry("keys beside the view, or not", "", main.action_keys_panel))
        return tabs + [
            Entry(key.help, key.shown.split()[0], partial(main.run_action, key.action))
            for key in keys_of(main.replays)
            if key.group != MOVE and key.action not in views and key.action != "palette"
        ]

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for one in self.entries():
            yield DiscoveryHit(one.shown, one.do, one.text)


class Keys(Actions):
    """The help: every key, those of the view that is shown first."""

    def entries(self) -> Sequence[Entry]:
        main = self.gputui.main
        own = own_keys(type(main.view))
        taken = {name for key in own for name in key.keys}
        found = []
        moves = main.view.MOVES
        keys = keys_of(main.replays)
        others = sorted(keys, key=lambda key: (key.action not in moves, key.group == MOVE))
        for key in (*own, *others):
            left = [word for word in key.shown.split() if key in own or named(word) not in taken]
            if left:
                shown, do = " ".join(left), partial(main.run_action, key.action)
                does = moves.get(key.action, key.help)
                found.append(Entry(f"{shown:<12} {does}", key.group, do))
        return found


class Themes(_Provider):
    """The colours of the screen."""

    def entries(self) -> Sequence[Entry]:
        def choose(name: str) -> None:
            self.gputui.theme = name

        now = self.gputui.theme
        return [
            Entry(f"theme {name}", "now" if name == now else "theme", partial(choose, name))
            for name in NAMES
        ]


class Pages(_Provider):
    """The pages of the manual, each of which opens in a box."""

    def entries(self) -> Sequence[Entry]:
        """Each page by its title, without the recipes for those who change gputui."""

        def read(page: ManualPage) -> object:
            return self.app.push_screen(DetailsBox(Details(page.path.name, ()), page))

        return [
            Entry(f"manual: {page.title}", "page", partial(read, page))
            for name, page in manual_pages().items()
            if "/" not in name
        ]


class Places(_Provider):
    """The phases and the kernels of the run."""

    _known: Sequence[Entry] | None = None

    def entries(self) -> Sequence[Entry]:
        """Worked out once, and only when something is typed."""
        if self._known is None:
            tables = self.gputui.model.tables
            self._known = [] if tables is None else self._named(tables)
        return self._known

    def _named(self, tables: Tables) -> list[Entry]:
        from gputui.report.phases import phase_rows
        from gputui.report.statistics import kernel_rows

        main = self.gputui.main
        phases = phase_rows(tables.run)[:MOST_NAMED]
        kernels = kernel_rows(tables.session, tables.run)[:MOST_NAMED]
        names = self.gputui.model.kernel_names

        def to(view: str, key: object) -> Do:
            return partial(main.follow_lead, Lead(view, key))

        return [
            *(Entry(row.path, "phase", to("phases", row.key)) for row in phases),
            *(
                Entry(
                    row.name, "kernel", to("kernels", row.name), names.get(row.name, row.short_name)
                )
                for row in kernels
            ),
        ]


class Runs(_Provider):
    """Each recorded run to be opened, and to be compared with what is shown."""

    async def search(self, query: str) -> Hits:
        """Once all recordings are read, or it takes long."""
        for _ in range(_WAITS):
            if self.gputui.main.library.unread == 0:
                break
            await asyncio.sleep(_WAIT_S)
        async for hit in super().search(query):
            yield hit

    def entries(self) -> Sequence[Entry]:
        from gputui.tui.widgets.recordings import run_words

        app = self.gputui
        recorded, shown = app.main.library.entries, app.recorded
        # Recorded runs are offered, too, to open and to compare.
        newer = {one.path: at for at, one in enumerate(recorded)}
        found = []
        for one in recorded:
            if one.problem is not None or one.name is None or one.path == shown:
                continue
            words = run_words(one, recorded)
            follow = partial(app.visit, one.path, follow=one.is_written)
            found.append(Entry(f"open run {words}", "run", follow))
            if shown is not None:
                pair: list[Path] = sorted((one.path, shown), key=lambda path: -newer.get(path, -1))
                compare = partial(app.main.compare, pair)
                found.append(Entry(f"compare with run {words}", "run", compare))
        return found


# Textual looks for the list by the name of its first base.
class _Commands(CommandList, Options):
    """The list of what matches."""


class Palette(Resized, CommandPalette):
    """Closed once, and laid out at the newest size, as dialogs are."""

    BINDINGS: ClassVar[list[BindingType]] = [LEAVE]

    def __init__(self, *, is_help: bool = False) -> None:
        """Of everything, or of keys where it `is_help`."""
        what = "a view, an action, a kernel, a run, a page of the manual…"
        super().__init__(
            [Keys] if is_help else [Actions, Themes, Pages, Places, Runs],
            placeholder="Keys: what should one do?" if is_help else what,
        )
        self._is_closed = False
        self._closes_at_once = False

    def compose(self) -> ComposeResult:
        """Textual's parts, with a list that does not fail."""
        for part in super().compose():
            yield _Commands() if isinstance(part, CommandList) else part

    def on_mount(self, event: events.Mount) -> None:
        """Close, where that was asked for by keys that came with the colon. Where the program ends
        meanwhile, there is no screen below any more, for which Textual's own handler looks."""
        if len(self.app.screen_stack) < 2:
            event.prevent_default()
        elif self._closes_at_once:
            self.call_later(self._close)

    def get_widget_at(self, x: int, y: int) -> tuple[Widget, Region]:
        """The palette itself where there is nothing: a click may be of a size that is no more, and
        Textual, which looks whether it was beside the palette, fails (NoWidget)."""
        try:
            return super().get_widget_at(x, y)
        except NoWidget:
            return self, self.region

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close, once. Not before it is mounted: Textual then looks for the screen below it."""
        if not self.is_mounted:
            self._closes_at_once = True
            return AwaitComplete()
        if self._is_closed:
            return AwaitComplete()
        self._is_closed = True
        return super().dismiss(result)

    def run_worker(self, work: Any, *args: Any, **options: Any) -> Worker[Any]:
        """Look for what matches, as long as there is a list: Textual's worker fails (NoMatches)
        where it begins as the palette is taken down, by Escape or with the program's end."""

        async def look() -> None:
            with suppress(NoMatches):
                await work()

        return super().run_worker(look, *args, **options)

    def _close(self) -> None:
        self.dismiss()  # whose end its own message cannot await

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key does something: Escape always, others only while there is a list."""
        is_there = bool(self.query(OptionList)) and not self._is_closed
        is_always = action in ("escape", "leave")
        return super().check_action(action, parameters) if is_there else is_always

    def action_leave(self) -> None:
        self.gputui.quit_now()
