"""The manual page gputui(1), from the declarations of the options."""

from __future__ import annotations

from collections.abc import Iterator

from gputui import __version__
from gputui.cli.declaration import Argument, Command, Option
from gputui.cli.options import COMMANDS, MAIN, MODES

_VARIABLES = {
    "NO_COLOR": "not empty: draw without colours, whatever else is set",
    "CUDA_VISIBLE_DEVICES": "show these GPUs only, matched by UUID",
    "XDG_CONFIG_HOME": "where gputui/config.toml is looked for (~/.config)",
    "XDG_DATA_HOME": "where recordings go, to gputui/sessions (~/.local/share)",
    "PAGER": "what shows the pages of gputui help on a terminal (less -FR)",
}

_STATUS = {
    "0": "done",
    "1": "it failed, or a condition of gputui compare holds",
    "2": "wrong usage",
    "other": "around your own command, that command's status; 128 + n if signal n ended it",
}


def manual() -> str:
    """The page in roff, for `man`. It is the same at every time and place."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield '.\\" Made by `python -m gputui.cli.reference` from gputui/cli/options.py.'
    yield f'.TH GPUTUI 1 "" "gputui {__version__}" "User Commands"'
    yield from (".SH NAME", r"gputui \- see inside an LLM workload on NVIDIA GPUs")
    yield ".SH SYNOPSIS"
    for mode in MODES:
        yield from (".B gputui", _roff(mode.usage), ".br")
    for command in COMMANDS:
        words = " ".join([*(_word(argument) for argument in command.arguments), "[OPTION ...]"])
        yield from (f".B gputui {command.name}", _roff(words), ".br")
    yield from (".SH DESCRIPTION", _roff(MAIN.help))
    for mode in MODES:
        yield from (".TP", f".B gputui {_roff(mode.usage)}", _roff(mode.help))
    yield ".SH OPTIONS"
    yield from _options(MAIN)
    yield ".SH COMMANDS"
    for command in COMMANDS:
        yield from (f".SS gputui {command.name}", _roff(command.help))
        for argument in command.arguments:
            help_text = ", ".join((argument.help, *argument.choices))
            yield from (".TP", f".I {_roff(_word(argument))}", _roff(help_text))
        yield from _options(command)
        if command.notes:
            yield from (".PP", ".nf", _roff(command.notes()), ".fi")
    yield ".SH ENVIRONMENT"
    yield _roff(
        "The command line overrides the environment, which overrides the file, which overrides the "
        "default."
    )
    for option in MAIN.options:
        if option.variable:
            yield from (".TP", f".B {option.variable}", f"as {_bold(option.flag)}")
    for name, words in _VARIABLES.items():
        yield from (".TP", f".B {name}", _roff(words))
    yield from (".SH FILES", ".TP", ".I $XDG_CONFIG_HOME/gputui/config.toml")
    names = [option.name for option in MAIN.options if "file" in option.set_in]
    yield _roff(f"settings in TOML, named as the options: {', '.join(names)}")
    yield ".SH EXIT STATUS"
    for status, words in _STATUS.items():
        yield from (".TP", f".B {status}", _roff(words))
    yield from (".SH SEE ALSO", _roff("gputui help lists the pages of the manual."))


def _options(command: Command) -> Iterator[str]:
    for option in command.options:
        yield from (".TP", _flags(option), _roff(option.explanation))


def _flags(option: Option) -> str:
    flags = ", ".join(map(_bold, option.flags))
    return f"{flags} \\fI{_roff(option.metavar)}\\fR" if option.metavar else flags


def _word(argument: Argument) -> str:
    name = argument.metavar
    return {
        "one": name,
        "at most one": f"[{name}]",
        "one or more": f"{name} ...",
        "any number": f"[{name} ...]",
    }[argument.number]


def _bold(text: str) -> str:
    return f"\\fB{_roff(text)}\\fR"


def _roff(text: str) -> str:
    """Text with what roff reads as its own made harmless."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))
