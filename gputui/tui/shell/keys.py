"""Every key of the main screen, declared once: for the bindings, the key bar and the help."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from textual.binding import Binding, BindingType
from textual.widget import Widget

from gputui.tui.shell.views import GROUPS


@dataclass(frozen=True, slots=True)
class Key:
    """What some keys do. `label` names it in the key bar; "" leaves it out there."""

    keys: tuple[str, ...]
    shown: str
    action: str
    help: str
    group: str
    label: str = ""

    def offered(self) -> Binding:
        """As the footer shows it."""
        name = self.shown.split()[0]
        return Binding(named(self.shown), self.action, self.label, key_display=name)


VIEWS = "Views"
RUN = "Runs"
SCREEN = "Screen"
MACHINE = "GPUs"
MOVE = "Moving"
REPLAY = "Replay"

KEYS: tuple[Key, ...] = (
    *(
        Key((group.key,), group.key, f"views('{group.key}')", f"{group.title}: {group.help}", VIEWS)
        for group in GROUPS
    ),
    Key(("w",), "w", "workloads", "choose a workload and start it", RUN, "workloads"),
    Key(("W",), "W", "again", "start the last workload again", RUN),
    Key(("x", "ctrl+x"), "x", "stop_run", "stop the run (asks first)", RUN, "stop"),
    Key(("l",), "l", "log", "show or hide what the workload prints", RUN, "log"),
    Key(("left_square_bracket",), "[", "scroll_log(5)", "older lines of the log", RUN),
    Key(("right_square_bracket",), "]", "scroll_log(-5)", "newer lines of the log", RUN),
    Key(("e",), "e", "export", "export the summary, or a recording, to a file", RUN, "export"),
    Key(
        ("space",),
        "space",
        "pause",
        "freeze the screen; collecting goes on; pause a replay",
        SCREEN,
        "pause",
    ),
    Key(("plus", "equals_sign"), "+", "zoom(-1)", "zoom in: lanes, charts", SCREEN, "− zoom"),
    Key(("minus",), "-", "zoom(1)", "zoom out; charts reach back up to 24 h", SCREEN),
    Key(
        ("z",),
        "z",
        "scale",
        "charts in the scale of their data, or up to all there is",
        SCREEN,
        "scale",
    ),
    Key(("greater_than_sign",), ">", "interval(1)", "longer interval (a replay: faster)", SCREEN),
    Key(("less_than_sign",), "<", "interval(-1)", "shorter interval (a replay: slower)", SCREEN),
    Key(("v",), "v", "scope", "what shares are of: steps, some of them, the run", SCREEN, "scope"),
    Key(("s",), "s", "sort", "sort by the next column", SCREEN, "sort"),
    Key(("r",), "r", "reverse", "sort the other way round", SCREEN),
    Key(("slash",), "/", "filter", "filter what is listed by text", SCREEN, "filter"),
    Key(("0",), "0", "follow", "follow what runs now; back to the newest moment", SCREEN),
    Key(
        ("escape", "backspace"),
        "Esc",
        "clear",
        "clear the filter; else to now, else back",
        SCREEN,
        "back",
    ),
    Key(("y",), "y", "copy", "copy the full text of what is chosen (OSC 52)", SCREEN, "copy"),
    Key(("Y",), "Y", "copy_view", "copy all that the view shows", SCREEN),
    Key(
        ("colon", "ctrl+p"),
        ": Ctrl-P",
        "palette",
        "every action, view, phase, kernel and run by name",
        SCREEN,
        "palette",
    ),
    Key(("d",), "d", "libraries", "Phases: ranges of libraries too (NCCL, CUB)", SCREEN),
    Key(
        ("number_sign",), "#", "raw_names", "Phases: names as the ranges have them (Step 3)", SCREEN
    ),
    Key(("p",), "p", "processes", "processes on the whole screen", MACHINE, "processes"),
    Key(("t",), "t", "tree", "processes under what launched them", MACHINE, "tree"),
    Key(("a",), "a", "attach", "look inside the chosen process (asks)", MACHINE, "attach"),
    Key(("K", "f9"), "K F9", "signal", "send the chosen process a signal (asks)", MACHINE),
    Key(("comma", "shift+left"), ", Shift-←", "step(-1)", "read charts a column earlier", MACHINE),
    Key(("full_stop", "shift+right"), ". Shift-→", "step(1)", "a column later", MACHINE),
    Key(("n",), "n", "note(1)", "Timeline: to the next slow step", MACHINE),
    Key(("N",), "N", "note(-1)", "to the one before", MACHINE),
    Key(
        ("m",),
        "m",
        "recording('mark')",
        "mark it, the baseline first; Phases: a phase; Ranks: a rank",
        RUN,
        "mark",
    ),
    Key(("c",), "c", "recording('compare')", "compare the marked ones", RUN, "compare"),
    Key(("R", "f2"), "R F2", "recording('rename')", "rename a recording", RUN, "rename"),
    Key(("D", "delete"), "D Del", "recording('delete')", "delete it (asks)", RUN, "delete"),
    Key(("f",), "f", "recording('folder')", "recordings of another folder", RUN, "folder"),
    Key(("b",), "b", "go_home", "back from a recording that was opened", RUN, "back"),
    Key(
        ("question_mark", "h", "f1"),
        "? h F1",
        "help",
        "this help: a word filters it",
        SCREEN,
        "help",
    ),
    Key(("q", "f10"), "q F10", "quit", "quit (asks while a run is active)", SCREEN, "quit"),
    Key(("ctrl+c",), "Ctrl-C", "quit_now", "quit at once; a run is stopped", SCREEN),
    Key(("up", "k"), "↑ k", "move('up')", "up", MOVE),
    Key(("down", "j"), "↓ j", "move('down')", "down", MOVE),
    Key(
        ("left", "shift+tab"),
        "← Shift-Tab",
        "move('left')",
        "close a phase; previous GPU or table",
        MOVE,
    ),
    Key(("right", "tab"), "→ Tab", "move('right')", "open a phase; next GPU or table", MOVE),
    Key(("pageup",), "PgUp", "move('page_up')", "a page up", MOVE),
    Key(("pagedown",), "PgDn", "move('page_down')", "a page down", MOVE),
    Key(("home", "g"), "Home g", "move('home')", "to the first line", MOVE),
    Key(("end", "G"), "End G", "move('end')", "to the last line", MOVE),
    Key(
        ("enter",),
        "Enter",
        "activate",
        "open or close a phase; details; open a recording",
        MOVE,
        "open",
    ),
)

REPLAY_KEYS: tuple[Key, ...] = (
    Key(("J",), "J", "replay_jump", "to a time you type", REPLAY, "go to"),
    Key(("left_square_bracket",), "[", "replay_step(-1)", "pause, and a sample back", REPLAY),
    Key(("right_square_bracket",), "]", "replay_step(1)", "pause, and a sample forward", REPLAY),
    Key(("left_curly_bracket",), "{", "replay_skip(-10)", "10 s back", REPLAY),
    Key(("right_curly_bracket",), "}", "replay_skip(10)", "10 s forward", REPLAY),
    Key(
        ("n",),
        "n",
        "replay_phase",
        "to the next change of phase; Timeline: slow step",
        REPLAY,
        "phase",
    ),
    Key(
        ("N",),
        "N",
        "replay_event",
        "to the next start, exit, alert; Timeline: slow step before",
        REPLAY,
        "event",
    ),
    Key(("left_parenthesis",), "(", "replay_log(5)", "older lines of the log", REPLAY),
    Key(("right_parenthesis",), ")", "replay_log(-5)", "newer lines of the log", REPLAY),
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
        Key((each.key,), each.key_display or each.key, f"focused.{each.action}", each.description,
            "Here")
        for each in widget.BINDINGS if isinstance(each, Binding)
    ]  # fmt: skip


_NAMES = {"Enter": "enter", "Esc": "escape", "Tab": "tab", "←": "left", "→": "right",
          "↑": "up", "↓": "down", "/": "slash"}  # fmt: skip


def named(shown: str) -> str:
    """The name of a key as it is drawn, pressed once or twice; what is no key stays as it is."""
    words = set(shown.split())
    key = words.pop() if len(words) == 1 else shown
    if len(key) == 1 and not key.isalnum():
        return _NAMES.get(key) or unicodedata.name(key, key).lower().replace(" ", "_")
    return _NAMES.get(key, key)


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
