"""From the words typed to a command or a mode with the values of its options; and from an error to
its line and exit status.

For the entry point `gputui`. Which mode the options select without a command, and which of them
exclude each other, is decided here; commands are in modules that none of the others pays for.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from gputui.base import FAILED, VERSION, GputuiError, did_you_mean
from gputui.base.sanitize import sanitize
from gputui.base.standard_streams import complete_streams, release_streams, say, tolerate_encoding
from gputui.cli import options
from gputui.cli.declaration import Command, Option, UsageError, boolean, choice, modes_text
from gputui.cli.options import COMMANDS, MAIN, MODES, has_hosts, settings

# What the command line leaves open is taken from the environment, from the configuration file, and
# from the defaults, in this order.

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

            # As `attach` behind --host.
            return f"did you mean: {shlex.join(['gputui', *after, *before])}"
        flag = "--replay" if len(after) == 1 and ".gputui" in first else "--"
        import shlex

        return f"did you mean: {shlex.join(['gputui', *before, flag, *after])}"
    if command.runs_command and not first.startswith("-"):
        return f"{first}: a command comes after --, as in: {command.program} -- CMD ARG ..."
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


# --- What is done with them.


def run_mode(words: list[str], command: list[str] | None) -> int:
    """Do what `words` say; `command` is what came after `--`. The exit status."""
    options = parse(MAIN, words)
    if options.config:
        # Workloads read their part of it.
        os.environ["GPUTUI_CONFIG"] = os.path.abspath(options.config)
    mode = mode_of(options)
    check(options, mode, command)
    if has_hosts(options):
        from gputui.cli import hosts

        if mode == "once":
            return hosts.print_once(options)
        run_there = hosts.far_run(options, words, command)

        if mode == "record":
            return hosts.record(options, run_there)
        return hosts.screen(options, run_there, words)
    if mode == "once":
        from gputui.cli.once import print_once, watch

        if options.watch:
            return watch(options.only, options.interval, as_json=options.json)
        print_once(options.only, as_json=options.json)
        return 0
    if mode in ("replay", "demo"):
        from gputui.cli.live import replay

        return replay(options)
    if command:
        from gputui.collect.child import refusal

        refused = refusal(command[0])
        if refused is not None:
            status, why = refused
            say(why)
            return status
    from gputui.cli.live import LiveCommand, record, request_of, screen

    asked = LiveCommand(options, request_of(options, command), words, command)
    return record(asked) if mode == "record" else screen(asked)


# Options that do nothing with other hosts.
_OF_THIS_MACHINE = ("watch", "speed", "start", "prometheus", "keep_running")


def mode_of(options: argparse.Namespace) -> str:
    """The mode that the options select. Raises UsageError."""
    modes = [name for name in ("record", "replay", "demo", "once") if getattr(options, name)]
    if len(modes) > 1:
        raise UsageError(f"--{modes[0]} and --{modes[1]} exclude each other")
    return modes[0] if modes else "screen"


def check(options: argparse.Namespace, mode: str, command: list[str] | None) -> None:
    """Whether the options fit the mode and each other. Raises UsageError."""
    if options.workload and command:
        raise UsageError("give --workload or a command after --, not both")
    runs = options.workload or command
    if runs and mode not in ("screen", "record"):
        raise UsageError(f"--{mode} does not run anything")
    for option in MAIN.options:
        flag = option.flags[0]
        # A setting for another mode is no mistake; what was typed for one is.
        if not options.set_by.get(option.name, "").startswith(option.flags):
            continue
        if option.modes and mode not in option.modes:
            raise UsageError(f"{flag} needs {modes_text(option.modes)}")
        if option.needs and not getattr(options, option.needs):
            raise UsageError(f"{flag} needs {MAIN.option(option.needs).flag}")
    if options.output == "-" and mode != "record":
        raise UsageError("-o - needs --record")
    if options.trace and not (options.output or mode == "record"):
        raise UsageError("--trace needs --record or -o")
    if has_hosts(options):
        for name in (*_OF_THIS_MACHINE, *(() if mode == "record" else ("output",))):
            option = MAIN.option(name)
            if options.set_by.get(name, "").startswith(option.flags):
                flag = option.flags[0]
                raise UsageError(
                    f"{flag} does nothing with --host and --via: leave one of them out"
                )
    if options.readonly and runs:
        raise UsageError(
            f"{options.set_by['readonly']} starts nothing: leave out the workload or the command"
        )


# Of a stream, which has no file name: files are written under their names.
_CANNOT_WRITE = {errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}


def run(arguments: Sequence[str]) -> int:
    """Do what `arguments` say; the exit status."""
    complete_streams()
    tolerate_encoding()
    try:
        return _dispatch(list(arguments))
    except BrokenPipeError:
        # The reader of our output has seen enough.
        return 0
    except KeyboardInterrupt:
        return 130
    # The class carries its exit status: matched by name here, a new one was forgotten.
    except GputuiError as error:
        say(str(error))
        return error.exit_status
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        # As on a full disk.
        say(f"cannot write to standard output: {(error.strerror or str(error)).lower()}")
        return FAILED
    except MemoryError:
        say("there is not enough memory (a limit is shown by ulimit -v)")
        return FAILED
    except RuntimeError as error:
        if "start new thread" not in str(error):  # CPython has no class for it
            raise
        say("no thread can be started: the limit of processes (ulimit -u) or memory is reached")
        return FAILED
    finally:
        release_streams()


def _parsed(command: Command, words: list[str]) -> argparse.Namespace:
    if not command.runs_command:
        return parse(command, words)
    place = words.index("--") if "--" in words else len(words)
    options = parse(command, words[:place])
    options.command_line = words[place + 1 :]
    return options


def _dispatch(words: list[str]) -> int:
    command = options.command(words[0]) if words else None
    if command is not None:
        module = import_module(f"gputui.cli.{command.module or command.name}")
        if words[:2] == ["completion", "words"]:
            module.words(words[2:])  # of any kind, none of them meant for our parser
            return 0
        run_command: Callable[[argparse.Namespace], int] = getattr(module, f"run_{command.name}")
        status = run_command(_parsed(command, words[1:]))
        sys.stdout.flush()  # what cannot be written is an error now, not at the exit
        return status
    typed: list[str] | None = None
    if "--" in words:
        place = words.index("--")
        words, typed = words[:place], words[place + 1 :]
        if not typed:
            raise UsageError("nothing to run after --; see gputui --help")
    return run_mode(words, typed)
