"""The file: its head, every record in turn, the counters, its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TextIO

from gputui.model.events import MachineSample
from gputui.render.chrome.annotations import Annotations
from gputui.render.chrome.counters import counter_lines
from gputui.render.chrome.metadata import Metadata
from gputui.render.chrome.notation import us
from gputui.render.chrome.operations import Operations
from gputui.render.chrome.survey import Survey, survey
from gputui.state import Run, Session
from gputui.store.trace import TraceKind, TraceReader
from gputui.store.trace.layout import Slots

# Plain numbers: an enumeration's members would cost millions of look-ups.
_CALL, _RANGE, _PROJECTION, _MARK = map(
    int, (TraceKind.CALL, TraceKind.RANGE, TraceKind.PROJECTION, TraceKind.MARK)
)
_KERNELS = frozenset((int(TraceKind.KERNEL), int(TraceKind.GRAPH)))


def write_chrome(
    out: TextIO,
    session: Session,
    run: Run,
    trace: TraceReader,
    process: int,
    samples: Iterable[MachineSample] = (),
) -> int:
    """Write the trace of one process; how many records went in.

    Reads the trace twice, a portion at a time: the first pass finds which calls have operations.
    """
    found = survey(trace, process)
    base_ns = found.first_ns
    told = Metadata(session, run, process, found.devices)
    annotations = Annotations(run, told.pid, base_ns)
    operations = Operations(
        session, trace.call_names, told.pid, base_ns, told.stream_names(), found.highest
    )
    # The list of events goes last, so that it can be written as it is read.
    out.write(told.head(base_ns, trace.dropped)[:-1] + ', "traceEvents": [\n' + told.names())
    count = 0
    for portion in trace.portions():
        mine = portion[portion["process"] == process]
        count += len(mine)
        out.writelines(_lines(mine, found, annotations, operations))
    for placed in found.on_streams.placed(found.joined, annotations.threads(process)):
        out.write(annotations.on_stream(placed))
    out.writelines(counter_lines(run, base_ns, samples))
    # Every event ends in a comma; a final one without closes the list.
    at = us(max(found.last_ns, run.started.time_ns + run.duration_ns) - base_ns)
    out.write(f'{{"ph":"i","s":"g","name":"end","pid":{told.pid},"tid":0,"ts":{at}}}\n]}}\n')
    return count


def _lines(
    records: Slots, found: Survey, annotations: Annotations, operations: Operations
) -> Iterator[str]:
    """None to three lines per record."""
    if not len(records):
        return
    columns = zip(
        # The first pass found which calls have operations; the others get a correlation of their
        # own, which joins nothing.
        (records["correlation"] * found.is_joined(records["correlation"])).tolist(),
        *(
            records[name].tolist()
            for name in (
                "kind", "start", "end", "range", "name", "thread", "device", "stream", "context",
                "bytes", "sub", "source_kind", "destination_kind",
            )
        ),
        strict=True,
    )  # fmt: skip
    for (correlation, kind, start, end, node, name, thread, device, stream, context,
         size, sub, source, destination) in columns:  # fmt: skip
        if kind == _CALL:
            yield operations.call(name, thread, start, end, correlation)
        elif kind == _RANGE:
            # For ranges and marks these two fields hold the payload's kind and bits.
            yield annotations.range(node, start, end, source, size)
        elif kind == _MARK:
            yield annotations.mark(name, thread, start, source, size)
        elif kind == _PROJECTION:
            continue  # of all streams together: see OnStreams
        elif kind in _KERNELS:
            yield operations.kernel(name, size, device, context, stream, start, end, correlation,
                                    annotations.captured_in(thread))  # fmt: skip
        else:
            yield operations.memory(kind, sub, source, destination, size, device, context, stream,
                                    start, end, correlation,
                                    annotations.captured_in(thread))  # fmt: skip
