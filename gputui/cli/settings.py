"""Settings, in order of precedence: flag, environment, file, default."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputui.base.errors import did_you_mean
from gputui.base.sanitize import sanitize
from gputui.cli.declaration import Option
from gputui.cli.options import settings
from gputui.cli.values import UsageError, boolean

_OF_WORKLOADS = {"peaks"}
"""Tables of the file that workloads read themselves."""


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
        found = None if typed is None else _typed(option, typed)
        if found is None and option.variable:
            found = _from_environment(option, environment)
        if found is None and "file" in option.set_in:
            if from_file is None:
                # A command without --config reads the file that the environment names.
                chosen = getattr(options, "config", environment.get("GPUTUI_CONFIG"))
                from_file = _from_file(environment, chosen)
            found = from_file.get(option.name)
        if found is None:
            setattr(options, option.name, _default(option))
        else:
            value, options.set_by[option.name] = found
            setattr(options, option.name, value)


def _default(option: Option) -> Any:
    if option.default is not None:
        return option.read(option.default, option.flag)
    return [] if option.many else None if option.metavar else False


def _typed(option: Option, typed: Any) -> tuple[Any, str]:
    if typed is True:
        return True, option.flag
    if isinstance(typed, list):
        return [option.read(one, option.flags[0]) for one in typed], option.flags[0]
    return option.read(typed, option.flag), f"{option.flag} {typed}"


def _from_environment(option: Option, environment: Mapping[str, str]) -> tuple[Any, str] | None:
    for name in option.variables:
        if environment.get(name):
            return True, name
    text = environment.get(option.variable)
    if not text:
        return None
    where = f"{option.variable}={sanitize(text, 60)}"
    found = _read(option, text, option.variable)
    return [found] if option.many else found, where


def _read(option: Option, text: str, where: str) -> Any:
    return option.read(text, where) if option.metavar else boolean(text, where)


def _from_file(environment: Mapping[str, str], chosen: str | None) -> dict[str, tuple[Any, str]]:
    """What the file sets. It must exist if it was `chosen`; the default file need not, nor need
    its folder be accessible."""
    path = Path(chosen) if chosen else config_path(environment)
    try:
        with path.open("rb") as file:
            import tomllib  # not where there is no file

            found = tomllib.load(file)
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
    known = {option.name: option for option in settings()}
    for name in _OF_WORKLOADS & found.keys():
        del found[name]
    for name in found:
        if name not in known:
            raise UsageError(
                f"{path}: there is no setting {sanitize(name, 60)!r}"
                f"{did_you_mean(name, tuple(known))}; known: {', '.join(known)}"
            )
    return {name: _of_file(known[name], value, f"{path}: {name}") for name, value in found.items()}


def _of_file(option: Option, value: object, where: str) -> tuple[Any, str]:
    if option.many:
        values = value if isinstance(value, list) else [value]
        found = [_of_file(option._replace(many=False), one, where) for one in values]
        return [one for one, _ in found], sanitize(", ".join(said for _, said in found), 4000)
    fits = str | int | float if option.metavar else bool
    if not isinstance(value, fits) or (option.metavar and isinstance(value, bool)):
        what = "text or a number" if option.metavar else "true or false"
        raise UsageError(f"{where} = {sanitize(repr(value), 60)}: give {what}")
    said = f"{where} = {str(value).lower() if isinstance(value, bool) else value}"
    return _read(option, str(value), where), sanitize(said, 4000)
