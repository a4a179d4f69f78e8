"""Many colours, 256, 16 and none: what must be told apart is."""

from __future__ import annotations

import pytest
from rich.color import Color, ColorSystem
from rich.segment import Segment
from textual.theme import BUILTIN_THEMES

from gputui.model.leaves import PALETTE
from gputui.state import Session
from gputui.tui.app import GputuiApp
from gputui.tui.source import Options
from tests.tui import scripted
from tests.tui.conftest import Show
from tests.tui.scripted import ScriptedSource

SYSTEMS = [ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT, ColorSystem.STANDARD]


GREYS = {16, 59, 102, 145, 188, 231, *range(232, 256)}
"""Of the 256 colours."""


def seen(hexadecimal: str, system: ColorSystem) -> object:
    """The colour a terminal of that kind shows."""
    color = Color.parse(hexadecimal).downgrade(system)
    return color.triplet if system is ColorSystem.TRUECOLOR else color.number


@pytest.mark.parametrize("theme", ["gputui-dark", "gputui-light", "gputui-safe"])
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_what_must_differ_differs(theme: str, system: ColorSystem) -> None:
    app = GputuiApp(ScriptedSource, Session(), Options(theme=theme))
    app.console._color_system = system
    variables = app.get_css_variables()
    background = seen(variables["background"], system)

    def of(name: str) -> object:
        return seen(variables[f"gp-{name}"], system)

    for name in ("text", "dim", "label", "rule", "accent", "good", "warn", "hot", "head", "field"):
        assert of(name) != background, name
    for name in ("utilization", "memory", "bandwidth", "power", "tensor", "occupancy"):
        assert of(name) not in (background, of("hot")), name
    assert of("cursor") not in (background, of("cursor-text"))
    if system is ColorSystem.EIGHT_BIT:
        # Of 256 colours the nearest to a bluish grey is a saturated navy.
        assert of("field") in GREYS
        assert seen(variables["panel"], system) in GREYS
    assert len({of("text"), of("warn"), of("hot"), of("good")}) == 4
    for number in range(1, 9):
        assert of(f"phase-{number}") not in (background, of("on-block"))


TEXTS = ("text", "dim", "title", "label", "accent", "good", "warn", "hot", "head")
DRAWN = (
    *("utilization", "memory", "bandwidth", "power", "tensor", "occupancy", "host"),
    *(f"phase-{number}" for number in range(1, 9)),
    *(f"cause-{name}" for name in PALETTE),
)
PAIRS = (
    ("cursor-text", "cursor"),
    ("on-block", "accent"),
    ("on-block", "warn"),
    ("title", "field"),
)
"""What stands on what: the chosen row, the tab, the verdict, a field."""


def contrast(one: str, other: str) -> float:
    """Of two colours, from 1 to 21: WCAG 2.2, "contrast ratio" and "relative luminance"."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_texts_can_be_read_in_textuals_own_themes() -> None:
    app = GputuiApp(ScriptedSource, Session(), Options())
    for theme in BUILTIN_THEMES.values():
        app.theme = theme.name
        variables = app.get_css_variables()
        if variables["background"].startswith("#"):  # else the terminal's own
            for name in ("text", "title"):
                found = contrast(variables[f"gp-{name}"], variables["background"])
                assert found >= 4.5, (theme.name, name)


@pytest.mark.parametrize("theme", ["gputui-dark", "gputui-light", "gputui-safe"])
def test_texts_and_charts_stand_out(theme: str) -> None:
    """As WCAG 2.2 asks: 4.5 for text, 3 for what is drawn. Of 16 colours, which each terminal has
    in shades of its own, there is not always one: 3 and 2.5 there."""
    app = GputuiApp(ScriptedSource, Session(), Options(theme=theme))
    is_light = theme == "gputui-light"
    for system, text, drawn in (
        (ColorSystem.TRUECOLOR, 4.5, 3.0), (ColorSystem.STANDARD, 3.0, 2.5)
    ):  # fmt: skip
        app.console._color_system = system
        variables = app.get_css_variables()
        has_few = system is ColorSystem.STANDARD
        behind = ("#ffffff" if is_light else "#000000") if has_few else variables["background"]
        for least, pairs in (
            (text, [(name, behind) for name in TEXTS]),
            (drawn, [(name, behind) for name in DRAWN]),
            (text, [(name, variables[f"gp-{on}"]) for name, on in PAIRS]),
        ):
            for name, on in pairs:
                assert contrast(variables[f"gp-{name}"], on) >= least, (system, name, on)


async def test_no_color_draws_no_colour_at_all(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with show(scripted.gpu_session(4, quiet=5, ended=False), (120, 40)) as shown:
        for key in ("down", "1", "2", "3", "4", "5", "h"):
            await shown.press(key)
            for segment in segments(shown.app):
                style = segment.style
                assert style is None or (
                    (style.color is None or style.color.is_default)
                    and (style.bgcolor is None or style.bgcolor.is_default)
                )


async def test_without_colours_trouble_and_choices_are_still_told(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    batch = [scripted.header(4), scripted.machine(0, 4), scripted.status(0, bad=True)]
    async with show([batch], (120, 40)) as shown:
        for part in ("› GPU 0", "THROTTLED: power brake", "Xid errors 3 (last 79)"):
            assert part in shown.text
        await shown.press("down")
        chosen = [s.text for s in segments(shown.app) if s.style and s.style.reverse]
        assert any("4000" in text for text in chosen)
        assert any("6 GPUs" in text for text in chosen)


def segments(app: GputuiApp) -> list[Segment]:
    """All that is on the screen, as it leaves the program."""
    return [segment for strip in app.screen._compositor.render_strips() for segment in strip]
