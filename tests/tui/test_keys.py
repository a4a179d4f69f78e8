"""Keys are declared once, in `shell.keys`: nothing else on the main screen binds one."""

from __future__ import annotations

import ast
from pathlib import Path

import gputui.tui
from gputui.tui.app import GputuiApp
from gputui.tui.shell.keys import KEYS, REPLAY_KEYS
from gputui.tui.shell.main import MainScreen

SOURCES = Path(gputui.tui.__file__).parent


def bound_in(path: Path) -> list[str]:
    """What a module binds to keys by itself: bindings, `bind` calls, methods named after a key."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "Binding" or called.endswith(".bind"):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("key_") and node.args.args[0].arg == "self":
                found.append(node.name)
    return found


def test_no_key_is_bound_outside_the_map() -> None:
    """But by what takes the focus: dialogs, the filter, and the lanes of operations."""
    sources = sorted(path for path in SOURCES.rglob("*.py") if path.parent.name != "dialogs")
    outside = {path.name: bound_in(path) for path in sources if path.name != "keys.py"}
    found = {name: bound for name, bound in outside.items() if bound}
    assert set(found) == {"kernels.py", "timeline.py"}


def test_the_screen_has_the_keys_of_the_map_and_no_other() -> None:
    declared = {name for key in (*KEYS, *REPLAY_KEYS) for name in key.keys}
    bound = {
        name for binding in MainScreen.BINDINGS for name in getattr(binding, "key", "").split(",")
    }
    assert bound == declared
    assert GputuiApp.BINDINGS == []


def test_every_key_says_what_it_does() -> None:
    for key in (*KEYS, *REPLAY_KEYS):
        assert all((key.shown, key.help, key.group, key.action))
