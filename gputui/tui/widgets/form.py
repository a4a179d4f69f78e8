"""The state of a workload's form: what was typed, errors, and the resulting values."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from gputui.collect.catalogue import (
    CatalogueError,
    Forecast,
    Parameter,
    Value,
    Workload,
    parse_value,
)
from gputui.tui.widgets.canvas import Row, Span, fit
from gputui.tui.widgets.field import TextField


def shown(value: Value | None) -> str:
    """A value as displayed in a field."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def read(parameter: Parameter, text: str) -> Value:
    """A typed text as the parameter's kind. Raises ValueError saying what is allowed."""
    try:
        value = parse_value(parameter, text.strip())
    except CatalogueError:
        raise ValueError(f"expected {parameter.allowed or parameter.kind}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected {parameter.allowed or parameter.kind}")
    return value


def _typed(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(slots=True)
class Form:
    """Fields of one workload. Line 0 is the preset, if there are any."""

    workload: Workload
    on_cpu: bool = False
    fields: dict[str, TextField] = field(default_factory=dict)
    line: int = 0
    preset: int = 0
    forecast: Forecast | None = None
    """What a run with these values would need; None until it was asked."""
    is_fresh: bool = True
    """Whether the chosen field was only reached: what is typed replaces what it holds."""

    def __post_init__(self) -> None:
        for parameter in self.workload.parameters:
            text = self.default(parameter)
            self.fields.setdefault(parameter.name, TextField.holding(text))

    def default(self, parameter: Parameter) -> str:
        """The content of an untouched field."""
        if self.on_cpu and parameter.cpu_default is not None:
            return shown(parameter.cpu_default)
        return shown(parameter.default)

    @property
    def has_presets(self) -> bool:
        """Whether there is a preset line."""
        return bool(self.workload.presets)

    @property
    def lines(self) -> int:
        return int(self.has_presets) + len(self.workload.parameters) + 1

    @property
    def on_start(self) -> bool:
        return self.line == self.lines - 1

    @property
    def chosen(self) -> Parameter | None:
        index = self.line - int(self.has_presets)
        parameters = self.workload.parameters
        return parameters[index] if 0 <= index < len(parameters) else None

    @property
    def takes_letters(self) -> bool:
        """Whether a letter goes into the chosen field."""
        return self.chosen is not None and self.chosen.kind == "text"

    def remember(self, texts: Mapping[str, str]) -> None:
        """Restore what was typed the last time."""
        for name, text in texts.items():
            if name in self.fields:
                self.fields[name] = TextField.holding(text)

    def texts(self) -> dict[str, str]:
        """The contents of the fields."""
        return {name: typed.text for name, typed in self.fields.items()}

    def error(self, parameter: Parameter) -> str:
        """The error of a field, "" if there is none."""
        try:
            read(parameter, self.fields[parameter.name].text)
        except ValueError as error:
            return str(error)
        found = self.forecast
        if found is not None and found.wrong and parameter.name == self._blamed(found):
            return found.wrong.removeprefix(f"{parameter.name}: ")
        return ""

    def _blamed(self, found: Forecast) -> str:
        """The field that says why values do not go together: the chosen one, if it is among
        them."""
        if self.chosen is not None and self.chosen.name in found.names:
            return self.chosen.name
        return found.names[0] if found.names else self.workload.parameters[0].name

    def first_error(self) -> int | None:
        """The line of the first invalid field."""
        for index, parameter in enumerate(self.workload.parameters):
            if self.error(parameter):
                return index + int(self.has_presets)
        return None

    def values(self) -> dict[str, Value]:
        """What to start with. A field at its default is left out, because a default may depend on
        the device the workload finds. Raises ValueError.
        """
        result: dict[str, Value] = {}
        for parameter in self.workload.parameters:
            text = self.fields[parameter.name].text
            if text.strip() != self.default(parameter):
                result[parameter.name] = read(parameter, text)
        return result

    def key(self, key: str, character: str | None) -> bool:
        """Handle a key; whether something changed."""
        if key in ("up", "shift+tab"):
            self.choose((self.line - 1) % self.lines)
        elif key in ("down", "tab"):
            self.choose((self.line + 1) % self.lines)
        elif self.has_presets and self.line == 0:
            return self._preset_key(key)
        else:
            parameter = self.chosen
            if parameter is None:
                return False
            options = self._options(parameter)
            if options:
                return self._choose(parameter, options, key)
            field = self.fields[parameter.name]
            if self.is_fresh and character is not None and character.isprintable():
                self.fields[parameter.name] = field = TextField()
            self.is_fresh = False
            return field.key(key, character)
        return True

    def choose(self, line: int) -> None:
        """Go to a line."""
        self.line, self.is_fresh = line, True

    def command(self) -> str:
        """What starts the same from a shell; empty while a field is wrong."""
        try:
            values = self.values()
        except ValueError:
            return ""
        given = [f"-p {shlex.quote(f'{name}={_typed(value)}')}" for name, value in values.items()]
        return " ".join(["gputui", "--workload", shlex.quote(self.workload.name), *given])

    def paste(self, text: str) -> None:
        """Pasted text goes to the chosen field."""
        parameter = self.chosen
        if parameter is not None and not self._options(parameter):
            if self.is_fresh:
                self.fields[parameter.name] = TextField()
            self.is_fresh = False
            self.fields[parameter.name].insert(text)

    @staticmethod
    def _options(parameter: Parameter) -> tuple[str, ...]:
        if parameter.kind == "bool":
            return ("no", "yes")
        return tuple(map(str, parameter.choices)) if parameter.kind == "choice" else ()

    def _choose(self, parameter: Parameter, options: tuple[str, ...], key: str) -> bool:
        step = {"left": -1, "right": 1, "space": 1}.get(key)
        if step is None:
            return False
        text = self.fields[parameter.name].text
        index = options.index(text) if text in options else -1 if step > 0 else 0
        self.fields[parameter.name] = TextField.holding(options[(index + step) % len(options)])
        return True

    def _preset_key(self, key: str) -> bool:
        step = {"left": -1, "right": 1, "space": 1}.get(key)
        if step is None:
            return False
        presets = self.workload.presets
        self.preset = (self.preset + step) % (len(presets) + 1)
        values = presets[self.preset - 1].values if self.preset else {}
        for parameter in self.workload.parameters:
            value = values.get(parameter.name)
            text = self.default(parameter) if value is None else shown(value)
            self.fields[parameter.name] = TextField.holding(text)
        return True


def field_row(form: Form, parameter: Parameter, label: int, width: int) -> Row:
    """A field with its name, its unit, and what is wrong or changed about it."""
    chosen = form.chosen is parameter
    typed = form.fields[parameter.name]
    spans: list[Span] = [(parameter.name.ljust(label), "label")]
    room = min(28 if parameter.kind == "text" else 14, width - label - 4)
    if parameter.kind in ("choice", "bool"):
        value = f"‹ {typed.text} ›" if chosen else f"  {typed.text}"
        spans.append((fit(value, room), "value" if not chosen else "accent"))
    elif chosen:
        spans.extend(typed.spans(room))
    else:
        spans.append((fit(typed.text, room), "input"))
    unit = f" {parameter.unit}" if parameter.unit else ""
    error = form.error(parameter)
    left = width - label - room - 2
    if error:  # of the chosen field below, where it has room
        spans.append((fit("  !" if chosen else f"  ! {error}", left), "error"))
    else:
        changed = typed.text != form.default(parameter)
        note = f"  default {form.default(parameter) or 'none'}" if changed else ""
        spans.append((fit(unit + note, left), "dim"))
    return tuple(spans)
