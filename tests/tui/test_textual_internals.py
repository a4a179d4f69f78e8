"""What is not public in Textual is used in one module, without which the screen works, too."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gputui.tui
from gputui.tui import textual_internals
from tests.cli.test_cli import Terminal
from tests.conftest import DATA

FOLDER = Path(gputui.tui.__file__).parent
MODULES = sorted(
    path.relative_to(FOLDER.parent.parent).with_suffix("")
    for path in FOLDER.rglob("*.py")
    if path.stem not in ("__init__", "textual_internals")
)
_SET = re.compile(r"\bself\.(_[a-z]\w*)\s*(?::[^=\n]+)?=")


@cache
def own_names(kind: type) -> set[str]:
    """The names that a class of Textual's keeps to itself."""
    if kind.__module__.partition(".")[0] != "textual":
        return set()
    file = inspect.getsourcefile(kind)
    assert file is not None
    names = {*vars(kind), *_SET.findall(Path(file).read_text())}
    return {name for name in names if name.startswith("_") and not name.endswith("__")}


def private_of(kind: type) -> set[str]:
    """Those of all that it inherits from."""
    return set().union(*map(own_names, kind.__mro__))


def uses(path: Path) -> Iterator[str]:
    """What a module touches that Textual, or Rich, keeps to itself."""
    module = importlib.import_module(".".join(path.parts))
    tree = ast.parse(inspect.getsource(module))
    bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            words = [*node.module.split("."), *(alias.name for alias in node.names)]
            if words[0] in ("textual", "rich") and any(word.startswith("_") for word in words):
                yield f"{path}:{node.lineno} {node.module}"
        elif (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.endswith("__")
            and node.attr != "_replace"
            and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        ):
            yield f"{path}:{node.lineno} {ast.unparse(node)}"
    for kind in vars(module).values():
        if inspect.isclass(kind) and kind.__module__ == module.__name__:
            private = private_of(kind)
            for node in ast.walk(bodies[kind.__name__]) if private else ():
                name = getattr(node, "attr", None) or getattr(node, "name", "")
                if isinstance(node, ast.Attribute | ast.FunctionDef) and name in private:
                    yield f"{path} {kind.__name__}.{name}"


def test_no_other_module_touches_what_is_private() -> None:
    assert [found for path in MODULES for found in uses(path)] == []
    assert [*uses(Path("gputui/tui/textual_internals"))], "the check sees nothing"


def test_it_knows_the_version_that_it_is_tested_with() -> None:
    assert textual_internals.IS_KNOWN


UNKNOWN = """
import sys, textual
textual.__file__ = "/nowhere/textual/__init__.py"
from gputui.__main__ import main
from gputui.tui.shell.main import MainScreen
def fail(screen):
    raise RuntimeError("a failure of the test's")
MainScreen.action_sort = fail
status = main()
from gputui.tui import textual_internals
assert not textual_internals.IS_KNOWN
assert not {"run_input_thread", "_fatal_error"} & {
    *vars(textual_internals.Terminal), *vars(textual_internals.Reporting)
}
sys.exit(status)
"""


@pytest.mark.parametrize(("keys", "status", "said"), [
    (b"q", 0, b""),
    (b"s", 1, b"gputui: internal error: RuntimeError: the screen failed"),
])  # fmt: skip
def test_a_textual_that_it_does_not_know_shows_and_ends_the_same(
    keys: bytes, status: int, said: bytes
) -> None:
    path = str(DATA / "h200-inference.gputui")
    terminal = Terminal(sys.executable, "-c", UNKNOWN, "--replay", path, TERM="xterm-256color")
    terminal.until(lambda seen: b"the end" in seen)
    terminal.type(b"5")
    terminal.until(lambda seen: b"CUDA calls" in seen)
    terminal.type(keys)
    assert terminal.ended() == status
    assert said in terminal.seen
    assert b"Traceback" not in terminal.seen
    for left in (b"\x1b[?1049l", b"\x1b[?25h"):
        assert terminal.seen.rfind(left) > terminal.seen.rfind(b"\x1b[?1049h")
