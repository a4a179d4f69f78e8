"""The words that say which recording, and which run of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.commands.words import Parser
from gputui.streams import say

if TYPE_CHECKING:
    from gputui.export.loading import Loaded

FILE_HELP = (
    "a recording, an SQLite export of nsys, or CSV tables of nsys stats (a folder, or what their "
    "names begin with); - reads a recording on standard input"
)


def add_run(parser: Parser) -> None:
    """`--run N`, for commands that read one file."""
    parser.add_argument(
        "--run", type=int, metavar="N", help="this run of the file (default: the newest)"
    )


def load_run(name: str, number: int | None = None) -> Loaded:
    """Run `number` of a file, the newest where that is None; what is odd goes to stderr.

    Raises JournalError.
    """
    from gputui.export.loading import load

    loaded = load(name, number)
    for remark in loaded.remarks:
        say(remark)
    return loaded
