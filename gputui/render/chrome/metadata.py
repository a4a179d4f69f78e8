"""The trace's metadata: the GPUs, the rank, and the names of processes, threads and streams."""

from __future__ import annotations

import json

from gputui.model.events import ProcessAttached
from gputui.render.chrome.notation import named
from gputui.render.chrome.operations import StreamNames
from gputui.state import Run, Session


class Metadata:
    """Of process number `process` of `run`, whose work was on `devices`."""

    def __init__(self, session: Session, run: Run, process: int, devices: list[int]) -> None:
        known = run.processes.get(process)
        self._session = session
        self._run = run
        self._process = process
        self._devices = devices
        self._attached: ProcessAttached | None = known.attached if known else None
        self._threads = known.threads if known else {}
        self._resources = list(known.resources.values()) if known else []
        self.pid = known.attached.pid if known else process

    def head(self, base_ns: int, dropped: int) -> str:
        """The document's own keys; the list of events follows."""
        ranks = _ranks(self._run)
        document = {
            "schemaVersion": 1,
            "deviceProperties": [self._device(index) for index in sorted(self._session.gpus)],
            "distributedInfo": {
                "backend": "nccl",
                "rank": ranks.get(self._process, 0),
                "world_size": self._world_size(ranks),
            },
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": base_ns,
            "gputui": {"run": self._run.started.name, "dropped_records": dropped},
        }
        return json.dumps(document)

    def _world_size(self, ranks: dict[int, int]) -> int:
        job = self._attached.job if self._attached else None
        return (job.world_size if job else None) or max(ranks.values(), default=0) + 1

    def names(self) -> str:
        """The names of the process, its threads and its GPUs."""
        name = self._attached.command if self._attached else self._run.started.name
        events = [named("process_name", self.pid, 0, name or self._run.started.name)]
        given = {one.number: one.name for one in self._resources if one.kind == "device"}
        for device in self._devices:
            words = f"GPU {device} {given[device]}" if device in given else f"GPU {device}"
            events.append(named("process_name", device, 0, words))
        events += [
            named("thread_name", self.pid, thread, one.name)
            for thread, one in sorted(self._threads.items())
        ]
        return "".join(event + ",\n" for event in events)

    def stream_names(self) -> StreamNames:
        """A stream named without its device has that name on every device."""
        return {
            (device, one.number): f"{one.name} (stream {one.number})"
            for one in self._resources
            if one.kind == "stream"
            for device in (self._devices if one.device is None else [one.device])
        }

    def _device(self, index: int) -> dict[str, object]:
        facts = self._session.gpus[index].facts
        major, _, minor = (facts.compute_capability or "0.0").partition(".")
        return {
            "id": index,
            "name": facts.name,
            "totalGlobalMem": facts.memory_total_bytes or 0,
            "computeMajor": int(major) if major.isdecimal() else 0,
            "computeMinor": int(minor) if minor.isdecimal() else 0,
            "numSms": facts.sm_count or 0,
        }


def _ranks(run: Run) -> dict[int, int]:
    """Process → rank: of several processes without one, the one after those before it."""
    known = {
        number: process.attached.rank
        for number, process in sorted(run.processes.items())
        if process.attached.rank is not None
    }
    return known or {number: rank for rank, number in enumerate(sorted(run.processes))}
