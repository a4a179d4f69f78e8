"""Several hosts on one screen: the worst first, alike ones in one line, each host's own views."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import pytest

from gputui.model.events import AnyEvent, MachineSample
from gputui.model.hub import Hub
from gputui.report.alerts import Alerts, parse
from gputui.state import Session
from gputui.state.session import ClockOffset, HostNews, Link
from gputui.tui.app import GputuiApp
from gputui.tui.source import ManyHosts, Options
from tests.events_for_tests import run_started
from tests.tui.conftest import Shown, wait_until
from tests.tui.scripted import header, machine, status

UP = Link("up", "", 0, ClockOffset(26_000, 60_000))


class ScriptedHosts:
    """Hosts whose news a test gives."""

    interval_s = 1.0

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.hub = self
        self.notify: Callable[[], None] = lambda: None
        self._news: list[HostNews] = []
        self.stopped = ""
        self.attached: list[tuple[str, int, int]] = []

    @property
    def waiting(self) -> int:
        return len(self._news)

    def start(self) -> None:
        pass

    def close(self) -> bool:
        return True

    def stop_run(self, host: str) -> None:
        self.stopped = host

    def attach(self, host: str, pid: int, start_ns: int) -> None:
        self.attached.append((host, pid, start_ns))
        run = msgspec.structs.replace(run_started(), attached=True)
        self._news.append(HostNews(host, Link("up", "", 0), (header(1), run), begins_anew=True))
        self.notify()  # from a thread, as it is called in

    def drain(self) -> list[HostNews]:
        news, self._news = self._news, []
        return news

    def give(self, host: str, link: Link | None, events: Sequence[AnyEvent] = ()) -> None:
        self._news.append(HostNews(host, link, tuple(events)))
        self.notify()


def quiet(sample: MachineSample, *, busy: bool) -> MachineSample:
    """Without the throttled GPU of the script, all GPUs working alike."""
    gpus = tuple(
        msgspec.structs.replace(
            gpu,
            throttle_reasons=(),
            sm_active_percent=97.0 if busy else 0.0,
            memory_used_bytes=gpu.memory_used_bytes if busy else 1 << 28,
        )
        for gpu in sample.gpus
    )
    return msgspec.structs.replace(sample, gpus=gpus)


@asynccontextmanager
async def shown_hosts(
    names: Sequence[str], size: tuple[int, int], idle: Sequence[str] = ()
) -> AsyncIterator[tuple[Shown, ScriptedHosts]]:
    """The screen on these hosts with eight GPUs each, all up, those in `idle` doing nothing."""
    source = ScriptedHosts(names)

    def connect(notify: Callable[[], None]) -> ManyHosts:
        source.notify = notify
        for name in names:  # before anything else is known of the source
            busy = name not in idle
            events = [header(8), *(status(gpu) for gpu in range(8))]
            source.give(name, UP, [*events, quiet(machine(1, 8, busy=busy), busy=busy)])
        return source

    app = GputuiApp(connect, Session(), Options(shows_hosts=True))
    async with app.run_test(size=size, notifications=True) as pilot:
        await wait_until(pilot, lambda: app.model.source is not None)
        shown = Shown(app, pilot, source)  # type: ignore[arg-type]
        await shown.settle()
        yield shown, source
    assert app.crash is None


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_many_hosts_fit_one_screen(size: tuple[int, int]) -> None:
    names = [f"node-{number:02}" for number in range(64)]
    async with shown_hosts(names, size, idle=names[60:]) as (shown, source):
        assert "64 hosts, 512 GPUs: 60 busy (97 %), 4 idle" in shown.text
        assert "▸ 4 hosts idle" in shown.text
        assert "node-60, node-61, node-62, node-63" in shown.text or size[0] == 80
        source.give("node-07", Link("lost", "the link is lost", 0))
        hot = machine(2, 8)
        hot = msgspec.structs.replace(hot, processes=None)
        source.give("node-09", None, [hot])  # whose GPU 3 is throttled
        await shown.settle()
        assert "1 not seen, 1 in trouble, 58 busy" in shown.text
        [alert] = Alerts([parse("gpu3.utilization_percent > 1", "--alert")]).see([hot])
        source.give("node-09", None, [alert])
        told = "node-09: ALERT gpu3.utilization_percent > 1: "
        await shown.until(lambda: told in shown.text)
        lost, throttled = (
            next(n for n, line in enumerate(shown.lines) if f" {name} " in line)
            for name in ("node-07", "node-09")
        )
        assert lost < throttled
        assert "the link is lost" in shown.lines[lost]
        assert "GPU 3 throttled: po" in shown.lines[throttled]
        folded = re.search(r"▸ (\d+) more hosts 97 % busy, nothing throttled", shown.text)
        named = sum(line.count("node-") for line in shown.lines if "█ 97 █ 97" in line)
        assert folded is not None
        assert int(folded[1]) + named == 58
        assert not any(line == "" for line in shown.lines)
        assert all(len(line) <= size[0] for line in shown.lines)


async def test_enter_opens_a_host_and_escape_leads_back() -> None:
    async with shown_hosts(["ada@box", "bob"], (120, 40), idle=["bob"]) as (shown, source):
        assert "Processes on the GPUs  16" in shown.text
        await shown.press("enter")
        assert shown.app.model.host == "ada@box"
        assert "clock +26.0 µs ± 60.0 µs" in shown.text
        assert "NVIDIA H200" in shown.text
        source.give("ada@box", Link("lost", "gputui there was killed (SIGKILL)", 0))
        await shown.settle()
        assert "✗ ada@box: gputui there was killed (SIGKILL)" in shown.text
        await shown.press("escape")
        assert "2 hosts, 16 GPUs: 1 not seen, 1 idle" in shown.text
        await shown.press("1")
        assert "2 hosts, 16 GPUs" in shown.text
        await shown.press("greater_than_sign")
        assert "other hosts are read every 1 s" in shown.text
        await shown.press("w")
        assert "nothing is started there from here" in shown.text


async def test_a_run_there_is_stopped_after_a_question_that_names_the_host() -> None:
    async with shown_hosts(["ada@box"], (120, 40)) as (shown, source):
        source.give("ada@box", None, [run_started()])
        await shown.settle()
        await shown.press("1", "x")
        assert "inference on ada@box" in shown.text
        assert not source.stopped
        await shown.press("y")
        assert source.stopped == "ada@box"


async def test_a_process_there_is_attached_to_and_what_is_recorded_there_is_shown() -> None:
    async with shown_hosts(["ada", "bob"], (120, 40)) as (shown, source):
        await shown.press("a")
        assert "choose a process first" in shown.text
        sample = quiet(machine(2, 8), busy=True)
        known = tuple(msgspec.structs.replace(one, start_time_ns=7) for one in sample.processes)
        source.give("bob", None, [msgspec.structs.replace(sample, processes=known)])
        await shown.press("slash", "b", "o", "b", "enter", "p", "a")
        chosen = shown.app.main.view.process
        assert chosen is not None
        assert f"process {chosen.pid} on bob of" in shown.text
        await shown.press("y")
        await shown.until(lambda: f"process {chosen.pid} on bob: 1 shows it" in shown.text)
        await shown.until(lambda: shown.app.model.run is not None)
        assert source.attached == [("bob", chosen.pid, chosen.start_time_ns)]
        assert (shown.app.model.host, len(shown.app.model.session.gpus)) == ("bob", 1)
        await shown.press("x")
        assert "gputui detaches from inference on bob" in shown.text
        await shown.press("y")
        assert source.stopped == "bob"
        source.give("bob", Link("up", "there is no process 4711", 0))
        await shown.settle()
        assert "bob: there is no process 4711" in shown.lines[-1]


class ScriptedJob:
    """A run on hosts of which one is lost."""

    goes_on_at: ClassVar = {"ada": True, "bob": False, "eve": True}

    def __init__(self) -> None:
        self.hub = Hub(lambda: None)
        self.hub.emit([header(1), run_started()])
        self.was_stopped = False

    def start(self) -> None:
        pass

    def close(self) -> bool:
        return True

    def stop_run(self) -> None:
        self.was_stopped = True


async def test_a_run_on_several_hosts_is_stopped_on_each() -> None:
    job = ScriptedJob()
    app = GputuiApp(lambda _: job, Session(), Options(shows_run=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: app.model.run is not None)
        shown = Shown(app, pilot, job)  # type: ignore[arg-type]
        await shown.settle()
        assert " x stop" in shown.lines[-1]
        await shown.press("x")
        text = " ".join(shown.text.split())
        assert "inference on ada, bob and eve and every process it started" in text
        assert "bob cannot be reached now: asked as soon as the link is back" in text
        assert not job.was_stopped
        await shown.press("y")
        assert job.was_stopped
    assert app.crash is None


async def test_a_filter_finds_hosts_and_their_processes() -> None:
    async with shown_hosts(["ada", "bob", "eve"], (120, 40)) as (shown, _):
        await shown.press("slash", "b", "o", "b", "enter")
        assert "Processes on the GPUs  8" in shown.text
        assert not any(line.startswith(" ada") for line in shown.lines)
        await shown.press("escape", "p", "enter")
        assert shown.app.model.host in ("ada", "bob", "eve")
        assert shown.app.main.current == "devices"
        assert shown.app.main.view.process is not None
