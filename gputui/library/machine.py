"""Readings of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from gputui.base.errors import GputuiError as Error
from gputui.library.frames import Row
from gputui.state import Session


def devices(
    interval_s: float = 1.0, count: int | None = None, only: Sequence[int] | None = None
) -> Iterator[Row]:
    """Readings of this machine's GPUs as they are taken: each interval one a device, `count` times
    or for ever. Each has the names and units of `gputui --once --json`, and `time`.

    `only` are NVML indexes; None takes what CUDA_VISIBLE_DEVICES says. Raises Error where there is
    no GPU, it cannot be read any more, or the interval is impossible.
    """
    from gputui.collect.sampler import Sampler, emissions
    from gputui.model.events import Header, HostUnavailable, MachineSample
    from gputui.report.machine_now import machine_document

    try:
        sampler = Sampler(interval_s, only)
    except ValueError as error:
        raise Error(str(error)) from None
    session = Session()
    taken = 0
    with closing(emissions(sampler)) as emitted:
        while count is None or taken < count:
            events = next(emitted)
            session.apply(events)
            for event in events:
                if isinstance(event, Header) and event.gpu_unavailable_reason:
                    raise Error(f"no GPU: {event.gpu_unavailable_reason}")
                if isinstance(event, HostUnavailable) and "sampler" in event.reasons:
                    raise Error(event.reasons["sampler"])
            if any(isinstance(event, MachineSample) for event in events):
                taken += 1
                document = machine_document(session)
                yield from ({"time": document["time"], **gpu} for gpu in document["gpus"])
