"""What was forecast and what was measured, of all trials of this user, in a file of their own:
`<data folder>/gputui/trials.jsonl`. Nothing of it is sent anywhere, and it names no program.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from pathlib import Path
from statistics import median

import msgspec

from gputui.base import JournalError
from gputui.base.decoding import json_decoder
from gputui.report.schema import Column, Table, count, text
from gputui.store import default_folder, make_folder, open_regular
from gputui.trial.outcome import Outcome

MOST_BYTES = 16 << 20


class Entry(msgspec.Struct, frozen=True):
    """One trial: the finding and the cure, what was forecast and what was measured, as factors."""

    time: str
    cause: str
    cure: str
    forecast_low: float
    forecast_high: float
    gain: float
    gain_low: float
    gain_high: float

    @property
    def error(self) -> float:
        """The logarithm of measured over forecast."""
        return math.log(self.gain / math.sqrt(self.forecast_low * self.forecast_high))

    @property
    def is_within(self) -> bool:
        """Whether the intervals of the forecast and of the measured gain meet."""
        return self.gain_low <= self.forecast_high and self.gain_high >= self.forecast_low


def calibration_path() -> Path:
    """The file. Raises JournalError where there is no home."""
    return default_folder().parent / "trials.jsonl"


def keep_forecasts(outcome: Outcome) -> None:
    """Append the trials that had a forecast and were measured. Raises JournalError."""
    rows = [
        msgspec.json.encode(
            Entry(
                outcome.time,
                trial.cause,
                trial.cure.partition("@")[0],
                trial.forecast_low,
                trial.forecast_high,
                trial.gain,
                trial.gain_low,
                trial.gain_high,
            )
        )
        for trial in outcome.trials
        if trial.cause is not None
        and trial.forecast_low is not None
        and trial.forecast_high is not None
        and trial.gain is not None
        and trial.gain_low is not None
        and trial.gain_high is not None
        and trial.verdict in ("gain", "nothing", "slower")
        and not trial.beside  # of the program as it is something was forecast
    ]
    if not rows:
        return
    make_folder(calibration_path().parent)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(calibration_path(), flags, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(b"".join(row + b"\n" for row in rows))
    except OSError as error:
        raise JournalError(
            f"cannot write {calibration_path()}: {(error.strerror or '').lower()}"
        ) from None


def _entries() -> list[Entry]:
    """All that was kept, the newest MOST_BYTES of it; none where nothing was. Lines that are no
    entries are left out. Raises JournalError where the file cannot be read."""
    if not os.path.lexists(calibration_path()):
        return []
    with open_regular(calibration_path()) as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - MOST_BYTES))
        lines = file.read(MOST_BYTES).split(b"\n")
    kept = []
    for line in lines:
        try:
            entry = json_decoder(Entry).decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        gains = (entry.forecast_low, entry.forecast_high, entry.gain)
        if all(0 < gain < 1e6 for gain in gains):
            kept.append(entry)
    return kept


class Calibration(msgspec.Struct, frozen=True):
    """Of one finding and one cure: how many trials, in how many of them the intervals met, and by
    which factor the gain was off the forecast, in the middle."""

    cause: str
    cure: str
    trials: int
    within: int
    off: float
    spread: float


def calibration_table() -> Table[Calibration]:
    """Forecast against measurement, by finding and cure. Raises JournalError."""
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in _entries():
        groups[entry.cause, entry.cure].append(entry)
    rows = [
        Calibration(
            cause,
            cure,
            len(group),
            sum(entry.is_within for entry in group),
            math.exp(median(entry.error for entry in group)),
            math.exp(median(abs(entry.error) for entry in group)),
        )
        for (cause, cure), group in sorted(groups.items())
    ]
    note = "" if rows else "nothing was tried yet that had a forecast"
    return Table("calibration", "Forecast and measured", _CALIBRATION, rows, note)


def _factor_text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


_CALIBRATION: tuple[Column[Calibration], ...] = (
    text("Finding", "cause", lambda row: row.cause, "Its key"),
    text("Cure", "cure", lambda row: row.cure, "Its name"),
    count("Trials", "trials", lambda row: row.trials, "How many were measured"),
    count("Within", "within", lambda row: row.within, "Whose interval meets the forecast's"),
    Column("Measured/Forecast", _factor_text, "off", lambda row: row.off, "",
           "In the middle of all trials", float),
    Column("Off by", _factor_text, "spread", lambda row: row.spread, "",
           "In the middle, whichever way", float),
)  # fmt: skip
