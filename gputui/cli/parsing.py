"""From the words typed to the values of a command's options.

What the command line leaves open is taken from the environment, from the configuration file, and
from the defaults, in this order. For `dispatch` and `main`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gputui.base import VERSION
from gputui.base.errors import did_you_mean
from gputui.base.sanitize import sanitize
from gputui.cli.declaration import Command, Option, UsageError, boolean, choice
from gputui.cli.options import COMMANDS, MAIN, MODES, settings

# Settings, in order of precedence: flag, environment, file, default.

# Tables of the file that workloads read themselves.
_OF_WORKLOADS = {"peaks"}


def config_path(environment: Mapping[str, str]) -> Path:
    """The default configuration file: $XDG_CONFIG_HOME/gputui/config.toml."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base, "gputui", "config.toml")


def resolve(
    options: argparse.Namespace, declared: Sequence[Option], environment: Mapping[str, str]
) -> None:
    """Turn what was typed into values, and fill in what was not: None there.

    `options.set_by` then says of each value that is no default what set it, as it was typed.
    Raises UsageError.
    """
    options.set_by = {}
    from_file: dict[str, tuple[Any, str]] | None = None
    # What names the file comes before what is read from it.
    for option in sorted(declared, key=lambda option: "file" in option.set_in):
        typed = getattr(options, option.name)
        value_and_source = None if typed is None else _typed(option, typed)
        if value_and_source is None and option.variable:
            value_and_source = _from_environment(option, environment)
        if value_and_source is None and "file" in option.set_in:
            if from_file is None:
                # A command without --config reads the file that the environment names.
                chosen = getattr(options, "config", environment.get("GPUTUI_CONFIG"))
                from_file = _from_file(environment, chosen)
            value_and_source = from_file.get(option.name)
        if value_and_source is None:
            setattr(options, option.name, _default(option))
        else:
            value, options.set_by[option.name] = value_and_source
            setattr(options, option.name, value)


def _default(option: Option) -> Any:
    if option.default is not None:
        return option.read(option.default, option.flag)
    return [] if option.many else None if option.metavar else False


def _typed(option: Option, typed: Any) -> tuple[Any, str]:
    if typed is True:
        return True, option.flag
    if isinstance(typed, list):
        return [option.read(word, option.flags[0]) for word in typed], option.flags[0]
    return option.read(typed, option.flag), f"{option.flag} {typed}"


def _from_environment(option: Option, environment: Mapping[str, str]) -> tuple[Any, str] | None:
    for name in option.variables:
        if environment.get(name):
            return True, name
    text = environment.get(option.variable)
    if not text:
        return None
    where = f"{option.variable}={sanitize(text, 60)}"
    value = _read(option, text, option.variable)
    return [value] if option.many else value, where


def _read(option: Option, text: str, where: str) -> Any:
    return option.read(text, where) if option.metavar else boolean(text, where)


def _from_file(environment: Mapping[str, str], chosen: str | None) -> dict[str, tuple[Any, str]]:
    """What the file sets. It must exist if it was `chosen`; the default file need not, nor need
    its folder be accessible."""
    path = Path(chosen) if chosen else config_path(environment)
    try:
        with path.open("rb") as file:
            import tomllib  # not where there is no file

            settings_read = tomllib.load(file)
    except FileNotFoundError:
        if chosen:
            raise UsageError(f"{path}: there is no such file") from None
        return {}
    except OSError as error:
        # In a container, the home may be another user's, or missing.
        if not chosen and not os.path.exists(path):
            return {}
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as TOML: {sanitize(str(error), 200)}") from None
    declared = {option.name: option for option in settings()}
    for name in _OF_WORKLOADS & settings_read.keys():
        del settings_read[name]
    for name in settings_read:
        if name not in declared:
            raise UsageError(
                f"{path}: there is no setting {sanitize(name, 60)!r}"
                f"{did_you_mean(name, tuple(declared))}; known: {', '.join(declared)}"
            )
    return {
        name: _of_file(declared[name], value, f"{path}: {name}")
        for name, value in settings_read.items()
    }


def _of_file(option: Option, value: object, where: str) -> tuple[Any, str]:
    if option.many:
        values = value if isinstance(value, list) else [value]
        read = [_of_file(option._replace(many=False), element, where) for element in values]
        return [element for element, _ in read], sanitize(", ".join(said for _, said in read), 4000)
    fits = str | int | float if option.metavar else bool
    if not isinstance(value, fits) or (option.metavar and isinstance(value, bool)):
        what = "text or a number" if option.metavar else "true or false"
        raise UsageError(f"{where} = {sanitize(repr(value), 60)}: give {what}")
    said = f"{where} = {str(value).lower() if isinstance(value, bool) else value}"
    return _read(option, str(value), where), sanitize(said, 4000)


_NARGS = {"one": None, "at most one": "?", "one or more": "+", "any number": "*"}


class Parser(argparse.ArgumentParser):
    """An argparse that answers an error with one line and status 2."""

    def error(self, message: str) -> NoReturn:
        """Report what argparse found wrong: raises UsageError with its message."""
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
        # What is the only option to begin so today need not be in the next version.
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
        # What no option takes gets a hint of ours: argparse would only list it.
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
    if price := getattr(options, "gpu_price", None):
        from gputui.model.units import configure_gpu_price

        configure_gpu_price(price)
    if rules := getattr(options, "kernel_category", None):
        from gputui.model import kernel_categories

        kernel_categories.configure(rules)
    if getattr(options, "keep_arguments", False):
        from gputui.base.sanitize import configure_masking

        configure_masking(keep=True)
    return options


def _unknown(command: Command, words: Sequence[str], unknown: Sequence[str]) -> str:
    """What is wrong with words that no option takes, and what may have been meant."""
    first = unknown[0]
    if command is MAIN and not first.startswith("-"):
        place = list(words).index(first)
        if place == 0 and (hint := did_you_mean(first, [each.name for each in COMMANDS])):
            return f"there is no command {first!r}{hint}"
        before, after = words[:place], words[place:]
        if first in [each.name for each in COMMANDS]:
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
    width = max(len(each.name) for each in COMMANDS)
    lines = [f"  {each.name:<{width}}  {each.help}" for each in COMMANDS]
    return "\n".join(["commands:", *lines, "", "gputui COMMAND --help explains each."])


def print_json(document: object) -> None:
    """A document for programs on stdout."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()
