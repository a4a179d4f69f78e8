"""Runs `comm`: launches the ranks, and makes one table of what they report."""

from __future__ import annotations

from collections.abc import Mapping

from ..collectives import bus_factor
from ..declaration import FigureValue, Outcome, Value
from ..launching import RanksFailed, launch, rank_count
from ..link import nvlink_bytes_per_s
from ..report import Report
from ..rows import Cells, best
from ..runner import Runner
from . import COMM, OPERATIONS

LAUNCH_BOUND = 0.8
"""Share of a pass that the host takes to launch it from which the GPU waits for that."""


def sizes(smallest: int, largest: int, factor: int) -> list[int]:
    """From the smallest on, up to the largest."""
    sizes_bytes = [smallest]
    while sizes_bytes[-1] * factor <= largest:
        sizes_bytes.append(sizes_bytes[-1] * factor)
    return sizes_bytes


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Every operation and size. Raises CannotRun for more ranks than GPUs."""
    with Runner(COMM, given, report) as run:
        run.begin()
        place = run.place
        ranks = run.values["ranks"] = rank_count(run["ranks"], place.device)
        link = nvlink_bytes_per_s(place.name)
        wanted = str(run.values["operation"])
        names = OPERATIONS if wanted == "all" else (wanted,)
        left = [
            f"{name} {size}"
            for name in names
            for size in sizes(run["smallest"], run["largest"], run["factor"])
        ]
        rows: list[Cells] = []
        total = len(left)
        spec = {name: run.values[name] for name in ("passes", "warmup")}
        while left and not run.is_stopped:
            try:
                for line in launch(
                    f"{__package__}.rank",
                    ranks,
                    {**spec, "device": "cuda" if place.on_gpu else "cpu", "rows": tuple(left)},
                    float(run.values["timeout_s"]),
                    lambda: run.is_stopped,
                ):
                    if "row" not in line:
                        continue
                    left.remove(str(line["row"]))
                    run.count_steps(int(str(line["steps"])), float(str(line["own_step_ms"])))
                    rows.append(_row(line, ranks, link))
                    report.progress("measure", total - len(left), total, "rows")
                if left and not run.is_stopped:
                    raise RanksFailed("the ranks ended without a report")
            except RanksFailed as error:
                name, _, size = left.pop(0).partition(" ")
                rows.append({"operation": name, "size_bytes": int(size), "status": str(error)})
    times = [value for row in rows if isinstance(value := row.get("time_us"), float)]
    results: dict[str, FigureValue] = {
        "ranks_used": ranks,
        "best_bus_bytes_per_s": best(rows, "bus_bytes_per_s"),
        "link_bytes_per_s": link,
        "least_us": min(times, default=None),
    }
    failed = next((str(row["status"]) for row in rows if row["status"] != "ok"), "")
    why = {"link_bytes_per_s": f"the links of {place.name} are not in the table"}
    return run.outcome(results, {"comm": rows}, failed or "the run was stopped earlier", why)


def _row(line: Mapping[str, object], ranks: int, link: float | None) -> Cells:
    name = str(line["row"]).partition(" ")[0]
    size, seconds = float(str(line["size_bytes"])), float(str(line["seconds"]))
    launch_s = float(str(line["launch_seconds"]))
    rate = size / seconds
    bus = rate * bus_factor(name, ranks)
    return {
        "operation": name,
        "size_bytes": int(size),
        "time_us": 1e6 * seconds,
        "algorithm_bytes_per_s": rate,
        "bus_bytes_per_s": bus,
        "link_percent": 100 * bus / link if link else None,
        "launch_us": 1e6 * launch_s,
        "bound": "launches" if launch_s > LAUNCH_BOUND * seconds else "GPU",
        "status": "ok",
    }
