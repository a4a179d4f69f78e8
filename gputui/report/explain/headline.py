"""The headline while a run goes on: it must not flicker between two causes of like size."""

from __future__ import annotations

from gputui.report.explain import Verdict
from gputui.state import Run

LEAST_STEPS = 10
LEAST_NS = 2_000_000_000
"""Steady steps and time before there is a headline (TraceML waits for 2 steps to warn, for 20 to be
sure)."""

LARGER = 0.05
FOR_NS = 5_000_000_000
"""A new cause leads when it is this much larger, in shares of the wall time, for so long (ingero
has a hysteresis of 0.02)."""


class Headline:
    """The conclusion on the newest run, held steady. Once a run has ended it is the conclusion."""

    def __init__(self) -> None:
        self._run: int | None = None
        self._shown: Verdict | None = None
        self._challenger: tuple[str, int] | None = None

    def of(self, run: Run, found: Verdict | None) -> Verdict | None:
        """What to show now, where `found` is the run's conclusion; None while too little was
        seen."""
        if run.started.time_ns != self._run:
            self._run, self._shown, self._challenger = run.started.time_ns, None, None
        tree = found.tree if found is not None else None
        if found is None or tree is None or not run.is_active:
            self._shown = found
            return found
        enough = tree.steps >= LEAST_STEPS * tree.devices and tree.wall_ns >= LEAST_NS
        if self._shown is None and not enough:
            return None
        if self._shown is None or self._leads(found, run.updated_ns):
            self._shown, self._challenger = found, None
        else:
            self._shown = _renewed(self._shown, found)
        return self._shown

    def _leads(self, found: Verdict, now_ns: int) -> bool:
        """Whether what was found takes the place of what is shown."""
        shown = self._shown
        assert shown is not None
        if _cause(found) == _cause(shown):
            return True
        sizes = {one.cause: one.recoverable for one in found.findings}
        held, new = sizes.get(_cause(shown), 0.0), sizes.get(_cause(found), 0.0)
        if abs(new - held) < LARGER:
            self._challenger = None
            return False
        if self._challenger is None or self._challenger[0] != _cause(found):
            self._challenger = _cause(found), now_ns
        return now_ns - self._challenger[1] >= FOR_NS


def _cause(found: Verdict) -> str:
    """What leads: a leaf, a rule, or a verdict without findings."""
    return found.findings[0].cause if found.findings else found.word


def _renewed(shown: Verdict, found: Verdict) -> Verdict:
    """The same cause in front, with its newest figures."""
    same = next((one for one in found.findings if one.cause == _cause(shown)), None)
    if same is None:
        return shown
    rest = tuple(one for one in found.findings if one is not same)
    return Verdict(same.word, same.told, (same, *rest), found.tree, found.speed)
