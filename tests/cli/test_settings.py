"""Settings: whatever the file, the environment and the flags say, settings or one line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.base.sanitize import sanitize
from gputui.cli.settings import (
    MAXIMUM_INTERVAL_S,
    MINIMUM_INTERVAL_S,
    Settings,
    SettingsError,
    config_path,
    load_settings,
)

NAMES = tuple(asdict(Settings()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


def check(settings: Settings) -> None:
    assert MINIMUM_INTERVAL_S <= settings.interval <= MAXIMUM_INTERVAL_S
    for name, default in asdict(Settings()).items():
        assert type(getattr(settings, name)) is type(default)


def refusal(flags: dict[str, Any], environment: dict[str, str], path: Path | None) -> str | None:
    """What is wrong, a harmless line; None where settings came of it."""
    try:
        check(load_settings(flags, environment, path))
    except SettingsError as error:
        text = str(error)
        assert sanitize(text, 600) == text
        return text
    return None


def written(folder: Path, data: bytes) -> Path:
    path = folder / "config.toml"
    path.write_bytes(data)
    return path


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode())))
def test_any_file_is_settings_or_one_line(folder: Path, data: bytes) -> None:
    refusal({}, {}, written(folder, data))


VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.sampled_from(["true", "false", '"dark"', "[]", "{}", "1979-05-27", '"\\u001b[31m"']),
    st.integers(4000, 5000).map(lambda digits: "9" * digits),
)


@given(st.sampled_from([*NAMES, "intervall", '"\\u001b"']), VALUES)
def test_any_value_is_taken_or_said_to_be_wrong(folder: Path, name: str, value: str) -> None:
    assert "config.toml: " in (
        refusal({}, {}, written(folder, f"{name} = {value}".encode())) or "config.toml: "
    )


@given(
    st.sampled_from(NAMES),
    st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=40),
)
def test_any_environment_is_settings_or_one_line_that_names_it(name: str, text: str) -> None:
    variable = f"GPUTUI_{name.upper()}"
    wrong = refusal({}, {variable: text, "XDG_CONFIG_HOME": "/nowhere"}, None)
    assert wrong is None or wrong.startswith(f"{variable} in the environment: ")


@pytest.mark.parametrize(
    ("interval", "fits"),
    [(0.1, True), (3600, True), (3600.0, True), (0.09, False), (3600.1, False), (True, False),
     (float("nan"), False), (10**400, False), (-(10**400), False), ("1", False)],
)  # fmt: skip
def test_bounds_of_the_interval(interval: Any, fits: bool) -> None:
    nowhere = {"XDG_CONFIG_HOME": "/nowhere"}
    if fits:
        assert load_settings({"interval": interval}, nowhere, None).interval == interval
    else:
        with pytest.raises(SettingsError, match=r"^--interval: "):
            load_settings({"interval": interval}, nowhere, None)


@pytest.mark.parametrize("text", ["1", "true", "YES", "On"])
@pytest.mark.parametrize("name", ["readonly", "no_color", "ascii"])
def test_words_for_yes(name: str, text: str) -> None:
    nowhere = {"XDG_CONFIG_HOME": "/nowhere"}
    assert getattr(load_settings({}, {f"GPUTUI_{name.upper()}": text} | nowhere, None), name)


@pytest.mark.parametrize("text", ["0", "false", "NO", "Off"])
def test_words_for_no_overrule_the_file(folder: Path, text: str) -> None:
    path = written(folder, b"ascii = true")
    assert not load_settings({}, {"GPUTUI_ASCII": text}, path).ascii


def test_flags_then_environment_then_file(folder: Path) -> None:
    text = 'interval = 2\ntheme = "file"\nreadonly = true\nno_color = true\n'
    path = written(folder, text.encode())
    environment = {"GPUTUI_THEME": "environment", "GPUTUI_READONLY": "no", "GPUTUI_INTERVAL": ""}
    assert load_settings(
        {"theme": "flag", "interval": None, "ascii": True}, environment, path
    ) == Settings(interval=2.0, theme="flag", readonly=False, no_color=True, ascii=True)


def test_no_color_in_the_environment_is_the_flag() -> None:
    nowhere = {"XDG_CONFIG_HOME": "/nowhere"}
    assert load_settings({}, nowhere | {"NO_COLOR": "0"}, None).no_color
    assert not load_settings({}, nowhere | {"NO_COLOR": ""}, None).no_color


def test_the_file_is_found_in_the_users_folder(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    path = tmp_path / "gputui" / "config.toml"
    assert config_path(environment) == path
    assert load_settings({}, environment, None) == Settings()
    path.parent.mkdir()
    path.write_text("ascii = true")
    assert load_settings({}, environment, None).ascii


def test_a_misspelt_setting_says_which_was_meant(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"no setting 'intervall' \(did you mean interval\?\)"):
        load_settings({}, {}, written(folder, b"intervall = 2"))
