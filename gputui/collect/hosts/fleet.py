"""Several hosts as one source: a link to each, and their events merged.

Connections that need an answer (a passphrase, a host key) are opened first, in the plain terminal.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from gputui.base.errors import GputuiError
from gputui.collect.hosts.link import ASK_S, HANDSHAKES, HostLink
from gputui.collect.hosts.pipe import RECORDING, SSH_OPTIONS, FarOptions, HostTarget, begun_now
from gputui.model.events import AnyEvent, MachineSample
from gputui.state.session import HostNews

# Connections that need an answer: opened in the plain terminal, before the screen is drawn.
#
# ssh asks for passwords, second factors and new host keys on the terminal itself, across whatever
# is drawn there. So it asks here, and leaves a connection open that later commands go through.

# How long a connection stays open without a command: long enough to begin one, and should gputui be
# killed, no longer than that.
_PERSISTS_S = 30

_MASTER_CLOSING_S = 5.0


class Masters:
    """Open connections, in a private folder. Close them."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._open: list[HostTarget] = []

    def open(self, target: HostTarget) -> HostTarget | None:
        """Connect, with ssh's questions on the terminal; the target through that, None if it
        fails: ssh has then printed why.
        """
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="gputui-ssh-"))
        through = msgspec.structs.replace(target, control=str(self._folder / "%C"))
        master = [
            *("ssh", *SSH_OPTIONS, "-oControlMaster=auto", f"-oControlPath={through.control}"),
            *(f"-oControlPersist={_PERSISTS_S}", "--", target.ssh, "true"),
        ]
        try:
            done = subprocess.run(master, check=False, stdout=subprocess.DEVNULL)
        except OSError:
            return None
        if done.returncode == 255:  # else it is the status of `true`, on whatever runs there
            return None
        self._open.append(through)
        return through

    def close(self) -> None:
        """Close the ssh connections that were opened for several links to share."""
        for target in self._open:
            words = ["ssh", f"-oControlPath={target.control}", "-O", "exit", "--", target.ssh]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    words,
                    check=False,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_MASTER_CLOSING_S,
                )
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


# Several hosts as one source: a link each, and their news in one place.

MOST_WAITING = 5_000
"""News of one host that wait to be taken; its link then waits too, and with it the far end."""

# A link's child may take twice pipe._ENDING_S to end: by itself, then after SIGTERM.
_CLOSING_S = 8.0

# Many hosts are drawn together, at most this often.
_NOTICE_S = 1.0


Watch = Callable[[Sequence[AnyEvent]], Sequence[AnyEvent]]
"""What follows from events, as alerts do."""


class FleetError(GputuiError):
    """What was asked of a host cannot be. One line."""


class _NoEvents:
    """The screen takes news by host instead."""

    def drain(self) -> Sequence[AnyEvent]:
        return ()


class Fleet:
    """The links to `targets`. `interval_s` is that of the far ends."""

    def __init__(
        self, targets: Sequence[HostTarget], options: FarOptions, attach_words: Sequence[str] = ()
    ) -> None:
        """`attach_words` are the options of whoever attaches there."""
        self.hub = _NoEvents()
        self._attach_words = attach_words
        self.interval_s = options.interval_s
        self._options = {
            target.name: msgspec.structs.replace(
                options, run=options.run and options.run.on(place, targets[0].address, len(targets))
            )
            for place, target in enumerate(targets)
        }
        self._handshakes = threading.Semaphore(HANDSHAKES)
        self._changed = threading.Condition()
        self._news: list[HostNews] = []
        self._waiting: Counter[str] = Counter()
        self._notify: Callable[[], None] = lambda: None
        self._watch: Callable[[], Watch] | None = None
        self._watches: dict[str, Watch] = {}
        self._ending = False
        self._ticker = threading.Thread(target=self._tick, name="hosts", daemon=True)
        self.links = {target.name: self._link(target) for target in targets}

    @property
    def names(self) -> list[str]:
        """The hosts, in the order in which they were named."""
        return list(self.links)

    def connect(self, timeout_s: float) -> None:
        """Begin to connect, and wait until every host has answered or failed."""
        self._ticker.start()
        for link in self.links.values():
            link.start()
        self._settle(self.links.values(), timeout_s)

    def reconnect(self, targets: Sequence[HostTarget], timeout_s: float) -> None:
        """The same for hosts that failed, another way now."""
        again = {target.name: self._link(target) for target in targets}
        self.links |= again
        for link in again.values():
            link.start()
        self._settle(again.values(), timeout_s)

    def watch(self, make: Callable[[], Watch]) -> None:
        """Have what `make` gives, for each host one, see its events: what follows comes right
        behind them. Before `connect`."""
        self._watch = make

    def on_news(self, notify: Callable[[], None]) -> None:
        """From now on have `notify` called, at most once a second, when there is something new."""
        with self._changed:
            self._notify = notify

    def start(self) -> None:
        """The links are up already: report what came meanwhile."""
        self._notify()

    def take(self) -> list[HostNews]:
        """Everything since the last call, oldest first."""
        with self._changed:
            news, self._news = self._news, []
            self._waiting.clear()
            self._changed.notify_all()
        return news

    @property
    def waiting(self) -> int:
        """How many news there are to take."""
        return len(self._news)

    def stop_run(self, host: str) -> None:
        """Ask that the run be ended that is followed on a host. Returns at once."""
        self.links[host].stop_run()

    def attach(self, host: str, pid: int, start_ns: int) -> None:
        """Attach to a process there, if it is the one that began then: it is recorded there, and
        that followed until it is over. Returns at once. Raises FleetError.
        """
        link = self.links[host]
        if link.target.by_smi:
            raise FleetError(f"gputui is not on {host}: nobody can attach there")
        if not link.is_up:
            raise FleetError(f"{host} cannot be reached now")
        words = ("--record", "-o", RECORDING, *self._attach_words, "--started", str(start_ns))
        link.follow(begun_now(f"attach-{pid}", ("attach", *words, str(pid))))

    def wait_for_samples(self, timeout_s: float) -> None:
        """Wait until every link that is up has brought a reading of its machine."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while any(map(self._awaits, self.links.values())):
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    return
                self._changed.wait(remaining_s)

    def close(self) -> bool:
        """End the links; the far ends end with them. Whether all are gone."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        for link in self.links.values():
            link.end()
        deadline_s = time.monotonic() + _CLOSING_S
        ended = [link.join(deadline_s) for link in self.links.values()]
        return all(ended)

    def _link(self, target: HostTarget) -> HostLink:
        return HostLink(target, self._options[target.name], self._emit, self._handshakes)

    def _settle(self, links: Collection[HostLink], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        for link in links:
            link.settled(deadline_s)

    def _awaits(self, link: HostLink) -> bool:
        if link.failure is not None:
            return False
        return not any(
            isinstance(event, MachineSample)
            for news in self._news
            if news.host == link.target.name
            for event in news.events
        )

    def _emit(self, news: HostNews) -> None:
        """From a link's thread: keep its news, and have it wait if too many are kept."""
        with self._changed:
            while self._waiting[news.host] >= MOST_WAITING and not self._ending:
                self._changed.wait()
            self._waiting[news.host] += 1
            if self._watch is not None:
                if news.host not in self._watches:
                    self._watches[news.host] = self._watch()
                more = self._watches[news.host](news.events)
                news = news._replace(events=(*news.events, *more))
            self._news.append(news)
            self._changed.notify_all()

    def _tick(self) -> None:
        """Call `notify` while there is something to take, and ask for the time."""
        asked_s = time.monotonic()
        while True:
            with self._changed:
                while not self._news and not self._ending:
                    if not self._changed.wait(ASK_S):
                        break
                if self._ending:
                    return
                notify = self._notify if self._news else None
            if notify is not None:
                notify()
            if time.monotonic() - asked_s >= ASK_S:
                asked_s = time.monotonic()
                for link in list(self.links.values()):
                    link.ask_time()
            time.sleep(min(_NOTICE_S, self.interval_s))
