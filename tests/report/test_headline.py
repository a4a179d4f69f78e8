"""The headline of a run that goes on: late enough, steady, and the truth at the end."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.model.events import CaptureDelta, RunEnded
from gputui.model.leaves import Leaf
from gputui.report.explain import Analysis, conclusion
from gputui.report.explain.verdict import Headline
from gputui.state import Run, Session
from tests.report.test_verdict import a_run, delta

SECOND = 1_000_000_000


class Live:
    """A run whose shares change from second to second."""

    def __init__(self) -> None:
        self.session, self.run = a_run()
        self.headline = Headline()
        self.now_ns = 0

    def second(self, launch: float, sync: float) -> str | None:
        """A second of 100 steps more; the headline's word."""
        self.now_ns += SECOND
        shares = {Leaf.LAUNCH: launch, Leaf.SYNC: sync, Leaf.MATMUL: 1 - launch - sync}
        self.session.apply([replace(delta(shares), time_ns=self.now_ns)])
        found = self.headline.update(self.run, conclusion(Analysis(self.session, self.run)))
        return found.word if found is not None else None


def test_it_comes_after_two_seconds_of_steps() -> None:
    live = Live()
    assert live.second(0.6, 0.1) is None
    assert live.second(0.6, 0.1) == "LAUNCH-BOUND"


def test_causes_of_like_size_do_not_take_turns() -> None:
    live = Live()
    words = [live.second(0.42 if second % 2 else 0.38, 0.4) for second in range(20)]
    assert len(set(words[1:])) == 1


def test_a_larger_cause_leads_after_five_seconds() -> None:
    live = Live()
    for _ in range(3):
        live.second(0.4, 0.3)
    words = [live.second(0.05, 0.8) for _ in range(12)]
    changed = words.index("SYNC-BOUND")
    assert words == ["LAUNCH-BOUND"] * changed + ["SYNC-BOUND"] * (12 - changed)
    assert changed >= 5


def test_figures_are_renewed_while_the_cause_is_held() -> None:
    live = Live()
    for _ in range(4):
        live.second(0.5, 0.3)
    found = live.headline.update(live.run, conclusion(Analysis(live.session, live.run)))
    assert found is not None
    assert "50 %" in found.headline
    live.second(0.0, 0.6)
    found = live.headline.update(live.run, conclusion(Analysis(live.session, live.run)))
    assert found is not None
    assert found.word == "LAUNCH-BOUND"
    assert "40 %" in found.headline


def test_at_the_end_it_is_what_was_found() -> None:
    live = Live()
    for _ in range(3):
        live.second(0.5, 0.1)
    live.session.apply([at_once({Leaf.SYNC: 0.9, Leaf.MATMUL: 0.1}, live.now_ns)])
    ended = RunEnded(time_ns=live.now_ns, run=1, exit_code=0, reason="done")
    live.session.apply([ended])
    found = live.headline.update(live.run, conclusion(Analysis(live.session, live.run)))
    assert found is not None
    assert found.word == "SYNC-BOUND"


def at_once(shares: dict[Leaf, float], now_ns: int) -> CaptureDelta:
    return replace(delta(shares, count=10_000), time_ns=now_ns)


def test_another_run_begins_anew() -> None:
    live, other = Live(), Live()
    for _ in range(3):
        live.second(0.6, 0.1)
    other.run.started = replace(other.run.started, time_ns=7)
    assert shown(live.headline, other.session, other.run) is None


def shown(headline: Headline, session: Session, run: Run) -> str | None:
    found = headline.update(run, conclusion(Analysis(session, run)))
    return found.word if found is not None else None
