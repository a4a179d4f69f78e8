"""What every package needs and nothing here knows of GPUs. Safe text and standard streams have
modules of their own; this one has the version, the errors and the pages of the manual. The version
is not in `gputui/__init__.py`, which is the public library, because every layer writes it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:  # the first frame does without it
    from pathlib import Path

VERSION = "0.1.0"


FAILED = 1
WRONG_USAGE = 2


class GputuiError(Exception):
    """Something went wrong that a person can act on. The text is one line for people."""

    exit_status: ClassVar[int] = FAILED
    """The program's exit status where nothing handles this: 1 it failed, 2 wrong usage."""


def did_you_mean(typed: str, names: Sequence[str]) -> str:
    """A hint to the closest of the `names`, with a blank before it; "" where none is close."""
    import difflib  # costs a start 2 ms

    close = difflib.get_close_matches(typed, names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def one_line(error: BaseException) -> str:
    """An error in one line: its own message, or its class if it has none."""
    text = " ".join(str(error).split())
    return text[:300] if text else type(error).__name__


def crash_line(error: BaseException) -> str:
    """An internal error in one line: what and where, without anybody's data."""
    import traceback
    from pathlib import Path

    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"internal error: {type(error).__name__}: {one_line(error)}{where}"


# Errors of recordings, in words.


class JournalError(GputuiError):
    """A recording cannot be written or read. The text is one line for people."""


class TakenError(JournalError):
    """A recording cannot be written because a file of that name exists."""


def name_taken(path: Path) -> str:
    """What to say where a file of that name exists already."""
    return f"{path} already exists; choose another name or remove it"


def reason(error: OSError) -> str:
    """The system's own error message."""
    return (error.strerror or str(error)).lower()


# The pages of the manual, installed with the program: for `gputui help` and the palette.


class ManualPage(NamedTuple):
    """A page: its first heading, and the file in Markdown."""

    title: str
    path: Path

    def read(self) -> str:
        """The whole page as it was written, in Markdown."""
        return self.path.read_text(encoding="utf-8")


@functools.cache
def manual_pages() -> dict[str, ManualPage]:
    """The manual's pages by name, in this order; pages in folders come last. They are read once:
    the palette asks at each key."""
    from pathlib import Path

    docs = Path(__file__).parents[1] / "docs"
    paths = {str(path.relative_to(docs).with_suffix("")): path for path in docs.rglob("*.md")}
    ordered = sorted(paths.items(), key=lambda item: (item[0].count("/"), item[0]))
    return {name: ManualPage(_title(path), path) for name, path in ordered}


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.lstrip("# ").rstrip() for line in lines if line.startswith("# ")), "")
