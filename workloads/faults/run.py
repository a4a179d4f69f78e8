"""Runs the steps of one fault or of its cure until the time is over."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..declaration import FigureValue, Outcome, Value
from ..devices import synchronize
from ..launching import launch
from ..report import Report
from ..runner import Runner
from . import FAULTS_WORKLOAD
from .variants import VARIANTS, Variant

_PROGRESS_S = 0.5
# Steps after which the host waits for the device, so that it never runs far ahead.
_TOGETHER = 64

# Without a word from the ranks.
_TIMEOUT_S = 60.0

_NO_STEP = "no step was made"


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Makes steps until the time is over."""
    with Runner(FAULTS_WORKLOAD, given, report) as made:
        device = made.place.device
        fault, cure = str(made.values["fault"]), bool(made.values["cure"])
        seconds = float(made.values["seconds"] or 0)
        variant = VARIANTS[fault]
        cause = "" if cure else variant.cause
        if variant.ranks > 1:
            made.begin()
            return made.outcome({**_of_ranks(made, variant, cure), "cause": cause}, {}, _NO_STEP)
        step = variant.make(cure, device)
        step()
        synchronize(device)
        made.begin()
        began = reported_s = time.perf_counter()
        steps, now = 0, began
        while now - began < seconds and not made.is_stopped:
            step()
            steps += 1
            if steps % _TOGETHER == 0:
                synchronize(device)
            now = time.perf_counter()
            if now - reported_s >= _PROGRESS_S:
                reported_s = now
                report.progress("steps", min(seconds, now - began), seconds, "s")
        synchronize(device)
        took = time.perf_counter() - began
        return made.outcome(
            {
                "steps": steps,
                "step_ms": 1e3 * took / steps if steps else None,
                "cause": cause,
            },
            {},
            _NO_STEP,
        )


def _of_ranks(made: Runner, variant: Variant, cure: bool) -> Mapping[str, FigureValue]:
    """The same in several processes, on a GPU each where there are enough."""
    seconds = float(made.values["seconds"] or 0)
    spec: dict[str, Value] = {"device": made.place.device.type, "cure": cure, "seconds": seconds}
    steps, step_ms = 0, None
    for line in launch(
        f"{__package__}.ranks", variant.ranks, spec, _TIMEOUT_S, lambda: made.is_stopped
    ):
        if "steps" in line:
            steps, took_s = int(str(line["steps"])), float(str(line["took_s"]))
            step_ms = 1e3 * took_s / steps
            made.report.progress("steps", min(seconds, took_s), seconds, "s")
    return {"steps": steps, "step_ms": step_ms}
