"""What a person must know about a run to trust its figures: one line each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Literal

import msgspec

from gputui.state.run import Process, Run

SO_FAR_NS = 10_000_000_000
"""How long to wait before remarking on what has not happened yet."""

NEWEST_CUPTI = 130500
"""The newest CUPTI, by its own number, whose records are known to have the fields that are read."""

CUPTI_STAYS = "CUPTI stays until the program ends and takes 4 to 8 % of a launch-bound one's time"
"""After kernels were traced in a program that goes on. The figure is of an eager decode on H100s
(docs/cost.md)."""

# A remark is a line or two.
_NAMES = 8
_LETTERS = 60


class Remark(msgspec.Struct, frozen=True):
    """`about` identifies a remark whose words change while a run goes on."""

    about: Literal[
        "not captured",
        "forks",
        "CUPTI",
        "--trace-steps",
        "--annotate",
        "left out",
        "ranges",
        "CUDA graphs",
        "launches",
        "times",
        "CUDA_LAUNCH_BLOCKING",
        "counters",
        "the end",
        "a failed launch",
        "detached",
    ]
    text: str

    @property
    def line(self) -> str:
        """The remark as one line: what it is about, then its text."""
        about = "not captured" if self.about == "forks" else self.about
        return f"{about}: {self.text}"


SHAPES_COST = "a range with shapes around every operator makes steps longer"
"""A step that waits for launches took 9.4 ms for 4.8 with ranges of modules (an MLP, an H200)."""


def remarks(run: Run) -> list[Remark]:
    """What is known so far; everything once the run has ended."""
    lines: list[Remark] = []
    if run.unseen_reason:
        lines.append(Remark("not captured", run.unseen_reason))
    if run.unseen_forks:
        lines.append(Remark("forks", run.unseen_forks))
    if words := _untested_cupti(run):
        lines.append(Remark("CUPTI", words))
    if run.launches_block:
        lines.append(Remark("CUDA_LAUNCH_BLOCKING", "it is set: each launch waits for its kernel"))
    if words := _missing_step(run):
        lines.append(Remark("--trace-steps", words))
    if words := _nothing_annotated(run):
        lines.append(Remark("--annotate", words))
    elif run.started.operator_shapes:
        lines.append(Remark("--annotate", SHAPES_COST))
    if left_out := sum(process.left_out_nodes for process in run.processes.values()):
        lines.append(Remark("left out", f"{left_out} ranges, too many, too deep or too long"))
    if astray := run.undefined_range_records:
        lines.append(Remark("ranges", _astray(astray)))
    if unseen := _unseen_graphs(run):
        lines.append(Remark("CUDA graphs", unseen))
    lines += [
        Remark("counters", f"GPU {gpu}: {event.unavailable_reason}")
        for gpu, event in sorted(run.counters.items())
        if event.unavailable_reason is not None
    ]
    if ending := _made_to_end(run):
        lines.append(Remark("the end", ending))
    if _launch_failed(run):
        lines.append(Remark("a failed launch", FAILED_LAUNCH))
    if run.outcome == "detached" and any(process.traced_ns for process in run.processes.values()):
        lines.append(Remark("detached", CUPTI_STAYS))
    if lost := sum(process.contradicted for process in run.processes.values()):
        lines.append(Remark("launches", _contradicted(lost)))
    if wrong := sum(process.wrong_times for process in run.processes.values()):
        lines.append(Remark("times", _wrong_times(wrong)))
    return lines


FAILED_LAUNCH = (
    "the program ended on a launch that failed. If it does not without gputui, it is what CUPTI "
    "does to trace kernels: --graph-trace graph has it leave the nodes of CUDA graphs alone, "
    "--no-kernels all"
)


def _launch_failed(run: Run) -> bool:
    """Whether a traced program says that a launch failed, as it failed itself."""
    return (
        run.outcome == "failed"
        and any(_sees_kernels(process) for process in run.processes.values())
        and any("unspecified launch failure" in line.text for line in run.log)
    )


def _made_to_end(run: Run) -> str | None:
    """The processes that did not end by themselves, and what was left."""
    if run.ended is None:
        return None
    killed = tuple(pid for pid in run.ended.killed if pid not in run.ended.left)
    clauses = [
        f"{_processes(run, pids)} {words}"
        for pids, words in (
            (run.ended.continued, "stopped (SIGSTOP), and continued so as to end"),
            (killed, "killed: SIGTERM did not end it in time"),
            (run.ended.left, "left: SIGKILL brought no end"),
        )
        if pids
    ]
    return "; ".join(clauses) or None


def _processes(run: Run, pids: Sequence[int]) -> str:
    """Names of processes, with their ranks where they are known."""
    ranks = {process.attached.pid: process.attached.rank for process in run.processes.values()}
    names = [
        f"{pid}" if (rank := ranks.get(pid)) is None else f"{pid} (rank {rank})" for pid in pids
    ]
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    listed = ", ".join(names[:_NAMES])
    return f"process {listed} was" if len(names) == 1 else f"processes {listed}{more} were"


def _unseen_graphs(run: Run) -> str | None:
    """How many kernels are of graphs whose capture was not seen."""
    unseen = [node for node in run.ranges.values() if node.definition.graph == "unseen"]
    kernels = sum(node.launched.kernels for node in unseen)
    if not kernels:
        return None
    # Of graphs from before gputui attached, or the first window of --max-cost, of child graphs, or
    # where records were lost.
    return f"{kernels:,} kernels are of graphs built unseen (XLA's are): of no phase and no line"


def _wrong_times(operations: int) -> str:
    them = "1 operation" if operations == 1 else f"{operations} operations"
    return (
        f"CUPTI gave {them} an impossible time, as it does where a program leaves work on the GPU "
        "at its end: counted, but not as GPU time"
    )


def _contradicted(operations: int) -> str:
    return (
        f"CUPTI gave {operations} operations the number of a call that cannot have launched them "
        "(seen once it had been switched on in a running program several times); they are in no "
        "phase. A program that gputui starts, without --max-cost, is not affected"
    )


def _untested_cupti(run: Run) -> str | None:
    processes = [process for process in run.processes.values() if _sees_kernels(process)]
    newest = max((process.attached.cupti_version or 0 for process in processes), default=0)
    if newest <= NEWEST_CUPTI:
        return None
    return (
        # Records are read by one table of fields, checked against NVIDIA's headers up to that
        # version.
        f"version {newest} is newer than {NEWEST_CUPTI}, the newest tested: figures of kernels and "
        "copies may be wrong"
    )


def _astray(records: int) -> str:
    what = (
        "1 kernel, copy or call is" if records == 1 else f"{records} kernels, copies and calls are"
    )
    return f"{what} in ranges that the recording does not define, and count outside every range"


def _nothing_annotated(run: Run) -> str | None:
    """No process ran what was to be annotated. While the run goes on that is known only where one
    already uses a GPU: importing torch may take any time, and comes before.
    """
    if run.started.annotate is None or run.started.pid is None or _is_young(run):
        return None
    if any(process.attached.annotated for process in run.processes.values()):
        return None
    # Not before a GPU is used: a slow import of torch was once taken for a program without
    # annotations.
    if run.is_active and not any(_sees_kernels(process) for process in run.processes.values()):
        return None
    return (
        f"nothing to annotate{_so_far(run)}: no Python process of the run imported torch, "
        "or it ignores PYTHONPATH (as with -I and -E)"
    )


def _missing_step(run: Run) -> str | None:
    """The range to be counted did not occur where kernels were traced."""
    name = run.started.traced_step
    if name is None or not run.processes or _is_young(run):
        return None
    nodes = [node.definition for node in run.ranges.values()]
    pushed = {node.process for node in nodes if node.name == name and node.style == "PushPop"}
    traced = {number for number, process in run.processes.items() if _sees_kernels(process)}
    missing = traced - pushed
    if not missing if traced else pushed:
        return None
    where = ""
    if len(missing) < len(traced):
        where = " in pid " + ", ".join(str(run.processes[n].attached.pid) for n in sorted(missing))
    kernels = "its kernels" if where else "kernels"
    verb = "are" if run.is_active else "were"
    what = f"{kernels} {verb} traced all the time" if traced else "no kernels are captured either"
    words = f"no range named {_short(name)} occurred{_so_far(run)}{where}: {what}"
    if any(node.name == name for node in nodes if node.process not in pushed):
        return f"{words}; it occurred as a start/end range, and steps are counted by push and pop"
    return f"{words}; {_names(run, name)}"


def _sees_kernels(process: Process) -> bool:
    return process.attached.cuda_status == "tracing" or process.traced_ns > 0


def _names(run: Run, wanted: str) -> str:
    """The names that did occur: first those similar to the wanted one, then the outermost."""
    definitions = sorted(run.ranges.values(), key=lambda node: node.depth)
    names = list(dict.fromkeys(node.definition.name for node in definitions))
    if not names:
        return "there were no ranges"
    alike = difflib.get_close_matches(wanted, names[:1000], n=3)
    first = list(dict.fromkeys((*alike, *names)))[:_NAMES]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return f"ranges there were: {', '.join(map(_short, first))}{more}"


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…"


def _is_young(run: Run) -> bool:
    return run.is_active and run.duration_ns < SO_FAR_NS


def _so_far(run: Run) -> str:
    return " so far" if run.is_active else ""
