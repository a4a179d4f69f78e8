"""The palette: what can be done, and what can be gone to by name, earlier runs included."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.tui.shell.view_keys import ViewKeys
from gputui.tui.widgets.view import Lead

if TYPE_CHECKING:
    from gputui.store.library import LibraryEntry as Recorded
    from gputui.tui.dialogs.palette import Action, Entry, Palette
    from gputui.tui.recording_library import RecordingLibrary


class PaletteKeys(ViewKeys):
    """What `:` and Ctrl-P open, and what is done with its answer."""

    _recorded: RecordingLibrary | None = None
    _palette: Palette | None = None

    async def _follow_lead(self, to: Lead) -> None:
        raise NotImplementedError

    def compare(self, paths: Sequence[Path]) -> None:
        """Show recordings side by side."""
        raise NotImplementedError

    def action_palette(self) -> None:
        """Every action and view by name, phases, kernels and runs."""
        from gputui.tui.dialogs.palette import Palette, named

        async def chosen(action: Action | None) -> None:
            self._palette = None
            if isinstance(action, Lead):
                await self._follow_lead(action)
            elif isinstance(action, str):
                await self.run_action(action)
            elif action is not None:
                action()

        self._palette = Palette(replays=self.replays, places=lambda: named(self.model.tables))
        self.app.push_screen(self._palette, chosen)
        self._look_for_runs()

    def _look_for_runs(self) -> None:
        """They are offered as they are read, in a thread."""
        from gputui.tui.recording_library import RecordingLibrary

        if self._recorded is None:
            self._recorded = RecordingLibrary(
                self.gputui, self._offer_runs, self.gputui.options.folder
            )
        self._offer_runs()
        self._recorded.look()

    def _offer_runs(self) -> None:
        if self._palette is not None and self._recorded is not None:
            self._palette.offer(self._runs(self._recorded.entries))

    def _runs(self, recorded: Sequence[Recorded]) -> list[Entry]:
        """Each recorded run to be opened, and to be compared with what is shown."""
        from gputui.tui.dialogs.palette import Entry
        from gputui.tui.widgets.recordings import run_words

        shown = self.gputui.recorded
        newer = {one.path: at for at, one in enumerate(recorded)}
        found = []
        for one in recorded:
            if one.problem is not None or one.name is None or one.path == shown:
                continue
            words = run_words(one, recorded)
            follow = partial(self.gputui.visit, one.path, follow=one.is_written)
            found.append(Entry(f"open run {words}", "run", follow))
            if shown is not None:
                pair = sorted((one.path, shown), key=lambda path: -newer.get(path, -1))
                compare = partial(self.compare, pair)
                found.append(Entry(f"compare with run {words}", "run", compare))
        return found
