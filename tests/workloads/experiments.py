"""The tables of `gputui/docs/experiments.md`, from recordings of the workloads.

`python -m tests.workloads.experiments` writes each between the two comments with its name in the
page; the words around them are written by hand. `python -m tests.workloads.experiments keep FOLDER`
first takes the recordings of FOLDER into `tests/data/experiments`, as small as the tables allow and
without what names a machine or a folder.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import gputui
from gputui.model.events import Distribution
from gputui.model.events.distributions import FINE
from gputui.playback.opening import Loaded, load
from gputui.report.answer import answer
from gputui.report.phases import phase_rows
from gputui.report.scope import of_phase
from gputui.report.tables.bounds import TARGETS
from gputui.report.tables.time import REST, ProfileRow, step_profile
from gputui.state import Run, Session
from tests.conftest import DATA
from tests.workloads.beside_answers import Work, steps_of, work_of

FOLDER = DATA / "experiments"
ANSWERS = FOLDER / "answers.json"
"""What the whole recordings answer, by the name of the small one: see `answered`."""
PAGE = Path(gputui.__file__).parent / "docs" / "experiments.md"

Cells = dict[str, Any]
"""A row of a workload's table, by its columns."""

EXACT = ("bandwidth", "gemm", "convolution", "seed-004-profile", "fusion")
"""Recordings whose kernels are compared with the workload's rows, by each of their times."""

OTHERS = (
    "precision", "seed-004", "memory-by-context", "attention", "attention-grid", "attention-tf32",
    "attention-wide", "gpt2-medium", "checkpointing", "optimizers", "seed-003", "streams", "graphs",
    "checkpoint", "quantized", "compile", "train", "inference", "finetune", "speculative", "serve",
    "memory", "faults", "comm", "parallel", "cuda", "bandwidth-two",
)  # fmt: skip

STEPS = (
    "attention", "bandwidth", "checkpoint", "comm", "compile", "convolution", "faults", "finetune",
    "gemm", "graphs", "inference", "memory", "parallel", "precision", "quantized", "serve",
    "speculative", "streams", "train", "fusion", "seed-003", "seed-004", "seed-004-profile",
    "attention-grid", "gpt2-medium", "checkpointing", "optimizers", "memory-by-context",
)  # fmt: skip
"""Recordings whose own step is compared with the answer's: first those of every workload that has
steps, with the defaults."""

ANSWERED = ("step", "busy", "idle", "by phase", "BENCHMARK")
"""Lines of an answer that a small recording has word for word as the whole one has them, beside
the verdict: the others name a machine's GPUs, or say what single calls did."""

LAUNCH = "kernel launch"

_LEFT_OUT = {
    "gpu_status", "step_lanes", "step", "step_operations", "run_output", "run_progress",
    "run_metrics", "processes", "gpu_unavailable", "launch_shape",
}  # fmt: skip
_FIELDS_LEFT_OUT = ("launches", "streams", "launching_threads", "shapes", "line_launches")
_OF_SAMPLE = ("event", "time_ns", "host", "gpus", "processes")
_OF_STEPS = ("loops", "step_blocks")
"""Of a capture, what keeps all of its times."""
_GIB, _MIB = 2**30, 2**20

# --- recordings


@cache
def recording(name: str) -> Loaded:
    """One of FOLDER."""
    return load(str(FOLDER / f"{name}.gputui.gz"))


def run_of(name: str) -> tuple[Session, Run]:
    """Its session and its run."""
    loaded = recording(name)
    assert loaded.run is not None
    return loaded.session, loaded.run


def results(name: str) -> Mapping[str, Any]:
    """The results of a workload."""
    _, run = run_of(name)
    assert run.result is not None
    return run.result.results


def rows(name: str, table: str) -> list[Cells]:
    """A table of a workload."""
    _, run = run_of(name)
    assert run.result is not None
    [its] = [each for each in run.result.tables if each.name == table]
    columns = [column.name for column in its.columns]
    return [dict(zip(columns, row, strict=True)) for row in its.rows]


def command_of(name: str) -> str:
    """What was typed, with the card and the day."""
    session, run = run_of(name)
    header = session.header
    assert header is not None
    given = run.started.arguments
    words = [
        f" -p {key[2:]}={value}"
        for key, value in pairwise(given)
        if key.startswith("--") and not value.startswith("--")
    ]
    card = str(results(name).get("device_name") or header.gpus[0].name).removeprefix("NVIDIA ")
    how_many = {2: "two", 4: "four"}.get(len(run.devices), "one")
    day = _day(header.time_ns)
    return (
        f"`gputui --record --workload {run.started.name}{''.join(words)}`, {how_many} "
        f"{card}{'s' if how_many != 'one' else ''}, {day}"
    )


def _day(time_ns: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_ns / 1e9, UTC).date().isoformat()


def keep(folder: Path) -> None:
    """Take over the recordings of a folder that the page is made from."""
    FOLDER.mkdir(exist_ok=True)
    answers, launches = {}, {}
    for name in (*EXACT, *OTHERS):
        for path in (folder / f"{name}.gputui", folder / f"{name}.gputui.gz"):
            if not path.exists():
                continue
            data = path.read_bytes()
            text = gzip.decompress(data) if path.suffix == ".gz" else data
            lines = [line for line in map(_kept(name), text.splitlines()) if line]
            packed = gzip.compress(b"\n".join(lines) + b"\n", 9, mtime=0)
            (FOLDER / f"{name}.gputui.gz").write_bytes(packed)
            print(f"{name}: {len(packed) // 1024} KiB")
            whole = load(str(path))
            if whole.run is not None:
                answers[name] = answered(whole.session, whole.run)
                launches[name] = _call_us(whole.session, whole.run)
    before = json.loads(ANSWERS.read_text(encoding="utf-8")) if ANSWERS.exists() else {}
    answers[LAUNCH] = before.get(LAUNCH, {}) | launches
    merged = json.dumps(before | answers, indent=1, ensure_ascii=False, sort_keys=True)
    ANSWERS.write_text(f"{merged}\n", encoding="utf-8")


def _call_us(session: Session, run: Run) -> float | None:
    """Microseconds of the median launch call: small recordings have it coarser."""
    call = next((row for row in TARGETS.rows(session, run) if row.figure == LAUNCH), None)
    return call.value if call is not None else None


def answered(session: Session, run: Run) -> dict[str, str]:
    """The lines of the answer that ANSWERED names, and the verdict's word."""
    lines = [line for group in answer(session, run) for line in group]
    kept = {
        name: line.text
        for line in lines
        for name in ANSWERED
        if line.label.startswith(name) and line.text
    }
    kept |= {name: f"{line.label} {line.text}" for name in ("busy", "idle") for line in lines
             if line.label.startswith(name)}  # fmt: skip
    words = (line.label for line in lines if line.label.isupper() and line.label != "BENCHMARK")
    return kept | {"verdict": next(words, "")}


def _kept(name: str) -> Callable[[bytes], bytes]:
    def clean(line: bytes) -> bytes:
        event = json.loads(line)
        kind = event["event"]
        if kind in _LEFT_OUT:
            return b""
        if kind in ("capture", "capture_sum"):
            event = {
                field: value if name in EXACT or field in _OF_STEPS else _of_sums(value)
                for field, value in event.items()
                if field not in _FIELDS_LEFT_OUT
            }
        if kind == "sample":
            # Whole: names of processes and commands of launchers are others' own.
            event = {name: event[name] for name in _OF_SAMPLE if name in event}
            event["processes"] = [
                {key: value for key, value in each.items() if key in ("pid", "gpu", "sm_percent")}
                for each in event.get("processes", ())
            ]
        if kind == "header":
            event["arguments"] = ["gputui", "--record"]
            event["host"] = {
                "hostname": "host", "system": "Linux", "cpu_count": event["host"]["cpu_count"],
                "memory_total_bytes": event["host"]["memory_total_bytes"],
            }  # fmt: skip
            for gpu in event["gpus"]:
                gpu["uuid"] = "GPU-00000000-0000-0000-0000-000000000000"
                gpu["pci_bus_id"] = "00000000:00:00.0"
        if kind in ("process_attached", "line_defined", "run_started", "run_result"):
            event = _without_folders(event)
        if not re.fullmatch(r"[\d,]+", event.get("visible_devices") or ""):
            event.pop("visible_devices", None)
        return json.dumps(event, separators=(",", ":")).encode()

    return clean


def _without_folders(value: Any) -> Any:
    """The same with the last name of every absolute path."""
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return re.sub(r'(?<![^\s"])/[^\s"]*/', "", value) if isinstance(value, str) else value


def _of_sums(value: Any) -> Any:
    """The same with each distribution's median for all of its values."""
    if not isinstance(value, list):
        return value
    match value:
        case [int(count), _, _, _, _, list(values), bool(), list(buckets)]:
            middle = [_median_bucket(values, buckets), count] if count else []
            return [*value[:5], [], False, middle]
    return [_of_sums(each) for each in value]


def _median_bucket(values: list[int], buckets: list[int]) -> int:
    distribution = Distribution(1, 0, 0.0, 0, 0, tuple(values), not buckets, tuple(buckets))
    pairs = distribution.counted()
    half, seen = sum(count for _, count in pairs) / 2, 0
    for value, count in pairs:
        seen += count
        if seen >= half:
            return math.ceil(math.log(max(1, value)) / FINE.log_gamma)
    return 0


# --- tables


def table(head: Iterable[str], body: Iterable[Iterable[str]]) -> list[str]:
    """A table in Markdown."""
    columns = [*head]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in body)]


def figure(value: object, unit: str = "", digits: int = 3) -> str:
    """Three digits and the unit; empty where there is none."""
    if not isinstance(value, int | float):
        return ""
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
    return f"{text} {unit}".strip()


def gib(value: object) -> str:
    """A size in GiB."""
    return figure(value / _GIB, "GiB") if isinstance(value, int | float) else ""


def rate(value: object) -> str:
    """Bytes a second, in TB/s or GB/s."""
    if not isinstance(value, int | float):
        return ""
    return figure(value / 1e12, "TB/s") if value >= 1e12 else figure(value / 1e9, "GB/s")


def _hierarchy() -> list[str]:
    theirs = {"shared memory": "19 TB/s", "HBM": "1.5 TB/s", "host DRAM": "12.8 GB/s"}
    return table(
        ("level", "theirs (A100)", "ours", "of its peak", "times HBM", "how"),
        (
            (
                str(row["level"]), theirs.get(str(row["level"]), ""), rate(row["bytes_per_s"]),
                figure(row["peak_percent"], "%"), figure(row["of_hbm"]), str(row["how"]),
            )
            for row in rows("bandwidth-two", "memory_levels")
            if row["status"] == "ok"
        ),
    )  # fmt: skip


def _beside(name: str) -> dict[str, Work]:
    session, run = run_of(name)
    return {work.label: work for work in work_of(session, run)}


def _bandwidth() -> list[str]:
    works = _beside("bandwidth")
    body = []
    for row in rows("bandwidth", "bandwidth"):
        label = f"{row['operation']} {row['array_bytes'] // _MIB} MiB"
        work = works.get(label)
        body.append((
            label, figure(1e3 * row["gpu_ms"], "µs"), figure(work.kernels_us, "µs") if work else "",
            rate(row["bytes_per_s"]), figure(row["peak_percent"], "%"),
        ))  # fmt: skip
    return table(("array", "table", "kernel records", "rate", "of the peak"), body)


def _products() -> list[str]:
    works = _beside("gemm")
    sizes = sorted({row["size"] for row in rows("gemm", "gemm")})
    body = []
    for precision in dict.fromkeys(row["precision"] for row in rows("gemm", "gemm")):
        its = {row["size"]: row for row in rows("gemm", "gemm") if row["precision"] == precision}
        flops = [
            figure((its.get(size) or {}).get("flops_per_s", 0) / 1e12)
            if (its.get(size) or {}).get("flops_per_s") else "none"
            for size in sizes
        ]  # fmt: skip
        body.append((f"{precision}, TFLOP/s", *flops))
        times = []
        for size in sizes:
            work = works.get(f"{precision} {size}")
            if work is None:
                times.append("")
                continue
            times.append(f"{figure(work.table_us)}, {figure(work.kernels_us)}")
        body.append((f"{precision}, µs: table, kernel", *times))
    return table(("", *(f"{size:,}" for size in sizes)), body)


class _Measured(NamedTuple):
    """A row of a table of the seed: the mean step, tokens a second, MiB at most."""

    ms: float
    tokens_per_s: float
    allocated_mib: float
    reserved_mib: float


def _beside_theirs(row: Cells, theirs: _Measured | None) -> list[str]:
    """Tokens a second and peak memory, theirs and ours."""
    reserved = row["peak_memory_reserved_bytes"]
    allocated = row["peak_memory_allocated_bytes"]
    return [
        figure(theirs and theirs.tokens_per_s), figure(row["tokens_per_s"]),
        f"{theirs.allocated_mib:,.0f}, {theirs.reserved_mib:,.0f}" if theirs else "",
        f"{allocated / _MIB:,.0f}, {reserved / _MIB:,.0f}" if allocated and reserved else "",
    ]  # fmt: skip


_OF_THEIRS = ("theirs, tokens/s", "ours", "theirs, MiB allocated, reserved", "ours")

_THEIR_PRECISION = {
    "fp32": _Measured(212.11, 9_655.32, 18_910.47, 19_400),
    "bf16": _Measured(180.06, 11_374.00, 17_534.59, 17_820),
    "fp16": _Measured(181.91, 11_258.06, 17_534.59, 17_820),
}


def _busy_ms(name: str, phase: str = "step") -> list[float]:
    """The time in which a GPU worked in a step, by the records of its kernels and copies, which are
    on one stream, for each range with steps, in the order in which these ran; or in another phase
    of a step. Their sum: the recordings are older than a busy time in which those count that come
    late (of the backward pass's thread), which was up to 2.5 % less."""
    _, run = run_of(name)
    spans = phase_rows(run)
    steps = {row.path: row.instances for row in spans if row.name == "step"}
    return [
        row.gpu_total_ns / count / 1e6
        for row in spans
        for path, count in steps.items()
        if count > 1 and row.path in (path, f"{path}/{phase}") and row.name == phase
    ]


def _busy_of_sweep(name: str) -> list[float]:
    """That of each row of a sweep of `train`, whose row without warm-up ran first."""
    its = rows(name, "headline")
    ran = sorted(range(len(its)), key=lambda number: its[number]["warmup"] > 0)
    by_row = dict(zip(ran, _busy_ms(name), strict=True))
    return [by_row[number] for number in range(len(its))]


def _precision() -> list[str]:
    body = []
    its = rows("precision", "precision_training")
    for row, busy_ms in zip(its, _busy_ms("precision")[-len(its) :], strict=True):
        theirs = _THEIR_PRECISION.get(row["precision"])
        body.append((
            row["precision"], figure(theirs and theirs.ms, digits=4), figure(row["avg_ms"]),
            figure(busy_ms), row["bound"] or "", *_beside_theirs(row, theirs),
        ))  # fmt: skip
    head = ("precision", "theirs, ms", "wall, ms", "GPU busy, ms", "bound")
    return table((*head, *_OF_THEIRS), body)


_THEIR_HEADLINE = (
    (9.117, 0.026, 112_312, 2_359), (215.206, 0.076, 9_516, 18_911),
    (182.841, 0.031, 11_201, 17_534), (233.300, 57.388, 8_778, 18_911),
)  # fmt: skip


def _headline() -> list[str]:
    body = []
    busy = _busy_of_sweep("seed-004")
    its = rows("seed-004", "headline")
    for row, theirs, busy_ms in zip(its, _THEIR_HEADLINE, busy, strict=True):
        body.append((
            f"{row['size'].removeprefix('cs336-')}, {row['ctx']}, {row['mode']}, "
            f"{row['precision']}, warm-up {row['warmup']}",
            f"{theirs[0]:g} ± {theirs[1]:g}", f"{row['avg_ms']:.4g} ± {row['std_ms']:.3g}",
            figure(busy_ms),
            f"{theirs[2]:,}", figure(row["tokens_per_s"]), f"{theirs[3]:,}",
            figure(row["peak_memory_allocated_bytes"] / _MIB),
        ))  # fmt: skip
    return table(
        ("row", "theirs, ms", "ours, ms", "GPU busy, ms", "theirs, tokens/s", "ours", "theirs, MiB",
         "ours"),
        body,
    )  # fmt: skip


_THEIR_CONTEXTS = {
    64: _Measured(26.94, 9_504, 15_910.84, 15_976),
    128: _Measured(46.99, 10_895, 19_310.64, 19_562),
    256: _Measured(98.05, 10_444, 27_962.59, 28_288),
}


def _contexts() -> list[str]:
    body = []
    busy = _busy_of_sweep("memory-by-context")
    for row, busy_ms in zip(rows("memory-by-context", "headline"), busy, strict=True):
        theirs = _THEIR_CONTEXTS.get(row["ctx"])
        body.append((
            str(row["ctx"]), figure(theirs and theirs.ms), figure(row["avg_ms"]),
            figure(busy_ms), *_beside_theirs(row, theirs),
        ))  # fmt: skip
    return table(("ctx", "theirs, ms", "wall, ms", "GPU busy, ms", *_OF_THEIRS), body)


_THEIR_GRID = {
    32: (
        "64 7.730 40.655 8.8; 128 7.779 39.064 17.8;"
        "256 8.545 43.571 20.2; 1024 21.786 67.080 56.2;"
        "4096 499.066 1422.735 560.2; 8192 1986.323 5576.747 2128.2;"
        "16384 7868.635 - 8336.2"
    ),
    64: (
        "64 7.829 38.369 17.4; 128 7.768 39.185 18.8;"
        "256 8.536 40.298 22.2; 1024 24.012 73.223 64.2;"
        "4096 555.080 1588.352 592.2; 8192 2219.932 6236.688 2192.2;"
        "16384 8705.040 - 8464.2"
    ),
    128: (
        "64 7.774 39.148 18.4; 128 7.864 39.764 20.8;"
        "256 8.544 40.366 26.2; 1024 38.299 123.351 80.2;"
        "4096 835.214 2363.091 656.2; 8192 3339.936 9388.587 2320.2;"
        "16384 13403.818 - 8720.2"
    ),
    256: (
        "64 7.870 39.730 20.4; 128 7.937 39.676 24.8;"
        "256 8.905 40.249 34.2; 1024 67.905 221.925 112.2;"
        "4096 1333.069 3751.283 784.2; 8192 5320.389 14889.777 2576.2;"
        "16384 21380.786 - 9232.2"
    ),
    512: (
        "64 9.407 39.516 24.4; 128 9.978 40.317 32.8;"
        "256 12.576 44.317 50.2; 1024 134.736 404.050 176.2;"
        "4096 2312.945 6476.550 1040.2; 8192 9246.937 25590.666 3088.2;"
        "16384 37243.737 - 10256.2"
    ),
}
"""By the width: tokens, 200 passes forward and backward in ms, MiB before the backward pass."""


def _passes_ms(name: str) -> dict[str, float]:
    """GPU time of a pass of `attention`, by the records of its kernels: by the row's label and
    whether it is forward or backward."""
    _, run = run_of(name)
    return {
        row.path.removesuffix("/step"): row.gpu_total_ns / row.instances / 1e6
        for row in phase_rows(run)
        if row.name == "step" and row.instances and row.gpu_busy_ns
    }


def _grid() -> list[str]:
    ours = {(row["d_model"], row["seq_len"]): row for row in rows("attention-grid", "attention")}
    passes = _passes_ms("attention-grid")
    body = []
    for width, text in _THEIR_GRID.items():
        for row in text.split(";"):
            tokens, forward, backward, before = row.split()
            its = ours.get((width, int(tokens)), {})
            label = f"naive fp32 B8 H1 T{tokens} d{width} full"
            times = [its.get("fwd_ms"), its.get("bwd_ms")]
            times += [passes.get(f"{label}/{name}") for name in ("forward", "backward")]
            body.append((
                str(width), tokens, forward, "OOM" if backward == "-" else backward, before,
                *(figure(200 * ms) if ms else "not measured" for ms in times),
                figure((its.get("mem_before_bwd_bytes") or 0) / _MIB or None),
            ))  # fmt: skip
    return table(
        ("d", "tokens", "theirs: forward, ms", "backward", "MiB before it", "ours: forward, ms",
         "backward", "forward, GPU", "backward, GPU", "MiB before it"),
        body,
    )  # fmt: skip


_THEIR_TF32 = {
    32: (
        "64 11.154 11.482 57.279 57.955; 128 11.404 11.356 53.135 51.516;"
        "256 11.449 11.271 53.098 52.571; 1024 23.117 17.230 76.556 58.628;"
        "4096 411.509 324.396 1114.305 908.258; 8192 1868.241 1559.212 4718.115 3989.070;"
        "16384 5816.936 4507.615 15369.401 12071.501"
    ),
    64: (
        "64 11.426 11.709 51.993 58.528; 128 11.590 11.603 61.219 53.442;"
        "256 13.645 12.664 58.017 54.102; 1024 32.811 26.550 83.606 66.943;"
        "4096 423.220 288.840 1139.737 790.209; 8192 1685.137 1134.789 4508.481 3077.354;"
        "16384 6773.545 4733.361 17968.918 12362.552"
    ),
    128: (
        "64 11.726 11.691 53.587 52.403; 128 11.841 11.442 54.697 52.976;"
        "256 13.774 12.512 54.719 53.711; 1024 46.283 35.650 130.749 98.651;"
        "4096 706.171 360.357 1925.811 1002.524; 8192 2815.868 1462.557 7615.674 3951.136;"
        "16384 11338.673 5981.148 30600.758 16107.158"
    ),
    256: (
        "64 12.394 11.623 61.246 53.436; 128 12.566 11.591 60.587 53.153;"
        "256 14.981 12.548 60.107 53.699; 1024 74.493 40.466 228.783 111.487;"
        "4096 1214.021 490.728 3356.252 1398.923; 8192 4820.486 1917.672 13304.750 5357.126;"
        "16384 19420.524 7606.391 52846.051 20982.350"
    ),
    512: (
        "64 14.730 11.655 54.081 54.813; 128 14.801 11.523 53.955 61.749;"
        "256 18.696 15.245 62.015 57.921; 1024 135.862 60.335 407.043 179.551;"
        "4096 2230.277 772.080 6151.606 2255.915; 8192 8838.995 2970.841 24000.653 8476.593;"
        "16384 35320.222 11968.748 96698.815 33706.693"
    ),
}
"""By the width: tokens, 200 passes in ms forward without TF32 and with it, and backward."""


def _tf32() -> list[str]:
    passes = _passes_ms("attention-wide") | _passes_ms("attention-tf32")

    def change(before: float | None, after: float | None) -> str:
        return f"{100 * (after / before - 1):+.0f} %" if before and after else "not measured"

    body = []
    for width, text in _THEIR_TF32.items():
        for row in text.split(";"):
            tokens, forward, forward_tf32, backward, backward_tf32 = map(float, row.split())
            if tokens < 1024:  # not in the grid of the long ones
                continue
            ieee, tf32 = (
                [
                    passes.get(f"compiled {precision} B8 H1 T{tokens:.0f} d{width} full/{way}")
                    for way in ("forward", "backward")
                ]
                for precision in ("fp32", "tf32")
            )
            body.append((
                str(width), f"{tokens:.0f}", change(forward, forward_tf32),
                change(ieee[0], tf32[0]), change(backward, backward_tf32),
                change(ieee[1], tf32[1]), figure(ieee[0]), figure(ieee[1]),
            ))  # fmt: skip
    return table(
        ("d", "tokens", "forward by TF32: theirs", "ours", "backward: theirs", "ours",
         "our forward in IEEE, ms", "backward"),
        body,
    )  # fmt: skip


def _optimizers() -> list[str]:
    of_row = {
        (row["configuration"], row["what"]): row["measured_bytes"]
        for row in rows("optimizers", "train_memory")
    }
    body = []
    for row, configuration, step_ms, update_ms in zip(
        rows("optimizers", "headline"),
        dict.fromkeys(name for name, _ in of_row),
        _busy_of_sweep("optimizers"),
        _busy_ms("optimizers", "OPTIMIZER"),
        strict=True,
    ):
        state, model = of_row[configuration, "optimizer"], of_row[configuration, "model"]
        body.append((
            _OPTIMIZERS.get(row["optimizer"], row["optimizer"]), gib(model), gib(state or 0),
            figure((state or 0) / model),
            figure(row["avg_ms"], "ms"), figure(step_ms, "ms"), figure(update_ms, "ms"),
        ))  # fmt: skip
    return table(
        ("optimizer", "model", "its state", "over the model", "mean step", "GPU busy",
         "of it the optimizer"),
        body,
    )  # fmt: skip


class _Theirs(NamedTuple):
    """A line of the seed's profile: in all 30 steps, and of the range around it."""

    total_ms: float
    share: float | None = None


_PROFILE_STEPS = 30
_THEIR_PROFILE = {
    "FORWARD": _Theirs(1139.483), "BACKWARD": _Theirs(1782.316), "OPTIMIZER": _Theirs(272.168),
    "MHA(total)": _Theirs(780.154, 68.5), "QKV projections": _Theirs(220.429, 28.25),
    "output proj": _Theirs(59.793, 7.66), "RoPE(Q)": _Theirs(142.246, 18.23),
    "RoPE(K)": _Theirs(126.224, 16.18), "attn_logits (QK^T) + mask": _Theirs(109.037, 13.98),
    "attn*V (context)": _Theirs(89.342, 11.45), "softmax": _Theirs(22.079, 2.83),
}  # fmt: skip
_THEIR_SUMS = {
    "OPTIMIZER (exclusive)": _Theirs(0.207), "MHA linear (QKV + output)": _Theirs(280.222, 35.9),
    "MHA residual": _Theirs(11.004, 1.41), "non-attention FORWARD": _Theirs(359.329, 31.5),
}  # fmt: skip
"""Of other lines: the range less all in it, two of these together, a range less one."""
_THEIR_KERNELS = {
    "all kernels": _Theirs(2712.7), "matmul": _Theirs(1004.806, 37.04),
    "elementwise": _Theirs(963.182, 35.51), "optimizer": _Theirs(602.932, 22.23),
    "softmax (backward)": _Theirs(72.982, 2.69), "softmax": _Theirs(31.417, 1.16),
    "reduction": _Theirs(35.158, 1.30),
}  # fmt: skip


def _profile() -> list[str]:
    session, run = run_of("seed-004-profile")
    profile = step_profile(session, of_phase(run, "measure_loop"))
    steps = _PROFILE_STEPS

    def line(
        name: str, theirs: _Theirs | None, cpu_ms: float | None, share: float | None,
        gpu_ms: float | None,
    ) -> list[str]:  # fmt: skip
        its = theirs or _Theirs(0.0)
        return [
            name, figure(its.total_ms or None), figure(its.total_ms / steps or None),
            figure(its.share, "%"), figure(cpu_ms), figure(cpu_ms and cpu_ms / steps),
            figure(share, "%"), figure(gpu_ms and gpu_ms / steps),
        ]  # fmt: skip

    body = []
    for row in profile:
        if row.section == "ranges" and (theirs := _THEIR_PROFILE.get(row.name)):
            share = row.share_percent if theirs.share else None
            body.append(line(row.name, theirs, _ms(row.cpu_ns), share, _ms(row.gpu_ns)))
    cpu_ms = {
        (row.share_of, row.name): _ms(row.cpu_ns) or 0.0
        for row in profile if row.section == "ranges"
    }  # fmt: skip
    forward, heads = cpu_ms["step", "FORWARD"], "MHA(total)"
    sums = {
        "OPTIMIZER (exclusive)": (cpu_ms["OPTIMIZER", REST], None),
        "MHA linear (QKV + output)": (
            cpu_ms[heads, "QKV projections"] + cpu_ms[heads, "output proj"],
            heads,
        ),
        "MHA residual": (cpu_ms[heads, REST], heads),
        "non-attention FORWARD": (forward - cpu_ms["FORWARD", heads], "FORWARD"),
    }
    whole = {heads: cpu_ms["FORWARD", heads], "FORWARD": forward}
    body += [
        line(name, _THEIR_SUMS[name], ms, 100 * ms / whole[around] if around else None, None)
        for name, (ms, around) in sums.items()
    ]
    body += [
        line(f"kernels: {row.name}", _THEIR_KERNELS.get(row.name), None, row.gpu_share_percent,
             _ms(row.gpu_ns))
        for row in profile
        if row.section == "kernels" and _is_worth_a_line(row)
    ]  # fmt: skip
    longest = next(row for row in profile if row.section == "longest kernel")
    body.append(
        line(f"longest kernel: theirs `Kernel2` (19,530 calls), ours `{longest.name}` "
             f"({longest.instances:,} calls)",
             _Theirs(1004.806, 37.04), None, longest.gpu_share_percent, _ms(longest.gpu_ns))
    )  # fmt: skip
    return table(
        ("30 steps of 4 × 512", "theirs, ms", "a step", "share", "ours: CPU, ms", "a step",
         "share", "GPU, ms a step"),
        body,
    )  # fmt: skip


def _is_worth_a_line(row: ProfileRow) -> bool:
    return row.gpu_share_percent is None or row.gpu_share_percent >= 0.05


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _gpt2() -> list[str]:
    theirs = {"model": "1.2 GB", "gradients": "1.2 GB", "optimizer": "2.5 GB",
              "activations": "9.8 GB"}  # fmt: skip
    theirs |= {"peak allocated": "19.0 GB"}
    body = [
        (str(row["what"]), theirs.get(str(row["what"]), ""), gib(row["expected_bytes"]),
         gib(row["measured_bytes"]))
        for row in rows("gpt2-medium", "train_memory")
    ]  # fmt: skip
    return table(("GPT-2 medium", "theirs", "expected", "ours"), body)


_OPTIMIZERS = {"sgd": "SGD", "momentum": "SGD with momentum", "fused": "AdamW"}


def _checkpointing() -> list[str]:
    its = rows("checkpointing", "headline")
    plain = next(row for row in its if not row["checkpoint"])
    return table(
        ("layers a checkpoint", "peak", "of the peak without", "mean step", "more time",
         "operations (HFU over MFU)"),
        (
            (
                str(row["checkpoint"] or "none"), gib(row["peak_memory_allocated_bytes"]),
                figure(100 * row["peak_memory_allocated_bytes"]
                       / plain["peak_memory_allocated_bytes"], "%"),
                figure(row["avg_ms"], "ms"),
                figure(100 * row["avg_ms"] / plain["avg_ms"] - 100, "%"),
                figure(row["hfu_percent"] / row["mfu_percent"]) if row["mfu_percent"] else "",
            )
            for row in its
        ),
    )  # fmt: skip


def _traffic() -> list[str]:
    theirs = {"naive": ("40.3 GB", "41.7"), "flash": ("4.4 GB", "7.3")}
    body = []
    for row in rows("seed-003", "attention"):
        if row["status"] != "ok":
            continue
        measured = (row["measured_hbm_bytes"], row["measured_bwd_hbm_bytes"])
        whole = sum(measured) if all(measured) else None
        formula = (row["hbm_bytes"] or 0) + (row["bwd_hbm_bytes"] or 0)
        moved, ms = theirs.get(row["implementation"], ("", ""))
        body.append((
            row["implementation"], moved, figure(formula / 1e9 if formula else None, "GB"),
            figure(whole / 1e9 if whole else None, "GB"), ms,
            figure(row["fwd_ms"] + row["bwd_ms"] if row["bwd_ms"] else None),
        ))  # fmt: skip
    return table(
        ("attention", "theirs", "by formula", "by the GPU's counter", "theirs, ms", "ours, ms"),
        body,
    )


def _fusion() -> list[str]:
    """The bars of FlashAttention's figure: GPU time of each part of a forward pass."""
    session, run = run_of("fusion")
    parts: dict[str, tuple[float, int]] = {}
    for row in step_profile(session, of_phase(run, "forward")):
        if (
            row.section == "ranges"
            and row.gpu_ns
            and row.name not in ("forward", "step", "graph", REST)
        ):
            ns, count = parts.get(row.name, (0.0, 0))
            parts[row.name] = ns + row.gpu_ns, count + row.instances
    body = [(name, figure(ns / count / 1e6)) for name, (ns, count) in parts.items() if count]
    flash = [row for row in rows("fusion", "attention") if row["implementation"] == "flash"]
    body += [("one kernel (flash)", figure(row["fwd_ms"])) for row in flash]
    return table(("part of a forward pass", "GPU, ms"), body)


def _convolution() -> list[str]:
    """By layer: cuDNN's heuristics, its search, and deterministic algorithms only."""
    by_layer: dict[str, dict[tuple[bool, bool], Cells]] = {}
    for row in rows("convolution", "convolution"):
        by_layer.setdefault(row["layer"], {})[row["benchmark"], row["deterministic"]] = row
    body = []
    for layer, its in by_layer.items():
        plain, searched = its[False, False], its[True, False]
        taken = [str(row.get("algorithm") or "") for row in (plain, searched)]
        body.append((
            layer, figure(plain["gpu_ms"], "ms"), figure(searched["gpu_ms"], "ms"),
            figure(searched["first_ms"], "ms"), figure(its[False, True]["gpu_ms"], "ms"),
            figure(its[True, True]["gpu_ms"], "ms"),
            "yes" if all(row["same_bits"] for row in its.values()) else "no",
            "; searched: ".join(dict.fromkeys(taken)),
        ))  # fmt: skip
    return table(
        ("layer of ResNet-50", "as it is", "benchmark", "its first pass", "deterministic", "both",
         "same bits", "kernels of a pass"),
        body,
    )  # fmt: skip


def _bus(row: Cells) -> str:
    """GB/s of bus bandwidth; in brackets where the host's launches take as long."""
    rate = figure(row.get("bus_bytes_per_s", 0) / 1e9)
    return f"({rate})" if row.get("bound") == "launches" else rate


def _collectives() -> list[str]:
    its = rows("comm", "comm")
    sizes = sorted({row["size_bytes"] for row in its if row["size_bytes"] >= _MIB})
    by_operation: dict[str, dict[int, Cells]] = {}
    for row in its:
        by_operation.setdefault(row["operation"], {})[row["size_bytes"]] = row
    return table(
        ("GB/s of bus bandwidth", *(f"{size // _MIB:,} MiB" for size in sizes)),
        (
            (name, *(_bus(cells.get(size, {})) for size in sizes))
            for name, cells in by_operation.items()
        ),
    )


_ENGINE_NOTES = {
    "ep": "ep (a mixture of experts: another, smaller model)",
    "zero1": "zero1 (all-reduces and broadcasts besides)",
}


def _engines() -> list[str]:
    return table(
        ("engine", "tokens/s", "strong", "weak", "bubble", "by the formula", "sent a step",
         "by the formula", "state a rank", "peak"),
        (
            (
                _ENGINE_NOTES.get(row["engine"], row["engine"]), figure(row["tokens_per_s"]),
                figure(row["strong_percent"], "%"),
                figure(row["weak_percent"], "%"), figure(row["bubble_percent"], "%"),
                figure(row["bubble_formula_percent"], "%"), gib(row["sent_bytes"]),
                gib(row["formula_bytes"]), gib(row["state_bytes"]), gib(row["peak_bytes"]),
            )
            for row in rows("parallel", "parallel") if row["status"] == "ok"
        ),
    )  # fmt: skip


def _launch_us(name: str) -> str:
    """The host's time for a kernel of the chain, and the launch call in it."""
    call = json.loads(ANSWERS.read_text(encoding="utf-8"))[LAUNCH][name]
    return (
        f"{figure(call, 'µs')} the call (median); "
        f"{figure(results(name)['host_us_per_launch'], 'µs')} with PyTorch's operation around it"
    )


def _others() -> list[str]:
    streams = {row["way"]: row["wall_ms"] for row in rows("streams", "streams")}
    graphs = {(row["work"], row["mode"]): row for row in rows("graphs", "graphs")}
    decode = graphs["decode", "eager"], graphs["decode", "graph"]
    copies = {row["way"]: row["gib_per_s"] for row in rows("checkpoint", "checkpoint")}
    short = {(row["weights"], row["way"]): row["gpu_ms"] for row in rows("quantized", "quantized")}
    cnn = results("convolution")
    sums = {
        (row["addend"], row["accumulator"]): row["sum"] for row in rows("precision", "accumulation")
    }
    compiled = {row["work"]: row for row in rows("compile", "compile")}
    fused = next(row for row in rows("compile", "fused_kernels") if row["work"] == "pointwise")
    allocations = results("memory")
    model = compiled["model"]
    printed = {row["name"]: row["value"] for row in rows("cuda", "cuda_output")}
    lines = [
        ("0.01 added 1,000 times (theirs: 10.0001, 9.9531, 10.0021)",
         f"{sums['fp32', 'fp32']:.4f}, {sums['fp16', 'fp16']:.4f}, {sums['fp16', 'fp32']:.4f}",
         "precision"),
        ("a kernel of one's own: a product of 1,024",
         ", ".join(f"{name.partition('_')[0]} {figure(value / (1e3 if 'gflops' in name else 1e12))}"
                   for name, value in printed.items() if "flops" in name)
         + " TFLOP/s", "cuda"),
        ("x · y + x compiled (theirs: `triton_poi_fused_add_mul_0`)",
         f"`{fused['kernel']}`, {compiled['pointwise']['eager_operations']} kernels to "
         f"{compiled['pointwise']['compiled_kernels']}, on the GPU "
         f"{figure(compiled['pointwise']['eager_gpu_ms'])} to "
         f"{figure(compiled['pointwise']['compiled_gpu_ms'])} ms (to launch it takes longer: "
         f"{figure(compiled['pointwise']['eager_ms'])} to "
         f"{figure(compiled['pointwise']['compiled_ms'])} ms by the wall)", "compile"),
        ("a model's step, eager and compiled",
         f"{figure(model['eager_ms'])}, {figure(model['compiled_ms'])} ms, on the GPU "
         f"{figure(model['eager_gpu_ms'])}, {figure(model['compiled_gpu_ms'])}; "
         f"{figure(model['compile_s'])} s to compile, paid off after "
         f"{model['break_even_passes']:,} passes", "compile"),
        ("256 MiB from the driver, from torch's cache",
         f"{figure(allocations['driver_allocation_us'])}, "
         f"{figure(allocations['cached_allocation_us'])} µs", "memory"),
        ("GPT-2: weights, KV cache of 256 tokens in bf16 (theirs, llama.cpp: 239, 72 MiB of 1,024 "
         "in fp32)",
         f"{results('inference')['weight_bytes'] / _MIB:.0f}, "
         f"{results('inference')['kv_cache_bytes'] / _MIB:.1f} MiB", "inference"),
        ("the 497,903,616-byte copy (A40: pageable, 12.82 GiB/s; the host copies into a staging "
         "buffer: it is the host that is slower here)",
         f"pageable {figure(copies.get('pageable, one buffer'))}, "
         f"pinned {figure(copies.get('pinned, one buffer'))} GiB/s", "checkpoint"),
        ("overlap: copies and products",
         ", ".join(f"{way} {figure(ms)}" for way, ms in streams.items()) + " ms", "streams"),
        ("launch latency (theirs: under 10 µs)",
         _launch_us("graphs"), "graphs"),
        ("a decode step, eager and as a CUDA graph",
         f"{figure(decode[0]['wall_ms'])}, {figure(decode[1]['wall_ms'])} ms", "graphs"),
        ("cuDNN, deterministic algorithms only (no figures theirs)",
         f"{figure(cnn['deterministic_percent'])} % of the time", "convolution"),
        ("a product with short weights, one token",
         ", ".join(f"{weights} {figure(1e3 * ms)}" for (weights, way), ms in short.items()
                   if way == "torch" and ms) + " µs", "quantized"),
    ]  # fmt: skip
    return table(("what", "ours", "command, card, day"),
                 ((what, ours, command_of(name)) for what, ours, name in lines))  # fmt: skip


def _steps() -> list[str]:
    body = []
    for name in STEPS:
        steps = steps_of(*run_of(name))
        body.append((
            steps.workload if steps.workload == name else f"{steps.workload} ({name})",
            figure(steps.own_ms, digits=4), figure(steps.answer_ms, digits=4),
            figure(steps.off_percent, "%", 2),
        ))  # fmt: skip
    return table(("workload", "its own step, ms", "the answer's, ms", "off"), body)


BLOCKS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "hierarchy": ("bandwidth-two", _hierarchy),
    "bandwidth": ("bandwidth", _bandwidth),
    "gemm": ("gemm", _products),
    "precision": ("precision", _precision),
    "headline": ("seed-004", _headline),
    "contexts": ("memory-by-context", _contexts),
    "grid": ("attention-grid", _grid),
    "tf32": ("attention-tf32", _tf32),
    "optimizers": ("optimizers", _optimizers),
    "profile": ("seed-004-profile", _profile),
    "gpt2-medium": ("gpt2-medium", _gpt2),
    "checkpointing": ("checkpointing", _checkpointing),
    "traffic": ("seed-003", _traffic),
    "fusion": ("fusion", _fusion),
    "convolution": ("convolution", _convolution),
    "engines": ("parallel", _engines),
    "collectives": ("comm", _collectives),
    "others": ("", _others),
    "steps": ("", _steps),
}
"""By its name in the page: the recording whose command stands above it, and what makes it."""


def page(text: str) -> str:
    """The page with its tables as the recordings have them."""
    for name, (source, make) in BLOCKS.items():
        block = [f"<!-- {name} -->", *([f"{command_of(source)}:", ""] if source else [])]
        lines = "\n".join([*block, *make(), "<!-- end -->"])
        pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"the page has no table {name}")
        text = pattern.sub(lambda _, lines=lines: lines, text)  # type: ignore[misc]
    return text


def main(words: list[str]) -> None:
    """Take over recordings where a folder is given; write the page."""
    if words[:1] == ["keep"]:
        keep(Path(words[1]))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
