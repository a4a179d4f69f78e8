"""What a workload's run would need, asked of the workloads' own process while a form is typed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from gputui.base.decoding import convert, json_decoder
from gputui.base.sanitize import sanitize_document
from gputui.collect.catalogue import MODULE, CatalogueError, Value

_END_S = 1.0


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """`wrong` says why the values of the parameters `names` do not go together. Memory and time are
    the least that a run needs, None where the workload does not say."""

    wrong: str | None = None
    names: tuple[str, ...] = ()
    memory_bytes: int | None = None
    seconds: float | None = None


class Forecaster:
    """One `python -m workloads --forecast`, started at the first question. Close it: a question
    that waits then ends with CatalogueError."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def ask(self, workload: str, values: Mapping[str, Value], gpu: str | None) -> Forecast:
        """What a run with these `values`, the others at their defaults, would need of the GPU of
        this name; None is a run on the CPU. Blocks, about 1 ms after the first. Raises
        CatalogueError.
        """
        question = {"workload": workload, "values": dict(values), "gpu": gpu}
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(msgspec.json.encode(question) + b"\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                return convert(sanitize_document(json_decoder(Any).decode(answer)), Forecast)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                raise CatalogueError(f"the workloads gave no forecast: {error}") from None

    def close(self) -> None:
        """End the process."""
        self._is_closed = True
        process = self._process
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        with self._lock, contextlib.suppress(OSError):
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise CatalogueError("the form was closed")
        if self._process is None or self._process.poll() is not None:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE, "--forecast"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                raise CatalogueError(f"the workloads gave no forecast: {error}") from None
        return self._process
