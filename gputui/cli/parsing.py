"""Parsing arguments: from the words typed to the values of a command's options."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from gputui.base.errors import did_you_mean
from gputui.base.version import VERSION
from gputui.cli.declaration import Command
from gputui.cli.options import COMMANDS, MAIN, MODES
from gputui.cli.settings import resolve
from gputui.cli.values import UsageError, choice

_NARGS = {"one": None, "at most one": "?", "one or more": "+", "any number": "*"}


class Parser(argparse.ArgumentParser):
    """An argparse that answers an error with one line and status 2."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{message}; see {self.prog} --help")


def parser_of(command: Command) -> Parser:
    """The parser of a command, which leaves values as they are typed."""
    is_main = command is MAIN
    parser = Parser(
        prog=command.program,
        usage=_usage() if is_main else None,
        description=command.help,
        epilog=_commands() if is_main else command.notes and command.notes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for argument in command.arguments:
        parser.add_argument(
            argument.name,
            metavar=argument.metavar,
            nargs=_NARGS[argument.number],
            help=", ".join((argument.help, *argument.choices)),
        )
    for option in command.options:
        help_text = option.explanation.replace("%", "%%")
        if option.metavar:
            parser.add_argument(
                *option.flags,
                dest=option.name,
                metavar=option.metavar,
                required=option.required,
                action="append" if option.many else "store",
                nargs="+" if option.several else None,
                help=help_text,
            )
        else:
            parser.add_argument(
                *option.flags, dest=option.name, action="store_true", default=None, help=help_text
            )
    if is_main:
        parser.add_argument("-V", "--version", action="version", version=f"gputui {VERSION}")
    return parser


def parse(command: Command, words: Sequence[str]) -> argparse.Namespace:
    """The values of a command's options: from `words`, the environment, the file, the defaults.

    Raises UsageError; SystemExit after --help and --version.
    """
    if words or command.arguments:
        options, unknown = parser_of(command).parse_known_args(words)
        if unknown:
            raise UsageError(_unknown(command, words, unknown))
    else:  # the screen, mostly: making a parser would cost its first frame 10 ms
        options = argparse.Namespace(**{option.name: None for option in command.options})
    for argument in command.arguments:
        if argument.choices:
            choice(getattr(options, argument.name), argument.name, argument.choices)
    resolve(options, command.options, os.environ)
    if price := getattr(options, "energy_price", None):
        from gputui.model.units import configure_price as configure

        configure(price)
    if rules := getattr(options, "kernel_category", None):
        from gputui.model import kernel_categories

        kernel_categories.configure(rules)
    if getattr(options, "keep_arguments", False):
        from gputui.base import masking

        masking.configure(keep=True)
    return options


def _unknown(command: Command, words: Sequence[str], unknown: Sequence[str]) -> str:
    """What is wrong with words that no option takes, and what may have been meant."""
    first = unknown[0]
    if command is MAIN and not first.startswith("-"):
        at = list(words).index(first)
        if at == 0 and (hint := did_you_mean(first, [known.name for known in COMMANDS])):
            return f"there is no command {first!r}{hint}"
        before, after = words[:at], words[at:]
        if first in [known.name for known in COMMANDS]:
            import shlex

            return f"did you mean: {shlex.join(['gputui', *after, *before])}"
        flag = "--replay" if len(after) == 1 and ".gputui" in first else "--"
        import shlex

        return f"did you mean: {shlex.join(['gputui', *before, flag, *after])}"
    flags = [flag for option in command.options for flag in option.flags]
    hint = did_you_mean(first.partition("=")[0], flags)
    return f"unrecognized arguments: {' '.join(unknown)}{hint}; see {command.program} --help"


def _usage() -> str:
    lines = [f"gputui {mode.usage}" for mode in MODES]
    return "\n       ".join([*lines, "gputui COMMAND ..."])


def _commands() -> str:
    width = max(len(known.name) for known in COMMANDS)
    lines = [f"  {known.name:<{width}}  {known.help}" for known in COMMANDS]
    return "\n".join(["commands:", *lines, "", "gputui COMMAND --help explains each."])


def print_json(document: object) -> None:
    """A document for programs on stdout."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()
