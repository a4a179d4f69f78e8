"""Settings, in order of precedence: flag, environment, file, default."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gputui.base.errors import WRONG_USAGE, GputuiError
from gputui.base.sanitize import sanitize

MINIMUM_INTERVAL_S = 0.1
MAXIMUM_INTERVAL_S = 3600.0


class SettingsError(GputuiError):
    """An invalid setting. One line naming where it was set."""

    exit_status = WRONG_USAGE


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can also be set in the environment (GPUTUI_NAME) or in the file."""

    interval: float = 1.0
    """Seconds between samples, from 0.1 to 3600."""
    theme: str = "gputui-dark"
    """Name of a theme."""
    readonly: bool = False
    """Disable everything that starts, stops or signals a process."""
    no_color: bool = False
    """Draw without colours. NO_COLOR in the environment does the same."""
    ascii: bool = False
    """Draw only ASCII characters."""


def config_path(environment: Mapping[str, str]) -> Path:
    """The default configuration file: $XDG_CONFIG_HOME/gputui/config.toml."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base, "gputui", "config.toml")


def load_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> Settings:
    """The settings in force. `flags` has what was typed; None there means not typed.

    `file` must exist if given; the default file need not, nor need its folder be accessible. Raises
    SettingsError.
    """
    settings = _from_file(file if file is not None else config_path(environment), file is not None)
    for field in fields(Settings):
        text = environment.get(f"GPUTUI_{field.name.upper()}")
        if text:
            where = f"GPUTUI_{field.name.upper()} in the environment"
            settings = _with(settings, field.name, _parsed(field.name, text, where), where)
    if environment.get("NO_COLOR"):
        settings = replace(settings, no_color=True)
    for name, value in flags.items():
        if value is not None:
            settings = _with(settings, name, value, f"--{name.replace('_', '-')}")
    return settings


def _from_file(path: Path, required: bool) -> Settings:
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        if required:
            raise SettingsError(f"{path}: there is no such file") from None
        return Settings()
    except OSError as error:
        # In a container, the home may be another user's, or missing.
        if not required and not os.path.exists(path):
            return Settings()
        raise SettingsError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not readable as TOML: {sanitize(str(error), 200)}") from None
    settings = Settings()
    known = [field.name for field in fields(Settings)]
    for name, value in found.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise SettingsError(
                f"{path}: there is no setting {sanitize(name, 60)!r}{hint}; "
                f"known: {', '.join(known)}"
            )
        settings = _with(settings, name, value, str(path))
    return settings


def _parsed(name: str, text: str, where: str) -> float | bool | str:
    default = getattr(Settings(), name)
    if isinstance(default, bool):
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise SettingsError(f"{where}: {sanitize(text, 60)!r} is neither true nor false")
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise SettingsError(f"{where}: {sanitize(text, 60)!r} is not a number") from None
    return text


def _with(settings: Settings, name: str, value: object, where: str) -> Settings:
    expected = type(getattr(Settings(), name))
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        # Numbers beyond a float's range are too large all the same.
        value = float(min(max(value, -1), 1 << 60))
    if not isinstance(value, expected):
        words = {float: "a number", bool: "true or false", str: "text"}[expected]
        raise SettingsError(f"{where}: {name} must be {words}, not {sanitize(repr(value), 60)}")
    if isinstance(value, float) and not MINIMUM_INTERVAL_S <= value <= MAXIMUM_INTERVAL_S:
        raise SettingsError(
            f"{where}: the interval must be from {MINIMUM_INTERVAL_S:g} to "
            f"{MAXIMUM_INTERVAL_S:g} seconds, not {value:g}"
        )
    return replace(settings, **{name: value})
