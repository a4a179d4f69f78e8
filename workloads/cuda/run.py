"""Runs `cuda`: nvcc, then the compiled program."""

from __future__ import annotations

import ctypes
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import nvtx
import torch

from ..declaration import FigureValue, Outcome, Row, Value
from ..devices import find_device
from ..errors import CannotRun
from ..report import Report
from ..stopping import StopRequest
from . import CUDA

COMPILE = nvtx.annotate("compile")
RUN = nvtx.annotate("run")

_SAMPLE = Path(__file__).with_name("matmul.cu")
_FIGURE = re.compile(r"\s*([A-Za-z_][\w.-]{0,63})\s*=\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*")
_RELEASE = re.compile(r"release ([\d.]+)")
_ROWS = 1000
_LINE = 2000
_LINES_WAITING = 1000
_LOOK_EVERY_S = 0.1
_GRACE_S = 3.0
_NO_GPU = "without a GPU it is only compiled"


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Compile and run; on the CPU only compile. Raises CannotRun without nvcc, for an invalid file,
    for one that does not compile, and for a program that fails.
    """
    device = find_device(str(given.get("device", "auto")))
    values = {**CUDA.fill(given, on_cpu=device.type == "cpu"), "device": str(device)}
    source = _source(str(values["file"]))
    compiler = shutil.which(str(values["nvcc"]))
    if compiler is None:
        raise CannotRun(
            f"nvcc: {values['nvcc']!r} is not on the PATH; install the CUDA toolkit, or name the "
            "compiler with --nvcc"
        )
    results: dict[str, FigureValue] = {
        "source": source.name,
        "compiler": _release(compiler),
        "architecture": _architecture(device),
        "program": f"not run: {_NO_GPU}" if device.type == "cpu" else "not run: stopped before",
        **dict.fromkeys(("run_s", "exit_status", "output_lines", "ptx_file")),
    }
    rows: list[Row] = []
    instructions: list[Row] = []
    with TemporaryDirectory(prefix="gputui-cuda-") as folder, StopRequest() as stop:
        program = Path(folder, "program")
        report.progress("compile", 0, 1, "file")
        started_ns = time.perf_counter_ns()
        with COMPILE:
            architecture = results["architecture"]
            aimed = [f"-arch={architecture}"] if architecture else []
            flags = str(values["flags"]).split()
            _compile([compiler, *aimed, *flags, "-o", str(program), str(source)], report, stop)
            if values["ptx"] and stop.signal is None:
                ptx = Path(str(values["ptx"])).expanduser().resolve()
                command = [compiler, *aimed, *flags, "-ptx", "-o", str(ptx), str(source)]
                _compile(command, report, stop)
                if stop.signal is None:
                    results["ptx_file"] = str(ptx)
                    text = ptx.read_text(encoding="utf-8", errors="replace")
                    instructions = ptx_instructions(text)
        results["compile_s"] = (time.perf_counter_ns() - started_ns) / 1e9
        results["runs"] = 0
        report.progress("compile", 1, 1, "file")
        if device.type == "cpu":
            report.say(f"cuda: {source.name} was compiled and not run: {_NO_GPU}")
        if device.type == "cuda" and stop.signal is None:
            report.progress("run", 0, 1, "program")
            started_ns = time.perf_counter_ns()
            with RUN:
                command = [str(program), *str(values["arguments"]).split()]
                status, lines, rows = _execute(command, _environment(device), report, stop)
            results |= {
                "program": "ran",
                "runs": 1,
                "run_s": (time.perf_counter_ns() - started_ns) / 1e9,
                "exit_status": status,
                "output_lines": lines,
            }
            if status and stop.signal is None:
                raise CannotRun(f"the program {_how_it_ended(status)}; its output says more")
            report.progress("run", 1, 1, "program")
    why = _NO_GPU if device.type == "cpu" else "the run was stopped earlier"
    reasons = {
        "architecture": _NO_GPU,
        "compiler": "nvcc does not print its release",
        "ptx_file": "not requested: -p ptx=FILE",
    }
    return Outcome(
        parameters=values,
        results=results,
        unavailable={
            name: reasons.get(name, why) for name, value in results.items() if value is None
        },
        tables={"cuda_output": rows, "ptx_instructions": instructions},
        stopped_by=stop.signal,
    )


_PTX_FUNCTION = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_PTX_INSTRUCTION = re.compile(r"\s+(?:@!?%\w+\s+)?([a-z][\w.]*)(?:\s[^:]*)?;")


def ptx_instructions(text: str) -> list[Row]:
    """How often each instruction stands in each function of a PTX file, the most frequent first;
    at most as many rows as a table has."""
    counts = Counter[tuple[str, str]]()
    function = ""
    for line in text.splitlines():
        if named := _PTX_FUNCTION.search(line):
            function = named[1]
        elif function and (instruction := _PTX_INSTRUCTION.match(line)):
            counts[function, instruction[1]] += 1
    return [
        {"kernel": readable(kernel), "instruction": instruction, "count": count}
        for (kernel, instruction), count in counts.most_common(_ROWS)
    ]


def _source(name: str) -> Path:
    path = Path(name).expanduser().resolve() if name else _SAMPLE
    if not path.is_file() or path.suffix != ".cu":
        raise CannotRun(f"file: {name[:200]!r} is not an existing .cu file")
    return path


def _architecture(device: torch.device) -> str | None:
    """The device's "sm_90" or similar; None leaves it to nvcc."""
    if device.type == "cpu":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _environment(device: torch.device) -> dict[str, str]:
    """The environment in which the program sees only that device."""
    uuid = torch.cuda.get_device_properties(device).uuid
    return {**os.environ, "CUDA_VISIBLE_DEVICES": f"GPU-{uuid}"}


def _compile(command: Sequence[str], report: Report, stop: StopRequest) -> None:
    """Raises CannotRun where it does not compile, but for a request to stop."""
    text: list[str] = []
    status = _follow(command, dict(os.environ), stop, text.append)
    lines = [line for line in text if line.strip()]
    for line in lines[:200]:
        report.say(line[:_LINE])
    if status and stop.signal is None:
        first = next((line for line in lines if "error" in line or "fatal" in line), "")
        raise CannotRun(
            f"it does not compile: {' '.join(first.split())[:300] or 'nvcc gives no details'}"
        )


def _execute(
    command: Sequence[str], environment: Mapping[str, str], report: Report, stop: StopRequest
) -> tuple[int, int, list[Row]]:
    """Run the program to its end; returns its status, its lines, and the values in them."""
    rows: list[Row] = []
    count = 0

    def tell(line: str) -> None:
        nonlocal count
        count += 1
        report.say(line[:_LINE])
        figure = _FIGURE.fullmatch(line)
        if figure and len(rows) < _ROWS:
            rows.append({"name": figure[1], "value": _number(figure[2])})
            report.metrics({figure[1]: rows[-1]["value"]})

    return _follow(command, environment, stop, tell), count, rows


def _follow(
    command: Sequence[str],
    environment: Mapping[str, str],
    stop: StopRequest,
    tell: Callable[[str], None],
) -> int:
    """Hand over each line of a program until it has ended, at once by a request to stop; returns
    its status."""
    child = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
    )
    # A thread reads, so that a request to stop is noticed while the program prints nothing.
    lines: queue.Queue[str | None] = queue.Queue(_LINES_WAITING)
    threading.Thread(target=_read, args=(child, lines), daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=_LOOK_EVERY_S)
        except queue.Empty:
            if stop.signal is not None and child.poll() is not None:
                break  # what nvcc started may hold its output open for long
            line = ""
        if line is None:
            break
        if stop.signal is not None and child.poll() is None:
            _end(child)
        if line:
            tell(line.rstrip("\n"))
    return child.wait()


def _read(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    if child.stdout is not None:
        with child.stdout as output:
            for line in output:
                lines.put(line)
    lines.put(None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _release(compiler: str) -> str | None:
    done = subprocess.run(
        [compiler, "--version"], capture_output=True, errors="replace", check=False
    )
    release = _RELEASE.search(done.stdout)
    return release[1] if release else None


def readable(name: str) -> str:
    """A kernel's linkage name as C++ has it, without its result and arguments; as it is, where the
    C++ library cannot read it."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        demangle, free = library.__cxa_demangle, ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return name
    demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    status = ctypes.c_int()
    text = demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    whole = ctypes.string_at(text).decode(errors="replace")
    free(text)
    return re.sub(r"^void |\([^()]*\)$", "", whole)
