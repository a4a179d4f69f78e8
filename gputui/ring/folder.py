"""The folder of a run, in which its processes create their rings."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from gputui.ring.reader import RingError, RingReader

RINGS_MAX = 4096
"""Rings opened per folder: each is a process that loaded CUDA or NVTX."""

_REFUSED_NAME = re.compile(r"[0-9]{1,10}-([0-9]{1,4})\.refused")
_RING_NAME = re.compile(r"[0-9]{1,10}-[0-9]{1,20}\.ring")


class RingFolder:
    """The folder in which the processes of one run create their rings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refused: set[str] = set()
        self._lost = False
        self.refusals: Counter[int] = Counter()
        """Processes that could not make a ring, by the error's number (see errno)."""

        self.seen_ns = 0
        """When `discover` last saw the folder change, 0 before its first call."""

    def _changed_ns(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def discover(self) -> tuple[list[RingReader], list[str]]:
        """Rings that appeared since the last call, and a line for each that cannot be read.

        Opening a ring unlinks it: its memory lives as long as the process and the reader, and no
        longer, however either of them ends.
        """
        readers: list[RingReader] = []
        problems: list[str] = []
        self.seen_ns = self._changed_ns()
        try:
            names = sorted(os.listdir(self.path))
        except OSError as error:
            if self._lost:
                return [], []
            self._lost = True
            return [], [f"{self.path}: {error.strerror}: processes that start now are not captured"]
        for name in names[:RINGS_MAX]:
            path = self.path / name
            if refusal := _REFUSED_NAME.fullmatch(name):
                self._count_refusal(path, int(refusal[1]))
            if name in self._refused or not _RING_NAME.fullmatch(name):
                continue
            try:
                readers.append(RingReader(path))
            except RingError as error:
                self._refused.add(name)
                problems.append(str(error))
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError:  # the program revoked our permission: the ring goes with the folder
                self._refused.add(name)
        return readers, problems

    def _count_refusal(self, path: Path, error: int) -> None:
        if path.name not in self._refused:
            self.refusals[error] += 1
        try:
            path.unlink()
        except OSError:
            self._refused.add(path.name)
