"""What reading a large file costs: user time and peak memory, beside the tools that do the same
where they are installed.

    python tests/bench/bench_imports.py make FOLDER [--report FILE.sqlite] [--traced REC.gputui]
    python tests/bench/bench_imports.py run FOLDER [--rounds 3] [--gputui OTHER/bin/gputui]
        [--nsys NSYS] [--hta VENV/bin/python]

`make` writes reports: with `--report`, a report of `nsys export --type sqlite` repeated 60, 600 and
2,000 times in time; `ranges-N.sqlite`, a training run of two processes that is rich in NVTX
ranges, of about 0.9 and 9 million rows; `chrome-N.json`, a trace of torch.profiler of about 1 and
10 million events; with `--traced`, a recording of gputui whose trace is repeated 10 and 40 times in
time. `run` reads each in alternating rounds with this gputui, with another one, with `nsys stats`
and with HTA, whose Python may be another one's, and prints the user and system time, which other
load disturbs least, and the ratio to what this gputui takes; it says which of them it did not find.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from gputui.store import trace_path
from gputui.store.trace import TraceReader, TraceWriter

REPETITIONS = (60, 600, 2000)
RICH_STEPS = {"ranges-1": 350, "ranges-10": 3500}
CHROME_STEPS = {"chrome-1": 700, "chrome-10": 7000}
TRACE_REPETITIONS = (10, 40)

TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId contextId streamId correlationId globalPid "
    "demangledName shortName mangledName gridX gridY gridZ blockX blockY blockZ "
    "registersPerThread staticSharedMemory dynamicSharedMemory",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId "
    "returnValue",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid "
    "textId domainId uint64Value int64Value doubleValue uint32Value int32Value floatValue",
    "StringIds": "id value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
}
STRINGS = {
    1: "cudaLaunchKernel_v7000", 2: "cudaStreamSynchronize_v3020", 3: "ncclGroupEnd",
    **{10 + n: f"void kernel_{n}<float, {n}>(float*)" for n in range(40)},
    **{60 + n: f"layer {n}" for n in range(24)},
    **{100 + n: name for n, name in enumerate(
        ("step", "forward", "backward", "optimizer", "attention", "mlp", "norm", "all_reduce")
    )},
}  # fmt: skip
LAYERS = 24


class RichReport:
    """Rows of a training run of two processes: steps hold a pass forward and one backward, those
    layers, those three parts each; NCCL's domain has a range around every exchange."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._connection = sqlite3.connect(path)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in TABLES}
        for table, columns in TABLES.items():
            names = ", ".join(f'"{column}"' for column in columns.split())
            self._connection.execute(f'CREATE TABLE "{table}" ({names})')
        self._rows["StringIds"] += STRINGS.items()
        self._rows["TARGET_INFO_SESSION_START_TIME"].append((1_750_000_000_000_000_000,))
        self._correlation = 0

    def write(self, steps: int) -> None:
        """All steps of both processes, one process's rows after each step's."""
        for step in range(steps):
            for rank in (0, 1):
                self._step(rank, step, step * 60_000_000 + rank * 1_000)
            if step % 50 == 0:
                self._flush()
        self._flush()
        self._connection.commit()
        self._connection.close()

    def _flush(self) -> None:
        for table, rows in self._rows.items():
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self._connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
                rows.clear()

    def _step(self, rank: int, step: int, start: int) -> None:
        main = 1 << 48 | (500 + rank) << 24 | (500 + rank)
        backward = main + 40
        moment = start + 10_000
        for task, phase in ((main, 101), (backward, 102)):
            phase_start = moment
            for layer in range(LAYERS):
                layer_start = moment
                for part in range(3):
                    part_start = moment
                    for inner in range(4):
                        self._range(None, f"aten::op_{inner}", task, moment, moment + 90_000)
                        if inner % 2:
                            self._kernel(rank, task, moment + 10_000, layer + part + inner)
                        moment += 100_000
                    self._range(104 + part, None, task, part_start, moment)
                self._range(60 + layer, None, task, layer_start, moment)
                if task == backward:
                    self._range(107, None, task, layer_start + 5_000, moment - 5_000, domain=7)
                    self._kernel(rank, task, moment - 20_000, 39)
                moment += 2_000
            self._range(phase, None, task, phase_start, moment, number=step)
            moment += 5_000
        self._call(main, moment, moment + 900_000, 2)
        self._range(100, None, main, start, moment + 1_000_000, number=step)

    def _range(
        self,
        text_id: int | None,
        text: str | None,
        task: int,
        start: int,
        end: int,
        domain: int = 0,
        number: int | None = None,
    ) -> None:
        self._rows["NVTX_EVENTS"].append(
            (start, end, 59, None, None, None, text, task, None, text_id, domain, None, number,
             None, None, None, None)
        )  # fmt: skip

    def _call(self, task: int, start: int, end: int, name: int) -> None:
        self._correlation += 1
        self._rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            (start, end, 0, task, self._correlation, name, 0)
        )

    def _kernel(self, rank: int, task: int, start: int, kind: int) -> None:
        self._call(task, start, start + 6_000 + self._correlation % 900, 1)
        begins = start + 9_000 + self._correlation % 700
        name = 10 + kind % 40
        self._rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(
            (begins, begins + 20_000 + self._correlation * 7 % 9_000, rank, 1, 7,
             self._correlation, task >> 24 << 24, name, name, name, 64, kind + 1, 1, 256, 1, 1, 40,
             1024, 0)
        )  # fmt: skip


def write_chrome(path: Path, steps: int) -> None:
    """A trace of torch.profiler: operators in annotations, launches and kernels."""

    def events() -> Iterator[dict[str, object]]:
        correlation = 0
        for step in range(steps):
            start = step * 60_000.0
            yield _complete("user_annotation", f"ProfilerStep#{step}", start, 59_000.0)
            for operator in range(475):
                moment = start + 100 + operator * 120
                yield _complete("cpu_op", f"aten::op_{operator % 30}", moment, 100.5)
                correlation += 1
                launch = {"correlation": correlation, "cbid": 211}
                yield _complete("cuda_runtime", "cudaLaunchKernel", moment + 10, 6.25, **launch)
                yield {
                    **_complete("kernel", f"kernel_{operator % 40}", moment + 20.125, 60.0,
                                device=0, context=1, stream=7, correlation=correlation,
                                grid=[64, 1, 1], block=[256, 1, 1],
                                **{"registers per thread": 40, "shared memory": 1024}),
                    "pid": 0, "tid": 7,
                }  # fmt: skip

    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}],\n')
        file.write('"baseTimeNanoseconds": 1750000000000000000, "traceEvents": [\n')
        for number, event in enumerate(events()):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def _complete(
    category: str, name: str, start_us: float, duration_us: float, **arguments: object
) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 500, "tid": 500, "ts": start_us,
            "dur": duration_us, "args": arguments}  # fmt: skip


REPEATED = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME",
            "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            "NVTX_EVENTS")  # fmt: skip


def repeat_report(report: Path, path: Path, times: int) -> None:
    """The same report that many times, one after the other in time."""
    shutil.copyfile(report, path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    runtime = "CUPTI_ACTIVITY_KIND_RUNTIME"
    first, last, highest = connection.execute(
        f"SELECT MIN(start), MAX(end), MAX(correlationId) FROM {runtime}"
    ).fetchone()
    for table in REPEATED:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if not columns:
            continue
        shifts = {"start": (last - first) * 21 // 20, "end": (last - first) * 21 // 20,
                  "correlationId": highest + 1}  # fmt: skip
        values = ", ".join(f'"{name}" + :n * {shifts.get(name, 0)}' if name in shifts
                           else f'"{name}"' for name in columns)  # fmt: skip
        connection.execute(f"CREATE TEMP TABLE once AS SELECT * FROM {table}")
        for number in range(1, times):
            connection.execute(f"INSERT INTO {table} SELECT {values} FROM once", {"n": number})
        connection.execute("DROP TABLE once")
    connection.commit()
    connection.close()


def repeat_trace(recording: Path, path: Path, times: int) -> None:
    """A recording whose trace has the same records that many times, one after the other."""
    trace = TraceReader(trace_path(recording))
    parts = list(trace.portions())
    length = max(int(part["end"].max()) for part in parts) - min(
        int(part["start"].min()) for part in parts
    )
    launches = max(int(part["correlation"].max()) for part in parts) + 1
    shutil.copyfile(recording, path)
    with closing(TraceWriter(trace_path(path), 4 << 30)) as writer:
        for name in list(trace.call_names.values())[:-1]:  # the last is of those without one
            writer.name(name)
        for number in range(times):
            for part in parts:
                later = part.copy()
                later["start"] += number * length
                later["end"] += number * length
                later["correlation"] += number * launches
                writer.append(later)


def make(folder: Path, report: Path | None, traced: Path | None) -> None:
    """Write every file that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for times in TRACE_REPETITIONS if traced else ():
        path = folder / f"traced-{times}.gputui"
        if traced and not path.exists():
            repeat_trace(traced, path, times)
    for times in REPETITIONS if report else ():
        path = folder / f"repeated-{times}.sqlite"
        if report and not path.exists():
            repeat_report(report, path, times)
    for name, steps in RICH_STEPS.items():
        if not (path := folder / f"{name}.sqlite").exists():
            RichReport(path).write(steps)
    for name, steps in CHROME_STEPS.items():
        if not (path := folder / f"{name}.json").exists():
            write_chrome(path, steps)


SIX_SUMS = {
    "six sums": ("cuda_gpu_kern_sum", "cuda_api_sum", "cuda_gpu_mem_time_sum",
                 "cuda_gpu_mem_size_sum", "nvtx_sum", "nvtx_gpu_proj_sum"),
    "six of launches": ("cuda_gpu_kern_sum", "cuda_api_sum", "cuda_kern_exec_sum",
                        "nvtx_pushpop_sum", "nvtx_gpu_proj_sum", "nvtx_kern_sum"),
}  # fmt: skip
"""What is asked first, and what says which range or call a kernel belongs to."""

HTA = """
import sys, tempfile
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "rank-0.json").symlink_to(Path(sys.argv[1]).resolve())
    analysis = TraceAnalysis(trace_files={0: str(Path(folder, "rank-0.json"))}, trace_dir=folder)
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
"""
"""Temporal and kernel breakdown of one trace by Holistic Trace Analysis."""


HTA_BYTES = 1 << 30
"""The largest trace that HTA is given: of one with a million events, a sixth of that, it holds
1.4 GB."""


Commands = dict[str, list[list[str]]]
"""What is run one after the other, by what it is called."""


def commands_of(
    path: Path, out: Path, other: str | None, nsys: str | None, hta: str | None
) -> Commands:
    """What reads a file, by name: this gputui, another one, and the peers that are found. What they
    write goes to the folder `out`."""
    tools = {"gputui": [sys.executable, "-m", "gputui"]} | ({"other": [other]} if other else {})
    summaries = {name: [*tool, "summary", str(path)] for name, tool in tools.items()}
    commands = {name: [summary] for name, summary in summaries.items()}
    if path.suffix == ".json":
        is_compared = hta and path.stat().st_size <= HTA_BYTES
        return commands | ({"HTA": [[str(hta), "-c", HTA, str(path)]]} if is_compared else {})
    if path.suffix == ".gputui":
        for name, tool in tools.items():
            for events in ("cuda_gpu_trace", "cuda_api_trace"):
                shown = ["summary", str(path), "--table", events, "--format", "csv"]
                commands[f"{name}, {events}"] = [[*tool, *shown]]
            written = ["--format", "chrome", "-o", str(out / "export.json")]
            commands[f"{name}, chrome"] = [[*tool, "export", str(path), *written]]
        return commands
    table = ["--table", "cuda_gpu_kern_sum"]
    commands |= {f"{name}, a table": [[*summary, *table]] for name, summary in summaries.items()}
    if nsys:
        stats = [nsys, "stats", "--format", "csv", "--report"]
        commands["nsys, a table"] = [[*stats, "cuda_gpu_kern_sum", str(path)]]
    for what, sums in SIX_SUMS.items():
        named = [word for name in sums for word in ("--table", name)]
        commands |= {f"{name}, {what}": [[*summary, *named, "--format", "csv"]]
                     for name, summary in summaries.items()}  # fmt: skip
        if nsys:
            commands[f"nsys, {what}"] = [[*stats, name, str(path)] for name in sums]
    return commands


def measure(commands: list[list[str]]) -> tuple[float, float]:
    """Seconds of user and system time of commands, which must succeed, and the most MB of one."""
    # Compiling the source again at every start is no part of it.
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    seconds, megabytes = 0.0, 0.0
    for command in commands:
        process = os.posix_spawnp(
            command[0],
            command,
            environment,
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, 1, 0)],
        )
        _, status, used = os.wait4(process, 0)
        if status:
            raise SystemExit(f"{' '.join(command)} failed: {status}")
        seconds += used.ru_utime + used.ru_stime
        megabytes = max(megabytes, used.ru_maxrss / 1024)
    return seconds, megabytes


def _compared_with(name: str) -> str:
    """Which of this gputui's commands does the same."""
    _, comma, what = name.partition(", ")
    return f"gputui{comma}{what}"


def run(
    folder: Path, out: Path, rounds: int, other: str | None, nsys: str | None, hta: str | None
) -> None:
    """Every file with every tool in turn; the medians. What they write goes to the folder `out`."""
    for peer, is_there in (("nsys", nsys), ("HTA", hta)):
        if not is_there:
            print(f"{peer} is not installed here: it is not compared")
    for path in sorted(
        path for kind in ("sqlite", "json", "gputui") for path in folder.glob(f"*.{kind}")
    ):
        commands = commands_of(path, out, other, nsys, hta)
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                figures[name].append(measure(command))
        for name, pairs in figures.items():
            seconds, megabytes = (statistics.median(column) for column in zip(*pairs, strict=True))
            # Of each round, so that what disturbs both disturbs their ratio less.
            ours = figures[_compared_with(name)]
            ratio = statistics.median(
                first[0] / own[0] for first, own in zip(ours, pairs, strict=True)
            )
            print(f"{path.name:<22}{name:<22}{seconds:>8.2f} s{megabytes:>8.0f} MB"
                  f"   gputui takes {ratio:.2f} of it", flush=True)  # fmt: skip


def main() -> None:
    """Make files or read them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--traced", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gputui", help="another gputui to compare with")
    parser.add_argument("--nsys", default=shutil.which("nsys"))
    parser.add_argument(
        "--hta", default=sys.executable if find_spec("hta") else None, help="a Python that has HTA"
    )
    options = parser.parse_args()
    if options.action == "make":
        make(options.folder, options.report, options.traced)
    else:
        with tempfile.TemporaryDirectory() as out:
            run(
                options.folder, Path(out), options.rounds, options.gputui, options.nsys, options.hta
            )


if __name__ == "__main__":
    main()
