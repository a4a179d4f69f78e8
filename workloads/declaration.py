"""A workload's declaration, in one place.

The command line, the JSON catalogue, a form on a screen and the validation of input all come from
it, so they cannot disagree. Declaring is cheap: the code that runs, and torch with it, is named as
"module:function" and imported only when it runs.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast

from .errors import DeclarationError, WrongUsage

if TYPE_CHECKING:
    from .peaks import Peak
    from .report import Report

Value = int | float | str | bool
"""Of a parameter."""

FigureValue = int | float | str | bool | None
"""Of a result or a live metric. None is missing; its reason is recorded separately."""

Kind = Literal["int", "float", "choice", "text", "bool"]

_NAME = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_YES_OR_NO = {"true": True, "yes": True, "on": True, "1": True}
_YES_OR_NO |= {"false": False, "no": False, "off": False, "0": False}
_RESERVED = {"help", "preset"}
_TEXT_LIMIT = 4096
_UNITS = {f"_{unit}_per_s": f"{unit}/s" for unit in ("bytes", "flops", "tokens")}
_UNITS |= {f"_{unit}": unit for unit in ("bytes", "percent", "ms", "us", "s")}
"""Of figures, by the suffix of their names."""


@dataclass(frozen=True)
class Parameter:
    """One thing the user can set.

    `cpu_default` replaces `default` when the workload runs on the CPU. `minimum` and `maximum` are
    inclusive. A text must match `pattern` completely; `pattern_help` describes it for people.
    `aliases` are older names of choices.
    """

    name: str
    kind: Kind
    default: Value
    help: str
    _: KW_ONLY
    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    pattern_help: str | None = None
    cpu_default: Value | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in _RESERVED:
            raise DeclarationError(f"a parameter cannot be named {self.name!r}")
        if (self.kind == "choice") != bool(self.choices):
            raise DeclarationError(f"{self.name}: a choice, and only a choice, has choices")
        if not set(self.aliases.values()) <= set(self.choices):
            raise DeclarationError(f"{self.name}: an alias stands for no choice")
        for default in (self.default, self.cpu_default):
            if default is None:
                continue
            if not (self._is_of_kind(default) and self._is_in_bounds(default)):
                raise DeclarationError(
                    f"{self.name}: the default {default!r} is not {self.allowed}"
                )

    @property
    def allowed(self) -> str:
        """What a value may be, in words: "a whole number from 1 to 64"."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "bool":
            return "true or false"
        if self.kind == "text":
            return self.pattern_help or f"text of at most {_TEXT_LIMIT} characters"
        number = "a whole number" if self.kind == "int" else "a number"
        match self.minimum, self.maximum:
            case None, None:
                return number
            case minimum, None:
                return f"{number} of at least {minimum}"
            case None, maximum:
                return f"{number} of at most {maximum}"
            case minimum, maximum:
                return f"{number} from {minimum} to {maximum}"

    def read(self, value: object) -> Value:
        """`value`, typed by a person or already of this parameter's kind, converted to its kind.

        Raises WrongUsage, one line with the name, the value and what is allowed.
        """
        parsed = _parse(self.kind, value) if isinstance(value, str) else value
        if isinstance(parsed, str):
            parsed = self.aliases.get(parsed, parsed)
        if not self._is_of_kind(parsed) or not self._is_in_bounds(cast(Value, parsed)):
            near = suggestion(value, self.choices) if isinstance(value, str) else ""
            raise WrongUsage(f"{self.name}: {_shown(value)} is not {self.allowed}{near}")
        return float(cast(float, parsed)) if self.kind == "float" else cast(Value, parsed)

    def _is_of_kind(self, value: object) -> bool:
        match self.kind:
            case "int":
                return isinstance(value, int) and not isinstance(value, bool)
            case "float":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "bool":
                return isinstance(value, bool)
            case _:
                return isinstance(value, str)

    def _is_in_bounds(self, value: Value) -> bool:
        if isinstance(value, bool):
            return True
        if isinstance(value, int | float):
            above = self.minimum is None or value >= self.minimum
            return (
                math.isfinite(value) and above and (self.maximum is None or value <= self.maximum)
            )
        if self.kind == "choice":
            return value in self.choices
        fits = len(value) <= _TEXT_LIMIT and value.isprintable()
        return fits and (self.pattern is None or re.fullmatch(self.pattern, value) is not None)


@dataclass(frozen=True)
class Preset:
    """A named set of values, for a well-known experiment."""

    name: str
    help: str
    values: Mapping[str, Value]


@dataclass(frozen=True)
class Figure:
    """A result the workload reports. Its name's suffix is its unit: only others are given."""

    name: str
    help: str
    unit: str | None = None

    def __post_init__(self) -> None:
        if self.unit is None:
            units = (unit for suffix, unit in _UNITS.items() if self.name.endswith(suffix))
            object.__setattr__(self, "unit", next(units, None))


@dataclass(frozen=True)
class Table:
    """A table of results, one row for each thing compared. Its columns are figures."""

    name: str
    title: str
    columns: tuple[Figure, ...]


Row = Mapping[str, FigureValue]
"""Of a table: cells by the names of its columns. A column left out is missing."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run returns.

    `parameters` are the ones in effect (the device found, not "auto"). `results` holds every
    declared figure; one that is None has its reason in `unavailable`. `tables` holds the rows of
    declared tables by the table's name. `stopped_by` is the signal that ended the run early, None
    for a complete run.
    """

    parameters: Mapping[str, Value]
    results: Mapping[str, FigureValue]
    unavailable: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    stopped_by: int | None = None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run would need of a GPU, None where that is unknown. `seconds` is a lower bound: what
    its operations and bytes take at the GPU's peak rates.

    With `made_of`, the sum behind `memory_bytes`, a `Runner` refuses to start where they exceed
    what is free, and says `advice`.
    """

    memory_bytes: int | None = None
    seconds: float | None = None
    made_of: str = ""
    advice: str = ""


Forecaster = Callable[[Mapping[str, Value], "Peak | None"], Forecast]
"""Takes the value of every parameter, and the GPU's peak rates if they are known. Raises DoesNotFit
where values do not go together. Is asked at each key typed into a form: nothing heavy is imported.
"""

Run = Callable[[Mapping[str, Value], "Report"], Outcome]
"""Takes the user's values, already parsed, and where to report. Raises `workloads.errors`."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The declaration of one workload.

    `phases` are the names of its NVTX ranges in order of first use; `step_range` is the one that is
    a step. `run` is "module:function", a `Run`: `f"{__name__}.run:run"` is in the module `run`
    beside the declaration; `forecast` names a `Forecaster` likewise, "" for none. `rank`
    orders the catalogue, smallest first.
    """

    name: str
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    phases: tuple[str, ...]
    results: tuple[Figure, ...]
    run: str
    presets: tuple[Preset, ...] = ()
    tables: tuple[Table, ...] = ()
    step_range: str | None = None
    forecast: str = ""
    rank: int = 100

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise DeclarationError(f"a workload cannot be named {self.name!r}")
        for what, function in (("run", self.run), ("forecast", self.forecast or self.run)):
            if not re.fullmatch(r"[\w.]+:\w+", function):
                raise DeclarationError(
                    f"{self.name}: {what} is {function!r}, not 'module:function'"
                )
        for names in (self.parameters, self.presets, self.results, self.tables):
            _refuse_duplicates(self.name, [named.name for named in names])
        for table in self.tables:
            _refuse_duplicates(table.name, [column.name for column in table.columns])
        try:
            for preset in self.presets:
                self.read(preset.values)
        except WrongUsage as error:
            raise DeclarationError(f"{self.name}: a preset does not fit: {error}") from None

    def read(self, given: Mapping[str, object], preset: str | None = None) -> dict[str, Value]:
        """The values of `preset`, overridden by those of `given`, checked.

        What neither sets is left out: its default may depend on the device. Raises WrongUsage.
        """
        parameters = {parameter.name: parameter for parameter in self.parameters}
        values: dict[str, Value] = {}
        for name, value in {**self._preset_values(preset), **given}.items():
            if name not in parameters:
                near = suggestion(name, parameters)
                raise WrongUsage(
                    f"there is no parameter {_shown(name)}{near}; "
                    f"there are {', '.join(parameters) or 'none'}"
                )
            values[name] = parameters[name].read(value)
        return values

    def fill(self, given: Mapping[str, Value], *, on_cpu: bool) -> dict[str, Value]:
        """Every parameter's value: the given one, else the default for the kind of device."""
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            default = parameter.default
            if on_cpu and parameter.cpu_default is not None:
                default = parameter.cpu_default
            values[parameter.name] = given.get(parameter.name, default)
        return values

    def implementation(self) -> Run:
        """The function that runs it. Imports its module, and whatever that needs."""
        return cast(Run, _imported(self.run))

    def forecaster(self) -> Forecaster | None:
        """The function that says what a run would need; None where none is declared."""
        return cast(Forecaster, _imported(self.forecast)) if self.forecast else None

    def _preset_values(self, name: str | None) -> Mapping[str, Value]:
        if name is None:
            return {}
        presets = {preset.name: preset.values for preset in self.presets}
        if name not in presets:
            near = suggestion(name, presets)
            raise WrongUsage(
                f"there is no preset {_shown(name)}{near}; there are {', '.join(presets) or 'none'}"
            )
        return presets[name]


def _imported(name: str) -> object:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def suggestion(word: str, words: Iterable[str]) -> str:
    """ "; did you mean 'batch'?" when `word` is nearly one of `words`, else nothing."""
    near = difflib.get_close_matches(word[:64], list(words), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _parse(kind: Kind, text: str) -> object:
    """`text` as `kind`; unchanged if it is not one, which no numeric kind accepts."""
    if kind == "int" and _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    if kind == "bool":
        return _YES_OR_NO.get(text.lower(), text)
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _shown(value: object) -> str:
    """`value` as one short line that no value can break."""
    text = repr(value)
    return text if len(text) <= 64 else text[:60] + "...'"


def _refuse_duplicates(owner: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DeclarationError(f"{owner}: {name!r} is declared twice")
