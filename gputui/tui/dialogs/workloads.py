"""The workload menu, and the form of the chosen workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events

from gputui.collect.catalogue import Catalogue, Forecast, Value, Workload
from gputui.tui.dialogs.dialog import Dialog, key_hints
from gputui.tui.dialogs.needs import Earlier, EarlierRuns, Target, needs_row
from gputui.tui.widgets.canvas import Row, fit, wrap
from gputui.tui.widgets.form import Form, field_row
from gputui.tui.widgets.names import cut_middle

if TYPE_CHECKING:
    from gputui.state import Session
    from gputui.tui.app import GputuiApp
    from gputui.tui.source import Asked


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What to start. `texts` is the form's content, for the next time."""

    workload: Workload
    values: dict[str, Value]
    texts: dict[str, str]


_TALL = 30
"""Lines of a terminal from which the whole description of a workload is shown."""


class WorkloadDialog(Dialog[StartRequest | None]):
    """Choose, set, start. The catalogue comes from a subprocess: until then it says so."""

    def __init__(
        self,
        remembered: dict[str, dict[str, str]],
        last: str,
        *,
        target: Target | None = None,
        asked: Asked | None = None,
        session: Session | None = None,
    ) -> None:
        """`target` None is a run on the CPU; `asked` says what a run would need; `session` is of
        the machine, on which earlier runs took so long."""
        super().__init__()
        self._target = target
        self._asked = asked
        self._session = session
        self._earlier: EarlierRuns | None = None
        self._copied = ""
        self._question: dict[str, Value] | None = None
        """What was asked last; `_waits` for its answer, and starts then if that was wanted."""
        self._waits = self._starts = False
        self._remembered = remembered
        self._last = last
        self._catalogue: Catalogue | None = None
        self._failure = ""
        self._index = 0
        self.form: Form | None = None

    def on_mount(self) -> None:
        """Look for earlier runs."""
        if self._session is not None:
            app: GputuiApp = self.app  # type: ignore[assignment]
            self._earlier = EarlierRuns(app, self._session, self._learned)

    def _learned(self) -> None:
        if self.is_mounted and not self._is_closed:
            self.draw()

    def arrived(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        names = [workload.name for workload in catalogue.workloads]
        self._index = names.index(self._last) if self._last in names else 0
        if len(names) == 1:
            self._open()
        if self.is_mounted:
            self.draw()

    def failed(self, reason: str) -> None:
        """There will be no catalogue."""
        self._failure = reason
        if self.is_mounted:
            self.draw()

    def rows(self, width: int) -> list[Row]:
        if self._failure:
            return [
                (("Workloads", "title"),),
                (),
                *wrap(f"The list of workloads is not available: {self._failure}", width, "error"),
            ]
        if self._catalogue is None:
            return [(("Workloads", "title"),), (), (("asking for the list…", "dim"),)]
        if self.form is None:
            return self._list(width)
        return self._form(self.form, width)

    def footer(self, width: int) -> list[Row]:
        if self.form is not None:
            form = self.form
            start = "tab-active" if form.on_start else "key"
            command = form.command()
            rows: list[Row] = [
                (("› " if form.on_start else "  ", "accent"), ("[ Start ]", start)),
                *self._explanation(form, width),
                needs_row(form.forecast or Forecast(), self._target, self._took(form), width),
                ((cut_middle(command, width) if command else "", "text"),),
            ]
            return rows + key_hints(
                width,
                ("Enter", "start"),
                ("Esc", "back"),
                ("↑ ↓", "field"),
                ("← →", "choose"),
                ("Ctrl-Y" if form.takes_letters else "y", "copy the command"),
                ("Ctrl-R", "defaults"),
            )
        if self._catalogue is None:
            return key_hints(width, ("Esc", "close"))
        keys = key_hints(width, ("Enter", "set parameters"), ("↑ ↓", "choose"), ("Esc", "close"))
        if not self._catalogue.workloads:
            return keys
        # Where the list scrolls, what it is about stays in sight: its line may be cut.
        about = wrap(self._catalogue.workloads[self._index].description, width, "dim")
        if self.app.size.height < _TALL:
            cut = [(*about[1], (" …", "dim"))] if len(about) > 2 else about[1:]
            about = [*about[:1], *cut, *[()] * (2 - len(about))]
        return [*about, *keys]

    def key(self, key: str, character: str | None) -> None:
        self._copied = ""
        if self.form is not None:
            self._form_key(self.form, key, character)
            self._ask()
        elif key in ("escape", "q"):
            self.dismiss(None)
        elif self._catalogue is not None:
            count = len(self._catalogue.workloads)
            if key in ("up", "k", "down", "j", "tab", "shift+tab") and count:
                step = -1 if key in ("up", "k", "shift+tab") else 1
                self._index = (self._index + step) % count
            elif key in ("home", "g", "end", "G") and count:
                self._index = 0 if key in ("home", "g") else count - 1
            elif key in ("enter", "right") and count:
                self._open()
        if self.is_mounted and self.is_current:
            self.draw()

    def on_paste(self, event: events.Paste) -> None:
        if self.form is not None:
            self.form.paste(event.text)
            self._ask()
            self.draw()

    def clicked(self, line: int) -> None:
        """A workload, or a field: chosen already, as Enter, or the field's next choice."""
        number = line - 2
        if self.form is not None:
            if number == self.form.line:
                self.form.key("right", None)
            elif 0 <= number < self.form.lines - 1:
                self.form.choose(number)
            self._ask()
        elif self._catalogue is not None and 0 <= number < len(self._catalogue.workloads):
            if number == self._index:
                self._open()
            self._index = number
        self.draw()

    def footer_clicked(self, line: int) -> None:
        """Start."""
        if line == 0 and self.form is not None:
            self.key("enter", None)

    def _open(self) -> None:
        assert self._catalogue is not None
        workload = self._catalogue.workloads[self._index]
        self.form = Form(workload, self._target is None)
        self.form.remember(self._remembered.get(workload.name, {}))
        self.top = 0
        self._question = None
        self._ask()

    # --- what a run would need

    def _ask(self) -> None:
        """Ask about the values as they are; while an answer is awaited, once it is there."""
        form = self.form
        if form is None or self._asked is None or self._is_closed:
            return
        try:
            values = form.values()
        except ValueError:
            form.forecast, self._question = None, None
            return
        if self._waits or values == self._question:
            return
        self._question, self._waits = values, True
        asked, workload = self._asked, form.workload.name
        gpu = self._target.name if self._target is not None else None

        def answered(found: Forecast | None) -> None:
            self._waits = False
            if self.form is form and self._question == values:
                form.forecast = found
            self._ask()
            if self._starts and not self._waits:
                self._starts = False
                self._start(form)
            self._learned()

        app: GputuiApp = self.app  # type: ignore[assignment]
        app.in_thread(lambda: asked.ask(workload, values, gpu), answered, lambda _: answered(None))

    def _form_key(self, form: Form, key: str, character: str | None) -> None:
        if key == "escape":
            many = self._catalogue is not None and len(self._catalogue.workloads) > 1
            self.form = None
            self.focus_line = None
            if not many:
                self.dismiss(None)
        elif key in ("enter", "ctrl+s") or (key == "space" and form.on_start):
            self._starts = self._waits
            if not self._waits:
                self._start(form)
        elif key == "ctrl+y" or (key == "y" and not form.takes_letters):
            self.app.copy_to_clipboard(form.command())
            self._copied = f"copied {len(form.command())} characters"
        elif key == "ctrl+r":
            self.form = Form(form.workload, self._target is None, line=form.line)
            self._question = None
        else:
            form.key(key, character)

    def _took(self, form: Form) -> Earlier | None:
        try:
            return self._earlier.of(form.workload.name, form.values()) if self._earlier else None
        except ValueError:
            return None

    def _start(self, form: Form) -> None:
        wrong = form.first_error()
        if wrong is None:
            self.dismiss(StartRequest(form.workload, form.values(), form.texts()))
        else:
            form.choose(wrong)

    def _list(self, width: int) -> list[Row]:
        assert self._catalogue is not None
        workloads = self._catalogue.workloads
        place = f"   {self._index + 1} of {len(workloads)}" if workloads else ""
        rows: list[Row] = [(("Workloads", "title"), (place, "dim")), ()]
        if not workloads:
            return [*rows, (("there are none on this machine", "dim"),)]
        longest = min(24, max(len(workload.name) for workload in workloads))
        for index, workload in enumerate(workloads):
            text = f"{fit(workload.name, longest)}  {workload.summary}"
            if index == self._index:
                self.focus_line = len(rows)
                rows.append(((fit(f"› {text}", width), "cursor"),))
            else:
                rows.append(((fit(f"  {text}", width), "text"),))
        for broken in self._catalogue.broken:
            text = f"{broken.name} does not load: {broken.error}"
            rows.append(((fit(f"  {text}", width), "warn"),))
        return [*rows, ()]

    def _form(self, form: Form, width: int) -> list[Row]:
        workload = form.workload
        rows: list[Row] = [((workload.name, "title"), (f"   {workload.summary}", "dim")), ()]
        names = [parameter.name for parameter in workload.parameters]
        label = max([7, *map(len, names)]) + 2
        lines: list[Row] = []
        if form.has_presets:
            name = workload.presets[form.preset - 1].name if form.preset else "none"
            lines.append((("preset".ljust(label), "label"), (f"‹ {name} ›", "accent")))
        for parameter in workload.parameters:
            lines.append(field_row(form, parameter, label, width))
        for number, line in enumerate(lines):
            chosen = number == form.line
            if chosen:
                self.focus_line = len(rows)
            rows.append((("› " if chosen else "  ", "accent"), *line))
        return rows

    def _explanation(self, form: Form, width: int) -> list[Row]:
        """Two lines about the chosen field, always two, so that nothing jumps."""
        parameter = form.chosen
        if self._copied:
            lines: list[Row] = [((self._copied, "good"),)]
        elif parameter is not None and form.error(parameter):
            lines = wrap(form.error(parameter), width, "error")
        elif parameter is not None:
            allowed = "yes or no" if parameter.kind == "bool" else parameter.allowed
            lines = wrap(f"{parameter.help} ({allowed or parameter.kind})", width, "dim")
        elif form.has_presets and form.line == 0:
            preset = form.workload.presets[form.preset - 1] if form.preset else None
            text = preset.help if preset else "a named set of values; ← → choose one"
            lines = wrap(text, width, "dim")
        else:
            lines = wrap(form.workload.description, width, "dim")
        return [*lines, (), ()][:2]
