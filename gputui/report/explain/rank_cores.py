"""Ranks on the CPU: late of their own, or for want of a core.

With more threads than cores some rank is always the last, and naming it sends people to the wrong
place. Thresholds were measured on 2 and 4 ranks of Gloo on two cores under a load of 8 to 21: with
nobody late in 32 trials, and one or two late by a sleep or by twice the work in 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import median
from typing import NamedTuple

from gputui.report.explain.rank_waits import Matched
from gputui.state import Run

LONGER = 1.25
"""How much longer than the others a rank computes that has more work: with nobody late 1.15 times
at most, with twice the work from 1.6 times on, but for one trial."""


CHANCE = 2.5
"""Standard errors by which the waits of ranks differ by more than chance: with nobody late in 50
trials of 24 steps on two cores under a load of 12 to 16 by 2.3 at most, where one was last in
seven; those that sleep 30 ms in each of 16 steps by 3 to 3.8."""


class Cores(NamedTuple):
    """Shares of the time in which the threads of a rank that make its collectives ran, and in which
    they were ready to run and had no core."""

    ran: float
    waited: float


def cores_of(run: Run, process: int) -> Cores | None:
    """None where it was not seen, as in other containers and older recordings."""
    seen = run.processes[process]
    if not seen.core_watched_ns:
        return None
    return Cores(seen.core_run_ns / seen.core_watched_ns, seen.core_wait_ns / seen.core_watched_ns)


def times_longer(own: Cores | None, others: Sequence[Cores | None], least: float) -> float | None:
    """How many times as long as the others it computes; None where that is no more, or less than
    `least` of the time more."""
    known = [one.ran for one in others if one is not None]
    usual = median(known) if known else 0.0
    if own is None or not usual or own.ran < LONGER * usual or own.ran - usual < least:
        return None
    return own.ran / usual


def may_be_chance(
    own: Matched, others: Sequence[Matched], core_wait_ns: int, late: float, least: float
) -> bool:
    """Whether a rank that is late by a share of the time, but for less than `least` of it no longer
    than it waited for cores, waits as much as the others but for chance: what the scheduler does
    to ranks differs from one collective to the next.
    """
    if late * own.window_ns - core_wait_ns >= least * own.window_ns:
        return False
    if not all(one.wait_us2 for one in others):
        return False  # recorded before this was
    fewer_us = (median(one.waited_ns for one in others) - own.waited_ns) / 1e3
    error_us = sqrt(median(one.wait_us2 for one in others) + own.wait_us2)
    return fewer_us < CHANCE * error_us


def had_no_core(
    own: Cores | None, others: Sequence[Cores | None], late: float, least: float
) -> bool:
    """Whether a rank that is late by a share of the time would be by less than `least` of it had
    it waited for cores no longer than the others, and it computed no longer than they did."""
    known = [one.waited for one in others if one is not None]
    if own is None or not known or times_longer(own, others, least) is not None:
        return False
    return late - max(0.0, own.waited - median(known)) < least
