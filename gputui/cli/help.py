"""`gputui help`: the pages of gputui/docs, and the help of commands."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

import gputui
from gputui.base.errors import did_you_mean
from gputui.cli import options as declared
from gputui.cli.declaration import UsageError
from gputui.cli.parsing import parser_of

_DOCS = Path(gputui.__file__).with_name("docs")
_PAGER = "less -FR"


def run(options: argparse.Namespace) -> int:
    """Print a topic, or the list of topics; return the exit status. Raises UsageError."""
    if options.topic:
        _show(text_of(options.topic))
    else:
        sys.stdout.write(listing())
    return 0


def pages() -> dict[str, Path]:
    """The pages by their names, in order of these."""
    paths = {str(path.relative_to(_DOCS).with_suffix("")): path for path in _DOCS.rglob("*.md")}
    return dict(sorted(paths.items(), key=lambda item: (item[0].count("/"), item[0])))


def listing() -> str:
    """Every topic and what it is about."""
    topics = {name: _title(path) for name, path in pages().items()}
    commands = {command.name: command.help for command in declared.COMMANDS}
    width = max(map(len, (*topics, *commands)))

    def lines(entries: dict[str, str]) -> str:
        return "".join(f"  {name:<{width}}  {words}\n" for name, words in entries.items())

    return (
        f"gputui help TOPIC prints one of these\n\npages:\n{lines(topics)}\n"
        f"commands:\n{lines(commands)}"
    )


def text_of(topic: str) -> str:
    """A page, or the help of a command. Raises UsageError where there is no such topic."""
    by_name = pages()
    for name in (topic, f"recipes/{topic}"):
        if name in by_name:
            return by_name[name].read_text(encoding="utf-8")
    command = declared.command(topic)
    if command is not None:
        return parser_of(command).format_help()
    names = (*by_name, *(command.name for command in declared.COMMANDS))
    raise UsageError(
        f"there is no topic {topic!r}{did_you_mean(topic, names)}; known: {', '.join(names)}"
    )


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as lines:
        return next((line.lstrip("# ").rstrip() for line in lines if line.startswith("# ")), "")


def _show(text: str) -> None:
    """Through a pager on a terminal, where there is one."""
    if sys.stdout.isatty():
        words = shlex.split(os.environ.get("PAGER") or _PAGER)
        try:
            subprocess.run(words, input=text, encoding="utf-8", check=False)
        except OSError:
            pass
        else:
            return
    sys.stdout.write(text)
