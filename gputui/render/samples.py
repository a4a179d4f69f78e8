"""The samples of a recording, read while it is folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputui.model.events import AnyEvent, MachineSample
from gputui.render.errors import ExportError
from gputui.render.formats import Source
from gputui.state import Session

Span = tuple[int, int]
"""First and last moment of a run, in ns since the epoch."""


def samples_of(
    events: Iterable[AnyEvent], span: Span | None, session: Session
) -> Iterator[MachineSample]:
    """The samples within `span`, all where that is None; `session` has folded what was read."""
    for event in events:
        session.apply((event,))
        if isinstance(event, MachineSample) and (
            span is None or span[0] <= event.time_ns <= span[1]
        ):
            yield event


def span_of(source: Source) -> Span | None:
    """When the run was that is asked for by its number, None where none is. Raises ExportError and
    JournalError."""
    if source.number is None:
        return None
    if source.name == "-":
        raise ExportError(
            "--run reads a recording twice, and standard input cannot be: give a file"
        )
    run = source.load().needed_run()
    return run.started.time_ns, run.started.time_ns + run.duration_ns
