"""The traced processes of a run: who they are, when they came and went, what was seen of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gputui.report.columns import Table, count, number, spare, text, time
from gputui.state import Process, Run, Session


@dataclass(frozen=True, slots=True)
class TracedRow:
    """One process of a run that loaded the capture library.

    Times are since the run's start: of its loading the capture library and of its goodbye by its
    own clock; of one that vanished, and in older recordings, of when the reader saw it (it looks
    every 0.25 s or more often). `end_ns` is None for one that has not gone. `how_ended` is
    "running", "ended", "vanished" (killed, or gone without a word) or, where the recording ends
    first, "not seen to end". `gpus` are those that ran something of it.
    """

    process: Process
    start_ns: int
    end_ns: int | None
    how_ended: str
    gpus: tuple[int, ...]

    @property
    def threads(self) -> tuple[str, ...]:
        """Names of its threads, in order of their ids."""
        return tuple(named.name for _, named in sorted(self.process.threads.items()))


def traced_rows(run: Run) -> list[TracedRow]:
    """The traced processes of `run`, in the order in which they were seen."""
    return [_row(run, number, process) for number, process in run.processes.items()]


def _row(run: Run, number: int, process: Process) -> TracedRow:
    began_ns, detached, ended_ns = run.started.time_ns, process.detached, process.ended_ns
    # What was seen after the run's end, at the last poll, happened by then.
    latest_ns = run.duration_ns
    if detached is not None:
        how = "ended" if detached.clean else "vanished"
    else:
        how = "running" if run.is_active else "not seen to end"
    start_ns = min(max(0, process.began_ns - began_ns), latest_ns)
    return TracedRow(
        process=process,
        start_ns=start_ns,
        end_ns=None if ended_ns is None else min(max(start_ns, ended_ns - began_ns), latest_ns),
        how_ended=how,
        gpus=tuple(sorted(gpu for owner, gpu in run.timing.devices if owner == number)),
    )


def thread_words(row: TracedRow) -> str:
    """Its threads' names, each once: "python, loader × 4"."""
    names = Counter(row.threads)
    return ", ".join(name if n == 1 else f"{name} × {n}" for name, n in names.items())


def processes_table(_session: Session, run: Run) -> Table:
    """A line a traced process."""
    return Table(
        "processes",
        "Traced Processes",
        (
            number("PID"),
            spare(4, number("Parent")),
            spare(1, number("Rank")),
            spare(3, number("Local Rank")),
            time("Start (ns)"),
            time("End (ns)"),
            text("State"),
            spare(2, count("Records")),
            spare(5, count("Dropped")),
            text("GPUs"),
            text("CUDA"),
            text("Threads"),
            text("Command"),
        ),
        tuple(
            (
                row.process.attached.pid,
                row.process.attached.parent_pid,
                row.process.attached.rank,
                row.process.attached.local_rank,
                row.start_ns,
                row.end_ns,
                row.how_ended,
                row.process.records,
                row.process.dropped,
                " ".join(map(str, row.gpus)),
                row.process.attached.cuda_status,
                thread_words(row),
                row.process.attached.command,
            )
            for row in traced_rows(run)
        ),
        "times since the run's start",
    )
