"""Which values do not go together, before torch is imported; and `python -m workloads --forecast`:
what runs would need, asked and answered line by line.

Asked: `{"workload", "values", "gpu": its name or null}`, values of any parameters. Answered:
`{"wrong": why the values do not go together or null, "names": whose values, "memory_bytes",
"seconds"}`, null for what is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from .declaration import Forecast, Value, Workload
from .errors import DoesNotFit
from .peaks import configured_peaks, find_peak
from .registry import find

Json = dict[str, object]


def serve(lines: Iterable[str], answers: TextIO) -> None:
    """Answer until the asker closes the pipe."""
    for line in lines:
        answers.write(json.dumps(answer(json.loads(line)), allow_nan=False) + "\n")
        answers.flush()


def answer(asked: dict[str, Any]) -> Json:
    """One answer. A forecast of the user's own that fails is none."""
    wrong: str | None = None
    names: tuple[str, ...] = ()
    forecast = Forecast()
    try:
        workload = find(str(asked["workload"]))
        forecaster = workload.forecaster()
        if forecaster is not None:
            gpu = asked["gpu"]
            values = _filled(workload, workload.read(asked["values"]), on_cpu=gpu is None)
            on_gpu = gpu is not None and values.get("device") != "cpu"
            peak = find_peak(str(gpu), None, configured_peaks()) if on_gpu else None
            forecast = forecaster(values, peak)
    except DoesNotFit as error:
        wrong, names = str(error), error.names
    except Exception:  # of a value by itself, or of the user's own code: running it says so
        forecast = Forecast()
    return {
        "wrong": wrong,
        "names": list(names),
        "memory_bytes": forecast.memory_bytes,
        "seconds": forecast.seconds,
    }


def refuse_early(workload: Workload, given: Mapping[str, Value]) -> None:
    """Raise DoesNotFit where `given` do not go together on any device that may be meant."""
    forecaster = workload.forecaster()
    if forecaster is None:
        return
    asked = given.get("device", "auto")
    kinds = [on_cpu for on_cpu in (False, True) if asked == "auto" or on_cpu == (asked == "cpu")]
    refusals = []
    for on_cpu in kinds:
        try:
            forecaster(_filled(workload, given, on_cpu=on_cpu), None)
        except DoesNotFit as refusal:
            refusals.append(refusal)
        except Exception:  # the user's own code: running it says what is wrong
            return
    if len(refusals) == len(kinds):
        raise refusals[0]


def _filled(workload: Workload, given: Mapping[str, Value], *, on_cpu: bool) -> dict[str, Value]:
    """Every parameter's value, with the CPU for "auto" where there is no GPU."""
    values = workload.fill(given, on_cpu=on_cpu)
    if on_cpu and values.get("device") == "auto":
        values["device"] = "cpu"
    return values
