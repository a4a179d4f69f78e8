"""The workload menu, and the form of the chosen workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, OptionList, Select, Static, Switch
from textual.widgets.option_list import Option

from gputui.collect.catalogue import (
    Catalogue,
    Forecast,
    Forecaster,
    Parameter,
    TargetGpu,
    Value,
    Workload,
    command_of,
    needs_of,
    typed_value,
    value_text,
)
from gputui.tui.dialogs.boxes import Dialog, Frame, Line, Options


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What to start. `texts` is the form's content, for the next time."""

    workload: Workload
    values: dict[str, Value]
    texts: dict[str, str]


class WorkloadDialog(Dialog[StartRequest]):
    """Choose a workload, then set its parameters. The catalogue comes from a subprocess, of which
    `load` waits in a thread: until then it says so."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "cancel", show=False)]

    def __init__(
        self,
        load: Callable[[], Catalogue],
        remembered: dict[str, dict[str, str]],
        last: str,
        *,
        target: TargetGpu | None = None,
        asked: Forecaster | None = None,
    ) -> None:
        """`target` None is a run on the CPU; `asked` says what a run would need."""
        super().__init__()
        self._load = load
        self._remembered = remembered
        self._last = last
        self._target = target
        self._asked = asked
        self._workloads: Sequence[Workload] = ()
        # Parts are held, not looked for: a message may come while they are taken down.
        self._listed = Options(compact=True)
        self._about = Line("asking for the list…", id="description", classes="dim")

    def compose(self) -> ComposeResult:
        """A list, and what the chosen one is about."""
        with Frame("Workloads", "Enter set parameters  ↑ ↓ choose  Esc close", wide=True):
            yield self._listed
            yield self._about

    def on_mount(self) -> None:
        self.gputui.in_thread(self._load, self._arrived, self._failed)

    def _arrived(self, catalogue: Catalogue) -> None:
        """List them; the only one is opened at once."""
        if self._is_closed:
            return
        self._workloads = catalogue.workloads
        longest = min(24, max((len(one.name) for one in self._workloads), default=0))
        listed = self._listed
        for one in self._workloads:
            name = one.name if len(one.name) <= longest else f"{one.name[: longest - 1]}…"
            listed.add_option(Option(Content(f"{name:<{longest}}  {one.summary}")))
        for broken in catalogue.broken:
            text = Content(f"{broken.name} does not load: {broken.error}")
            listed.add_option(Option(text, disabled=True))
        if not self._workloads:
            self._say("there are none on this machine")
            return
        names = [one.name for one in self._workloads]
        listed.highlighted = names.index(self._last) if self._last in names else 0
        if len(names) == 1:
            self._open(self._workloads[0])

    def _failed(self, reason: str) -> None:
        if not self._is_closed:
            self._say(f"The list of workloads is not available: {reason}")

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """What it is about: its line may be cut."""
        place = f"{event.option_index + 1} of {len(self._workloads)}   "
        self._say(f"{place}{self._workloads[event.option_index].description}")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._open(self._workloads[event.option_index])

    def _say(self, text: str) -> None:
        self._about.update(Content(text))

    def _open(self, workload: Workload) -> None:
        def answered(request: StartRequest | None) -> None:
            frame.display = True
            if request is not None or len(self._workloads) == 1:
                self.dismiss(request)

        frame = self.query_one(Frame)
        frame.display = False  # else its edges stand around the form's
        typed = self._remembered.get(workload.name, {})
        form = WorkloadForm(workload, typed, self._target, self._asked)
        self.app.push_screen(form, answered)


# The form of one workload.


_IN_FORM: list[BindingType] = [
    Binding("up", "app.focus_previous", show=False),
    Binding("down", "app.focus_next", show=False),
    Binding("left", "step(-1)", show=False),
    Binding("right", "step(1)", show=False),
    Binding("enter", "screen.start", show=False),
]
"""Arrows and Enter mean the same in every field; space opens a list."""


class Choice(Select[str]):
    """One of some values, by arrows or from a list."""

    BINDINGS: ClassVar[list[BindingType]] = _IN_FORM

    def __init__(self, names: Sequence[str], default: str | None, *, id: str | None = None) -> None:
        """`default` None lets nothing be chosen, and begins so."""
        self.names = names
        self._is_optional = default is None
        options = [(Content(one), one) for one in names]
        if default is None:
            super().__init__(options, prompt="none", compact=True, id=id)
        else:
            super().__init__(options, value=default, allow_blank=False, compact=True, id=id)

    def action_step(self, step: int) -> None:
        """The next value, round and round; between the last and the first none, if it can be."""
        values = [*self.names, *([None] if self._is_optional else [])]
        at = values.index(str(self.value)) if self.value in self.names else len(values) - 1
        following = values[(at + step) % len(values)]
        if following is None:
            self.clear()
        else:
            self.value = following


class YesNo(Switch):
    """A switch that the form's keys turn."""

    BINDINGS: ClassVar[list[BindingType]] = _IN_FORM

    def render(self) -> Content:
        """Not Textual's blocks, which are one where switches stand below one another."""
        return Content(" ──●" if self.value else " ●──")

    def action_step(self, step: int) -> None:
        del step
        self.toggle()


class _Fields(VerticalScroll, can_focus=False, inherit_bindings=False):
    """All fields; the focus scrolls them."""


class Field(Horizontal):
    """A parameter with its name, its value to set, and what is wrong or changed about it."""

    def __init__(self, parameter: Parameter, default: str, width: int) -> None:
        super().__init__(classes="field")
        self.parameter = parameter
        self.default = default
        self._width = width
        self._note = Line(classes="note dim")
        self._set: Input | Choice | YesNo
        choices = [*map(value_text, parameter.choices)] if parameter.kind == "choice" else []
        if parameter.kind == "bool":
            self._set = YesNo(default == "yes", animate=False)
        elif choices and default in choices:
            self._set = Choice(choices, default)
        else:
            self._set = Input(default, compact=True)

    def compose(self) -> ComposeResult:
        name = Line(self.parameter.name, classes="label")
        name.styles.width = self._width
        yield name
        yield self._set
        yield self._note

    def on_click(self, event: events.Click) -> None:
        """The name stands for what is set beside it."""
        if event.widget not in (self._set, *self._set.query("*")):
            self._set.focus()
            if isinstance(self._set, YesNo):
                self._set.toggle()

    @property
    def text(self) -> str:
        """What is set, as it would be typed."""
        value = self._set.value
        return value_text(value) if isinstance(value, bool) else str(value)

    @text.setter
    def text(self, text: str) -> None:
        one = self._set
        if isinstance(one, YesNo):
            one.value = text == "yes"
        elif isinstance(one, Input) or text in one.names:
            one.value = text

    def take_focus(self) -> None:
        """What is typed then replaces what was refused."""
        self._set.focus()
        if isinstance(self._set, Input):
            self._set.select_all()

    def note(self, wrong: str) -> None:
        """Say what is wrong, else the unit, and the default where it is another value."""
        default = self.default or "none"
        unit = self.text if isinstance(self._set, YesNo) else self.parameter.unit or ""
        changed = f"  default {default}" if self.text != self.default else ""
        self._note.set_class(bool(wrong), "error")
        self._note.update(Content(f"! {wrong}" if wrong else unit + changed))


class WorkloadForm(Dialog[StartRequest]):
    """Set the parameters of a workload; says what a run with them would need."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+y", "copy", show=False),
        Binding("ctrl+r", "defaults", show=False),
        Binding("ctrl+s", "start", show=False),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    def __init__(
        self,
        workload: Workload,
        typed: Mapping[str, str],
        target: TargetGpu | None,
        asked: Forecaster | None,
    ) -> None:
        super().__init__()
        self._workload = workload
        self._typed = typed
        self._target = target
        self._asked = asked
        self._forecast: Forecast | None = None
        self._question: dict[str, Value] | None = None
        """What was asked last; `_waits` for its answer, and starts then if that was wanted."""
        self._waits = self._starts = False
        width = max([7, *(len(one.name) for one in workload.parameters)]) + 2
        self._fields = [Field(one, self._default(one), width) for one in workload.parameters]
        self._presets = {one.name: one for one in workload.presets}
        self._width = width
        self._preset = Choice([*self._presets], None, id="preset") if self._presets else None
        self._about, self._command = Line(id="about", classes="dim"), Line()
        self._needs = Static()

    def compose(self) -> ComposeResult:
        """The fields, which scroll where there are many; what stays in sight below them."""
        title = f"{self._workload.name}  {self._workload.summary}"
        keys = "Enter start  ↑ ↓ field  ← → choose  Ctrl-Y copy  Ctrl-R defaults  Esc back"
        with Frame(title, keys, wide=True):
            with _Fields(id="fields"):
                if self._preset is not None:
                    with Horizontal(classes="field"):
                        name = Line("preset", classes="label")
                        name.styles.width = self._width
                        yield name
                        yield self._preset
                yield from self._fields
            yield self._about
            yield self._needs
            yield self._command
            with Horizontal(classes="buttons"):
                yield Button(Content("Start"), id="start", compact=True, variant="success")
                yield Button(Content("Copy the command"), id="copy", compact=True)
                yield Button(Content("Back"), id="back", compact=True)

    def on_mount(self) -> None:
        """What was typed the last time."""
        for one in self._fields:
            if one.parameter.name in self._typed:
                one.text = self._typed[one.parameter.name]
        self._draw()

    # --- what was set

    def on_input_changed(self) -> None:
        """Another value: ask what it would need."""
        self._changed()

    def on_switch_changed(self) -> None:
        self._changed()

    def on_select_changed(self, event: Select.Changed) -> None:
        if event.select.id == "preset":
            preset = self._presets.get(str(event.value))
            values = preset.values if preset is not None else {}
            for one in self._fields:
                value = values.get(one.parameter.name)
                one.text = one.default if value is None else value_text(value)
        self._changed()

    def _changed(self) -> None:
        if self.is_mounted and not self._is_closed:
            self._ask()
            self._draw()

    def _values(self) -> dict[str, Value]:
        """What to start with. A field at its default is left out, because a default may depend on
        the device the workload finds. Raises ValueError."""
        return {
            one.parameter.name: typed_value(one.parameter, one.text)
            for one in self._fields
            if one.text.strip() != one.default
        }

    def _default(self, parameter: Parameter) -> str:
        on_cpu = self._target is None and parameter.cpu_default is not None
        return value_text(parameter.cpu_default if on_cpu else parameter.default)

    def _wrong(self) -> Iterator[tuple[Field, str]]:
        """The fields with what is wrong, each by itself or together."""
        for one in self._fields:
            try:
                if one.text.strip() != one.default:
                    typed_value(one.parameter, one.text)
            except ValueError as error:
                yield one, str(error)
        if (found := self._forecast) is not None and found.wrong:
            names = found.names or (self._workload.parameters[0].name,)
            focused = next((one for one in self._fields if one.has_focus_within), None)
            name = focused.parameter.name if focused is not None else ""
            blamed = name if name in names else names[0]
            for one in self._fields:
                if one.parameter.name == blamed:
                    yield one, found.wrong.removeprefix(f"{blamed}: ")

    # --- what a run would need

    def _ask(self) -> None:
        """Ask about the values as they are; while an answer is awaited, once it is there."""
        if self._asked is None or self._is_closed:
            return
        try:
            values = self._values()
        except ValueError:
            self._forecast, self._question = None, None
            return
        if self._waits or values == self._question:
            return
        self._question, self._waits = values, True
        asked, workload = self._asked, self._workload.name
        gpu = self._target.name if self._target is not None else None

        def answered(found: Forecast | None) -> None:
            self._waits = False
            if self._question == values:
                self._forecast = found
            self._ask()
            if self._starts and not self._waits:
                self._starts = False
                self.action_start()
            self._draw()

        self.gputui.in_thread(
            lambda: asked.ask(workload, values, gpu), answered, lambda _: answered(None)
        )

    def _draw(self) -> None:
        if not self.is_mounted or self._is_closed:
            return
        wrong = dict(self._wrong())
        for one in self._fields:
            one.note(wrong.get(one, ""))
        try:
            values = self._values()
        except ValueError:
            values = None
        needs, fits = needs_of(self._forecast or Forecast(), self._target)
        self._needs.update(self.drawn([((needs, "dim" if fits else "warn"),)]))
        command = "" if values is None else command_of(self._workload, values)
        self._command.update(Content(command))
        self._explain(wrong)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        del event
        if self.is_mounted:
            self._explain(dict(self._wrong()))

    def _explain(self, wrong: Mapping[Field, str]) -> None:
        """About the field that has the focus."""
        text = self._workload.description
        for one in self._fields:
            if one.has_focus_within:
                allowed = "yes or no" if one.parameter.kind == "bool" else one.parameter.allowed
                text = wrong.get(one) or f"{one.parameter.help} ({allowed or one.parameter.kind})"
        if self._preset is not None and self._preset.has_focus_within:
            chosen = self._presets.get(str(self._preset.value))
            text = chosen.help if chosen is not None else "a named set of values"
        self._about.update(Content(text))

    # --- keys and buttons

    def on_input_submitted(self) -> None:
        """Enter starts from any field that is typed in."""
        self.action_start()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        acts = {"start": self.action_start, "copy": self.action_copy, "back": self.action_cancel}
        acts[event.button.id or "back"]()

    def action_start(self) -> None:
        """Start, where all is well; once what was asked is answered."""
        self._starts = self._waits
        if self._waits:
            return
        wrong = next(self._wrong(), None)
        if wrong is None:
            texts = {one.parameter.name: one.text for one in self._fields}
            self.dismiss(StartRequest(self._workload, self._values(), texts))
            return
        wrong[0].take_focus()

    def action_copy(self) -> None:
        """Copy what starts the same from a shell."""
        try:
            command = command_of(self._workload, self._values())
        except ValueError:
            return
        self.app.copy_to_clipboard(command)
        self._about.update(f"copied {len(command)} characters")

    def action_defaults(self) -> None:
        for one in self._fields:
            one.text = one.default
        self._question = None
        self._changed()
