"""The arguments that name a recording, and a run in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base.standard_streams import say
from gputui.cli.declaration import UsageError

if TYPE_CHECKING:
    from gputui.playback.opening import Loaded


def one_recording(names: list[str]) -> str:
    """The one recording named, possibly by several files if it was rotated, as a shell expands
    x*.gputui. Raises UsageError.
    """
    from gputui.store.journal.reader import first_of

    firsts = {str(first_of(Path(name))) for name in names}
    if len(firsts) > 1:
        raise UsageError(
            f"{', '.join(names[:3])} are not the files of one recording: name one "
            "(gputui compare compares several)"
        )
    return names[0] if len(names) == 1 else firsts.pop()


def recordings(names: list[str]) -> list[str]:
    """The recordings named. Files of a rotated one, as a shell expands x*.gputui, count as one; a
    file named by itself is read by itself.
    """
    from gputui.store.journal.reader import first_of, members

    kept: list[str] = []
    gathered: set[Path] = set()
    for name in names:
        first = first_of(Path(name))
        named = {Path(other) for other in names if first_of(Path(other)) == first}
        # Only the headers decide: x and x.2 may also be different recordings.
        if len(named) == 1 or not named <= {*members(first)}:
            kept.append(name)
        elif first not in gathered:
            gathered.add(first)
            kept.append(str(first))
    return kept


def load_run(
    name: str, number: int | None = None, *, raw_names: bool = False, table: str | None = None
) -> Loaded:
    """Run `number` of a file, the newest if None; remarks go to stderr. The others as in load.

    Raises JournalError.
    """
    from gputui.playback.opening import load

    loaded = load(name, number, raw_names=raw_names, table=table)
    for remark in loaded.remarks:
        say(remark)
    return loaded
