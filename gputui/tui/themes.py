"""gputui's own themes. The meanings of colours are in their variables; `style.tcss` uses those."""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

from gputui.tui.widgets.canvas import CAUSES

_DARK = {
    "gp-text": "#d7dae0",
    "gp-dim": "#808896",
    "gp-title": "#ffffff",
    "gp-rule": "#4a5262",
    "gp-label": "#a0a8b8",
    "gp-accent": "#76b900",
    "gp-good": "#7fc97f",
    "gp-warn": "#f0c04a",
    "gp-hot": "#ff5f5f",
    "gp-head": "#8fb8ff",
    "gp-cursor": "#2d4a77",
    "gp-cursor-text": "#ffffff",
    "gp-bar": "#1c2029",
    "gp-field": "#282b30",
    "gp-utilization": "#76b900",
    "gp-memory": "#4aa3ff",
    "gp-bandwidth": "#35c4b5",
    "gp-power": "#e8a33d",
    "gp-tensor": "#b48cff",
    "gp-occupancy": "#e87fb8",
    "gp-host": "#7f9fc4",
    "gp-on-block": "#0b0d11",
    **{
        f"gp-phase-{number}": color
        for number, color in enumerate(
            (
                *("#5fa8ff", "#f2a13c", "#6fd08c", "#d98be0"),
                *("#e9d35b", "#55cfd0", "#ff8f80", "#a8b3c7"),
            ),
            start=1,
        )
    },
    **dict(
        zip(
            (f"gp-cause-{name}" for name in CAUSES),
            (
                *("#5b9cff", "#3ecfe0", "#2fb8a0", "#7fc97f", "#8fa3bf", "#b48cff", "#6f86a8"),
                *("#f0b03a", "#f2803c", "#e8d75a", "#e06fae", "#b08860", "#a89888"),
            ),
            strict=True,
        )
    ),
}

_LIGHT = {
    "gp-text": "#1d2129",
    "gp-dim": "#697080",
    "gp-title": "#000000",
    "gp-rule": "#b4bac6",
    "gp-label": "#4d5566",
    "gp-accent": "#3f7400",
    "gp-good": "#1f7a34",
    "gp-warn": "#8a5a00",
    "gp-hot": "#c01818",
    "gp-head": "#1f4f9c",
    "gp-cursor": "#bcd4f7",
    "gp-cursor-text": "#000000",
    "gp-bar": "#e4e7ed",
    "gp-field": "#e2e2e6",
    "gp-utilization": "#4d8a00",
    "gp-memory": "#1f6fd0",
    "gp-bandwidth": "#0f857a",
    "gp-power": "#b06a00",
    "gp-tensor": "#7447c4",
    "gp-occupancy": "#b03a80",
    "gp-host": "#4a6a92",
    "gp-on-block": "#ffffff",
    **{
        f"gp-phase-{number}": color
        for number, color in enumerate(
            (
                *("#1f6fd0", "#b05f00", "#1f8044", "#9a3fa8"),
                *("#7d6a00", "#0d7c80", "#c24430", "#5a6579"),
            ),
            start=1,
        )
    },
    **dict(
        zip(
            (f"gp-cause-{name}" for name in CAUSES),
            (
                *("#1f6fd0", "#0d7c90", "#0f7a6a", "#1f7a34", "#56688a", "#7447c4", "#5a6b88"),
                *("#a86500", "#b84a10", "#857000", "#a83278", "#7a5230", "#706050"),
            ),
            strict=True,
        )
    ),
}

# The eight colours of Okabe and Ito (2008), distinguishable with every common colour blindness; red
# and green never carry a difference between them.
_SAFE = {
    **_DARK,
    "gp-accent": "#56b4e9",
    "gp-good": "#56b4e9",
    "gp-warn": "#f0e442",
    "gp-hot": "#e66100",
    "gp-utilization": "#56b4e9",
    "gp-memory": "#e69f00",
    "gp-bandwidth": "#009e73",
    "gp-power": "#f0e442",
    "gp-tensor": "#cc79a7",
    "gp-occupancy": "#c4ccd8",
    "gp-host": "#8fb3d9",
    **{
        f"gp-phase-{number}": color
        for number, color in enumerate(
            (
                *("#56b4e9", "#e69f00", "#009e73", "#cc79a7"),
                *("#f0e442", "#0072b2", "#d55e00", "#c4ccd8"),
            ),
            start=1,
        )
    },
    **dict(
        zip(
            (f"gp-cause-{name}" for name in CAUSES),
            (
                *("#0072b2", "#56b4e9", "#009e73", "#7fd0b4", "#8fb3d9", "#cc79a7", "#6f86a8"),
                *("#e69f00", "#d55e00", "#f0e442", "#e8a0c8", "#b08860", "#c4ccd8"),
            ),
            strict=True,
        )
    ),
}

# The 16 colours of a terminal as Rich knows them, named by their numbers: a span in one of these is
# exactly that colour, while the nearest of 16 to a finer colour could be the background's, or the
# red that means danger.
_ANSI = (
    *("#000000", "#aa0000", "#00aa00", "#aa5500", "#0000aa", "#aa00aa", "#00aaaa", "#aaaaaa"),
    *("#555555", "#ff5555", "#55ff55", "#ffff55", "#5555ff", "#ff55ff", "#55ffff", "#ffffff"),
)
_SIXTEEN_DARK = {
    "gp-text": 15,
    "gp-dim": 7,
    "gp-title": 15,
    "gp-rule": 8,
    "gp-label": 7,
    "gp-accent": 10,
    "gp-good": 2,
    "gp-warn": 11,
    "gp-hot": 9,
    "gp-head": 14,
    "gp-cursor": 4,
    "gp-cursor-text": 15,
    "gp-field": 8,
    "gp-utilization": 10,
    "gp-memory": 12,
    "gp-bandwidth": 6,
    "gp-power": 3,
    "gp-tensor": 13,
    "gp-occupancy": 5,
    "gp-host": 14,
    "gp-on-block": 0,
    **{f"gp-phase-{n}": c for n, c in enumerate((12, 3, 10, 13, 11, 14, 5, 7), start=1)},
    **dict(
        zip(
            (f"gp-cause-{name}" for name in CAUSES),
            (
                *(12, 14, 6, 10, 7, 13, 4),
                *(11, 3, 11, 13, 3, 7),
            ),
            strict=True,
        )
    ),
}
_SIXTEEN_LIGHT = {
    "gp-text": 0,
    "gp-dim": 8,
    "gp-title": 0,
    "gp-rule": 7,
    "gp-label": 8,
    "gp-accent": 2,
    "gp-good": 2,
    "gp-warn": 3,
    "gp-hot": 1,
    "gp-head": 4,
    "gp-cursor": 4,
    "gp-cursor-text": 15,
    "gp-field": 7,
    "gp-utilization": 2,
    "gp-memory": 4,
    "gp-bandwidth": 6,
    "gp-power": 3,
    "gp-tensor": 5,
    "gp-occupancy": 13,
    "gp-host": 12,
    "gp-on-block": 15,
    **{f"gp-phase-{n}": c for n, c in enumerate((4, 3, 2, 5, 6, 12, 13, 8), start=1)},
    **dict(
        zip(
            (f"gp-cause-{name}" for name in CAUSES),
            (
                *(4, 6, 6, 2, 8, 5, 4),
                *(3, 1, 3, 5, 3, 8),
            ),
            strict=True,
        )
    ),
}


def sixteen_colors(dark: bool) -> dict[str, str]:
    """The values of the variables on a terminal with 16 colours, for every theme."""
    numbers = _SIXTEEN_DARK if dark else _SIXTEEN_LIGHT
    return {name: _ANSI[number] for name, number in numbers.items()}


THEMES = (
    Theme(
        name="gputui-dark",
        primary="#76b900",
        foreground="#d7dae0",
        background="#12151b",
        surface="#181c24",
        panel="#1c2029",
        dark=True,
        variables=_DARK,
    ),
    Theme(
        name="gputui-light",
        primary="#3f7400",
        foreground="#1d2129",
        background="#fbfbfd",
        surface="#f1f3f7",
        panel="#e6e7ea",
        dark=False,
        variables=_LIGHT,
    ),
    Theme(
        name="gputui-safe",
        primary="#56b4e9",
        foreground="#d7dae0",
        background="#12151b",
        surface="#181c24",
        panel="#1c2029",
        dark=True,
        variables=_SAFE,
    ),
)

NAMES = (*(theme.name for theme in THEMES), *BUILTIN_THEMES)
"""What can be chosen: Textual's own themes too."""

VARIABLE_DEFAULTS = _DARK
"""For Textual's own themes, which do not have these variables."""
