"""Every key of the main screen, declared once: for the bindings, the key bar and the help."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from textual.binding import Binding, BindingType
from textual.keys import KEY_NAME_REPLACEMENTS
from textual.widget import Widget

from gputui.tui.shell.views import GROUPS

_NAMES = {"Enter": "enter", "Esc": "escape", "Del": "delete", "PgUp": "pageup", "PgDn": "pagedown",
          "←": "left", "→": "right", "↑": "up", "↓": "down"}  # fmt: skip


@lru_cache
def named(shown: str) -> str:
    """Textual's name of a key as it is drawn, pressed once or twice; what is no key stays as it
    is."""
    words = set(shown.split())
    *modifiers, key = words.pop().split("-") if len(words) == 1 and len(shown) > 1 else [shown]
    if len(key) == 1 and not key.isalnum() and key not in _NAMES:
        name = re.sub(r"\W", "_", unicodedata.name(key, key).lower())
        return KEY_NAME_REPLACEMENTS.get(name, name)
    name = _NAMES.get(key) or (key.lower() if modifiers or len(key) > 1 else key)
    return "+".join([*map(str.lower, modifiers), name])


@dataclass(frozen=True, slots=True)
class Key:
    """What some keys do, as they are drawn, and `also` others by their names. `label` names it in
    the key bar; "" leaves it out there."""

    shown: str
    action: str
    help: str
    group: str
    label: str = ""
    also: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """All of them, as Textual calls them."""
        return (*map(named, self.shown.split()), *self.also)

    def offered(self) -> Binding:
        """As the footer shows it."""
        first = self.shown.split()[0]
        return Binding(named(first), self.action, self.label, key_display=first)


VIEWS = "Views"
RUN = "Runs"
SCREEN = "Screen"
MACHINE = "GPUs"
MOVE = "Moving"
REPLAY = "Replay"

KEYS: tuple[Key, ...] = (
    *(
        Key(group.key, f"views('{group.key}')", f"{group.title}: {group.help}", VIEWS)
        for group in GROUPS
    ),
    Key("w", "workloads", "choose a workload and start it", RUN, "workloads"),
    Key("x", "stop_run", "stop the run (asks first)", RUN, "stop", ("ctrl+x",)),
    Key("l", "log", "show or hide what the workload prints", RUN, "log"),
    Key("[", "scroll_log(5)", "older lines of the log", RUN),
    Key("]", "scroll_log(-5)", "newer lines of the log", RUN),
    Key("e", "export", "export the summary, or a recording, to a file", RUN, "export"),
    Key("space", "pause", "freeze the screen; collecting goes on; pause a replay", SCREEN, "pause"),
    Key("+", "zoom(-1)", "zoom in: lanes, charts", SCREEN, "− zoom", ("equals_sign",)),
    Key("-", "zoom(1)", "zoom out; charts reach back up to 24 h", SCREEN),
    Key("z", "scale", "charts in the scale of their data, or up to all there is", SCREEN, "scale"),
    Key(">", "interval(1)", "longer interval (a replay: faster)", SCREEN),
    Key("<", "interval(-1)", "shorter interval (a replay: slower)", SCREEN),
    Key("v", "scope", "what shares are of: steps, some of them, the run", SCREEN, "scope"),
    Key("s", "sort", "sort by the next column", SCREEN, "sort"),
    Key("r", "reverse", "sort the other way round", SCREEN),
    Key("/", "filter", "filter what is listed by text; Timeline: find a name", SCREEN, "filter"),
    Key("0", "follow", "follow what runs now; back to the newest moment", SCREEN),
    Key(
        "Esc",
        "clear",
        "clear the filter, hide the log; else to now, else back",
        SCREEN,
        "back",
        ("backspace",),
    ),
    Key("y", "copy", "copy the full text of what is chosen (OSC 52)", SCREEN, "copy"),
    Key("Y", "copy_view", "copy all that the view shows", SCREEN),
    Key(
        ": Ctrl-P",
        "palette",
        "every action, view, phase, kernel and run by name",
        SCREEN,
        "palette",
    ),
    Key("d", "libraries", "Phases: ranges of libraries too (NCCL, CUB)", SCREEN),
    Key("p", "processes", "processes on the whole screen", MACHINE, "processes"),
    Key("t", "tree", "processes under what launched them", MACHINE, "tree"),
    Key("a", "attach", "look inside the chosen process (asks)", MACHINE, "attach"),
    Key("K F9", "signal", "send the chosen process a signal (asks)", MACHINE),
    Key(", Shift-←", "step(-1)", "read charts a column earlier", MACHINE),
    Key(". Shift-→", "step(1)", "a column later", MACHINE),
    Key("n", "note(1)", "Timeline: to the next slow step", MACHINE),
    Key("N", "note(-1)", "to the one before", MACHINE),
    Key(
        "m",
        "recording('mark')",
        "mark it, the baseline first; Phases: a phase; Ranks: a rank",
        RUN,
        "mark",
    ),
    Key("c", "recording('compare')", "compare the marked ones", RUN, "compare"),
    Key("R F2", "recording('rename')", "rename a recording", RUN, "rename"),
    Key("D Del", "recording('delete')", "delete it (asks)", RUN, "delete"),
    Key("f", "recording('folder')", "recordings of another folder", RUN, "folder"),
    Key("b", "go_home", "back from a recording that was opened", RUN, "back"),
    Key("? h F1", "help", "this help: a word filters it", SCREEN, "help"),
    Key("q F10", "quit", "quit (asks while a run is active)", SCREEN, "quit"),
    Key("Ctrl-C", "quit_now", "quit at once; a run is stopped", SCREEN),
    Key("↑ k", "move('up')", "up", MOVE),
    Key("↓ j", "move('down')", "down", MOVE),
    Key("← Shift-Tab", "move('left')", "close a phase; previous GPU, table, panel", MOVE),
    Key("→ Tab", "move('right')", "open a phase; next GPU, table, panel", MOVE),
    Key("PgUp", "move('page_up')", "a page up", MOVE),
    Key("PgDn", "move('page_down')", "a page down", MOVE),
    Key("Home g", "move('home')", "to the first line", MOVE),
    Key("End G", "move('end')", "to the last line", MOVE),
    Key("Enter", "activate", "open or close a phase; details; open a recording", MOVE, "open"),
)

REPLAY_KEYS: tuple[Key, ...] = (
    Key("J", "replay_jump", "to a time you type", REPLAY, "go to"),
    Key("[", "replay_step(-1)", "pause, and a sample back", REPLAY),
    Key("]", "replay_step(1)", "pause, and a sample forward", REPLAY),
    Key("{", "replay_skip(-10)", "10 s back", REPLAY),
    Key("}", "replay_skip(10)", "10 s forward", REPLAY),
    Key("n", "replay_phase", "to the next change of phase; Timeline: slow step", REPLAY, "phase"),
    Key(
        "N",
        "replay_event",
        "to the next start, exit, alert; Timeline: slow step before",
        REPLAY,
        "event",
    ),
    Key("(", "replay_log(5)", "older lines of the log", REPLAY),
    Key(")", "replay_log(-5)", "newer lines of the log", REPLAY),
)
"""Keys while a recording is played. They take precedence over KEYS."""


def keys_of(replays: bool) -> list[Key]:
    """The keys that are active while a recording is played, or while none is."""
    if not replays:
        return list(KEYS)
    taken = {name for key in REPLAY_KEYS for name in key.keys}
    return [*(key for key in KEYS if not taken & set(key.keys)), *REPLAY_KEYS]


def own_keys(widget: type[Widget]) -> list[Key]:
    """The keys that a view alone has, which come before those of the screen."""
    return [
        Key(each.key_display or each.key, f"here({each.action!r})", each.description, "Here")
        for each in widget.BINDINGS if isinstance(each, Binding)
    ]  # fmt: skip


def is_key(names: Iterable[str], replays: bool) -> bool:
    """Whether a key, by all its names, is one of those that are active."""
    return not _BOUND[replays].isdisjoint(names)


def _names(keys: Iterable[Key]) -> frozenset[str]:
    return frozenset(key.action.partition("(")[0] for key in keys)


_KEYED = _names((*KEYS, *REPLAY_KEYS))
_USED = {replays: _names(keys_of(replays)) for replays in (False, True)}


_BOUND = {
    replays: frozenset(name for key in keys_of(replays) for name in key.keys)
    for replays in (False, True)
}


def does(action: str, replays: bool) -> bool:
    """Whether an action, given by name, is allowed while a recording is played, or while none is.
    Actions without a key always are.
    """
    return action not in _KEYED or action in _USED[replays]


def bindings() -> list[BindingType]:
    """The keys as Textual bindings."""
    return [
        Binding(
            ",".join(key.keys),
            key.action,
            key.help,
            id=re.sub(r"\W+", "-", key.action).strip("-"),
            show=False,
            priority=key.action == "quit_now" or "tab" in key.keys or "shift+tab" in key.keys,
        )
        for key in (*KEYS, *REPLAY_KEYS)
    ]
