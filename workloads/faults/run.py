"""Runs `faults`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..declaration import Outcome, Value
from ..devices import synchronize
from ..report import Report
from ..runner import Runner
from . import FAULTS_WORKLOAD
from .variants import VARIANTS

_PROGRESS_S = 0.5
_TOGETHER = 64
"""Steps after which the host waits for the device, so that it never runs far ahead."""


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Makes steps until the time is over."""
    with Runner(FAULTS_WORKLOAD, given, report) as made:
        device = made.place.device
        fault, cure = str(made.values["fault"]), bool(made.values["cure"])
        seconds = float(made.values["seconds"] or 0)
        variant = VARIANTS[fault]
        step = variant.make(cure, device)
        step()
        synchronize(device)
        began = told = time.perf_counter()
        steps, now = 0, began
        while now - began < seconds and not made.is_stopped:
            step()
            steps += 1
            if steps % _TOGETHER == 0:
                synchronize(device)
            now = time.perf_counter()
            if now - told >= _PROGRESS_S:
                told = now
                report.progress("steps", min(seconds, now - began), seconds, "s")
        synchronize(device)
        took = time.perf_counter() - began
        return made.outcome(
            {
                "steps": steps,
                "step_ms": 1e3 * took / steps if steps else None,
                "cause": "" if cure else variant.cause,
            },
            {},
            "no step was made",
        )
