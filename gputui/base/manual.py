"""The pages of the manual, which are installed with the program: `gputui help` prints them, and the
screen's palette offers them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

_DOCS = Path(__file__).parents[1] / "docs"


class Page(NamedTuple):
    """A page: its first heading, and the file in Markdown."""

    title: str
    path: Path

    def read(self) -> str:
        """The whole page as it was written, in Markdown."""
        return self.path.read_text(encoding="utf-8")


@functools.cache
def pages() -> dict[str, Page]:
    """The pages by their names, in order of these, those of folders last. Read once: the palette
    asks at each key."""
    paths = {str(path.relative_to(_DOCS).with_suffix("")): path for path in _DOCS.rglob("*.md")}
    ordered = sorted(paths.items(), key=lambda item: (item[0].count("/"), item[0]))
    return {name: Page(_title(path), path) for name, path in ordered}


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.lstrip("# ").rstrip() for line in lines if line.startswith("# ")), "")
