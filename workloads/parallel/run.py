"""Runs `parallel`: launches the ranks, and makes one table of what they report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ..declaration import FigureValue, Outcome, Value
from ..launching import Line, RanksFailed, launch, rank_count
from ..report import Report
from ..rows import Cells
from ..runner import Runner
from . import PARALLEL
from .plans import ENGINES, bubble, bytes_of, chosen, state_of, too_old, why_not

TOLERANCE = {"fp32": 2e-3, "tf32": 2e-2}
"""Of the loss, relative: sums in another order, over some steps."""


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Every engine that was asked for. Raises CannotRun for more ranks than GPUs."""
    with Runner(PARALLEL, given, report) as run:
        run.begin()
        ranks = run.values["ranks"] = rank_count(run["ranks"], run.place.device)
        report.say(f"parallel: {ranks} ranks on {run.place.name}")
        launches = _Launches(run, ranks)
        names = chosen(str(run.values["engine"]))
        # Who is late is seen best where all ranks do the same; stages that sleep are no model.
        if (run.values["late"] != "none" or run["stage_ms"]) and len(names) > 1:
            names.remove("single")
        launches.measure(names)
        rows = launches.rows
    single = launches.single
    speeds = {
        str(row["engine"]): speed
        for row in rows
        if isinstance(speed := row.get("tokens_per_s"), float)
        # Alone, or another model.
        and row["engine"] not in ("single", "ep")
    }
    best = max(speeds, key=lambda name: speeds[name], default=None)
    bubbles = [value for row in rows if isinstance(value := row.get("bubble_percent"), float)]
    results = {
        "ranks_used": ranks,
        "parameters_total": single.get("parameters"),
        "one_rank_tokens_per_s": next(
            (row.get("tokens_per_s") for row in rows if row["engine"] == "single"), None
        ),
        "best_tokens_per_s": speeds.get(best) if best else None,
        "best_engine": best,
        "least_bubble_percent": min(bubbles, default=None),
    }
    why = next((str(row["status"]) for row in rows if row["status"] != "ok"), "")
    if not single and not why and not run.is_stopped:
        why = (
            "stages that sleep train nothing"
            if run["stage_ms"]
            else "not measured with a late rank"
        )
    reasons = {} if bubbles else {"least_bubble_percent": why or "no pipeline was measured"}
    return run.outcome(results, {"parallel": rows}, why or "the run was stopped earlier", reasons)


class _Launches:
    """Launches the engines and collects their rows; a launch that fails costs one engine."""

    def __init__(self, run: Runner, ranks: int) -> None:
        self._run, self._ranks = run, ranks
        self.rows: list[Cells] = []
        self.single: dict[str, FigureValue] = {}

    def measure(self, names: list[str]) -> None:
        """Launch until every engine has a row: one that fails takes its launch with it."""
        total = len(names)
        left = list(names)
        sizes = {name: int(self._run[name]) for name in _SIZES}
        for name in names:
            reason = why_not(name, self._ranks, sizes)
            if not self._run.place.on_gpu:
                reason = too_old(name, torch.__version__) or reason
            if reason:
                left.remove(name)
                self._add({"engine": name, "ranks": self._ranks, "status": reason})
        while left and not self._run.is_stopped:
            try:
                for line in self._launch(left):
                    if "engine" in line:
                        left.remove(str(line["engine"]))
                        self._run.count_steps(
                            int(str(line["steps"])), float(str(line["own_step_ms"]))
                        )
                        self._add(self._row(line))
                    self._run.report.progress("measure", total - len(left), total, "engines")
                if left and not self._run.is_stopped:
                    raise RanksFailed("the ranks ended without a report")
            except RanksFailed as error:
                name = left.pop(0)
                self._add({"engine": name, "ranks": self._ranks, "status": str(error)})
        order = {name: position for position, name in enumerate(names)}
        self.rows.sort(key=lambda row: order[str(row["engine"])])

    def _launch(self, names: list[str]) -> Iterator[Line]:
        run = self._run
        words = {name: run.values[name] for name in _SPEC}
        device = "cuda" if run.place.on_gpu else "cpu"
        module = f"{__package__}.rank"
        spec = {**words, "device": device, "engines": tuple(names)}
        return launch(
            module, self._ranks, spec, float(run.values["timeout_s"]), lambda: run.is_stopped
        )

    def _row(self, line: Line) -> Cells:
        run, ranks = self._run, self._ranks
        name = str(line["engine"])
        figures = {key: value for key, value in line.items() if isinstance(value, int | float)}
        if name == "single":
            self.single = dict(figures)
        step_s = float(figures["step_s"])
        tokens = run["batch"] * ranks * run["ctx"]
        parameters = int(self.single.get("parameters") or 0)
        formula = bubble(name, ranks, run["microbatches"])
        sleeps = formula is not None and run["stage_ms"] > 0
        row: Cells = {
            "engine": name,
            "ranks": 1 if name == "single" else ranks,
            "step_ms": 1e3 * step_s,
            "tokens_per_s": None if sleeps else tokens / step_s,
            "bubble_formula_percent": None if formula is None else 100 * formula,
            "formula_bytes": bytes_of(name, ranks, parameters) if parameters else None,
            "state_formula_bytes": state_of(name, ranks, parameters) if parameters else None,
            "status": "ok",
        }
        row |= {key: figures[key] for key in (_SENT if sleeps else _COUNTED) if key in figures}
        alone_s, own_s = self.single.get("step_s"), self.single.get("own_step_s")
        if "bubble" in figures:
            row["bubble_percent"] = 100 * float(figures["bubble"])
        if sleeps:
            return row
        if name not in ("single", "ep") and isinstance(alone_s, float):
            row["strong_percent"] = 100 * alone_s / (ranks * step_s)
            if ENGINES[name].rank_has_own_batch and isinstance(own_s, float):
                row["weak_percent"] = 100 * own_s / step_s
        wanted = figures.get("reference_loss") if name == "ep" else self.single.get("loss")
        loss = figures["loss"]
        tolerance = TOLERANCE[str(run.values["precision"])]
        if isinstance(wanted, float) and abs(loss - wanted) > tolerance * abs(wanted):
            row["status"] = f"its loss is {loss:.4f}, one rank's {wanted:.4f}"
        return row

    def _add(self, row: Cells) -> None:
        self.rows.append(row)
        words = f"{row['tokens_per_s']:.4g} tokens/s" if row.get("tokens_per_s") else ""
        self._run.report.say(f"{row['engine']}: {words or row['status']}")


_SIZES = ("layers", "hidden", "heads", "vocab", "ctx", "batch", "microbatches")
_SPEC = (
    *_SIZES,
    "seed",
    "steps",
    "warmup",
    "precision",
    "late",
    "late_rank",
    "late_ms",
    "stage_ms",
)
_SENT = ("collectives", "sent_bytes")
_COUNTED = (*_SENT, "state_bytes", "peak_bytes", "loss")
