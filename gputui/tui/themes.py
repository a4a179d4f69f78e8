"""gputui's own themes. The meanings of colours are in their variables; `style.tcss` uses those."""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

from gputui.model.leaves import PALETTE

# By variable, without "gp-": the colour in gputui-dark, gputui-light and gputui-safe, and on
# terminals with 16 colours its number in _ANSI where the theme is dark and where it is light; a
# None is left to the theme.
# Those of gputui-safe are the eight of Okabe and Ito (2008), distinguishable with every common
# colour blindness; red and green never carry a difference between them.
_COLORS: dict[str, tuple[tuple[str, str, str], tuple[int, int] | None]] = {
    "text":                (("#d7dae0", "#1d2129", "#d7dae0"), (15, 0)),
    "dim":                 (("#808896", "#697080", "#808896"), (7, 8)),
    "title":               (("#ffffff", "#000000", "#ffffff"), (15, 0)),
    "rule":                (("#4a5262", "#b4bac6", "#4a5262"), (8, 7)),
    "label":               (("#a0a8b8", "#4d5566", "#a0a8b8"), (7, 8)),
    "accent":              (("#76b900", "#3f7400", "#56b4e9"), (10, 4)),
    "good":                (("#7fc97f", "#1f7a34", "#56b4e9"), (2, 2)),
    "warn":                (("#f0c04a", "#8a5a00", "#f0e442"), (11, 3)),
    "hot":                 (("#ff5f5f", "#c01818", "#e66100"), (9, 1)),
    "head":                (("#8fb8ff", "#1f4f9c", "#8fb8ff"), (14, 4)),
    "cursor":              (("#2d4a77", "#bcd4f7", "#2d4a77"), (4, 4)),
    "cursor-text":         (("#ffffff", "#000000", "#ffffff"), (15, 15)),
    "bar":                 (("#1c2029", "#e4e7ed", "#1c2029"), None),
    "field":               (("#282b30", "#e2e2e6", "#282b30"), (8, 7)),
    "utilization":         (("#76b900", "#4d8a00", "#56b4e9"), (10, 2)),
    "memory":              (("#4aa3ff", "#1f6fd0", "#e69f00"), (12, 4)),
    "bandwidth":           (("#35c4b5", "#0f857a", "#009e73"), (6, 6)),
    "power":               (("#e8a33d", "#b06a00", "#f0e442"), (3, 3)),
    "tensor":              (("#b48cff", "#7447c4", "#cc79a7"), (13, 5)),
    "occupancy":           (("#e87fb8", "#b03a80", "#c4ccd8"), (5, 13)),
    "host":                (("#7f9fc4", "#4a6a92", "#8fb3d9"), (14, 12)),
    "on-block":            (("#0b0d11", "#ffffff", "#0b0d11"), (0, 15)),
    "phase-1":             (("#5fa8ff", "#1f6fd0", "#56b4e9"), (12, 4)),
    "phase-2":             (("#f2a13c", "#b05f00", "#e69f00"), (3, 3)),
    "phase-3":             (("#6fd08c", "#1f8044", "#009e73"), (10, 2)),
    "phase-4":             (("#d98be0", "#9a3fa8", "#cc79a7"), (13, 5)),
    "phase-5":             (("#e9d35b", "#7d6a00", "#f0e442"), (11, 6)),
    "phase-6":             (("#55cfd0", "#0d7c80", "#0072b2"), (14, 12)),
    "phase-7":             (("#ff8f80", "#c24430", "#d55e00"), (5, 13)),
    "phase-8":             (("#a8b3c7", "#5a6579", "#c4ccd8"), (7, 8)),
}  # fmt: skip
_OF_CAUSES = {
    "matmul": (12, 4), "attention": (14, 6), "normalization": (6, 6), "elementwise": (10, 2),
    "copy": (7, 8), "communication": (13, 5), "other": (7, 4), "launch": (11, 3), "sync": (3, 1),
    "alloc": (3, 1), "calls": (3, 1), "host": (11, 3), "wait": (13, 5), "core": (11, 3),
    "compile": (11, 3), "rank": (5, 13), "input": (3, 3), "queued": (7, 8), "unknown": (7, 8),
}  # fmt: skip
"""The numbers of the causes' colours."""

_COLORS |= {f"cause-{name}": (PALETTE[name], numbers) for name, numbers in _OF_CAUSES.items()}

# The 16 colours of a terminal as Rich knows them, named by their numbers: a span in one of these is
# exactly that colour, while the nearest of 16 to a finer colour could be the background's, or the
# red that means danger.
_ANSI = (
    *("#000000", "#aa0000", "#00aa00", "#aa5500", "#0000aa", "#aa00aa", "#00aaaa", "#aaaaaa"),
    *("#555555", "#ff5555", "#55ff55", "#ffff55", "#5555ff", "#ff55ff", "#55ffff", "#ffffff"),
)


def sixteen_colors(dark: bool) -> dict[str, str]:
    """The values of the variables on a terminal with 16 colours, for every theme."""
    return {
        f"gp-{name}": _ANSI[numbers[0 if dark else 1]]
        for name, (_, numbers) in _COLORS.items()
        if numbers is not None
    }


def _theme(
    name: str, column: int, primary: str, foreground: str, background: str, surface: str, panel: str
) -> Theme:
    return Theme(
        name=name,
        primary=primary,
        foreground=foreground,
        background=background,
        surface=surface,
        panel=panel,
        dark=name != "gputui-light",
        variables={f"gp-{variable}": of[column] for variable, (of, _) in _COLORS.items()},
    )


THEMES = (
    _theme("gputui-dark", 0, "#76b900", "#d7dae0", "#12151b", "#181c24", "#1c2029"),
    _theme("gputui-light", 1, "#3f7400", "#1d2129", "#fbfbfd", "#f1f3f7", "#e6e7ea"),
    _theme("gputui-safe", 2, "#56b4e9", "#d7dae0", "#12151b", "#181c24", "#1c2029"),
)

NAMES = (*(theme.name for theme in THEMES), *BUILTIN_THEMES)
"""What can be chosen: Textual's own themes too."""


def defaults_of(theme: Theme) -> dict[str, str]:
    """The variables for Textual's own themes, which do not have them: white text on the ground of
    its light ones could not be read."""
    return THEMES[0 if theme.dark else 1].variables
