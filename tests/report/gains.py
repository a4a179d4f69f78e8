"""What cures were predicted to gain and what they gained: `python -m tests.report.gains` draws
`gputui/docs/gains.md` from `tests/data/gains`.

A pair is a recording of a program with a fault, and how long its own steps took it with the fault
and without, by its own clock. What answers the fault was written down before any prediction was
read: the keys of the findings, and of several cures of one finding which was applied.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

import gputui
from gputui.report.explain import Analysis, findings
from gputui.report.explain.finding import Finding, Gain
from tests.conftest import DATA
from tests.sessions_for_tests import loaded_once

PAGE = Path(gputui.__file__).parent / "docs" / "gains.md"
FOLDER = DATA / "gains"


class Pair(msgspec.Struct, kw_only=True):
    """A program with a fault, and what its cure brought.

    `group` is "workload" (of `faults`), "fitted" (public programs that models were fitted to) or
    "held out". `answers` are the findings that its cure answers, `applied` which of their cures it
    was. `first` is what was predicted when the pair was evaluated for the first time, low and high,
    and `first_cause` the finding: None and empty where there was none of the fault; `led`
    whether that finding came first then, None where it was not written down.
    """

    name: str
    group: str
    fault: str
    cure: str
    answers: tuple[str, ...]
    applied: str = ""
    fault_ms: float
    cure_ms: float
    first: tuple[float, float] | None = None
    first_cause: str = ""
    led: bool | None = None

    @property
    def measured(self) -> float:
        """How many times shorter a step is with the cure."""
        return self.fault_ms / self.cure_ms


def pairs() -> list[Pair]:
    """Every pair, in the order of the page."""
    rows = json.loads((FOLDER / "pairs.json").read_text(encoding="utf-8"))
    return [msgspec.convert(row, Pair) for row in rows]


def found(pair: Pair) -> Finding | None:
    """The first finding that the pair's cure answers; None where there is none."""
    loaded = loaded_once(str(FOLDER / f"{pair.name}.gputui.gz"))
    assert loaded.run is not None
    every = findings(Analysis(loaded.session, loaded.run))
    return next((finding for finding in every if finding.cause in pair.answers), None)


def predicted(pair: Pair, finding: Finding | None) -> Gain | None:
    """The gain of the cure that was applied."""
    gains = finding.gains if finding is not None else ()
    return next((gain for gain in gains if pair.applied in ("", gain.cure)), None)


HELD_OUT = ("held out", "held out 2")
"""Groups whose first evaluation is the one that counts."""

GROUPS = {
    "held out 2": (
        "Held-out programs, second set",
        "By another author who had not seen the rules, nor the first set; evaluated once, with "
        "the rules as they were then (2026-11-26, one H200, torch 2.11): these are the figures of "
        "that evaluation. Two healthy programs of the set were HEALTHY.",
    ),
    "held out": (
        "Held-out programs, first set",
        "Written by somebody who had not seen the rules; their recordings were opened when the "
        "models were frozen, and evaluated once: these are the figures of that evaluation.",
    ),
    "fitted": (
        "Public programs",
        "By the same author. The models were fitted to these and to the workload's faults.",
    ),
    "workload": ("Faults of the workload `faults`", "Fitted, too."),
}


def row_of(pair: Pair) -> tuple[list[str], Gain | None, str]:
    """The cells of a pair, what was predicted, and the cause of the finding, empty without one."""
    if pair.group in HELD_OUT:
        cause = pair.first_cause
        gain = Gain(*pair.first) if pair.first is not None else None
    else:
        finding = found(pair)
        cause = finding.cause if finding is not None else ""
        gain = predicted(pair, finding)
    if gain is None:
        why = "another finding" if not cause else "not known"
        cells = [why, f"{pair.measured:.2f}×", "–"]
    else:
        inside = gain.low <= pair.measured <= gain.high
        ends = f"{gain.low:.2f} to {gain.high:.2f}×"
        cells = [ends, f"{pair.measured:.2f}×", "yes" if inside else "**no**"]
    return [pair.name, pair.fault, pair.cure, f"`{cause or '–'}`", *cells], gain, cause


def summary(rows: list[tuple[Pair, Gain | None, str]]) -> str:
    """A sentence about a group."""
    with_finding = [row for row in rows if row[2]]
    given = [(pair, gain) for pair, gain, _ in rows if gain is not None]
    if not given:
        return f"{len(rows)} pairs, none with a predicted gain."
    inside = sum(gain.low <= pair.measured <= gain.high for pair, gain in given)
    led = sum(pair.led is True for pair, _, _ in rows)
    came_first = f" It came first in {led}." if led else ""
    width = median(gain.high / gain.low for _, gain in given)
    error = median(abs(gain.middle / pair.measured - 1) for pair, gain in given)
    return (
        f"{len(rows)} pairs; a finding that the cure answers in {len(with_finding)}, with a gain "
        f"in {len(given)}.{came_first} Measured gain inside the interval: {inside} of {len(given)} "
        f"({100 * inside / len(given):.0f} %). Median of high ÷ low: {width:.2f}. Median error of "
        f"the middle: {100 * error:.0f} %."
    )


def today(chosen: list[Pair]) -> str:
    """What pairs that were held out are predicted by the rules as they are."""
    gains = [(pair, gain) for pair in chosen if (gain := predicted(pair, found(pair)))]
    inside = sum(gain.low <= pair.measured <= gain.high for pair, gain in gains)
    return f"a gain in {len(gains)}, the measured one inside in {inside}."


def page() -> str:
    """The page, as it should be."""
    lines = [
        "# What cures gain: predicted and measured",
        "",
        "Written by `python -m tests.report.gains` from the recordings in `tests/data/gains`; a",
        "test compares. Each row is a program with one fault, recorded with gputui, and the same",
        "program with that fault cured: the interval that gputui says of the fault's finding, and",
        "how many times shorter the program's own step became, by its own clock. One H100 80GB",
        "HBM3, torch 2.11, 2026-11-24. A middle is the geometric mean of an interval's ends. Where",
        "no gain stands: *another finding*, where none is of the fault, *not known*, where gputui",
        "says so. How the models work: `gputui/report/explain/gains.py`.",
    ]
    every = pairs()
    for group, (title, text) in GROUPS.items():
        chosen = [pair for pair in every if pair.group == group]
        if not chosen:
            continue
        table: list[list[str]] = []
        results: list[tuple[Pair, Gain | None, str]] = []
        for pair in chosen:
            cells, gain, cause = row_of(pair)
            table.append(cells)
            results.append((pair, gain, cause))
        lines += ["", f"## {title}", "", text, "", summary(results), ""]
        if group in HELD_OUT:
            lines += [f"With the rules as they are now, mended on these: {today(chosen)}", ""]
        lines += [
            "| program | fault | cure | finding | predicted | measured | inside |",
            "|---|---|---|---|--:|--:|---|",
            *(f"| {' | '.join(cells)} |" for cells in table),
        ]
    return "\n".join(lines) + "\n"


def write(rows: list[dict[str, Any]]) -> None:
    """Keeps pairs: a line each."""
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (FOLDER / "pairs.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
