"""Keys that move through a recording, and those that open and close one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

from textual.screen import Screen

from gputui.tui.model import Model
from gputui.tui.shell.keys import does
from gputui.tui.source import Moment, Playback
from gputui.tui.times import clock_text, parse_moment

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp


class ReplayKeys(Screen[None]):
    """What the main screen can do with a recording being played."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def draw(self) -> None:
        raise NotImplementedError

    def say(self, text: str, *, bad: bool = False) -> None:
        raise NotImplementedError

    def refuse(self, why: str) -> None:
        """Say why something is not done, or has failed."""
        self.say(why, bad=True)

    def ask(self, title: str, text: str, yes: str, then: Callable[[], None]) -> None:
        """Ask a question, and do `then` where the answer is yes."""
        from gputui.tui.dialogs.boxes import Answer, Question

        def answered(answer: str | None) -> None:
            if answer is not None:
                then()

        self.app.push_screen(Question(title, [((text, "text"),)], Answer("y", yes)), answered)

    @property
    def gputui(self) -> GputuiApp:
        return cast("GputuiApp", self.app)

    @property
    def replays(self) -> bool:
        """Whether a recording is being played."""
        return isinstance(self.model.source, Playback)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Some keys have one meaning for a recording and another, or none, without one."""
        return does(action, self.replays) and super().check_action(action, parameters)

    def action_replay_step(self, ticks: int) -> None:
        """Pause, and go a sample forward or back."""
        source = self.model.source
        if isinstance(source, Playback) and self._can_go(source, ticks):
            source.step(ticks)
            self.model.paused = True
            self.draw()

    def action_replay_skip(self, seconds: int) -> None:
        source = self.model.source
        if isinstance(source, Playback) and self._can_go(source, seconds):
            source.skip(seconds)

    def _can_go(self, source: Playback, way: int) -> bool:
        """Whether there is anything that way, in time; else it is said."""
        is_there = source.has_ended if way > 0 else source.position_s <= 0
        if is_there:
            self.say(f"this is the {'end' if way > 0 else 'beginning'} of the recording")
        return not is_there

    def action_replay_phase(self) -> None:
        """Go to the next change of phase."""
        if isinstance(self.model.source, Playback):
            self._go_to_next("phase", self.model.source)
            self.model.source.next_phase()

    def action_replay_event(self) -> None:
        """Go to the next start, exit, alert or trouble."""
        if isinstance(self.model.source, Playback):
            self._go_to_next("event", self.model.source)
            self.model.source.next_event()

    def action_replay_jump(self) -> None:
        """Ask for a time, and go there."""
        source = self.model.source
        if not isinstance(source, Playback):
            return
        from gputui.tui.dialogs.boxes import Prompt

        def seconds(text: str) -> float:
            return parse_moment(text, source.position_s, source.length_s)

        def wrong(text: str) -> str:
            try:
                seconds(text)
            except ValueError as error:
                return str(error)
            return ""

        def answered(text: str | None) -> None:
            if text is not None:
                target = seconds(text)
                source.seek(target)
                self.say(f"at {clock_text(min(target, source.length_s))}")

        place = f"{clock_text(source.position_s)} of {clock_text(source.length_s)}"
        hint = f"Now at {place}. As 90, 1:30, 1m30s or 50%; +10, -10 from here."
        self.app.push_screen(Prompt("Go to a time", hint, "go there", "", wrong), answered)

    def action_go_home(self) -> None:
        """Close the recording opened in Sessions."""
        self.gputui.go_home()

    def _go_to_next(self, kind: Literal["phase", "event"], source: Playback) -> None:
        """Show what comes next, or that nothing does."""
        now_ns = source.begun_ns + int(source.position_s * 1e9)
        following: Moment | None = next(
            (
                moment
                for moment in source.moments
                if moment.time_ns > now_ns and (moment.kind == "phase") == (kind == "phase")
            ),
            None,
        )
        if following is not None:
            when = clock_text((following.time_ns - source.begun_ns) / 1e9)
            self.say(f"{when}  {following.text}")
        else:
            what = "change of phase" if kind == "phase" else "start, exit, alert or trouble"
            where = "in this recording" if source.is_indexed and source.is_read else "so far"
            self.say(f"no later {what} {where}")
