"""Settings: whatever the file, the environment and the flags say, settings or one line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.base.sanitize import sanitize
from gputui.base.standard_streams import WAYS
from gputui.cli.declaration import MAXIMUM_INTERVAL_S, MINIMUM_INTERVAL_S, UsageError
from gputui.cli.dispatch import config_path, resolve
from gputui.cli.options import MAIN, command, settings
from gputui.report.alerts import ThresholdError

NAMES = tuple(option.name for option in settings())
DECLARED = (*settings(), MAIN.option("config"))
NOWHERE = {"XDG_CONFIG_HOME": "/nowhere"}
DEFAULTS = {
    "interval": 1.0, "theme": "gputui-dark", "readonly": False, "no_color": False, "ascii": False,
    "reader": False, "energy_price": None, "kernel_category": [], "alert": [],
    "notify": None, "max_cost": None, "counters": False,
    "there": "gputui", "keep_arguments": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


def resolved(
    typed: Mapping[str, Any], environment: Mapping[str, str], path: Path | None
) -> argparse.Namespace:
    options = argparse.Namespace(**dict.fromkeys((*NAMES, "config")))
    vars(options).update(typed, config=path and str(path))
    resolve(options, DECLARED, environment)
    return options


def load(
    typed: Mapping[str, Any], environment: Mapping[str, str], path: Path | None
) -> dict[str, Any]:
    options = resolved(typed, environment, path)
    return {name: getattr(options, name) for name in NAMES}


def refusal(typed: dict[str, Any], environment: dict[str, str], path: Path | None) -> str | None:
    """What is wrong, a harmless line; None where settings came of it."""
    try:
        found = load(typed, environment, path)
    except (UsageError, ThresholdError) as error:
        text = sanitize(str(error))
        assert "\n" not in text
        return text
    assert MINIMUM_INTERVAL_S <= found["interval"] <= MAXIMUM_INTERVAL_S
    price = found.pop("energy_price")
    assert price is None or price.amount >= 0
    assert found.pop("notify") in (None, *WAYS)
    cost = found.pop("max_cost")
    assert cost is None or cost > 0
    assert {name: type(value) for name, value in found.items()} == {
        name: type(DEFAULTS[name]) for name in found
    }
    return None


def written(folder: Path, data: bytes) -> Path:
    path = folder / "config.toml"
    path.write_bytes(data)
    return path


def test_the_defaults() -> None:
    assert load({}, NOWHERE, None) == DEFAULTS


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
    wrong = refusal({}, {variable: text, **NOWHERE}, None)
    assert wrong is None or wrong.startswith(f"{variable} ")


@pytest.mark.parametrize(
    ("interval", "fits"),
    [("0.1", True), ("3600", True), ("500ms", True), ("1h", True), ("0.09", False),
     ("3600.1", False), ("True", False), ("nan", False), ("9" * 400, False),
     ("-" + "9" * 400, False), ("soon", False)],
)  # fmt: skip
def test_bounds_of_the_interval(interval: str, fits: bool) -> None:
    if fits:
        assert 0.1 <= load({"interval": interval}, NOWHERE, None)["interval"] <= 3600
    else:
        with pytest.raises(UsageError, match=r"^--interval "):
            load({"interval": interval}, NOWHERE, None)


@pytest.mark.parametrize("text", ["1", "true", "YES", "On"])
@pytest.mark.parametrize("name", ["readonly", "no_color", "ascii", "reader"])
def test_words_for_yes(name: str, text: str) -> None:
    assert load({}, {f"GPUTUI_{name.upper()}": text} | NOWHERE, None)[name]


@pytest.mark.parametrize("text", ["0", "false", "NO", "Off"])
def test_words_for_no_overrule_the_file(folder: Path, text: str) -> None:
    path = written(folder, b"ascii = true")
    assert not load({}, {"GPUTUI_ASCII": text}, path)["ascii"]


def test_flags_then_environment_then_file(folder: Path) -> None:
    text = 'interval = 2\ntheme = "file"\nreadonly = true\nno_color = true\n'
    path = written(folder, text.encode())
    environment = {"GPUTUI_THEME": "environment", "GPUTUI_READONLY": "no", "GPUTUI_INTERVAL": ""}
    assert load({"theme": "flag", "interval": None, "ascii": True}, environment, path) == {
        "interval": 2.0, "theme": "flag", "readonly": False, "no_color": True, "ascii": True,
        "reader": False, "energy_price": None, "kernel_category": [], "alert": [], "notify": None,
        "max_cost": None, "counters": False, "there": "gputui", "keep_arguments": False,
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_obeys_flag_then_environment_then_file_then_default(
    folder: Path, name: str
) -> None:
    """Each is set in one place more, from the weakest on; `set_by` says which place won."""
    option = MAIN.option(name)
    in_file, in_environment, typed = {
        "interval": ("2", "3", "4"), "theme": ('"nord"', "dracula", "gruvbox"),
        "energy_price": ("0.3", "4 EUR", "5€"),
        "kernel_category": ('["x=copy", "x=sort"]', "x=sort", ["x=loss"]),
        "alert": ('["idle > 2", "idle > 3"]', "idle > 4", ["idle > 5"]),
        "notify": ('"bell"', "osc9", "osc777"), "max_cost": ('"2%"', "3%", "4%"),
        "there": ('"nord"', "dracula", "gruvbox"),
    }.get(name, ("true", "false", True))  # fmt: skip
    assert load({}, {}, written(folder, b""))[name] == DEFAULTS[name]
    path = written(folder, f"{name} = {in_file}".encode())
    by_file = resolved({}, {}, path)
    assert by_file.set_by[name].startswith(f"{path}: {name} = ")
    environment = {option.variable: in_environment}
    by_environment = resolved({}, environment, path)
    assert by_environment.set_by[name] == f"{option.variable}={in_environment}"
    by_flag = resolved({name: typed}, environment, path)
    assert by_flag.set_by[name].split()[0] == option.flag
    values = [getattr(found, name) for found in (by_file, by_environment, by_flag)]
    rule = re.compile("x", re.IGNORECASE)
    rules = [[(rule, "copy"), (rule, "sort")], [(rule, "sort")], [(rule, "loss")]]
    if name == "alert":
        values = [[one.limit for one in value] for value in values]
    assert values in (rules, [[2, 3], [4], [5]], ["bell", "osc9", "osc777"],
                      [2, 3, 4], ["nord", "dracula", "gruvbox"], [True, False, True],
                      [(0.3, ""), (4, "EUR"), (5, "€")])  # fmt: skip


def test_attaching_obeys_every_setting() -> None:
    attach = command("attach")
    assert attach is not None
    assert set(NAMES) <= {option.name for option in attach.options}


def test_the_file_is_named_in_the_environment_too(folder: Path) -> None:
    path = written(folder, b"interval = 7")
    assert load({}, {"GPUTUI_CONFIG": str(path)}, None)["interval"] == 7
    with pytest.raises(UsageError, match="there is no such file"):
        load({}, {"GPUTUI_CONFIG": str(path)}, folder / "none")


def test_no_color_in_the_environment_is_the_flag() -> None:
    assert load({}, NOWHERE | {"NO_COLOR": "0"}, None)["no_color"]
    assert not load({}, NOWHERE | {"NO_COLOR": ""}, None)["no_color"]


def test_the_file_is_found_in_the_users_folder(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    path = tmp_path / "gputui" / "config.toml"
    assert config_path(environment) == path
    assert load({}, environment, None) == DEFAULTS
    path.parent.mkdir()
    path.write_text("ascii = true")
    assert load({}, environment, None)["ascii"]


def test_a_misspelt_setting_says_which_was_meant(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no setting 'intervall' \(did you mean interval\?\)"):
        load({}, {}, written(folder, b"intervall = 2"))
