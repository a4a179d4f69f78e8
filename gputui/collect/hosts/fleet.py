"""Several hosts as one source: a link to each, and their events merged.

Connections that need an answer (a passphrase, a host key) are opened first, in the plain terminal.
A host that has Python but not gputui is sent it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

import gputui
from gputui.base import GputuiError
from gputui.base.sanitize import clean_output
from gputui.collect.hosts import (
    RECORDING,
    SSH_OPTIONS,
    STARTER,
    FarOptions,
    HostTarget,
    Pipe,
    SilentError,
    begun_now,
    ended_failure,
    far_loader,
    read_line,
)
from gputui.collect.hosts.link import ASK_S, HANDSHAKES, HostLink
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
    """Makes the links to `targets`. `interval_s` is the interval of the far ends."""

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
        """Tries hosts that failed again, in another way."""
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
        """Has `notify` called from now on, at most once a second, when there is something new."""
        with self._changed:
            self._notify = notify

    def start(self) -> None:
        """The links are up already: report what came meanwhile."""
        self._notify()

    def drain(self) -> list[HostNews]:
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
        """Keeps a link's news, and lets it wait if too many are kept. Called from the link's
        thread."""
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


# --- Sending gputui to a host: an archive, unpacked into its cache by `far_loader`, a program of
# its own that is sent first, as text.

_STARTER_TEXT = "import sys\n\nfrom gputui.__main__ import main\n\nsys.exit(main())\n"

# Distributions that reading a machine needs; NumPy, as large as all the rest 20 times, is not.
_NEEDED = ("msgspec", "psutil", "nvidia-ml-py")

_LEFT_OUT = ("tui", "docs", "__pycache__")

_KINDS = (".py", ".json")

_LIBRARY = ".so"

# The same files give the same archive, and with it the same sum.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def bundle(*, libraries: bool) -> bytes:
    """The archive; with the capture libraries if they can be loaded there."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(_files(libraries)):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def misfit(python: tuple[int, int], machine: str, system: str) -> str:
    """Why the archive of this machine does not run there, "" if it does: its packages have parts
    that are made for one version of Python on one kind of machine.
    """
    here = sys.version_info[:2], platform.machine(), sys.platform
    if (python, machine, system) == here:
        return ""
    return (
        f"Python {python[0]}.{python[1]} on {machine} there, "
        f"{here[0][0]}.{here[0][1]} on {here[1]} here: the packages of one do not run on the other"
    )


def _files(libraries: bool) -> Iterator[tuple[str, bytes]]:
    yield STARTER, _STARTER_TEXT.encode()
    root = Path(gputui.__file__).parent
    for path in root.rglob("*"):
        part = path.relative_to(root)
        kinds = (*_KINDS, _LIBRARY) if libraries else _KINDS
        if path.suffix in kinds and path.is_file() and not set(part.parts) & set(_LEFT_OUT):
            yield f"gputui/{part}", path.read_bytes()
    for name in _NEEDED:
        for file in metadata.files(name) or ():
            part = Path(str(file))
            is_code = part.suffix in (".py", _LIBRARY) and "tests" not in part.parts
            # Scripts of a package are listed above its folder (../../../bin/…).
            if is_code and ".." not in part.parts:
                yield str(part), Path(str(file.locate())).read_bytes()


# Sending gputui to a host that lacks it, into a private folder of its cache.

FOLDER = "~/.cache/gputui/remote"

# For Python to start there, and for the archive on a slow line. Chosen, not measured.
PATIENCE_S = 60.0

# What pyproject.toml requires.
_LEAST_PYTHON = (3, 11)

T = TypeVar("T")


class ShipError(GputuiError):
    """gputui was not sent. One line."""


class _Facts(msgspec.Struct, frozen=True):
    python: tuple[int, int]
    machine: str
    system: str
    glibc: str = ""


class _Place(msgspec.Struct, frozen=True):
    folder: str
    executable: str
    has: bool


class _Done(msgspec.Struct, frozen=True):
    done: bool = False
    error: str = ""


class _EndedError(GputuiError):
    """The other end closed its output."""


def ship_gputui(target: HostTarget) -> HostTarget:
    """The target with a gputui of its own, sent unless it is there from an earlier time.

    Raises ShipError.
    """
    token = secrets.token_hex(8)
    source = Path(far_loader.__file__).read_text(encoding="utf-8")
    try:
        pipe = Pipe(target.argv(["python3", "-c", source, token]), PATIENCE_S)
    except OSError as error:
        raise ShipError(str(error)) from None
    with contextlib.closing(pipe):
        try:
            return _sent(target, token, pipe)
        except SilentError:
            raise ShipError(f"no answer within {PATIENCE_S:g} s") from None
        except (_EndedError, OSError):
            ended = ended_failure(target, *pipe.status(), was_up=False)
            raise ShipError(ended.line) from None


def _sent(target: HostTarget, token: str, pipe: Pipe) -> HostTarget:
    stream: BinaryIO = io.BufferedReader(pipe)
    facts = _answer(stream, token, _Facts)
    if facts.python < _LEAST_PYTHON:
        there, least = (".".join(map(str, version)) for version in (facts.python, _LEAST_PYTHON))
        raise ShipError(f"Python there is {there}, and it takes {least}")
    if wrong := misfit(facts.python, facts.machine, facts.system):
        raise ShipError(clean_output(wrong, 200))
    archive = bundle(libraries=_version(facts.glibc) >= _version(platform.libc_ver()[1]))
    pipe.send(f"{hashlib.sha256(archive).hexdigest()} {len(archive)}\n".encode())
    place = _answer(stream, token, _Place)
    if not place.has:
        pipe.send(archive)
        done = _answer(stream, token, _Done)
        if not done.done:
            raise ShipError(clean_output(done.error, 200) or "it was not unpacked")
    return msgspec.structs.replace(target, there=(place.executable, f"{place.folder}/{STARTER}"))


def _answer(stream: BinaryIO, token: str, kind: type[T]) -> T:
    answer = read_line(stream, token, kind, PATIENCE_S)
    if answer is None:
        raise _EndedError
    return answer


def _version(text: str) -> tuple[int, ...]:
    """The version of the C library; the lowest one if there is none, as on musl."""
    return tuple(map(int, re.findall(r"\d{1,6}", text)))
