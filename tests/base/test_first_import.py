"""Every module can be the first that is imported: no order of imports is hidden in the others."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import gputui

ROOT = Path(gputui.__file__).parent
ELSEWHERE = ("gputui.__main__", "gputui.inject.hook", "gputui.inject.build")
"""What runs when imported, in the traced process, and while the package is built."""

FILES = {
    ".".join(("gputui", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in ROOT.rglob("*.py")
}

IMPORTING = """
import json, os, sys
for circle in json.load(sys.stdin):
    for name in circle if len(circle) > 1 else ():
        child = os.fork()
        if not child:
            try:
                __import__(name)
            except BaseException as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    for name in circle:
        try:
            __import__(name)
        except ImportError as error:
            print(f"{name}: {error}", flush=True)
"""
"""Whether a module can come first depends on those alone that it imports and that import it in
turn. So each is imported where all others are there already, in a process of its own if it is in
such a circle: 1 s, where a fresh interpreter for each of 385 modules takes a minute."""


def imports_of(name: str) -> set[str]:
    """The modules of gputui that importing `name` imports, with the packages that they are in."""
    wanted = {name}
    for node in when_imported(ast.parse(FILES[name].read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif node.module and not node.level:
            wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    packages = {module[:i] for module in wanted for i, c in enumerate(module) if c == "."}
    return ((wanted | packages) & FILES.keys()) - {name}


def when_imported(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run with the module: none of functions or for type checkers."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from when_imported(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "handlers", "finalbody"):
                yield from when_imported(getattr(node, part, []))


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The modules, together if they import each other, after those that they import."""
    reached = {name: reachable(graph, name) for name in graph}
    groups = {
        frozenset({name} | {other for other in reached[name] if name in reached[other]})
        for name in graph
    }
    return [sorted(group) for group in sorted(groups, key=lambda g: len(reached[min(g)] | g))]


def reachable(graph: Mapping[str, set[str]], name: str) -> set[str]:
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def test_any_module_may_be_imported_first() -> None:
    graph = {name: imports_of(name) for name in FILES if not name.startswith(ELSEWHERE)}
    graph = {name: others & graph.keys() for name, others in graph.items()}
    ordered = circles(graph)
    assert sum(map(len, ordered)) == len(graph) > 200
    printed = subprocess.run(
        [sys.executable, "-c", IMPORTING],
        input=json.dumps(ordered), capture_output=True, text=True, check=True, cwd="/",
    )  # fmt: skip
    assert (printed.stdout, printed.stderr) == ("", "")
