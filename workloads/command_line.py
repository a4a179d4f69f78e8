"""The arguments of `python -m workloads` → what to do. Built from the declarations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import INSTALLED_NAME
from .declaration import Parameter, Value, Workload
from .errors import WrongUsage
from .registry import Broken, Entry

PROGRAM = f"python -m {INSTALLED_NAME if INSTALLED_NAME in sys.orig_argv else __package__}"

USAGE = f"""\
usage: {PROGRAM} NAME [--KEY VALUE ...]

  NAME            run it; its result is JSON on stdout
  NAME --help     its parameters
  --catalogue     all workloads, as JSON
  --forecast      what runs would need, answered line by line
  --new NAME      write a workload of your own
"""


def overview(entries: list[Entry], broken: list[Broken]) -> str:
    """The usage, and a line for every workload."""
    lines = [USAGE]
    lines += [f"  {entry.workload.name:<16}{entry.workload.summary}" for entry in entries]
    lines += [f"  {failed.name:<16}fails to load: {failed.error}" for failed in broken]
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(" ".join(message.split()))


def read_arguments(workload: Workload, arguments: Sequence[str]) -> dict[str, Value]:
    """The values typed for `workload`, including a preset's, checked.

    Prints help and raises SystemExit(0) for `--help`. Raises WrongUsage.
    """
    parser = _Parser(
        prog=f"{PROGRAM} {workload.name}",
        description=workload.description,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    if workload.presets:
        presets = "; ".join(f"{preset.name}: {preset.help}" for preset in workload.presets)
        parser.add_argument(
            "--preset",
            metavar="NAME",
            default=None,
            help=_literal(f"values to start from; {presets}"),
        )
    for parameter in workload.parameters:
        parser.add_argument(
            f"--{parameter.name}",
            dest=parameter.name,
            metavar=(parameter.unit or parameter.kind).upper(),
            help=_literal(_help(parameter)),
            # A bool's name by itself switches it on.
            nargs="?" if parameter.kind == "bool" else None,
            const="true" if parameter.kind == "bool" else None,
        )
    parsed, unknown = parser.parse_known_args(_joined(workload, arguments))
    given = vars(parsed)
    preset = given.pop("preset", None)
    if unknown:
        word = unknown[0]
        if not word.startswith("--"):
            raise WrongUsage(f"{word[:64]!r} does not belong to a parameter; write --NAME VALUE")
        # No parameter has this name, or the parser would know it: the workload reports it.
        given[word.removeprefix("--").partition("=")[0]] = ""
    return workload.read(given, preset)


def older_names(workload: Workload, arguments: Sequence[str]) -> list[str]:
    """A line for each choice that was typed by an older name."""
    typed = set(_joined(workload, arguments))
    return [
        f"{workload.name}: {parameter.name} {old} is called {name} now"
        for parameter in workload.parameters
        for old, name in parameter.aliases.items()
        if f"--{parameter.name}={old}" in typed
    ]


def _joined(workload: Workload, arguments: Sequence[str]) -> list[str]:
    """`--name value` as `--name=value`: a value may begin with a dash, like compiler flags."""
    takes_value = {
        f"--{parameter.name}" for parameter in workload.parameters if parameter.kind != "bool"
    }
    takes_value.add("--preset")
    joined: list[str] = []
    for word in arguments:
        if joined and joined[-1] in takes_value and not _is_option(workload, word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _is_option(workload: Workload, word: str) -> bool:
    """Whether `word` names a parameter, so that the previous one has no value."""
    names = {f"--{parameter.name}" for parameter in workload.parameters} | {"--preset", "--help"}
    return word.partition("=")[0] in names


def _help(parameter: Parameter) -> str:
    default = f"default {parameter.default}"
    if parameter.cpu_default is not None:
        default += f", on the CPU {parameter.cpu_default}"
    return f"{parameter.help} ({parameter.allowed}; {default})"


def _literal(text: str) -> str:
    return text.replace("%", "%%")
