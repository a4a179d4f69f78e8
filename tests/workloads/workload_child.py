"""Running `python -m workloads` as a child, the way a monitor does."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import select
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workloads
from tests.workloads.forked_python import ForkedPython

ROOT = Path(workloads.__file__).resolve().parent.parent


@dataclass
class Finished:
    """A child that ended: its status, what it wrote, and the lines on its report pipe."""

    status: int
    stdout: str
    stderr: str
    reports: list[dict[str, Any]]

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stdout)
        return document

    def result(self) -> dict[str, Any]:
        """The document without its tables, which the pipe carries apart."""
        return {name: value for name, value in self.document().items() if name != "tables"}

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of one table, by column."""
        (table,) = [table for table in self.document()["tables"] if table["name"] == name]
        names = [column["name"] for column in table["columns"]]
        return [dict(zip(names, row, strict=True)) for row in table["rows"]]

    def reported(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.reports if message["type"] == kind]


class Child:
    """`python -m workloads ARGUMENTS` with a report pipe, running; forked where it needs torch.

    With `room` its pipe holds only so many bytes until it is read.
    """

    def __init__(
        self,
        *arguments: str,
        path: Path | None = None,
        folder: Path = ROOT,
        torch: bool = False,
        room: int | None = None,
    ) -> None:
        reader, writer = os.pipe()
        self._filled = 0
        if room is not None:
            size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
            self._filled = os.write(writer, b" " * (size - room))
        environment = {**os.environ, "GPUTUI_REPORT_FD": str(writer)}
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        words = ["-m", "workloads", *arguments]
        self.process: subprocess.Popen[str] | ForkedPython
        if torch:
            self.process = ForkedPython(words, environment, folder, [writer])
        else:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                cwd=folder,
                env=environment,
                pass_fds=[writer],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        os.close(writer)
        self.pipe = os.fdopen(reader)
        self.reports: list[dict[str, Any]] = []

    def wait_for(self, kind: str, stage: str | None = None) -> dict[str, Any]:
        """Reads reports up to the first of `kind` (in `stage`)."""
        for line in self.pipe:
            message: dict[str, Any] = json.loads(line)
            self.reports.append(message)
            if message["type"] == kind and stage in (None, message.get("stage")):
                return message
        raise AssertionError(f"no {kind} came; stderr: {self.process.communicate()[1]}")

    def wait_until_reported(self) -> None:
        """Until there is something in the pipe, which is not read: so it may be full."""
        ended = select.poll()
        ended.register(self.pipe, 0)
        waiting = bytearray(4)
        fcntl.ioctl(self.pipe, termios.FIONREAD, waiting)
        while int.from_bytes(waiting, sys.byteorder) <= self._filled:
            assert not ended.poll(5), f"nothing came; stderr: {self.process.communicate()[1]}"
            fcntl.ioctl(self.pipe, termios.FIONREAD, waiting)

    def finish(self, *, unread: bool = False) -> Finished:
        """How it ended; with `unread`, what is in the pipe is read only then: room in it would let
        a child that was sent a signal write on."""
        ended = self.process.communicate() if unread else None
        self.reports += [json.loads(line) for line in self.pipe if not self.pipe.closed]
        self.pipe.close()
        stdout, stderr = ended or self.process.communicate()
        status = self.process.returncode
        assert status is not None
        return Finished(status, stdout, stderr, self.reports)
