"""What a run would need, in a line of its form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gputui.collect.catalogue import Forecast, Value
from gputui.model import units
from gputui.state import Session
from gputui.tui.recording_library import RecordingLibrary
from gputui.tui.threads import Threads
from gputui.tui.widgets.canvas import Row, fit


class Target(NamedTuple):
    """The GPU that a run would use, and what is free of its memory."""

    name: str
    memory_bytes: int | None
    free_bytes: int | None


class Earlier(NamedTuple):
    """What runs with the same values took here."""

    mean_ns: float
    runs: int


class EarlierRuns:
    """The recorded runs of workloads on this host with these GPUs, read in the background;
    `changed` is called when more are known."""

    def __init__(self, threads: Threads, session: Session, changed: Callable[[], None]) -> None:
        self._session = session
        self._library = RecordingLibrary(threads, changed)
        self._library.look()

    def of(self, workload: str, values: Mapping[str, Value]) -> Earlier | None:
        """What those with these values took that ended well; None without any."""
        header = self._session.header
        host = header.host.hostname if header is not None else None
        gpus = tuple(gpu.facts.name for gpu in self._session.gpus.values())
        like = {name: units.parameter(value) for name, value in values.items()}
        took_ns = [
            one.run_ns
            for one in self._library.entries
            if one.succeeded and one.run_ns and (one.kind, one.name) == ("workload", workload)
            and (one.hostname, one.gpus, dict(one.parameters)) == (host, gpus, like)
        ]  # fmt: skip
        return Earlier(sum(took_ns) / len(took_ns), len(took_ns)) if took_ns else None


def needs_row(found: Forecast, target: Target | None, earlier: Earlier | None, width: int) -> Row:
    """The least memory of a run, and where it does not fit; how long it took before, or the least
    that it can take."""
    memory, time = units.size(found.memory_bytes), "no estimate yet"
    role = "dim"
    if found.memory_bytes is not None:
        memory = f"≥ {memory}"
        if target is not None and target.memory_bytes is not None:
            memory += f" of {units.size(target.memory_bytes)}"
            free = target.free_bytes
            if found.memory_bytes > target.memory_bytes:
                memory, role = f"{memory}: does not fit", "warn"
            elif free is not None and found.memory_bytes > free:
                memory, role = f"{memory}, {units.size(free)} free: does not fit now", "warn"
    if earlier is not None:
        which = "1 run" if earlier.runs == 1 else f"{earlier.runs} runs"
        time = f"about {units.duration(earlier.mean_ns)} ({which} like this)"
    elif found.seconds is not None:
        time = f"≥ {units.duration(found.seconds * 1e9)} at the GPU's peak rates"
    return ((fit(f"memory {memory}   time {time}", width), role),)
