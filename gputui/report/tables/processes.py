"""The traced processes of a run: who they are, when they came and went, what was seen of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gputui.report.schema import TableSpec, count, number, text, time
from gputui.state import Process, Run


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


PROCESSES: TableSpec[TracedRow] = TableSpec(
    key="processes",
    title="Traced Processes",
    meaning="Processes of the run that loaded the capture library.",
    columns=(
        number("PID", "pid", lambda row: row.process.attached.pid, "The process", label="pid",
               width=7),
        number("Parent", "parent_pid", lambda row: row.process.attached.parent_pid, "Its parent",
               priority=6, label="parent", width=7),
        number("Rank", "rank", lambda row: row.process.attached.rank, "Its rank",
               kind=int | None, priority=2, label="rank", width=4),
        number("Local Rank", "local_rank", lambda row: row.process.attached.local_rank,
               "Its rank on this host", kind=int | None, priority=5, label="local", width=5),
        time("Start", "start_ns", lambda row: row.start_ns,
             "When it loaded the library, since the run's start", priority=1, label="came",
             width=8),
        time("End", "end_ns", lambda row: row.end_ns,
             "When it ended, since the run's start; missing while it runs", kind=int | None,
             priority=1, label="went", width=8),
        text("State", "state", lambda row: row.how_ended,
             "running, ended, vanished, or not seen to end", flexible=False, label="state",
             width=15),
        count("Records", "records", lambda row: row.process.records, "Records read from it",
              priority=3, label="records", width=7),
        count("Dropped", "dropped", lambda row: row.process.dropped, "Records lost", priority=4,
              label="dropped", width=7),
        text("GPUs", "gpus", lambda row: " ".join(map(str, row.gpus)), "GPUs that ran its work",
             kind=list[int], document=lambda row: list(row.gpus), right=True, flexible=False,
             priority=2, label="GPUs", width=4),
        text("CUDA", "cuda_status", lambda row: row.process.attached.cuda_status,
             "Whether its kernels are traced, or why not", flexible=False, priority=6, label="CUDA",
             width=8),
        text("Threads", "threads", thread_words, "Names of its threads", flexible=False,
             priority=7, label="threads", width=20, right=True),
        text("Command", "command", lambda row: row.process.attached.command, "The command line",
             label="command", width=16),
    ),
    rows=lambda _session, run: traced_rows(run),
    order=900,
    in_summary=True,
    note=lambda _run, _rows: "times since the run's start",
)  # fmt: skip
TABLES = (PROCESSES,)
