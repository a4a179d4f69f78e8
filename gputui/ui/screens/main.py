"""The one screen: a bar, the current view, the log when it is wanted, the keys."""

from __future__ import annotations

import importlib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen

from gputui.ui.keys import bindings
from gputui.ui.messages import Called
from gputui.ui.source import Playback, Runner
from gputui.ui.widgets.bars import KeyBar, TopBar, hints
from gputui.ui.widgets.field import TextField
from gputui.ui.widgets.lines import ROLES
from gputui.ui.widgets.log import LogPane
from gputui.ui.widgets.table import Move
from gputui.ui.widgets.view import Model, View, is_too_small

if TYPE_CHECKING:
    from gputui.sources.catalogue import Catalogue
    from gputui.ui.app import GputuiApp
    from gputui.ui.screens.export import ExportRequest
    from gputui.ui.screens.workloads import StartRequest

# Modules, so that the first frame waits for one view only.
_VIEWS = {
    "devices": ("gputui.ui.screens.devices", "DevicesView"),
    "phases": ("gputui.ui.screens.phases", "PhasesView"),
    "kernels": ("gputui.ui.screens.kernels", "KernelsView"),
    "summary": ("gputui.ui.screens.summary", "SummaryView"),
}
_INTERVALS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class MainScreen(Screen[None]):
    """Takes the keys and shows one view."""

    BINDINGS = bindings()
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"line--{role}" for role in ROLES}

    def __init__(self, model: Model, first: str) -> None:
        super().__init__()
        self.model = model
        self.current = first
        self.top = TopBar(id="top")
        self.bottom = KeyBar(id="bottom")
        self.views: dict[str, View] = {}
        self.holder = Container(id="views")
        self.log_pane = LogPane(model)
        self.log_pane.display = False
        self._message: tuple[str, str] | None = None
        self._typing: TextField | None = None
        self._remembered: dict[str, dict[str, str]] = {}
        self._last_workload = ""

    def compose(self) -> ComposeResult:
        """Bars, view, log."""
        yield self.top
        with self.holder:
            yield self._make(self.current)
        yield self.log_pane
        yield self.bottom

    @property
    def view(self) -> View:
        """The view that is shown."""
        return self.views[self.current]

    def draw(self) -> None:
        """Show the newest state, unless a dialog hides the screen: what is not seen waits."""
        if not self._is_topmost:
            return
        self.view.draw()
        if is_too_small(self.app.size):
            self.top.show([])
            self.bottom.show([])
            return
        self.top.update(self.model, self.current)
        if self.log_pane.display:
            self.log_pane.draw()
        self._draw_bottom()

    def say(self, text: str, *, bad: bool = False) -> None:
        """One line at the bottom until the next key."""
        self._message = (text, "error" if bad else "good")
        if self._is_topmost:
            self._draw_bottom()

    # --- events

    def on_resize(self) -> None:
        """Another terminal size."""
        self.call_after_refresh(self.draw)

    def on_screen_resume(self) -> None:
        """A dialog was closed."""
        self.call_after_refresh(self.draw)

    def on_key(self, event: events.Key) -> None:
        """A message is gone at the next key; while a filter is typed, keys go there."""
        if self._message is not None:
            self._message = None
            self._draw_bottom()
        if self._typing is None:
            return
        event.stop()
        event.prevent_default()
        if event.key == "enter":
            self._typing = None
        elif event.key == "escape":
            self._typing = None
            self.view.needle = ""
        elif self._typing.key(event.key, event.character):
            self.view.needle = self._typing.text
        self.draw()

    def on_paste(self, event: events.Paste) -> None:
        """Text from the clipboard goes to the filter."""
        if self._typing is not None:
            self._typing.insert(event.text)
            self.view.needle = self._typing.text
            self.draw()

    # --- keys

    async def action_view(self, name: str) -> None:
        """Show another view."""
        self._typing = None
        if name == self.current:
            return
        self.view.display = False
        self.current = name
        if name in self.views:
            self.view.display = True
        else:
            await self.holder.mount(self._make(name))
        self.call_after_refresh(self.draw)

    def action_move(self, move: Move) -> None:
        """Arrows and their like."""
        self.view.move(move)

    def action_activate(self) -> None:
        """Enter."""
        details = self.view.activate()
        if details is not None:
            from gputui.ui.screens.boxes import DetailsBox

            self.app.push_screen(DetailsBox(details))

    def action_sort(self) -> None:
        """Sort by the next column."""
        if self.view.SORTS:
            self.view.sort()
        else:
            self.say("nothing to sort here: Devices and Kernels have tables that sort")

    def action_filter(self) -> None:
        """Type a filter."""
        if self.view.FILTERS:
            self._typing = TextField.holding(self.view.needle)
            self.draw()
        else:
            self.say("nothing to filter here: Phases and Kernels can be filtered")

    def action_clear(self) -> None:
        """Clear the filter; where there is none, follow what is now."""
        if self.view.needle:
            self.view.needle = ""
        else:
            self.view.follow()
        self.draw()

    def action_follow(self) -> None:
        """Back to what is now."""
        self.view.follow()
        self.draw()

    def action_libraries(self) -> None:
        """Show or hide what libraries say of themselves."""
        if not self.view.toggle_libraries():
            self.say("ranges of libraries are in Phases: 2 shows it")

    def action_log(self) -> None:
        """Show or hide the log."""
        self.log_pane.display = not self.log_pane.display
        self.call_after_refresh(self.draw)

    def action_scroll_log(self, lines: int) -> None:
        """Scroll the log."""
        if self.log_pane.display:
            self.log_pane.scroll_back(lines)
        else:
            self.say("the log is hidden: l shows it")

    def action_pause(self) -> None:
        """Freeze the screen, or a replay."""
        self._gputui.pause()
        self.draw()

    def action_interval(self, step: int) -> None:
        """Another interval, or another speed of a replay."""
        source = self.model.source
        if isinstance(source, Playback):
            source.speed = source.speed * 2 if step > 0 else source.speed / 2
            self.say(f"replay at ×{source.speed:g}")
        elif isinstance(source, Runner):
            now = source.interval_s
            longer = [s for s in _INTERVALS_S if s > now * 1.001]
            shorter = [s for s in _INTERVALS_S if s < now * 0.999]
            if step > 0 and longer:
                source.interval_s = longer[0]
            elif step < 0 and shorter:
                source.interval_s = shorter[-1]
            self.say(f"a sample every {source.interval_s:g} s")
        self.draw()

    def action_workloads(self) -> None:
        """The workload menu."""
        source = self.model.source
        run = self.model.run
        if not isinstance(source, Runner):
            text = "a replay starts nothing" if source is not None else "still starting"
            self.say(text, bad=True)
        elif run is not None and run.is_active:
            self.say("a run is active: x stops it", bad=True)
        else:
            from gputui.ui.screens.workloads import WorkloadDialog

            dialog = WorkloadDialog(
                self._remembered, self._last_workload, on_cpu=not self.model.session.gpus
            )

            def arrived(catalogue: Catalogue) -> None:
                dialog.arrived(catalogue)

            self._gputui.in_thread(source.catalogue, arrived, dialog.failed)
            self.app.push_screen(dialog, self._start)

    def action_stop_run(self) -> None:
        """Stop the run, after a question."""
        run, source = self.model.run, self.model.source
        if run is None or not run.is_active or not isinstance(source, Runner):
            self.say("no run is active")
            return
        from gputui.ui.screens.boxes import Question

        def answered(yes: bool | None) -> None:
            if yes:
                source.stop_run()
                self.say("stopping the run")

        text = f"{run.started.name} and every process it started will be ended."
        self.app.push_screen(Question("Stop the run?", text, "stop it"), answered)

    def action_export(self) -> None:
        """Export the summary."""
        run = self.model.run
        if run is None:
            self.say("no run yet: nothing to export", bad=True)
            return
        from gputui.ui.screens.export import ExportDialog

        journal = (
            self.model.source.recording.path if isinstance(self.model.source, Runner) else None
        )
        if journal is not None:
            default = journal.with_name(f"{journal.stem}-run{run.started.run}")
        else:
            started = datetime.fromtimestamp(run.started.time_ns / 1e9).astimezone()
            default = Path.cwd() / f"gputui-{started:%Y%m%d-%H%M%S}-run{run.started.run}"
        self.app.push_screen(ExportDialog(default), self._export)

    def action_help(self) -> None:
        """Every key."""
        from gputui.ui.screens.boxes import Help

        self.app.push_screen(Help())

    def action_quit(self) -> None:
        """Quit, after a question while a run is active."""
        run = self.model.run
        if run is None or not run.is_active or not isinstance(self.model.source, Runner):
            self._gputui.quit_now()
            return
        from gputui.ui.screens.boxes import Question

        def answered(yes: bool | None) -> None:
            if yes:
                self._gputui.quit_now()

        text = f"{run.started.name} is running. It will be ended; what was recorded is kept."
        self.app.push_screen(Question("Quit?", text, "end it and quit"), answered)

    def action_quit_now(self) -> None:
        """Quit without a question."""
        self._gputui.quit_now()

    # --- what the keys lead to

    @property
    def _is_topmost(self) -> bool:
        # Textual's `is_current` also holds for a screen that a dialog lets shine through.
        return self.app.screen is self

    @property
    def _gputui(self) -> GputuiApp:
        return cast("GputuiApp", self.app)

    def _make(self, name: str) -> View:
        module, kind = _VIEWS[name]
        view: View = getattr(importlib.import_module(module), kind)(self.model)
        self.views[name] = view
        return view

    def _draw_bottom(self) -> None:
        if self._typing is not None:
            width = max(10, min(40, self.size.width - 40))
            field = self._typing.spans(width)
            keys = (("  Enter ", "key"), ("keeps  ", "dim"), ("Esc ", "key"), ("clears", "dim"))
            self.bottom.say(((" filter: ", "label"), *field, *keys))
        elif self._message is not None:
            self.bottom.say(((f" {self._message[0]}", self._message[1]),))
        else:
            self.bottom.update(hints(self._possible()))

    def _possible(self) -> set[str]:
        run = self.model.run
        actions = {"pause", "help", "quit", "log"}
        active = run is not None and run.is_active
        if self.model.can_start:
            actions.add("stop_run" if active else "workloads")
        if run is not None:
            actions.add("export")
        if self.view.SORTS:
            actions.add("sort")
        if self.view.FILTERS:
            actions.add("filter")
        return actions

    async def _start(self, request: StartRequest | None) -> None:
        source = self.model.source
        if request is None or not isinstance(source, Runner):
            return
        workload = request.workload
        self._remembered[workload.name] = request.texts
        self._last_workload = workload.name
        source.start_workload(workload.name, request.values, workload.step_range)
        await self.action_view("phases")

    def _export(self, request: ExportRequest | None) -> None:
        run = self.model.run
        if request is not None and run is not None:
            self._gputui.export(run, request.format, request.path)

    def on_called(self, message: Called) -> None:
        """A thread has finished."""
        message.then()
