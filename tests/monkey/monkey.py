"""A monkey at gputui's terminal: keys, mouse, sizes, pasted text and bytes that are no UTF-8, by a
seed. It knows only the terminal, so that it holds for any screen.

`python -m tests.monkey.monkey EVENTS [SEED] [SECONDS]` plays so many events over each of demo,
replay and a live run, a thousand in turn, each second thousand with a monkey that agrees to
questions, with a new seed whenever gputui was quit, until the seconds are over, and prints what
went wrong.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import random
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
PROGRAM = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
    open(sys.argv[2], "a").write(".")
"""
"""A run that leaves a mark every moment."""

LETTERS = (
    "abcdefghijklmnopqrstuvwxzABCDEFGHIJKLMNOPQRSTUVWXZ0123456789 /?[]{}()<>,.;'\"\\|-_=+!@#$%^&*~`"
)
"""All but those of AGREES."""

AGREES = "y:"
"""y alone agrees to what ends or deletes, and the palette behind the colon has "quit at once",
which asks nothing: once one of them was typed, a run may end."""

QUESTIONS = re.compile(rb"(?:Qui|Sto|Det)[a-z ]*(?:\?|\xe2\x80\xa6)")
"""Titles of what may end a run: "Quit?", "Stop the run?", "Detach?", cut in a narrow terminal."""

MOVES = (b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\t", b"\x1b[Z")
"""What goes to another button of a question; No has the focus when it opens."""

ANSWERED_WITHIN, ANSWERED_BEFORE = 100, 20
"""How many events after a question was drawn, and before it is, one may be its answer."""

KEYS = (
    b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\x1b[5~", b"\x1b[6~", b"\x1b[H", b"\x1b[F", b"\t",
    b"\x1b[Z", b"\x1b", b"\x1b\x1b", b"\x7f", b"\x08", b"\r", b"\r", b"\n", b"\x01", b"\x05",
    b"\x13", b"\x15", b"\x17", b"\x0b", b"\x0c", b"\x1a", b"\x1bOP", b"\x1bOQ", b"\x1b[20~",
    b"\x1b[15~",
    b"\x1b[1;5C", b"\x1b[1;2A", b"\x1b[3~", b"\x1b[2~", b"\x00", b"\x1b[I", b"\x1b[O", b"\xc3\xa9",
    b"\xf0\x9f\x98\x80", b"\x1b[97;5u",
)  # fmt: skip

JUNK = (
    b"\xff", b"\xe9", b"\xc3", b"\xf0\x9f", b"\x1b[1114112u", b"\x1b[55296u", b"\x1b[<99999;1;1M",
    b"\x1b[99999999999999999999~", b"\x1b[99999999999999999999;1u", b"\x1b[<999;999;999M",
    b"\x1b[<0;0;0M", b"\x1b[<-1;-5;3M", b"\x1b]52;c;AAAA\x07", b"\x1bP+q\x1b\\", b"\x1b[?1;2c",
    b"\x1b[24;80R", b"\x1b[1;1;1;1u", b"\x1b[?2026;2$p", b"\x1b[?2048;1$p", b"\x1b[M   ", b"\x1b[",
    b"\x1b[48;99999999;99999999;0;0t", b"\x1b[48;1;1;1;1t", b"\x1b[8;99999999;9999999t",
    b"\x1b[200~pasted \x1b[31m text\nline\x1b[201~", b"\x1b[200~\xff\xfe\xe9\x1b[201~",
    b"\x1b[200~",
)  # fmt: skip
LINES, COLUMNS = (1, 2, 5, 10, 24, 30, 50, 80, 200), (1, 2, 10, 20, 40, 80, 120, 160, 300)
HANGS_S = 120.0
"""Longer than a loaded machine takes for what it was sent; a hang lasts for ever."""


class Fault(Exception):
    """What no terminal may do to gputui."""


class Monkey:
    """One gputui, and what is typed at it."""

    def __init__(self, words: list[str], seed: int, folder: Path, *, agrees: bool = False) -> None:
        self.random = random.Random(seed)
        self.letters = LETTERS + (AGREES if agrees else "")
        self.seen = bytearray()
        self.has_agreed = self._was_raw = False
        self._sent: list[tuple[int, bytes]] = []  # and how much had been drawn before
        self.status: int | None = None
        # Of another new terminal: on a busy machine its own may be raw before it is looked at.
        ends = pty.openpty()
        self.modes = termios.tcgetattr(ends[1])
        for end in ends:
            os.close(end)
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            root = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
            data = {"XDG_DATA_HOME": str(folder / "data"), "XDG_CACHE_HOME": str(folder / "cache")}
            os.environ |= {"TERM": "xterm-256color", "PYTHONPATH": root, **data}
            os.execv(sys.executable, [sys.executable, "-X", "faulthandler", "-m", "gputui", *words])
        os.set_blocking(self.terminal, False)
        self._resize(40, 120)
        self.until(lambda: b"\x1b[?2004h" in self.seen)

    def play(self, events: int) -> int:
        """Send so many; how many were sent before gputui was quit."""
        for number in range(events):
            if self.has_ended():
                return number
            event = self._event()
            self.has_agreed |= any(ord(letter) in event for letter in AGREES)
            self._sent.append((len(self.seen), event))
            self._send(event)
        return events

    def may_have_agreed(self) -> bool:
        """Whether the run may have been ended by an answer: y was typed, or, while a question may
        have been open, a key went to another of its buttons and a later one pressed it, or the
        mouse did.

        May, as what is drawn comes later than what is typed: whether a question had a key nobody
        can say from outside. So an ending without consent is excused at times; in half a million
        keys it is not each time.
        """
        if self.has_agreed:
            return True
        asked = [title.start() for title in QUESTIONS.finditer(self.seen)]
        drawn_at = [drawn for drawn, _ in self._sent] + [len(self.seen)] * ANSWERED_BEFORE
        for number, (_, event) in enumerate(self._sent):
            window = self._sent[max(0, number - ANSWERED_WITHIN) : number]
            is_click = event.startswith(b"\x1b[<0;") and event.endswith(b"M")
            is_press = event[:1] in (b"\r", b"\n", b" ") and any(
                sent in MOVES for _, sent in window
            )
            since = window[0][0] if window else 0
            until = drawn_at[number + ANSWERED_BEFORE]
            if (is_click or is_press) and any(since <= title <= until for title in asked):
                return True
        return False

    def answers(self) -> None:
        """It draws for another size of its terminal, after all that was sent.

        Only a text at the last of the new lines shows that it knows of the size. Anything drawn
        does not: a second size that came before it looked at the first left it with the size it
        had, for which there was nothing to draw, and a loaded machine seemed to hang once in 30
        games.
        """
        self._send(b"\x1b[201~")  # what is being pasted ends
        self.settle()
        for lines, columns in ((23, 79), (41, 121), (40, 120)):  # all others than LINES, COLUMNS
            drawn = partial(self.seen.find, b"\x1b[%d;" % lines, len(self.seen))
            self._resize(lines, columns)
            self.until(
                lambda drawn=drawn: self.has_ended() or drawn() >= 0,
                f"line {lines} of {columns} columns is drawn",
            )

    def settle(self) -> None:
        """Until it has read what was sent."""
        waiting = bytearray(4)

        def has_read() -> bool:
            fcntl.ioctl(self.terminal, termios.TIOCOUTQ, waiting)
            return struct.unpack("i", waiting) == (0,) or self.has_ended()

        self.until(has_read, "it has read its keys")

    def end(self) -> None:
        """End it by a signal. Raises Fault where it does not, or leaves its terminal otherwise than
        it was, or has said that something failed."""
        if not self.has_ended():
            os.kill(self.pid, signal.SIGTERM)
            self.until(self.has_ended, "it ends")
        with suppress(OSError):  # a Ctrl-S among the last keys stops its last words, as in `until`
            os.write(self.terminal, b"\x11")
        self._read_out()
        text = re.sub(rb"\x1b\[[0-9;?<>=]*[A-Za-z]", b"", self.seen)
        for word in (b"Traceback", b"internal error", b"the screen failed"):
            if word in text:
                at = text.index(word)
                raise Fault(text[max(0, at - 200) : at + 2000].decode(errors="replace"))
        # The last is of a signal that came when the screen had ended already.
        if self.status not in (0, 128 + signal.SIGTERM, -signal.SIGTERM):
            raise Fault(f"exit status {self.status}")
        now = termios.tcgetattr(self.terminal)
        if now[:4] != self.modes[:4]:
            raise Fault(f"the terminal is left in raw mode: {now[:4]}, status {self.status}")
        for mode in (b"1049", b"1000", b"1002", b"1006", b"2004", b"1004"):
            if self.seen.rfind(b"\x1b[?" + mode + b"h") > self.seen.rfind(b"\x1b[?" + mode + b"l"):
                drawn = bytes(self.seen[-600:])
                raise Fault(f"mode {mode.decode()} of the terminal is left on: {drawn!r}")
        if self.seen.rfind(b"\x1b[?25l") > self.seen.rfind(b"\x1b[?25h"):
            raise Fault(f"the cursor is left hidden: {bytes(self.seen[-600:])!r}")

    def _read_out(self) -> None:
        """What was drawn, to the last byte: the kernel passes it on in pieces, in its own time."""
        while select.select([self.terminal], [], [], 2.0)[0]:
            try:
                self.seen += os.read(self.terminal, 65536)
            except OSError:  # nobody has the other side open any more
                return

    def close(self) -> None:
        if self.status is None:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        os.close(self.terminal)

    def has_ended(self) -> bool:
        """Whether it has; a Ctrl-Z is answered with a continuation."""
        if self.status is None:
            pid, how = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(how):
                os.kill(self.pid, signal.SIGCONT)
            elif pid:
                self.status = os.waitstatus_to_exitcode(how)
        return self.status is not None

    def until(self, holds: Callable[[], bool], what: str = "it is ready") -> None:
        """Read what is drawn until something holds. Raises Fault where it does not in time."""
        deadline = time.monotonic() + HANGS_S
        while not holds():
            if time.monotonic() > deadline:
                raise Fault(f"it hangs until {what}: {self._where_it_is()}")
            self._read(0.02)
            if (failed := self.seen.find(b"internal error")) >= 0:  # a live run goes on without it
                raise Fault(f"the screen failed: {bytes(self.seen[failed : failed + 300])!r}")
            is_raw = not termios.tcgetattr(self.terminal)[3] & termios.ICANON
            self._was_raw |= is_raw
            if self._was_raw and not is_raw:
                # Not before it is raw: there it is a key, which quits. A Ctrl-S after gputui has
                # put the terminal back stops its last words, as it does those of any program.
                os.write(self.terminal, b"\x11")
            self.has_ended()

    def _where_it_is(self) -> str:
        """What it drew last, the state of its signals, and what its threads do: the handler that
        Python has for SIGSEGV prints them, and this ends it."""
        drawn = bytes(self.seen[-300:])
        with suppress(OSError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            signals = re.findall(r"^(?:State|Sig\w+|ShdPnd):.*$", status, re.MULTILINE)
            del self.seen[:]
            os.kill(self.pid, signal.SIGSEGV)
            end = time.monotonic() + 5.0
            while not self.has_ended() and time.monotonic() < end:
                self._read(0.02)
            self._read(0.1)
            threads = self.seen.decode(errors="replace")
            return f"drawn last: {drawn!r}; {signals}; {threads}"
        return f"drawn last: {drawn!r}"

    def _event(self) -> bytes:
        pick = self.random
        kind = pick.random()
        if kind < 0.55:
            return pick.choice(self.letters).encode()
        if kind < 0.78:
            return pick.choice(KEYS)
        if kind < 0.88:
            button = pick.choice((0, 0, 0, 1, 2, 32, 35, 64, 65, 4))
            x, y, state = pick.randint(1, 200), pick.randint(1, 60), pick.choice("MMm")
            return b"\x1b[<%d;%d;%d%c" % (button, x, y, ord(state))
        if kind < 0.94:
            return pick.choice(JUNK)
        if kind < 0.97:
            self._resize(pick.choice(LINES), pick.choice(COLUMNS))
            return b""
        return pick.choice(self.letters).encode() * pick.randint(2, 20)

    def _send(self, data: bytes) -> None:
        deadline = time.monotonic() + HANGS_S
        while data:
            self._read(0)
            with suppress(BlockingIOError, OSError):
                data = data[os.write(self.terminal, data) :]
                continue
            if self.has_ended():
                return
            if time.monotonic() > deadline:
                raise Fault(f"it reads no keys: {self._where_it_is()}")
            self._read(0.02)
        self._read(self.random.choice((0, 0, 0.002, 0.01)))

    def _resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self, within_s: float) -> None:
        with suppress(OSError):  # nobody has the other side open
            while select.select([self.terminal], [], [], within_s)[0]:
                self.seen += os.read(self.terminal, 65536)
                within_s = 0.0


def shown(name: str, folder: Path) -> list[str]:
    """The words that show the demo, a copy of a recording, or a live run."""
    if name == "demo":
        return ["--demo"]
    if name == "replay":
        recording = folder / "kept.gputui"
        if not recording.exists():
            recording.write_bytes((DATA / "h200-inference.gputui").read_bytes())
        return ["--replay", str(recording)]
    return ["--", sys.executable, "-c", PROGRAM, str(folder / "end"), str(folder / "marks")]


NAMES = ("demo", "replay", "live")

EARLIER_RUNS = 60
"""Recordings in the list of runs: more than any screen shows, so that it scrolls."""


def keep_earlier_runs(name: str, folder: Path) -> None:
    """Put recordings where the screen lists them, if none are there: beside the one that is
    replayed, else in gputui's own folder, where a monkey may rename them."""
    sessions = folder if name == "replay" else folder / "data" / "gputui" / "sessions"
    sessions.mkdir(mode=0o700, parents=True, exist_ok=True)
    kinds = [DATA / "schema-3.gputui", DATA / "h200-inference.gputui"]
    for number in range(EARLIER_RUNS):
        # Mostly the small one: a game is to last as long as its keys.
        run = sessions / f"2026-01-{number // 24 + 1:02}-{number % 24:02}0000.gputui"
        if not run.exists():
            run.write_bytes(kinds[number % 10 == 0].read_bytes())


def play(name: str, events: int, seed: int, folder: Path, *, agrees: bool = False) -> None:
    """So many events over one of NAMES, in as many gputui as are quit by them; `agrees` to what is
    asked. Raises Fault."""
    words = shown(name, folder)
    keep_earlier_runs(name, folder)
    kept = [path for path in folder.iterdir() if path.is_file()]
    before = {path: hashlib.sha256(path.read_bytes()).digest() for path in kept}
    while events > 0:
        events -= max(1, _play_once(name, words, events, seed, folder, agrees=agrees))
        seed += 1
    for path, digest in before.items():
        if not path.exists() or hashlib.sha256(path.read_bytes()).digest() != digest:
            raise Fault(f"{path.name} was changed")


def _play_once(
    name: str, words: list[str], events: int, seed: int, folder: Path, *, agrees: bool
) -> int:
    """How many events one gputui took."""
    marks = folder / "marks"
    for path in (marks, folder / "end"):  # of the game before, whose run they ended
        path.unlink(missing_ok=True)
    monkey = Monkey(words, seed, folder, agrees=agrees)
    try:
        if name == "live":
            monkey.until(lambda: marks.exists() or monkey.has_ended())
            if not marks.exists():
                raise Fault(f"no run began, status {monkey.status}: {bytes(monkey.seen)!r}")
        played = monkey.play(events)
        if name == "live":
            before = marks.stat().st_size
            monkey.until(
                lambda: (
                    monkey.has_ended() or marks.stat().st_size > before or monkey.may_have_agreed()
                ),
                "the run leaves a mark",
            )
            if monkey.has_ended() and not monkey.may_have_agreed():
                raise Fault(f"the run was ended: {bytes(monkey.seen[-1000:])!r}")
        if not monkey.has_ended():
            monkey.answers()
        monkey.end()
        return played
    finally:
        monkey.close()
        (folder / "end").touch()


def main() -> int:
    """The long version."""
    words = sys.argv[1:]
    events, seed, seconds = map(int, words + ["1", "1000000"][len(words) - 1 :])
    end = time.monotonic() + seconds
    sent = faults = 0
    for played in range(0, events, 1000):
        for name in NAMES if time.monotonic() < end else ():
            size = min(1000, events - played)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    agrees = played % 2000 == 1000
                    play(name, size, seed + played, Path(folder), agrees=agrees)
                except Fault as fault:
                    faults += 1
                    print(f"{name}, seed {seed + played}: {fault}", flush=True)
            sent += size
    print(f"{sent} events, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
