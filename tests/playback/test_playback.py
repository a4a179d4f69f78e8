"""Replays: paced, halted, stepped, moved through, followed; the state is that of the fold."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gputui.base import JournalError
from gputui.imports.kineto import KinetoTrace
from gputui.imports.nsys import NsysReport
from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    Distribution,
    GpuSample,
    HostSample,
    JobFacts,
    MachineSample,
    RangeDelta,
    RunEnded,
    RunOutput,
    RunProgress,
)
from gputui.playback import job_recording
from gputui.playback.index import Checkpoint, Index
from gputui.playback.line_index import LineIndex
from gputui.playback.opening import check_readable, open_recording
from gputui.playback.player import Playback
from gputui.report.summary_document import summary_document
from gputui.state import Session
from gputui.store.journal.reader import JournalReader
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import at, attached, gpu, header, run_ended, run_started
from tests.imports.kineto_for_tests import training
from tests.imports.nsys_for_tests import EPOCH_NS, Export
from tests.sessions_for_tests import contents
from tests.store.test_journal_sums import BEGINNING, busy

LONG_S = 30.0
"""How long a test waits for what must come at once before it fails."""


class View:
    """What a screen does: takes what is new each time it is told that there is something."""

    def __init__(self) -> None:
        self.session = Session()
        self.changed = threading.Condition()
        self.notices = 0
        self.playback: Playback | None = None

    def notify(self) -> None:
        with self.changed:
            self.notices += 1
            self.changed.notify_all()

    def drain(self) -> None:
        assert self.playback is not None
        session, events = self.playback.drain()
        if session is not None:
            self.session = session
        self.session.apply(events)

    def until(self, samples: int) -> None:
        """Take until the session has so many samples."""

        def reached() -> bool:
            self.drain()
            return self.session.samples == samples

        with self.changed:
            assert self.changed.wait_for(reached, LONG_S), self.session.samples


def sample(second: float, power: float, *throttled: str) -> MachineSample:
    reading = GpuSample(index=0, power_watts=power, throttle_reasons=throttled)
    return MachineSample(time_ns=at(second), host=HostSample(), gpus=(reading,))


def session_events(seconds: int = 600) -> list[AnyEvent]:
    """A sample a second; a run from 10 to 500 with two stages; throttling from 300 to 310."""
    events: list[AnyEvent] = [header(gpu())]
    for second in range(1, seconds):
        if second == 10:
            events.append(msgspec.structs.replace(run_started(), time_ns=at(second)))
        if second in (20, 200):
            stage = "prefill" if second == 20 else "decode"
            events.append(RunProgress(time_ns=at(second), run=1, stage=stage, done=1))
        if second == 500:
            events.append(RunEnded(time_ns=at(500), run=1, exit_code=1, reason="status 1"))
        throttled = ("thermal slowdown (software)",) if 300 <= second < 310 else ("power cap",)
        events.append(sample(second + 0.5, float(second), *throttled))
    return events


@pytest.fixture
def path(tmp_path: Path) -> Path:
    writer = JournalWriter(tmp_path / "x.gputui.gz")
    writer.write(session_events())
    writer.close()
    return tmp_path / "x.gputui.gz"


@pytest.fixture
def view(path: Path) -> Iterator[View]:
    """A halted replay of that, with its view."""
    view = View()
    playback = Playback.open(str(path), view.notify)
    playback.is_paused = True
    view.playback = playback
    playback.start()
    yield view
    playback.close()


def power(view: View) -> float | None:
    reading = view.session.gpus[0].sample
    return reading.power_watts if reading else None


def test_a_jump_shows_the_state_at_that_time(view: View) -> None:
    assert view.playback is not None
    for second in (450, 3, 599, 450, 100):
        view.playback.seek(second + 0.75)
        view.until(min(second, 599))
        assert power(view) == min(second, 599)
        folded = Session.from_events(
            event for event in session_events() if event.time_ns <= at(second + 0.75)
        )
        assert len(view.session.gpus[0].samples.history) == len(folded.gpus[0].samples.history)
        if folded.run:
            assert view.session.run is not None
            assert summary_document(view.session, view.session.run) == summary_document(
                folded, folded.run
            )


def test_over_the_end_is_the_end_and_before_the_start_is_the_start(view: View) -> None:
    assert view.playback is not None
    view.playback.seek(1e9)
    view.until(599)
    assert view.playback.is_read
    assert view.playback.length_s == pytest.approx(599.5)
    view.playback.seek(-5)
    view.until(0)
    assert view.playback.position_s == 0.0


def test_steps_go_a_sample_at_a_time_both_ways(view: View) -> None:
    assert view.playback is not None
    view.playback.seek(100.75)
    view.until(100)
    view.playback.step()
    view.until(101)
    view.playback.step(2)
    view.until(103)
    view.playback.step(-1)
    view.until(102)
    view.playback.step(-10)
    view.until(92)
    assert view.playback.is_paused


def test_skips_are_relative(view: View) -> None:
    assert view.playback is not None
    view.playback.seek(100.5)
    view.until(100)
    view.playback.skip(10)
    view.until(110)
    view.playback.skip(-60)
    view.until(50)


def test_jumps_to_phases_and_events(view: View) -> None:
    assert view.playback is not None
    view.playback.next_phase()
    view.until(19)
    view.playback.next_phase()
    view.until(199)
    view.playback.next_event()
    view.until(300)
    assert power(view) == 300
    view.playback.next_event()
    view.until(499)
    assert view.session.run is not None
    assert view.session.run.ended is not None
    view.playback.seek(599)
    view.until(598)
    assert [(moment.kind, moment.text) for moment in view.playback.moments] == [
        ("run", "inference started"),
        ("phase", "prefill"),
        ("phase", "decode"),
        ("throttle", "GPU 0 throttles: thermal slowdown (software)"),
        ("exit", "status 1"),
    ]


def test_it_plays_on_from_where_it_jumped(view: View) -> None:
    assert view.playback is not None
    view.playback.speed = 64
    view.playback.seek(590)
    view.until(589)
    view.playback.is_paused = False
    view.until(599)
    with view.changed:
        assert view.changed.wait_for(lambda: view.playback and view.playback.has_ended, LONG_S)
    view.playback.seek(595.75)
    view.until(599)


def test_speed_is_kept_within_its_limits(view: View) -> None:
    assert view.playback is not None
    view.playback.speed = 1000
    assert view.playback.speed == 64
    view.playback.speed = 0
    assert view.playback.speed == 0.25


def test_it_begins_where_it_was_told(path: Path) -> None:
    view = View()
    view.playback = playback = Playback.open(str(path), view.notify, start_s=400.75)
    playback.is_paused = True
    playback.start()
    view.until(400)
    playback.close()


def test_what_begins_late_begins_there(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 90_000_000_000, 91_000_000_000)
    with closing(LineIndex(open_recording(str(export.write(tmp_path / "r.sqlite"))))) as index:
        index.read()
        assert index.first_ns == index.time_of(0) == EPOCH_NS + 90_000_000_000
        assert index.last_ns - index.first_ns == 1_000_000_000


def test_a_file_that_grows_is_shown_as_it_does(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path)
    events = session_events(20)
    writer.write(events[:5])
    view = View()
    view.playback = playback = Playback.open(str(path), view.notify, follow=True)
    playback.start()
    view.until(4)
    writer.write(events[5:8])
    view.until(7)
    playback.seek(2.75)
    view.until(2)
    writer.write(events[8:])
    writer.close()
    playback.seek(19.75)
    view.until(19)
    playback.close()


def test_a_job_is_followed_while_its_nodes_write_and_others_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node e fails at once, node c begins late and is lost, node d is of another job."""
    monkeypatch.setattr(job_recording, "LOOK_S", 0.0)
    view, writers = View(), dict[str, JournalWriter]()

    def begin(host: str, number: int, job: str = "77") -> None:
        of = msgspec.structs.replace(header().host, hostname=host)
        writers[host] = JournalWriter(tmp_path / f"{host}.gputui")
        rank = msgspec.structs.replace(attached(rank=number), job=JobFacts(id=job, world_size=3))
        writers[host].write([msgspec.structs.replace(header(gpu(0)), host=of), run_started(), rank])

    def ranks() -> dict[int | None, str | None]:
        run = view.session.run
        seen = [one.attached for one in run.processes.values()] if run else []
        return {one.rank: one.host for one in seen}

    def until(reached: Callable[[], bool]) -> None:
        def looked() -> bool:
            view.drain()
            return reached()

        with view.changed:
            assert view.changed.wait_for(looked, LONG_S), ranks()

    said = RunOutput(time_ns=at(1), run=1, stream="stderr", lines=("cannot open x.py",))
    writers["e"] = JournalWriter(tmp_path / "e.gputui")
    writers["e"].write([header(), run_started(), said, run_ended(exit_code=2)])
    view.playback = playback = Playback.open(str(tmp_path), view.notify, follow=True)
    playback.start()
    until(
        lambda: any("e.gputui: " in one and "cannot open x.py" in one for one in playback.remarks)
    )
    begin("a", 0)
    until(lambda: ranks() == {0: None})
    begin("b", 1)
    until(lambda: ranks() == {0: "a", 1: "b"})
    begin("c", 2)
    begin("d", 0, "78")
    until(lambda: ranks() == {0: "a", 1: "b", 2: "c"})
    assert len(view.session.gpus) == 3
    why = "d.gputui is left out: of another job: 78"
    until(lambda: why in playback.remarks)
    for host in "abc":
        writers[host].write([sample(20, 100.0)])
    until(lambda: view.session.samples == 3)
    with (tmp_path / "c.gputui").open("ab") as file:
        file.write(b"no event\n")
    run = view.session.run
    assert run is not None
    until(lambda: [one.out_of_sight_ns for one in run.processes.values()] == [None, None, at(20)])
    playback.close()
    for writer in writers.values():
        writer.close()


@pytest.mark.parametrize("is_newest", [True, False])
def test_nothing_to_jump_to_yet_does_not_halt_a_file_that_grows(
    tmp_path: Path, is_newest: bool
) -> None:
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path)
    events = session_events(20)
    writer.write(events[:5])
    view = View()
    view.playback = playback = Playback.open(str(path), view.notify, follow=True)
    playback.start()
    view.until(4)
    if not is_newest:
        playback.speed = 64
        playback.seek(2.75)
        view.until(2)
    playback.next_event()
    playback.next_phase()
    view.until(4)
    writer.write(events[5:8])
    view.until(7)
    writer.write(events[8:])
    writer.close()
    view.until(19)
    playback.next_event()
    view.until(19)
    playback.close()


def test_a_real_session_is_the_same_from_any_side(h200_path: Path) -> None:
    """Forwards to every 20th event, from states kept on the way, as folded from the start."""
    events = list(JournalReader.open(h200_path))
    with closing(Index(JournalReader.open(h200_path))) as index:
        index.build()
        assert index.is_complete
        folded = Session()
        for number, event in enumerate(events, 1):
            folded.apply((event,))
            if number % 20 == 0 or number == len(events):
                state, is_exact = index.state(number)
                assert is_exact
                assert state.samples == folded.samples
                assert (state.run is None) == (folded.run is None)
                if state.run and folded.run:
                    assert summary_document(state, state.run) == summary_document(
                        folded, folded.run
                    )


@pytest.mark.parametrize(("bound", "most"), [("SNAPSHOTS", 4), ("STATES_BYTES", 100_000)])
def test_states_that_were_thinned_out_are_folded_again(
    h200_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(f"gputui.playback.index.{bound}", most)
    monkeypatch.setattr("gputui.playback.index.FIRST_SPACING", 1)
    test_a_real_session_is_the_same_from_any_side(h200_path)


def test_a_copy_goes_its_own_way() -> None:
    session = Session.from_events([header(gpu()), run_started()])
    copy = Checkpoint(session).session()
    session.apply([sample(2, 5.0), run_ended()])
    assert copy.samples == 0
    assert copy.run is not None
    assert copy.run.ended is None
    copy.apply([sample(2, 7.0), run_ended()])
    assert copy.run.ended is not None
    reading = session.gpus[0].sample
    assert reading is not None
    assert reading.power_watts == 5.0


def test_a_copy_has_all_that_the_session_has(h200_path: Path) -> None:
    session = Session.from_events(JournalReader.open(h200_path))
    state = Checkpoint(session)
    for _ in range(2):
        assert contents(state.session()) == contents(session)


def test_states_with_sums_beyond_64_bits_are_folded_again(
    h200_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hostile figures: such a session cannot be encoded, so none is kept of it."""
    monkeypatch.setattr("gputui.playback.index.FIRST_SPACING", 1)
    events = list(JournalReader.open(h200_path))[:-1]
    large = Distribution(2, 2**63 - 1, 0.5, 3, 5, (3, 2))
    ranges = (RangeDelta(range=1, cpu=large), RangeDelta(range=1, cpu=large))
    events += [CaptureDelta(time_ns=events[-1].time_ns, process=1, ranges=ranges)] * 3
    writer = JournalWriter(tmp_path / "x.gputui")
    writer.write(events)
    writer.close()
    with closing(Index(JournalReader.open(tmp_path / "x.gputui"))) as index:
        index.build()
        folded = Session.from_events(events)
        assert contents(index.state(len(index))[0]) == contents(folded)


def test_what_holds_no_session_is_refused_before_there_is_a_screen(
    h200_path: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch")
    for path, why in ((tmp_path / "nope.gputui", "no such file"), (script, "not a gputui session")):
        with pytest.raises(JournalError, match=why):
            check_readable(str(path))
    for path in (h200_path, Export().write(tmp_path / "r.sqlite"), tmp_path):
        check_readable(str(path))


def test_what_is_replayed_is_what_was_recorded(h200_path: Path, tmp_path: Path) -> None:
    """Record, replay, record again: the same events."""
    with closing(Index(JournalReader.open(h200_path))) as index:
        index.build()
        again = tmp_path / "again.gputui"
        writer = JournalWriter(again)
        writer.write(list(index.events(0, len(index))))
        writer.close()
        assert list(JournalReader.open(again)) == list(JournalReader.open(h200_path))


def test_an_nsys_export_is_moved_through_like_a_recording(tmp_path: Path) -> None:
    export = Export()
    for second in range(5):
        start = second * 1_000_000_000
        export.range("step", start, start + 900_000_000)
        export.kernel("gemm", (start + 10, start + 20), (start + 30, start + 100), second + 1)
    view = View()
    path = export.write(tmp_path / "r.sqlite")
    view.playback = playback = Playback.open(str(path), view.notify)
    playback.is_paused = True
    playback.start()
    for seconds, steps in ((2.5, 2), (5.0, 5), (1.5, 1)):
        playback.seek(seconds)

        def reached(steps: int = steps) -> bool:
            view.drain()
            run = view.session.run
            return run is not None and sum(n.cpu.count for n in run.ranges.values()) == steps

        with view.changed:
            assert view.changed.wait_for(reached, LONG_S)
    playback.close()


def test_the_whole_length_is_the_end(tmp_path: Path) -> None:
    length_ns = 4_134_873_942  # as seconds in floating point it is a hair less
    assert length_ns / 1e9 * 1e9 < length_ns
    export = Export()
    export.range("step", 0, length_ns)
    view = View()
    playback = Playback.open(str(export.write(tmp_path / "r.sqlite")), view.notify)
    view.playback = playback
    playback.is_paused = True
    playback.start()

    def reached() -> bool:
        view.drain()
        return view.session.run is not None and view.session.run.outcome == "ended"

    playback.seek(length_ns / 1e9)
    with view.changed:
        assert view.changed.wait_for(reached, LONG_S)
    playback.close()


def test_a_replay_that_is_closed_lets_go_of_everything(path: Path) -> None:
    """One after the other is opened from Sessions."""
    view = View()
    gone = threading.Event()

    def visit() -> None:
        playback = Playback.open(str(path), view.notify)
        weakref.finalize(playback, gone.set)
        playback.is_paused = True
        playback.start()
        with view.changed:
            assert view.changed.wait_for(lambda: playback.is_indexed, LONG_S)
        playback.close()

    def open_files() -> set[Path]:
        return {link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}

    before = open_files()
    visit()
    assert gone.wait(LONG_S)
    assert open_files() <= before


class HeldBack(NsysReport):
    """A report of which the second half comes when it is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.holds = threading.Event()
        self.go_on = threading.Event()

    def __iter__(self) -> Iterator[AnyEvent]:
        for event in super().__iter__():
            if self.share_read >= 0.5:
                self.holds.set()
                assert self.go_on.wait(LONG_S)
            yield event


def test_what_was_read_so_far_is_shown_and_can_be_left_at_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a report that takes long to read and opens at its end."""
    monkeypatch.setattr("gputui.playback.line_index._FEW_BYTES", 1)
    monkeypatch.setattr("gputui.playback.player.LOOK_S", 0.0)
    export = Export()
    for i in range(100):
        export.range("step", 100_000_000 * i, 100_000_000 * i + 90_000_000)
    report = HeldBack(export.write(tmp_path / "r.sqlite"))
    view = View()
    playback = view.playback = Playback(report, view.notify, start_s=1e9)
    playback.start()

    def shows(least: int) -> Callable[[], bool]:
        def reached() -> bool:
            view.drain()
            run = view.session.run
            rows = run.ranges.values() if run is not None else ()
            return any(row.cpu is not None and row.cpu.count >= least for row in rows)

        return reached

    with view.changed:
        assert view.changed.wait_for(shows(40), LONG_S)
    assert report.holds.wait(LONG_S)
    assert not playback.is_read
    assert playback.share_read == pytest.approx(0.5, abs=0.02)
    assert playback.stop_reading()
    report.go_on.set()
    with view.changed:
        assert view.changed.wait_for(lambda: bool(playback.remarks), LONG_S)
    assert "reading was stopped at 5" in " ".join(playback.remarks)
    assert not playback.stop_reading()
    with view.changed:
        assert view.changed.wait_for(lambda: shows(40)() and playback.has_ended, LONG_S)
    playback.close()


def test_the_end_is_gone_to_also_where_it_has_not_been_read_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.playback.line_index._FEW_BYTES", 1)
    export = Export()
    for i in range(100):
        export.range("step", 100_000_000 * i, 100_000_000 * i + 90_000_000)
    report = HeldBack(export.write(tmp_path / "r.sqlite"))
    view = View()
    playback = view.playback = Playback(report, view.notify)
    playback.is_paused = True
    playback.start()
    assert report.holds.wait(LONG_S)
    playback.seek_end()
    report.go_on.set()
    with view.changed:
        assert view.changed.wait_for(lambda: playback.has_ended, LONG_S)
    assert playback.position_s == playback.length_s
    playback.close()


def test_sums_of_a_trace_are_shown_while_it_is_read_and_then_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.imports.kineto_events.PORTION_BYTES", 100)
    monkeypatch.setattr("gputui.imports.kineto.FIRST_SUMS_S", 0.0)
    trace = KinetoTrace(training().write(tmp_path / "trace.json"))
    view = View()
    playback = view.playback = Playback(trace, view.notify, start_s=1e9)
    tell, go_on = trace.tell_sums, threading.Event()
    assert tell is not None

    def tell_and_hold(events: Sequence[AnyEvent]) -> None:
        tell(events)
        if any(isinstance(event, CaptureDelta) and event.kernels for event in events):
            assert go_on.wait(LONG_S)

    def shows(kernels: int) -> bool:
        view.drain()
        run = view.session.run
        return run is not None and sum(row.time.count for row in run.kernels.values()) == kernels

    trace.tell_sums = tell_and_hold
    playback.start()
    with view.changed:
        assert view.changed.wait_for(lambda: shows(1), LONG_S)
    assert not playback.is_read
    assert view.session.run is not None
    assert view.session.run.is_active
    go_on.set()
    with view.changed:
        assert view.changed.wait_for(lambda: playback.has_ended and shows(4), LONG_S)
    assert view.session.run.ended is not None
    playback.close()


def test_steps_and_skips_pass_over_sums_of_captures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.store.journal.writer.LEAST_BYTES", 4096)
    writer = JournalWriter(tmp_path / "x.gputui")
    writer.write(BEGINNING)
    for second in range(3, 83):
        writer.write([busy(second), sample(second, float(second))])
    writer.close()
    assert b'"capture_sum"' in (tmp_path / "x.gputui").read_bytes()
    view = View()
    view.playback = playback = Playback.open(str(tmp_path / "x.gputui"), view.notify)
    playback.is_paused = True
    playback.start()
    playback.seek(40)
    samples = 38
    view.until(samples)
    for step in (1,) * 30 + (-1,) * 30:
        playback.step(step)
        samples += step
        view.until(samples)
    playback.close()


def test_keys_that_come_faster_than_jumps_all_count(path: Path) -> None:
    view = View()
    view.playback = playback = Playback.open(str(path), view.notify)
    playback.is_paused = True
    playback.seek(100.75)
    for _ in range(5):
        playback.skip(10)
    playback.step(-2)
    playback.start()
    view.until(148)
    playback.close()
    again = View()
    again.playback = playback = Playback.open(str(path), again.notify)
    playback.is_paused = True
    playback.next_phase()
    playback.next_phase()
    playback.start()

    def has_come_to_decode() -> bool:
        again.drain()
        run = again.session.run
        return run is not None and run.progress is not None and run.progress.stage == "decode"

    with again.changed:
        assert again.changed.wait_for(has_come_to_decode, LONG_S)
    playback.close()
