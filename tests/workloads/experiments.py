"""The tables of `gputui/docs/experiments.md`, from recordings of the workloads.

`python -m tests.workloads.experiments` writes each between the two comments with its name in the
page; the words around them are written by hand. `python -m tests.workloads.experiments keep FOLDER`
first takes the recordings of FOLDER into `tests/data/experiments`, as small as the tables allow and
without what names a machine or a folder.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import gputui
from gputui.playback.opening import Loaded, load
from gputui.report.scope import of_phase
from gputui.report.tables.time import ProfileRow, step_profile
from gputui.state import Run, Session
from tests.conftest import DATA
from tests.workloads.beside_answers import Work, steps_of, work_of

FOLDER = DATA / "experiments"
PAGE = Path(gputui.__file__).parent / "docs" / "experiments.md"

Cells = dict[str, Any]
"""A row of a workload's table, by its columns."""

WHOLE = ("bandwidth", "gemm", "seed-004-profile", "fusion")
"""Recordings of which kernels and ranges are kept, not results alone."""

RESULTS = (
    "precision", "seed-004", "gpt2-medium", "checkpointing", "seed-003", "streams", "graphs",
    "checkpoint", "convolution", "quantized", "compile",
)  # fmt: skip

_OF_RESULTS = {"header", "run_started", "run_result", "run_ended"}
_OF_MACHINE = {
    "sample", "gpu_energy", "gpu_status", "step_lanes", "line_defined", "run_output",
    "run_progress", "run_metrics", "processes", "gpu_unavailable",
}  # fmt: skip
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
    card = str(results(name).get("device_name", "")).removeprefix("NVIDIA ")
    day = _day(header.time_ns)
    return f"`gputui --record --workload {run.started.name}{''.join(words)}`, one {card}, {day}"


def _day(time_ns: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_ns / 1e9, UTC).date().isoformat()


def keep(folder: Path) -> None:
    """Take over the recordings of a folder that the page is made from."""
    FOLDER.mkdir(exist_ok=True)
    for name in (*WHOLE, *RESULTS):
        for path in (folder / f"{name}.gputui", folder / f"{name}.gputui.gz"):
            if not path.exists():
                continue
            data = path.read_bytes()
            text = gzip.decompress(data) if path.suffix == ".gz" else data
            lines = [line for line in map(_kept(name), text.splitlines()) if line]
            packed = gzip.compress(b"\n".join(lines) + b"\n", 9, mtime=0)
            (FOLDER / f"{name}.gputui.gz").write_bytes(packed)
            print(f"{name}: {len(packed) // 1024} KiB")


def _kept(name: str) -> Callable[[bytes], bytes]:
    def clean(line: bytes) -> bytes:
        event = json.loads(line)
        kind = event["event"]
        if kind in _OF_MACHINE or (name in RESULTS and kind not in _OF_RESULTS):
            return b""
        if kind == "header":
            event["arguments"] = ["gputui", "--record"]
            event["host"] = {
                "hostname": "host", "system": "Linux", "cpu_count": event["host"]["cpu_count"],
                "memory_total_bytes": event["host"]["memory_total_bytes"],
            }  # fmt: skip
            for gpu in event["gpus"]:
                gpu["uuid"] = "GPU-00000000-0000-0000-0000-000000000000"
                gpu["pci_bus_id"] = "00000000:00:00.0"
        for field in ("arguments", "command"):
            if isinstance(event.get(field), list):
                event[field] = [re.sub(r".*/", "", word) for word in event[field]]
            elif isinstance(event.get(field), str):
                event[field] = re.sub(r"\S*/", "", event[field])
        return json.dumps(event, separators=(",", ":")).encode()

    return clean


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
            for row in rows("bandwidth", "memory_levels")
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


_THEIR_STEPS = {"fp32": 212.11, "bf16": 180.06, "fp16": 181.91}
_THEIR_PEAKS = {"fp32": 18_910.47, "bf16": 17_534.59, "fp16": 17_534.59}


def _precision() -> list[str]:
    return table(
        ("precision", "theirs, ms", "wall, ms", "GPU busy, ms", "bound", "tokens/s", "peak, MiB",
         "theirs, MiB"),
        (
            (
                str(row["precision"]), figure(_THEIR_STEPS.get(row["precision"]), digits=4),
                figure(row["avg_ms"]), figure(row["gpu_busy_ms"]), str(row["bound"] or ""),
                figure(row["tokens_per_s"]), figure(row["peak_memory_allocated_bytes"] / _MIB),
                figure(_THEIR_PEAKS.get(row["precision"])),
            )
            for row in rows("precision", "precision_training")
        ),
    )  # fmt: skip


_THEIR_HEADLINE = (
    (9.117, 0.026, 112_312, 2_359), (215.206, 0.076, 9_516, 18_911),
    (182.841, 0.031, 11_201, 17_534), (233.300, 57.388, 8_778, 18_911),
)  # fmt: skip


def _headline() -> list[str]:
    body = []
    for row, theirs in zip(rows("seed-004", "headline"), _THEIR_HEADLINE, strict=True):
        body.append((
            f"{row['size'].removeprefix('cs336-')}, {row['ctx']}, {row['mode']}, "
            f"{row['precision']}, warm-up {row['warmup']}",
            f"{theirs[0]:g} ± {theirs[1]:g}", f"{row['avg_ms']:.4g} ± {row['std_ms']:.3g}",
            f"{theirs[2]:,}", figure(row["tokens_per_s"]), f"{theirs[3]:,}",
            figure(row["peak_memory_allocated_bytes"] / _MIB),
        ))  # fmt: skip
    return table(
        ("row", "theirs, ms", "ours, ms", "theirs, tokens/s", "ours", "theirs, MiB", "ours"), body
    )


class _Theirs(NamedTuple):
    per_step_ms: float | None
    share: float | None
    """Of the range around it, as the seed has it."""


_THEIR_PROFILE = {
    "FORWARD": _Theirs(37.983, None), "BACKWARD": _Theirs(59.411, None),
    "OPTIMIZER": _Theirs(9.072, None), "MHA(total)": _Theirs(26.005, 68.5),
    "QKV projections": _Theirs(7.348, 28.25), "output proj": _Theirs(1.993, 7.66),
    "RoPE(Q)": _Theirs(4.742, 18.23), "RoPE(K)": _Theirs(4.207, 16.18),
    "attn_logits (QK^T) + mask": _Theirs(3.635, 13.98), "attn*V (context)": _Theirs(2.978, 11.45),
    "softmax": _Theirs(0.736, 2.83), "the rest of MHA(total)": _Theirs(0.367, 1.41),
}  # fmt: skip

_THEIR_KERNELS = {
    "all kernels": (90.424, None), "matmul": (33.494, 37.04), "elementwise": (32.106, 35.51),
    "optimizer": (20.098, 22.23), "softmax (backward)": (2.433, 2.69), "softmax": (1.047, 1.16),
    "reduction": (1.172, 1.30),
}  # fmt: skip


def _profile() -> list[str]:
    session, run = run_of("seed-004-profile")
    profile = step_profile(session, of_phase(run, "measure_loop"))
    body = []
    for row in profile:
        name = row.name if row.name != "(the rest)" else f"the rest of {row.share_of}"
        if row.section == "ranges" and (theirs := _THEIR_PROFILE.get(name)):
            body.append((
                name, _per_step(theirs.per_step_ms), figure(theirs.share, "%"),
                _per_step(_ms(row.cpu_per_step_ns)),
                figure(row.share_percent, "%") if theirs.share else "",
                _per_step(_ms(row.gpu_per_step_ns)),
            ))  # fmt: skip
    body += [
        (
            f"kernels: {row.name}", _per_step((_THEIR_KERNELS.get(row.name) or (None, None))[0]),
            figure((_THEIR_KERNELS.get(row.name) or (None, None))[1], "%"), "",
            figure(row.gpu_share_percent, "%"), _per_step(_ms(row.gpu_per_step_ns)),
        )
        for row in profile
        if row.section == "kernels" and _is_worth_a_line(row)
    ]  # fmt: skip
    return table(("a step", "theirs, ms", "share", "CPU, ms", "share", "GPU, ms"), body)


def _is_worth_a_line(row: ProfileRow) -> bool:
    return row.gpu_share_percent is None or row.gpu_share_percent >= 0.05


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _per_step(ms: float | None) -> str:
    return figure(ms)


def _gpt2() -> list[str]:
    theirs = {"model": "1.2 GB", "gradients": "1.2 GB", "optimizer": "2.5 GB",
              "activations": "9.8 GB", "peak": "19.0 GB"}  # fmt: skip
    body = [
        (str(row["what"]), theirs.get(str(row["what"]), ""), gib(row["expected_bytes"]),
         gib(row["measured_bytes"]))
        for row in rows("gpt2-medium", "train_memory")
    ]  # fmt: skip
    return table(("GPT-2 medium", "theirs", "expected", "ours"), body)


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
            and row.name not in ("forward", "step", "(the rest)")
        ):
            ns, count = parts.get(row.name, (0.0, 0))
            parts[row.name] = ns + row.gpu_ns, count + row.instances
    body = [(name, figure(ns / count / 1e6)) for name, (ns, count) in parts.items() if count]
    flash = [row for row in rows("fusion", "attention") if row["implementation"] == "flash"]
    body += [("one kernel (flash)", figure(row["fwd_ms"])) for row in flash]
    return table(("part of a forward pass", "GPU, ms"), body)


def _others() -> list[str]:
    streams = {row["way"]: row["wall_ms"] for row in rows("streams", "streams")}
    graphs = {(row["work"], row["mode"]): row for row in rows("graphs", "graphs")}
    decode = graphs["decode", "eager"], graphs["decode", "graph"]
    copies = {row["way"]: row["gib_per_s"] for row in rows("checkpoint", "checkpoint")}
    short = {(row["weights"], row["way"]): row["gpu_ms"] for row in rows("quantized", "quantized")}
    cnn = results("convolution")
    lines = [
        ("the 497,903,616-byte copy (A40: pageable, 12.82 GiB/s)",
         f"pageable {figure(copies.get('pageable, one buffer'))}, "
         f"pinned {figure(copies.get('pinned, one buffer'))} GiB/s", "checkpoint"),
        ("overlap: copies and products",
         ", ".join(f"{way} {figure(ms)}" for way, ms in streams.items()) + " ms", "streams"),
        ("launch latency (theirs: under 10 µs)",
         figure(results("graphs")["host_us_per_launch"], "µs"), "graphs"),
        ("a decode step, eager and as a CUDA graph",
         f"{figure(decode[0]['wall_ms'])}, {figure(decode[1]['wall_ms'])} ms", "graphs"),
        ("cuDNN's benchmark, deterministic (no figures theirs)",
         f"{figure(cnn['benchmark_speedup'])} × as fast, {figure(cnn['deterministic_percent'])} % "
         "of the time", "convolution"),
        ("a product with short weights, one token",
         ", ".join(f"{weights} {figure(1e3 * ms)}" for (weights, way), ms in short.items()
                   if way == "torch" and ms) + " µs", "quantized"),
    ]  # fmt: skip
    return table(("what", "ours", "command, card, day"),
                 ((what, ours, command_of(name)) for what, ours, name in lines))  # fmt: skip


def _steps() -> list[str]:
    body = []
    for name in ("bandwidth", "seed-004-profile", "fusion"):
        steps = steps_of(*run_of(name))
        body.append((
            steps.workload, figure(steps.own_ms, digits=4), figure(steps.answer_ms, digits=4),
            figure(steps.off_percent, "%", 2),
        ))  # fmt: skip
    return table(("workload", "its own step, ms", "the answer's, ms", "off"), body)


BLOCKS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "hierarchy": ("bandwidth", _hierarchy),
    "bandwidth": ("bandwidth", _bandwidth),
    "gemm": ("gemm", _products),
    "precision": ("precision", _precision),
    "headline": ("seed-004", _headline),
    "profile": ("seed-004-profile", _profile),
    "gpt2-medium": ("gpt2-medium", _gpt2),
    "checkpointing": ("checkpointing", _checkpointing),
    "traffic": ("seed-003", _traffic),
    "fusion": ("fusion", _fusion),
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
