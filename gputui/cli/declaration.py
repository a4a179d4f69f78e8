"""What a command and an option are: see `options`, which declares them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from gputui.cli.values import Parse, choice, text

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
        """The long flag."""
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
        known = self.choices() if self.choices else ()
        return choice(typed, where, known) if known else self.parse(typed, where)


class Argument(NamedTuple):
    """A word without a flag."""

    name: str
    metavar: str
    help: str
    number: Literal["one", "at most one", "one or more", "any number"] = "one"
    choices: tuple[str, ...] = ()
    completes: Completes = ""


class Command(NamedTuple):
    """A word after `gputui`. `notes` are the last lines of its help."""

    name: str
    help: str
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    notes: Callable[[], str] | None = None

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
