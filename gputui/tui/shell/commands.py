"""Keys that reach beyond the screen: runs, exports, signals, the source's pace, quitting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.model.units import clock_text, parse_moment
from gputui.report.tables.processes import OUTSIDE
from gputui.state.remarks import CUPTI_STAYS
from gputui.tui.model import Model
from gputui.tui.shell.keys import does
from gputui.tui.source import (
    Attacher,
    JobElsewhere,
    ManyHosts,
    MomentKind,
    Playback,
    Runner,
    moment_ahead,
)
from gputui.tui.textual_internals import Narrow
from gputui.tui.widgets.line_view import FOR_READERS
from gputui.tui.widgets.view import View

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel

    from gputui.collect.catalogue import TargetGpu
    from gputui.render.formats import Written
    from gputui.report.tables.processes import ProcessRow
    from gputui.tui.dialogs.boxes import ExportRequest
    from gputui.tui.dialogs.workloads import StartRequest


_TOLD_S = 8.0


_INTERVALS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def _all(names: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *others, last = [*names] or [""]
    return f"{', '.join(others)} and {last}" if others else last


def written(what: Written) -> str:
    """Where an export is, and what is missing in it."""
    return "; ".join([f"written: {', '.join(map(str, what.paths))}", *what.remarks])


class Commands(Narrow):
    """What the main screen can ask of the source and the files, and do with a recording that is
    played."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self._remembered: dict[str, dict[str, str]] = {}
        self._last_workload = ""

    @property
    def view(self) -> View:
        """The one that is shown."""
        raise NotImplementedError

    def draw(self) -> None:
        raise NotImplementedError

    def say(self, text: str, *, bad: bool = False) -> None:
        raise NotImplementedError

    def refuse(self, why: str) -> None:
        """Say why something is not done, or has failed."""
        self.say(why, bad=True)

    def tell(self, text: str, *, bad: bool = False) -> None:
        """Say what came by itself: it stays for some seconds, whatever is pressed meanwhile."""
        if self.app.has_class(FOR_READERS):
            self.say(text, bad=bad)
            return
        severity: SeverityLevel = "error" if bad else "information"
        self.app.notify(text, severity=severity, timeout=_TOLD_S, markup=False)

    def ask(self, title: str, text: str, yes: str, then: Callable[[], None]) -> None:
        """Ask a question, and do `then` where the answer is yes."""
        from gputui.tui.dialogs.boxes import Answer, Question

        def answered(answer: str | None) -> None:
            if answer is not None:
                then()

        self.app.push_screen(Question(title, [((text, "text"),)], Answer("y", yes)), answered)

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
                length_s = source.length_s
                target = parse_moment(text, source.position_s, length_s)
                if math.isclose(target, length_s):
                    source.seek_end()
                else:
                    source.seek(target)
                self.say(f"at {clock_text(min(target, length_s))}")

        place = f"{clock_text(source.position_s)} of {clock_text(source.length_s)}"
        hint = f"Now at {place}. As 90, 1:30, 1m30s or 50%; +10, -10 from here."
        self.app.push_screen(Prompt("Go to a time", hint, "go there", "", wrong), answered)

    def action_go_home(self) -> None:
        self.gputui.go_home()

    def _go_to_next(self, kind: MomentKind, source: Playback) -> None:
        """Show what comes next, or that nothing does."""
        following = moment_ahead(source, kind)
        if following is not None:
            when = clock_text((following.time_ns - source.begun_ns) / 1e9)
            self.say(f"{when}  {following.text}")
        else:
            what = "change of phase" if kind == "phase" else "start, exit, alert or trouble"
            where = "in this recording" if source.is_indexed and source.is_read else "so far"
            self.say(f"no later {what} {where}")

    async def action_view(self, name: str) -> None:
        raise NotImplementedError

    # --- the source

    def action_pause(self) -> None:
        if self.model.is_at_end:
            self.say("played from the start: 0 goes back to the end")
        self.gputui.pause()
        self.draw()

    def action_interval(self, step: int) -> None:
        """Another interval, or another speed of a replay."""
        source = self.model.source
        if isinstance(source, Playback):
            source.speed = source.speed * 2 if step > 0 else source.speed / 2
            self.say(f"replay at ×{source.speed:g}")
        elif isinstance(source, Runner):
            now = source.interval_s
            longer = [s for s in _INTERVALS_S if s > now * 1.001]
            shorter = [s for s in _INTERVALS_S if s < now * 0.999]
            if step > 0 and longer:
                source.interval_s = longer[0]
            elif step < 0 and shorter:
                source.interval_s = shorter[-1]
            self.say(f"a sample every {source.interval_s:g} s")
        elif isinstance(source, ManyHosts):
            self.say(f"other hosts are read every {source.interval_s:g} s, as --interval says")
        self.draw()

    # --- runs

    def action_workloads(self) -> None:
        source = self.model.source
        run = self.model.run
        if self.model.readonly:
            self.refuse("cannot start a run: gputui is read-only")
        elif not isinstance(source, Runner):
            text = "a replay starts nothing" if source is not None else "still starting"
            there = "nothing is started there from here: gputui --host BOX --workload NAME does"
            self.refuse(there if self.model.is_remote else text)
        elif run is not None and run.is_active:
            self.refuse("a run is active: x stops it")
        else:
            from gputui.tui.dialogs.workloads import WorkloadDialog

            asked = source.forecaster()

            async def ended(request: StartRequest | None) -> None:
                self.gputui.in_thread(asked.close, lambda _: None, self.say)
                await self._start(request)

            dialog = WorkloadDialog(
                source.catalogue, self._remembered, self._last_workload,
                target=self._target(), asked=asked,
            )  # fmt: skip
            self.app.push_screen(dialog, ended)

    def _target(self) -> TargetGpu | None:
        """The GPU that a workload takes: the first."""
        gpu = next(iter(self.model.session.gpus.values()), None)
        if gpu is None:
            return None
        from gputui.collect.catalogue import TargetGpu

        whole = gpu.facts.memory_total_bytes
        used = gpu.sample.memory_used_bytes if gpu.sample is not None else None
        free = None if whole is None or used is None else whole - used
        return TargetGpu(gpu.facts.name, whole, free)

    async def _start(self, request: StartRequest | None) -> None:
        source = self.model.source
        if request is None or not isinstance(source, Runner):
            return
        workload = request.workload
        self._remembered[workload.name] = request.texts
        self._last_workload = workload.name
        source.start_workload(workload.name, request.values, workload.step_range)
        await self.action_view("overview")

    def action_stop_run(self) -> None:
        run, source, goes_on_at = self.model.run, self.model.source, self._hosts_of_run()
        is_elsewhere = isinstance(source, JobElsewhere) and bool(goes_on_at)
        if (
            run is None
            or not (run.is_active or is_elsewhere)
            or not isinstance(source, Runner | ManyHosts | JobElsewhere)
        ):
            self.say("no run is active")
            return
        if self.model.readonly:
            self.refuse("cannot stop the run: gputui is read-only")
            return
        where = f" on {_all(goes_on_at)}" if goes_on_at else ""
        lost = _all(name for name, is_up in goes_on_at.items() if not is_up)
        late = f" {lost} cannot be reached now: asked as soon as the link is back." if lost else ""

        def stop() -> None:
            if isinstance(source, ManyHosts):
                source.stop_run(self.model.host)
            else:
                source.stop_run()
            self.say(f"{'detaching' if run.started.attached else 'stopping the run'}{where}")

        if run.started.attached:
            text = f"gputui detaches from {run.started.name}{where}, which keeps running.{late}"
            self.ask("Detach?", text, "detach", stop)
        else:
            text = f"{run.started.name}{where} and every process it started will be ended.{late}"
            self.ask("Stop the run?", text, "stop it", stop)

    def _hosts_of_run(self) -> Mapping[str, bool]:
        """The other hosts on which the run goes on, and whether they are reached."""
        source, hosts = self.model.source, self.model.hosts
        if isinstance(source, JobElsewhere):
            return source.goes_on_at
        return {} if hosts is None else {self.model.host: hosts[self.model.host].is_up}

    # --- processes of others

    @property
    def _process(self) -> ProcessRow | None:
        """The chosen one, of a view that lists some."""
        return getattr(self.view, "process", None)

    def action_attach(self) -> None:
        """Look inside the chosen process, after a question that names it."""
        process, source = self._process, self.model.source
        host, hosts = getattr(self.view, "process_host", self.model.host), self.model.hosts
        run = self.model.run if hosts is None else hosts[host].session.run
        if self.model.readonly:
            self.refuse("cannot attach: gputui is read-only")
        elif not isinstance(source, Attacher | ManyHosts):
            self.refuse("a recorded process cannot be attached to")
        elif process is None:
            self.say("choose a process first: 6 shows them, ↑ and ↓ choose one")
        elif process.start_time_ns is None:
            self.refuse(f"process {process.pid} is not attached to: its start is unknown")
        elif run is not None and run.is_active:
            self.refuse("a run is active: end it first with x")
        else:
            self._ask_attach(source, process, process.start_time_ns, host)

    def _ask_attach(
        self, source: Attacher | ManyHosts, process: ProcessRow, start_ns: int, host: str
    ) -> None:
        def attach() -> None:
            if isinstance(source, ManyHosts):
                source.attach(host, process.pid, start_ns)
                return
            from gputui.collect.processes import same_process

            same_process(process.pid, start_ns)
            source.attach(process.pid)

        where = f" on {host}" if host else ""

        def agreed() -> None:
            self.model.show_host(host)
            told = f"attaching to process {process.pid}{where}: 1 shows it, x detaches"
            self.gputui.in_thread(attach, lambda _: self.say(told), self.refuse)

        text = (
            f"process {process.pid}{where} of {process.user or 'an unknown user'}: "
            f"{process.command or OUTSIDE}. It is stopped for some milliseconds at a moment that "
            "is safe, or not attached to at all. Tracing costs it time until gputui detaches; then "
            "the capture library stays in it, asleep, with a thread of its own: a program with one "
            f"thread has two for good. {CUPTI_STAYS}."
        )
        self.ask("Look inside this process?", text, "attach", agreed)

    # --- signals

    def action_signal(self) -> None:
        """Send a signal to the chosen process, after a question that names it."""
        process = self._process
        if self.model.readonly:
            self.refuse("cannot send a signal: gputui is read-only")
        elif not isinstance(self.model.source, Runner):
            whose = "a process of another host" if self.model.is_remote else "a recorded process"
            self.refuse(f"{whose} cannot be sent a signal")
        elif process is None:
            self.say("choose a process first: 6 shows them, ↑ and ↓ choose one")
        elif process.start_time_ns is None:
            self.refuse(
                f"no signal to {process.pid}: its start time is unknown, so another "
                "process could be hit"
            )
        else:
            self._ask_signal(process, process.start_time_ns)

    def _ask_signal(self, process: ProcessRow, start_ns: int) -> None:
        from gputui.tui.dialogs.boxes import SIGNALS, SignalQuestion

        def answered(letter: str | None) -> None:
            if letter is None:
                return
            name, _ = SIGNALS[letter]

            def send() -> None:
                from gputui.collect.processes import send_signal

                send_signal(process.pid, start_ns, name)

            told = f"SIG{name} was sent to process {process.pid}"
            self.gputui.in_thread(send, lambda _: self.say(told), self.refuse)

        self.app.push_screen(SignalQuestion(process), answered)

    # --- files, and quitting

    def ask_export(
        self, title: str, default: Path, write: Callable[[str, str], str],
        say: Callable[..., None] | None = None,
    ) -> None:  # fmt: skip
        """Ask for a format and a path; have `write` write there in a thread, and `say` what it
        returns, or why not."""
        from gputui.render import formats
        from gputui.tui.dialogs.boxes import ExportDialog

        say = say or self.say

        def answered(request: ExportRequest | None) -> None:
            if request is not None:
                say("exporting…")
                work = partial(write, request.key, request.path)
                self.gputui.write_in_thread(work, say, partial(say, bad=True))

        self.app.push_screen(ExportDialog(default, formats.every(), title), answered)

    def action_export(self) -> None:
        """Export the run, summaries of what is shown, what needs every sample from its recording;
        or what the view has to export."""
        if (export := getattr(self.view, "export", None)) is not None:
            export()
            return
        run = self.model.run
        if run is None:
            self.refuse("no run yet: nothing to export")
            return
        from gputui.render import formats
        from gputui.store.recordings import recording_name

        source, recorded, number = self.model.source, self.gputui.recorded, run.started.run
        if isinstance(source, Runner) and source.recording.path is not None:
            path = source.recording.path
            default = path.with_name(f"{recording_name(path)}-run{number}")
        else:
            started = datetime.fromtimestamp(run.started.time_ns / 1e9).astimezone()
            default = Path(f"gputui-{started:%Y%m%d-%H%M%S}-run{number}")

        def write(key: str, path: str) -> str:
            whole = formats.ExportSource.in_memory(self.model.session, run)
            if recorded is not None and formats.find(key).needs is not None:
                whole = formats.ExportSource(str(recorded), number)
            return written(formats.export(whole, key, path))

        self.ask_export("Export the run", default, write)

    def action_quit(self) -> None:
        """Quit, after a question while a run is active."""
        run = self.gputui.run_to_end
        if run is None and not self.gputui.is_starting_run:
            self.gputui.quit_now()
            return
        if run is None:
            text, yes = "A run is starting. It will be ended", "end it and quit"
        elif run.started.attached:
            text = f"gputui detaches from {run.started.name}, which keeps running"
            yes = "detach and quit"
        else:
            text, yes = f"{run.started.name} is running. It will be ended", "end it and quit"
        self.ask("Quit?", f"{text}; what was recorded is kept.", yes, self.gputui.quit_now)

    def action_quit_now(self) -> None:
        self.gputui.quit_now()
