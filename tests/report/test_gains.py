"""Gains: the page about them is current, and what it says of the fitted pairs holds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.report.explain.finding import WIDENED, WIDENED_OTHERS, Gain, calibrated
from tests.report.gains import (
    FOLDER,
    PAGE,
    found,
    is_kept,
    page,
    pairs,
    predicted,
    row_of,
    table_of_widths,
)


def test_the_page_of_gains_is_current() -> None:
    """If it is not: `python -m tests.report.gains`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_recording_is_of_a_pair() -> None:
    assert {path.name for path in FOLDER.glob("*.gz")} == {
        f"{pair.name}.gputui.gz"
        for pair in pairs()
        if pair.group not in ("held out 5", "held out 6", "held out 7", "held out 8", "held out 9")
    }


def test_faults_of_the_workload_gain_what_is_said() -> None:
    """All of them, and none is said to gain what nobody could tell apart."""
    for pair in pairs():
        if pair.group == "workload":
            _, gain, _ = row_of(pair)
            assert gain is not None, pair.name
            assert gain.low <= pair.measured <= gain.high, pair.name


def test_what_is_said_now_holds_of_nine_in_ten() -> None:
    """Of all pairs, whose errors made the intervals as wide as they are."""
    said = [(pair, gain) for pair in pairs() if (gain := predicted(pair, found(pair)))]
    inside = sum(gain.low <= pair.measured <= gain.high for pair, gain in said)
    assert inside >= 0.9 * len(said) >= 0.7 * sum(map(is_kept, pairs()))


def test_intervals_are_as_wide_as_models_were_wrong() -> None:
    assert table_of_widths() == {**WIDENED, "": WIDENED_OTHERS}


def test_widening_keeps_the_middle_in_odds_of_what_goes() -> None:
    """(low - 1) × (high - 1) stays, and models that were right stay narrower."""
    factors: dict[str, float] = {}
    for pair in pairs():
        finding = found(pair)
        assert finding is None or finding.gains or finding.gain_unknown
        for modelled, gain in (
            zip(finding.modelled, finding.gains, strict=bool(finding.gains)) if finding else ()
        ):
            assert 1.0 < gain.low < gain.high
            if finding is not None and finding.is_timed:
                assert gain.low == modelled.low, "what was timed goes at least"
            elif finding is not None and modelled.low > 1.02:
                product = (modelled.low - 1) * (modelled.high - 1)
                # Of what spares no kernels the high end stops at all idle time.
                if gain.high not in (finding.alone, modelled.high):
                    assert (gain.low - 1) * (gain.high - 1) == pytest.approx(product)
                factors[pair.name] = (gain.high - 1) / (modelled.high - 1)
    assert factors["credit_mlp"] < factors["lion_vit"] < factors["seismic_shot_cupy"]


def test_a_model_that_may_gain_nothing_keeps_its_high_end() -> None:
    """Sparse gradients of large embeddings gained 2.28 times."""
    finding = next(finding for pair in pairs() if (finding := found(pair)) is not None)
    [gain] = calibrated(replace(finding, cause="optimizer", gains=(Gain(1.0, 2.85),))).gains
    assert gain.low < 1.05
    assert gain.high >= 2.85


def test_of_a_very_wide_interval_the_low_end_is_said() -> None:
    assert Gain(2.0, 11.9).text == "2.0 to 12× faster"
    assert Gain(2.0, 41.0, "TF32").text == "TF32: at least 2.0× faster"
    assert Gain(1.02, 9.0).text == "up to 9.0× faster", "1.0 to 9.0 was read as perhaps nothing"
