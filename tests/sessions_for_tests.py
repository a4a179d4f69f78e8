"""Sessions of files and of programs, and what a session holds, in plain values."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gputui.collect.traced_run import RunRequest, TracedRun
from gputui.model.events import AnyEvent, KernelDefined
from gputui.model.events.distributions import Accumulator
from gputui.model.hub import Numbering
from gputui.playback.opening import Loaded, load, open_recording
from gputui.report.explain import Analysis
from gputui.state import Run, Session
from gputui.state.history import History
from tests.events_for_tests import header


def folded(events: Iterable[AnyEvent]) -> tuple[Session, Run]:
    """The session, all of whose events refer to what is in it, and its run."""
    session = Session.from_events(events)
    assert session.unknown_references == 0
    assert session.run is not None
    return session, session.run


def read_whole(path: Path) -> tuple[Session, Run]:
    """A file in which nothing is damaged."""
    reader = open_recording(str(path))
    found = folded(reader)
    assert reader.damage is None
    return found


@functools.cache
def loaded_once(name: str) -> Loaded:
    """A recording of `tests/data`, for tests that look at it only."""
    return load(str(Path(__file__).parent / "data" / name))


def traced(command: Sequence[str]) -> tuple[Session, Run]:
    """A command, run to its end."""
    events: list[AnyEvent] = [header()]
    request = RunRequest.of_command(command)
    child = TracedRun(1, request, events.extend, interval_s=0.1, numbering=Numbering())
    child.start()
    assert child.join(60)
    return folded(events)


def analysed(run: Run, names: Mapping[int, KernelDefined] | None = None) -> Analysis:
    """The analysis of a run whose session has nothing but these names of kernels."""
    return Analysis(Session(kernel_names=dict(names or {})), run)


def contents(session: Session) -> dict[str, Any]:
    """All that views can see of `session`."""
    return {name: _plain(getattr(session, name)) for name in session.__struct_fields__}


def _plain(value: Any) -> Any:
    match value:
        case Accumulator():
            return value.freeze()
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple() | History():
            return [_plain(item) for item in value]
        case msgspec.Struct() if not value.__struct_config__.frozen:
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return value
