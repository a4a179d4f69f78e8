"""What a command and an option are, and how the words typed for an option become its value.

For `options`, which declares all of them, and for the commands, which raise UsageError where values
do not go together. `dispatch` applies both to a whole command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from gputui.base import WRONG_USAGE, GputuiError, did_you_mean

# Text typed for an option → its value. Errors name `where` it was typed: a flag, a variable.

Parse = Callable[[str, str], Any]
"""The value of a text. Raises UsageError, which begins with where the text stands."""

MINIMUM_INTERVAL_S = 0.1

# A longer one is a mistake in the unit: the screen would seem to hang.
MAXIMUM_INTERVAL_S = 3600.0


class UsageError(GputuiError):
    """The arguments are wrong. One line."""

    exit_status = WRONG_USAGE


def text(typed: str, where: str) -> str:
    """The text as it was typed: any is right."""
    del where
    return typed


def choice(typed: str, where: str, allowed: Sequence[str]) -> str:
    """The text, if it is one of the words that are `allowed`."""
    if typed not in allowed:
        raise UsageError(
            f"{where} {typed}: give one of {', '.join(allowed)}{did_you_mean(typed, allowed)}"
        )
    return typed


def boolean(typed: str, where: str) -> bool:
    """A word for yes or no."""
    if typed.lower() in ("1", "true", "yes", "on"):
        return True
    if typed.lower() in ("0", "false", "no", "off"):
        return False
    raise UsageError(f"{where} {typed}: give true or false")


def count(typed: str, where: str) -> int:
    """A whole number from 0."""
    if not re.fullmatch(r"\d{1,9}", typed, re.ASCII):
        raise UsageError(f"{where} {typed}: give a number")
    return int(typed)


MOST_LINE_READINGS_HZ = 100
"""Each takes 50 µs with the interpreter's lock."""


def line_rate(typed: str, where: str) -> int:
    """How often a second lines are read."""
    rate_hz = count(typed, where)
    if not 1 <= rate_hz <= MOST_LINE_READINGS_HZ:
        raise UsageError(f"{where} {typed}: give 1 to {MOST_LINE_READINGS_HZ} a second")
    return rate_hz


def nanoseconds(typed: str, where: str) -> int:
    """A moment in nanoseconds since 1970 (UTC)."""
    if not re.fullmatch(r"\d{1,19}", typed, re.ASCII):
        raise UsageError(f"{where} {typed}: give nanoseconds since 1970")
    return int(typed)


def seconds(typed: str, where: str, *, may_be_none: bool = False) -> float:
    """The seconds of "500ms", "30s", "5m" or "1h"; of "0" too if it `may_be_none`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", typed)
    if not match or not (may_be_none or float(match[1])) or float(match[1]) >= 1e9 / 3600:
        raise UsageError(f"{where} {typed}: give a time like 30s, 5m or 1h")
    return float(match[1]) * {"ms": 1e-3, "s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


def moment(typed: str, where: str) -> float:
    """Seconds from the beginning, which may be 0."""
    return seconds(typed, where, may_be_none=True)


def price(typed: str, where: str) -> Any:
    """The price of a kilowatt-hour and its currency."""
    from gputui.model.units import Price

    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?([^\W\d]{1,8}|[€$£¥])?", typed)
    if not match:
        raise UsageError(f'{where} {typed}: give a price like 0.30 or "0.30 EUR"')
    return Price(float(match[1]), match[2] or "")


def kernel_category(typed: str, where: str) -> Any:
    """A pattern of kernel names, and the category of the kernels that match it."""
    pattern, equals, category = typed.rpartition("=")
    if not (pattern and equals and 0 < len(category.strip()) <= 40):
        raise UsageError(f"{where} {typed}: give PATTERN=CATEGORY, as in my_attn.*=attention")
    try:
        return re.compile(pattern, re.IGNORECASE), category.strip()
    except re.error as error:
        raise UsageError(f"{where} {typed}: {error}") from None


def alert(typed: str, where: str) -> Any:
    """The condition of an alert."""
    from gputui.report import alerts

    return alerts.parse(typed, where)


def capture_range(typed: str, where: str) -> Any:
    """A part of the program that is captured, as it is typed. Raises UsageError."""
    from gputui.inject import CaptureRange

    kind, _, rest = typed.partition(":")
    steps, _, name = rest.partition(":")
    if typed.lower() == "profiler":
        return CaptureRange()
    if kind.lower() == "nvtx" and rest:
        return CaptureRange(rest)
    if kind.lower() == "steps" and re.fullmatch(r"0*[1-9]\d{0,8}", steps, re.ASCII):
        return CaptureRange(name or None, int(steps))
    raise UsageError(f"{where} {typed}: give nvtx:RANGE, profiler, steps:N or steps:N:RANGE")


def share(typed: str, where: str) -> float:
    """The percent of "2%" or "0.5%"; 100 of "none", no limit."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)%", typed, re.ASCII)
    percent = 100.0 if typed == "none" else float(match[1]) if match else 0.0
    if not 0.1 <= percent <= 100:
        raise UsageError(f"{where} {typed}: give a share like 2%, at least 0.1%, or none")
    return percent


def interval(typed: str, where: str) -> float:
    """Seconds between samples, as a number or a time."""
    try:
        interval_s = float(typed)
    except ValueError:
        interval_s = seconds(typed, where, may_be_none=True)
    if not MINIMUM_INTERVAL_S <= interval_s <= MAXIMUM_INTERVAL_S:
        raise UsageError(
            f"{where} {typed}: give {MINIMUM_INTERVAL_S:g} to {MAXIMUM_INTERVAL_S:g} seconds"
        )
    return interval_s


def size_bytes(typed: str, where: str) -> int:
    """The bytes of "500k", "100MB" or "2GiB", in either case, with factors of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", typed, re.ASCII | re.IGNORECASE)
    size = float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else 0
    if not 1 <= size < 2**60:
        raise UsageError(f"{where} {typed}: give a size like 500k, 100M or 2G")
    return int(size)


def rotation(typed: str, where: str) -> tuple[int | None, int | None]:
    """When to go on in a new file: bytes, or ns."""
    if typed.endswith(("s", "m", "h")):
        return None, int(seconds(typed, where) * 1e9)
    return size_bytes(typed, where), None


def speed(typed: str, where: str) -> float:
    """How often as fast as it was."""
    from gputui.playback.player import MAXIMUM_SPEED, MINIMUM_SPEED

    try:
        factor = float(typed)
    except ValueError:
        factor = 0.0
    if not MINIMUM_SPEED <= factor <= MAXIMUM_SPEED:
        raise UsageError(f"{where} {typed}: give {MINIMUM_SPEED:g} to {MAXIMUM_SPEED:g}")
    return factor


def address(typed: str, where: str) -> tuple[str, int]:
    """The host and port to listen on. Raises PrometheusError."""
    del where
    from gputui.render.prometheus_server import parse_address

    return parse_address(typed)


def metrics_address(typed: str, where: str) -> str:
    """The address of a serving engine's page of metrics, or "none"."""
    from gputui.collect.serving_reader import address_of

    if typed == "none":
        return typed
    try:
        return address_of(typed).geturl()
    except ValueError as error:
        raise UsageError(f"{where} {typed}: {error}") from None


Completes = Literal["", "file", "folder", "recording", "workload", "parameter", "theme", "table"]
"""What a shell offers for a value; choices are offered without being named here."""


class Option(NamedTuple):
    """One option: `--name`, and what it means wherever it can be set.

    `metavar` names its value, "" for a switch. `many` may be repeated and gives a list; `several`
    takes more than one value at once. `modes` are those of MODES that take it, none means all;
    `needs` is another option it is no use without. `set_in` says where else it can be set: in
    the environment as GPUTUI_NAME, and in the file as name; the command line wins over the
    environment, that over the file, and that over `default`.
    """

    name: str
    help: str
    metavar: str = ""
    short: str = ""
    parse: Parse = text
    choices: Callable[[], Sequence[str]] | None = None
    default: str | None = None
    many: bool = False
    several: bool = False
    required: bool = False
    modes: tuple[str, ...] = ()
    needs: str = ""
    set_in: tuple[Literal["environment", "file"], ...] = ()
    variables: tuple[str, ...] = ()
    """Variables of other programs that switch this on when they are not empty."""
    completes: Completes = ""

    @property
    def flag(self) -> str:
        """The long flag, as it is typed: --max-size."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Every way to type it."""
        return (self.short, self.flag) if self.short else (self.flag,)

    @property
    def variable(self) -> str:
        """The environment variable, "" where there is none."""
        return f"GPUTUI_{self.name.upper()}" if "environment" in self.set_in else ""

    @property
    def explanation(self) -> str:
        """The help, with what the declaration adds to it."""
        notes = []
        if self.choices and "|" not in self.metavar:
            notes.append(", ".join(self.choices()))
        if self.modes:
            notes.append("with " + modes_text(self.modes))
        if self.needs:
            notes.append(f"with --{self.needs.replace('_', '-')}")
        if self.many:
            notes.append("may be repeated")
        if self.default is not None:
            notes.append(f"default: {self.default}")
        return f"{self.help} ({'; '.join(notes)})" if notes else self.help

    def read(self, typed: str, where: str) -> Any:
        """The value of `typed`. Raises UsageError, which names `where` it stands."""
        allowed = self.choices() if self.choices else ()
        return choice(typed, where, allowed) if allowed else self.parse(typed, where)


class Argument(NamedTuple):
    """A word without a flag."""

    name: str
    metavar: str
    help: str
    number: Literal["one", "at most one", "one or more", "any number"] = "one"
    choices: tuple[str, ...] = ()
    completes: Completes = ""


class Command(NamedTuple):
    """A word after `gputui`, done by `run_NAME` in a module of gputui.cli.

    `notes` are the last lines of its help.
    """

    name: str
    help: str
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    notes: Callable[[], str] | None = None
    runs_command: bool = False
    """Whether a command line may follow after --; it is then `options.command_line`."""
    module: str = ""
    """The module that does it and others of its family; "" if it has the command's name."""

    @property
    def program(self) -> str:
        """What is typed to run it."""
        return f"gputui {self.name}".rstrip()

    def option(self, name: str) -> Option:
        return next(option for option in self.options if option.name == name)


class Mode(NamedTuple):
    """What gputui does without a command: `usage` without the program's name."""

    name: str
    usage: str
    help: str


def modes_text(modes: Iterable[str]) -> str:
    """Modes as they are typed: "--replay or --demo"."""
    modes = tuple(modes)
    if set(modes) == {"screen", "record"}:
        return "a recording"
    if "screen" in modes:
        return "the screen or " + modes_text(mode for mode in modes if mode != "screen")
    return " or ".join(f"--{name}" for name in modes)
