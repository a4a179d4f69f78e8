"""The catalogue of workloads, and what a run of one would need.

Both come from the workloads' own process: gputui imports no workload, because they import torch.
"""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, NamedTuple

import msgspec

from gputui.base import WRONG_USAGE, GputuiError, did_you_mean
from gputui.base.decoding import convert, json_decoder
from gputui.base.sanitize import sanitize, sanitize_document
from gputui.model import units

# The catalogue of workloads, read from `python -m workloads --catalogue` in a subprocess.
#
# Here the catalogue is only data: gputui never imports a workload or its dependencies.

MODULE = (
    "gputui_workloads"
    if Path(__file__).parents[2].joinpath("gputui_workloads").is_dir()
    else "workloads"
)
"""What `python -m` runs: installed, they lie beside gputui under a name of its own; in a checkout
they are its folder `workloads`."""

# Listing imports what each workload declares, on a slow disk with others at work.
TIMEOUT_S = 30.0

# Of a description.
_COLUMNS = 100

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False, "no": False, "off": False, "0": False
}  # fmt: skip

Value = str | int | float | bool


class CatalogueError(GputuiError):
    """A workload or a parameter is unknown or invalid, or the catalogue cannot be read. One
    line.
    """

    exit_status = WRONG_USAGE


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter, as its workload declares it.

    `cpu_default` replaces `default` on a machine without CUDA; `allowed` describes valid values in
    words; a text must match `pattern` if there is one.
    """

    name: str
    kind: Literal["int", "float", "choice", "text", "bool"]
    default: Value | None = None
    cpu_default: Value | None = None
    help: str = ""
    unit: str | None = None
    minimum: float | None = msgspec.field(default=None, name="min")
    maximum: float | None = msgspec.field(default=None, name="max")
    choices: tuple[Value, ...] = ()
    aliases: dict[str, str] = {}
    """Older names of choices, which the workload still takes."""
    pattern: str | None = None
    allowed: str = ""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of parameter values."""

    name: str
    help: str = ""
    values: dict[str, Value] = {}


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One workload, as it declares itself."""

    name: str
    summary: str = ""
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    presets: tuple[Preset, ...] = ()
    phases: tuple[str, ...] = ()
    step_range: str | None = None


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """An installed workload that fails to load, and why."""

    name: str
    error: str


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    workloads: tuple[Workload, ...]
    broken: tuple[Broken, ...] = ()

    def find(self, name: str) -> Workload:
        """The workload called `name`. Raises CatalogueError, suggesting the nearest name, if there
        is none.
        """
        for workload in self.workloads:
            if workload.name == name:
                return workload
        for broken in self.broken:
            if broken.name == name:
                raise CatalogueError(
                    f"workload {name} cannot be run: {sanitize(broken.error, 200)}"
                )
        names = [workload.name for workload in self.workloads]
        raise CatalogueError(
            f"there is no workload {sanitize(name, 60)!r}{did_you_mean(name, names)}; "
            f"known: {', '.join(names) or 'none'}"
        )


def load_catalogue() -> Catalogue:
    """Read the catalogue; takes about 0.1 s. Raises CatalogueError."""
    # -P: do not import a folder named `workloads` from the current directory.
    command = [sys.executable, "-P", "-m", MODULE, "--catalogue"]
    try:
        answer = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = (
            f"not within {TIMEOUT_S:g} s" if isinstance(error, subprocess.TimeoutExpired) else error
        )
        raise CatalogueError(f"the workload catalogue did not answer: {why}") from None
    if answer.returncode != 0:
        last = answer.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise CatalogueError(f"the workload catalogue failed: {sanitize(' '.join(last), 200)}")
    try:
        return convert(sanitize_document(json_decoder(Any).decode(answer.stdout)), Catalogue)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CatalogueError(f"the workload catalogue is not readable: {error}") from None


def new_workload(name: str) -> int:
    """Writes the workload `name` into the configuration folder; the exit status."""
    command = [sys.executable, "-P", "-m", MODULE, "--new", name]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def parse_parameters(workload: Workload, words: Mapping[str, str]) -> dict[str, Value]:
    """Parse `words` (name → text as typed) into typed values, without defaults.

    `preset=NAME` stands for that preset's values, which the other words override. Raises
    CatalogueError with one line naming the parameter, the value and what is allowed.
    """
    parameters = {parameter.name: parameter for parameter in workload.parameters}
    values: dict[str, Value] = {}
    if "preset" in words and "preset" not in parameters:
        values |= _preset(workload, words["preset"]).values
        words = {name: text for name, text in words.items() if name != "preset"}
    for name, text in words.items():
        if name not in parameters:
            raise CatalogueError(
                f"{workload.name} has no parameter {sanitize(name, 60)!r}"
                f"{did_you_mean(name, list(parameters))}; parameters: {', '.join(parameters)}"
            )
        values[name] = parse_value(parameters[name], text)
    return values


def _preset(workload: Workload, name: str) -> Preset:
    for preset in workload.presets:
        if preset.name == name:
            return preset
    names = [preset.name for preset in workload.presets]
    raise CatalogueError(
        f"{workload.name} has no preset {sanitize(name, 60)!r}{did_you_mean(name, names)}; "
        f"known: {', '.join(names) or 'none'}"
    )


def parse_value(parameter: Parameter, text: str) -> Value:
    """`text` as a value of `parameter`. Raises CatalogueError with one line."""
    value = _parsed(parameter, text)
    low, high = parameter.minimum, parameter.maximum
    outside = not isinstance(value, str | None) and (
        (low is not None and not value >= low) or (high is not None and not value <= high)
    )
    if value is None or outside:
        raise CatalogueError(
            f"{parameter.name}={sanitize(text, 60)}: expected {parameter.allowed or parameter.kind}"
        )
    return value


def _parsed(parameter: Parameter, text: str) -> Value | None:
    """`text` as a value of the parameter's kind; None if it is not one."""
    match parameter.kind:
        case "bool":
            return _BOOLEANS.get(text.lower())
        case "int" | "float":
            try:
                return int(text) if parameter.kind == "int" else float(text)
            except ValueError:
                return None
        case "choice":
            is_allowed = text in parameter.aliases or text in map(str, parameter.choices)
            return text if is_allowed else None
        case "text":
            matches = parameter.pattern is None or re.fullmatch(parameter.pattern, text)
            return text if matches else None


def workload_text(workload: Workload) -> str:
    """A description of one workload: what it does, its parameters and presets."""
    lines = [f"{workload.name}: {workload.summary}", ""]
    if workload.description:
        lines += [*wrap(workload.description, _COLUMNS), ""]
    names = max((len(parameter.name) for parameter in workload.parameters), default=0)
    for parameter in workload.parameters:
        default = "" if parameter.default in (None, "") else f"default {parameter.default}"
        if parameter.cpu_default is not None:
            default += f", on the CPU {parameter.cpu_default}"
        facts = "; ".join(filter(None, (parameter.allowed, default)))
        first, *more = [*_lines(parameter.help, names + 4), *_lines(f"({facts})", names + 4)]
        lines += [f"  {parameter.name:<{names}}  {first.lstrip()}", *more]
    for preset in workload.presets:
        values = " ".join(f"{name}={value}" for name, value in preset.values.items())
        preset_text = f"  preset {preset.name}: {preset.help} ({values})"
        lines += wrap(preset_text, _COLUMNS, subsequent_indent=" " * 4)
    return "\n".join(lines) + "\n"


def _lines(text: str, indent: int) -> list[str]:
    """Wrapped; a long list has a line for each of its entries."""
    entries = text.split("; ") if len(text) > 4 * _COLUMNS else [text]
    margin = " " * indent
    return [
        line
        for entry in entries
        for line in wrap(entry, _COLUMNS, initial_indent=margin, subsequent_indent=margin)
    ]


# What a workload's run would need, asked of the workloads' own process while a form is typed.

# Asked to end by SIGTERM, it has nothing to save.
_END_S = 1.0


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """`wrong` says why the values of the parameters `names` do not go together. Memory and time are
    the least that a run needs, None where the workload does not say."""

    wrong: str | None = None
    names: tuple[str, ...] = ()
    memory_bytes: int | None = None
    seconds: float | None = None


class Forecaster:
    """One `python -m workloads --forecast`, started at the first question. Close it: a question
    that waits then ends with CatalogueError."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def ask(self, workload: str, values: Mapping[str, Value], gpu: str | None) -> Forecast:
        """What a run with these `values`, the others at their defaults, would need of the GPU of
        this name; None is a run on the CPU. Blocks, about 1 ms after the first. Raises
        CatalogueError.
        """
        question = {"workload": workload, "values": dict(values), "gpu": gpu}
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(msgspec.json.encode(question) + b"\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                return convert(sanitize_document(json_decoder(Any).decode(answer)), Forecast)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                raise CatalogueError(f"the workloads gave no forecast: {error}") from None

    def close(self) -> None:
        """End the workloads' process, if one was started."""
        self._is_closed = True
        process = self._process
        if process is None:
            return
        # Without the lock: a question that waits for its answer holds it, and ends with the
        # process.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        with self._lock, contextlib.suppress(OSError):
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise CatalogueError("the form was closed")
        if self._process is None or self._process.poll() is not None:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE, "--forecast"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                raise CatalogueError(f"the workloads gave no forecast: {error}") from None
        return self._process


# Values as people type and read them, and the command that starts the same.


def value_text(value: Value | None) -> str:
    """A value as displayed in a field."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def typed_value(parameter: Parameter, text: str) -> Value:
    """A typed text as the parameter's kind. Raises ValueError saying what is allowed."""
    try:
        value = parse_value(parameter, text.strip())
    except CatalogueError:
        raise ValueError(f"expected {parameter.allowed or parameter.kind}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected {parameter.allowed or parameter.kind}")
    return value


def command_of(workload: Workload, values: Mapping[str, Value]) -> str:
    """What starts the same from a shell."""

    def typed(value: Value) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    given = [f"-p {shlex.quote(f'{name}={typed(value)}')}" for name, value in values.items()]
    return " ".join(["gputui", "--workload", shlex.quote(workload.name), *given])


# What a run would need, in words.


class TargetGpu(NamedTuple):
    """The GPU that a run would use, and what is free of its memory."""

    name: str
    memory_bytes: int | None
    free_bytes: int | None


def needs_of(forecast: Forecast, target: TargetGpu | None) -> tuple[str, bool]:
    """The least memory of a run, and where it does not fit; the least time that it can take. And
    whether it fits, as far as is known."""
    memory, time = units.size(forecast.memory_bytes), "no estimate yet"
    fits = True
    if forecast.memory_bytes is not None:
        memory = f"≥ {memory}"
        if target is not None and target.memory_bytes is not None:
            memory += f" of {units.size(target.memory_bytes)}"
            free = target.free_bytes
            if forecast.memory_bytes > target.memory_bytes:
                memory, fits = f"{memory}: does not fit", False
            elif free is not None and forecast.memory_bytes > free:
                memory, fits = f"{memory}, {units.size(free)} free: does not fit now", False
    if forecast.seconds is not None:
        time = f"≥ {units.duration(forecast.seconds * 1e9)} at the GPU's peak rates"
    return f"memory {memory}   time {time}", fits
