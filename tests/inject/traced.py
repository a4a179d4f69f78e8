"""Runs real programs with the capture library in them and gives what arrived in their rings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gputui.inject.environment import capture_environment
from gputui.ring import SLOT, RecordKind
from gputui.ring.reader import (
    Records,
    RingFacts,
    RingFolder,
    RingHealth,
    RingReader,
    StringDefinitions,
)

RANGES = (
    RecordKind.RANGE_PUSH,
    RecordKind.RANGE_POP,
    RecordKind.RANGE_START,
    RecordKind.RANGE_END,
    RecordKind.MARK,
)
LIMIT_S = 300
"""Against what hangs: the machine may be slow."""


def python_of(version: str) -> str | None:
    """An interpreter of that version, as "3.12", if there is one that runs."""
    for each in (
        shutil.which(f"python{version}"),
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
    ):
        if each and not subprocess.call([each, "-c", ""], stderr=subprocess.DEVNULL):
            return str(each)
    return None


@dataclass
class Trace:
    """One process: its ring, read to the end."""

    facts: RingFacts
    health: RingHealth
    exited: bool
    records: Records
    strings: dict[int, str]
    sent: list[tuple[int, str]]

    def of(self, *kinds: RecordKind) -> Records:
        return self.records[np.isin(self.records["kind"], kinds)]

    def name(self, string_id: int) -> str:
        return self.strings[int(string_id)] if string_id else ""

    def ranges(self) -> list[tuple[str, ...]]:
        """("push", name, domain, level), ("pop", domain, level), ("mark", name, domain) …"""
        found: list[tuple[str, ...]] = []
        for record in self.of(*RANGES):
            kind = RecordKind(int(record["kind"]))
            word = kind.name.removeprefix("RANGE_").lower()
            row = [word]
            if kind not in {RecordKind.RANGE_POP, RecordKind.RANGE_END}:
                row.append(self.name(record["name"]))
            if kind != RecordKind.RANGE_END:
                row.append(self.name(record["a"]))
            if kind in {RecordKind.RANGE_PUSH, RecordKind.RANGE_POP}:
                row.append(str(int(record["d"])))
            found.append(tuple(row))
        return found


@dataclass
class Outcome:
    traces: list[Trace]
    status: int
    output: str
    problems: list[str] = field(default_factory=list)

    @property
    def trace(self) -> Trace:
        assert len(self.traces) == 1, [trace.facts for trace in self.traces]
        return self.traces[0]

    @property
    def words(self) -> list[str]:
        return self.output.split()


class _Drain:
    def __init__(self, reader: RingReader) -> None:
        self.reader = reader
        self.definitions = StringDefinitions()
        self.batches: list[Records] = []
        self.strings: dict[int, str] = {}
        self.sent: list[tuple[int, str]] = []
        self.done = False

    def step(self) -> None:
        gone = self.reader.gone
        while len(batch := self.reader.read(50_000, process_gone=gone)):
            records, strings = self.definitions.split(batch)
            self.batches.append(records)
            self.strings |= strings
            self.sent += strings.items()
        self.done = gone

    def finish(self) -> Trace:
        records = np.concatenate(self.batches) if self.batches else np.empty(0, SLOT)
        trace = Trace(
            facts=self.reader.facts,
            health=self.reader.health(),
            exited=self.reader.exited,
            records=records,
            strings=self.strings,
            sent=self.sent,
        )
        self.reader.close()
        return trace


def environment(
    folder: Path,
    extra: dict[str, str] | None = None,
    kernels: bool = False,
    annotate=None,
    step_marks: bool = False,
):
    clear = {name: value for name, value in os.environ.items() if "INJECTION64" not in name}
    made, problem = capture_environment(
        folder, kernels, clear, annotate=annotate, step_marks=step_marks
    )
    assert problem == (None, None)
    return made | (extra or {})


def run(
    command: list[str],
    folder: Path,
    extra: dict[str, str] | None = None,
    kernels: bool = False,
    drain: bool = True,
    annotate: str | None = None,
    step_marks: bool = False,
) -> Outcome:
    """Runs `command` captured; with `drain` its rings are read while it runs, else at its end."""
    process = subprocess.Popen(
        command,
        env=environment(folder, extra, kernels, annotate, step_marks),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    rings = RingFolder(folder)
    drains: list[_Drain] = []
    problems: list[str] = []
    began = time.monotonic()
    output = None
    while True:
        try:  # also what paces the loop
            if output is None:
                output = process.communicate(timeout=0.01)[0]
        except subprocess.TimeoutExpired:
            pass
        running = output is None
        if drain or not running:
            found, refused = rings.discover()
            drains += [_Drain(reader) for reader in found]
            problems += refused
            for each in drains:
                if not each.done:
                    each.step()
        if not running and all(each.done for each in drains):
            break
        if time.monotonic() - began > LIMIT_S:
            process.kill()
            raise TimeoutError(f"{command} is still running")
    traces = sorted((each.finish() for each in drains), key=lambda trace: trace.facts.start_ns)
    return Outcome(traces, process.returncode, output, problems)


def run_python(source: str, folder: Path, **options) -> Outcome:
    outcome = run([sys.executable, "-c", source], folder, **options)
    assert outcome.status == 0, outcome.output
    return outcome
