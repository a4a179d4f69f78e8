"""The words that say which recording, and which run of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base.standard_streams import say
from gputui.cli.parsing import Parser, UsageError

if TYPE_CHECKING:
    from gputui.playback.loading import Loaded

FILE_HELP = (
    "a recording, an SQLite export of nsys, or CSV tables of nsys stats (a folder, or what their "
    "names begin with); - reads a recording on standard input"
)


def add_run(parser: Parser) -> None:
    """`--run N`, for commands that read one file."""
    parser.add_argument(
        "--run", type=int, metavar="N", help="this run of the file (default: the newest)"
    )


def one_recording(names: list[str]) -> str:
    """The one recording that is named, by several names where it was rotated and its files are
    given, as a shell does for x*.gputui. Raises UsageError."""
    from gputui.store.journal.rotated import first_of

    firsts = {str(first_of(Path(name))) for name in names}
    if len(firsts) > 1:
        raise UsageError(
            f"{', '.join(names[:3])} are not the files of one recording: name one "
            "(gputui compare puts several side by side)"
        )
    return names[0] if len(names) == 1 else firsts.pop()


def recordings(names: list[str]) -> list[str]:
    """The recordings that are named. Files of one that was rotated, as a shell gives them for
    x*.gputui, stand for it together; by its name alone a file is read by itself."""
    from gputui.store.journal.rotated import first_of, members

    found: list[str] = []
    gathered: set[Path] = set()
    for name in names:
        first = first_of(Path(name))
        named = {Path(other) for other in names if first_of(Path(other)) == first}
        # Only the headers tell: what was recorded before and after may be x and x.2 too.
        if len(named) == 1 or not named <= {*members(first)}:
            found.append(name)
        elif first not in gathered:
            gathered.add(first)
            found.append(str(first))
    return found


def load_run(name: str, number: int | None = None) -> Loaded:
    """Run `number` of a file, the newest where that is None; what is odd goes to stderr.

    Raises JournalError.
    """
    from gputui.playback.loading import load

    loaded = load(name, number)
    for remark in loaded.remarks:
        say(remark)
    return loaded
