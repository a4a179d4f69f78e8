"""A report in which NVTX ranges lie in every way that the tables of nsys must cope with.

`python tests/report/nvtx_cases.py OUT.sqlite` writes it, the same each time;
`nsys_ranges/SEED/` holds
what `nsys stats` prints of it.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from pathlib import Path

from gputui.render.nsys import TABLES

DOMAINS = {0: "", 1: "app", 2: "NCCL"}
KERNELS = (
    ("void gemm<float>(int)", "gemm", "_Z4gemmIfEvi"),
    ("void gemm<double>(int)", "gemm", "_Z4gemmIdEvi"),
    ("softmax", "softmax", "softmax"),
)
CALLS = ("cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000", "cudaMemcpyAsync_v3020")
PROCESSES = {500: (500, 510, 511), 600: (600,)}
"""Threads by process; the first is the main one."""

STEPS = 260
_PUSH_POP, _START_END, _DOMAIN = 59, 60, 75


class _Report:
    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, object]]] = {}
        self.strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def add(self, table: str, **row: object) -> None:
        self.rows.setdefault(table, []).append(row)


def _task(process: int, thread: int) -> int:
    return 1 << 48 | process << 24 | thread


class _Process:
    """A program that does at random what programs do."""

    def __init__(self, report: _Report, pid: int, dice: random.Random) -> None:
        self.report, self.pid, self.dice = report, pid, dice
        self.stacks: dict[tuple[int, int], list[dict[str, object]]] = {}
        self.started: list[dict[str, object]] = []
        self.correlation = 0
        for number, name in DOMAINS.items():
            if number:
                report.add(
                    "NVTX_EVENTS", start=0, eventType=_DOMAIN, text=name, domainId=number,
                    globalTid=_task(pid, pid),
                )  # fmt: skip

    def step(self, clock: int) -> int:
        """One thing, at `clock`; when it is over."""
        thread = self.dice.choice(PROCESSES[self.pid])
        domain = self.dice.choice((0, 0, 0, 1, 2))
        what = self.dice.choice(["push", "push", "pop", "start", "end", "call", "call", "call"])
        stack = self.stacks.setdefault((thread, domain), [])
        task = _task(self.pid, thread)
        if what == "push" or (what == "start" and len(self.started) < 6):
            row: dict[str, object] = {
                "start": clock, "globalTid": task, "domainId": domain,
                "eventType": _PUSH_POP if what == "push" else _START_END,
                "textId": self.report.string(self.dice.choice(("step", "layer", "mlp"))),
            }  # fmt: skip
            self.report.add("NVTX_EVENTS", **row)
            (stack if what == "push" else self.started).append(self.report.rows["NVTX_EVENTS"][-1])
        elif what == "pop" and stack:
            stack.pop()["end"] = clock
        elif what == "end" and self.started:
            ended = self.started.pop(self.dice.randrange(len(self.started)))
            ended["end"] = clock
            by = self.dice.choice((0, 0, thread))
            if by and _task(self.pid, by) != ended["globalTid"]:
                ended["endGlobalTid"] = _task(self.pid, by)
        elif what == "call":
            return self.call(clock, task)
        return clock

    def call(self, clock: int, task: int) -> int:
        self.correlation += 1
        end = clock + self.dice.randrange(2_000, 9_000)
        which = self.dice.choice((0, 0, 0, 1, 2))
        self.report.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=clock, end=end, eventClass=0, globalTid=task,
            correlationId=self.correlation, nameId=self.report.string(CALLS[which]), returnValue=0,
        )  # fmt: skip
        at = clock + self.dice.randrange(5_000, 60_000)
        for _ in range(1 if which != 1 else 4):
            length = self.dice.randrange(1_000, 30_000)
            operation = {
                "start": at, "end": at + length, "deviceId": 0, "contextId": 1, "streamId": 7,
                "correlationId": self.correlation, "globalPid": _task(self.pid, 0),
            }  # fmt: skip
            if which == 2:
                self.report.add(
                    "CUPTI_ACTIVITY_KIND_MEMCPY", **operation, bytes=length, copyKind=1, srcKind=1,
                    dstKind=2,
                )  # fmt: skip
            else:
                names = map(self.report.string, self.dice.choice(KERNELS))
                keys = ("demangledName", "shortName", "mangledName")
                zeros = dict.fromkeys(_zeros(), 0)
                self.report.add(
                    "CUPTI_ACTIVITY_KIND_KERNEL",
                    **{**zeros, **operation, **dict(zip(keys, names, strict=True))},
                )
            at += length + self.dice.randrange(1, 3_000)
        return end


def _zeros() -> tuple[str, ...]:
    known = "gridX gridY gridZ blockX blockY blockZ registersPerThread staticSharedMemory"
    return tuple(known.split())


def write_cases(path: Path, seed: int = 7) -> Path:
    """Write the report."""
    report, dice = _Report(), random.Random(seed)
    report.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_750_000_000_000_000_000)
    programs = [_Process(report, pid, dice) for pid in PROCESSES]
    clock = 1_000
    for _ in range(STEPS):
        clock = dice.choice(programs).step(clock + dice.randrange(1_000, 20_000))
    # What is open lasts until the last word.
    report.add(
        "NVTX_EVENTS", start=clock + 1_000, end=clock + 2_000, eventType=_PUSH_POP,
        textId=report.string("last"), domainId=0, globalTid=_task(500, 512),
    )  # fmt: skip
    for text, number in report.strings.items():
        report.add("StringIds", id=number, value=text)
    _write(path, report)
    return path


def _write(path: Path, report: _Report) -> None:
    connection = sqlite3.connect(path)
    for table, definition in TABLES.items():
        columns = [column.partition(":") for column in definition.split()]
        fields = (f'"{name}" {kind or "INTEGER"}' for name, _, kind in columns)
        connection.execute(f"CREATE TABLE {table} ({', '.join(fields)})")
        names = [name for name, _, _ in columns]
        connection.executemany(
            f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})",
            [[row.get(name) for name in names] for row in report.rows.get(table, ())],
        )
    connection.commit()
    connection.close()


if __name__ == "__main__":
    write_cases(Path(sys.argv[1]))
