"""Everything that gputui does with parts of Textual that are not public, for the versions it knows.

What is given up elsewhere, where the screen is Textual's own without a trace:

- *Only cells that changed are sent*, by `narrow_updates`: Textual sends what a widget painted anew,
  whether or not it differs from what stands there.
- *The terminal is left as it was however the program ends.* Textual's own driver reads in a loop
  that never ends once standard input is at its end, and its writer thread dies of the first failed
  write, after which the 31st write blocks for ever. Here the end of input, or a failed write, is a
  hang-up. What cannot be parsed is dropped: Textual's parser fails of a key code beyond Unicode,
  and takes an empty text, as half a character decodes to, for the end of input. The terminal's size
  is asked of the kernel alone, never taken from the input, where anybody could write it. It draws
  on standard output, so that standard error can go to a file. Where the line is slower than what is
  drawn, frames wait until the last one is out; the mouse reports clicks, drags and the wheel, not
  each movement.
- *A failure is one line*, with its cause.

For Textual itself: a compositor that an application chooses (`Screen.make_compositor`), a driver's
file and parser as arguments, and `App.on_exception` would make this module public API.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import sys
import termios
import threading
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import textual
from rich.console import Console
from textual import events
from textual._compositor import ChopsUpdate, Compositor, LayoutUpdate
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Region, Size
from textual.message import Message
from textual.messages import InBandWindowResize
from textual.screen import Screen
from textual.strip import Strip
from textual.worker import WorkerFailed

from gputui.tui.narrow_updates import Pen, SentCells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from textual.timer import Timer, TimerCallback

    from gputui.tui.app import GputuiApp
    from gputui.tui.running import Ending

OLDEST, NEWEST = (8, 0, 0), (8, 2, 8)
"""The versions that this was tested with, and what lies between them."""


def installed() -> tuple[int, ...]:
    """The version of Textual, by the name of the folder beside it; () where there is none.
    `importlib.metadata` would take the first frame 40 ms."""
    package = Path(textual.__file__).parent
    names = [found.name for found in package.parent.glob("textual-[0-9]*.dist-info")]
    parts = names[0].split("-")[1].split(".")[:3] if len(names) == 1 else []
    return tuple(int(part) if part.isdecimal() else -1 for part in parts)


IS_KNOWN = OLDEST <= installed() <= NEWEST

_Kind = TypeVar("_Kind", bound=type[Any])


def _where_known(kind: _Kind) -> _Kind:
    """A class without what it overrides, where Textual is another."""
    for name in () if IS_KNOWN else [*vars(kind)]:
        if callable(vars(kind)[name]):
            delattr(kind, name)
    return kind


# The terminal.

_WAIT_S = 0.1
_TICKS = 10
"""An Escape may begin a sequence: it is a key once nothing came for this many waits, or sooner.
From then on nothing wakes the thread but input, or the end."""

_MOST_COLUMNS, _MOST_LINES = 1600, 500
"""What an 8K display holds in the smallest legible font. A terminal that says it is larger (up to
65,535 of both, 4 GB of cells) is drawn on in part."""

_MOUSE_ON = "\x1b[?1000h\x1b[?1002h\x1b[?1006h"
_MOUSE_OFF = "\x1b[?1006l\x1b[?1002l\x1b[?1000l"
"""Buttons, drags, places as numbers: without 1003, which would report each movement, bytes both
ways."""


class ForgivingFile:
    """A text file whose failed writes are reported once, and dropped from then on."""

    def __init__(self, file: IO[str], lost: Callable[[], None]) -> None:
        self._file = file
        self._lost: Callable[[], None] | None = lost
        self.is_writing = False

    def write(self, text: str) -> int:
        """Write, or drop the text when the terminal is gone."""
        if self._lost is not None:
            self.is_writing = True
            try:
                return self._file.write(text)
            except UnicodeError:  # a lone surrogate: the text is at fault, not the terminal
                return self.write(text.encode("ascii", "replace").decode())
            except Exception:  # Textual's thread of writing must outlive it, or all writes block
                self._give_up()
            finally:
                self.is_writing = False
        return len(text)

    def flush(self) -> None:
        if self._lost is not None:
            self.is_writing = True
            try:
                self._file.flush()
            except Exception:
                self._give_up()
            finally:
                self.is_writing = False

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()

    def _give_up(self) -> None:
        lost, self._lost = self._lost, None
        if lost is not None:
            lost()


class Keys:
    """Bytes from a terminal → events. Nothing that it is fed makes it fail or stop."""

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._parser = XTermParser(debug)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def feed(self, data: bytes) -> Iterator[Message]:
        """The events of the data, and of what came before and was incomplete."""
        for character in self._decode(data):  # one by one: of what fails the rest is kept
            yield from self._parsed(partial(self._parser.feed, character))

    def tick(self) -> Iterator[Message]:
        """Those of an Escape after which nothing came."""
        yield from self._parsed(self._parser.tick)

    def _parsed(self, parse: Callable[[], Iterable[Message]]) -> Iterator[Message]:
        try:
            parsed = [event for event in parse() if _is_usable(event)]
        except Exception:  # of any kind: its generator ended with it
            self._parser = XTermParser(self._debug)
        else:
            yield from parsed


def _is_usable(event: Message) -> bool:
    if isinstance(event, events.Key):
        text = event.character or ""
        return not any("\ud800" <= character <= "\udfff" for character in text)
    if isinstance(event, events.MouseEvent):
        return event.x < _MOST_COLUMNS and event.y < _MOST_LINES
    return not isinstance(event, events.Resize | InBandWindowResize)


@_where_known
class Terminal(LinuxDriver):
    """Textual's driver, which tells the application when the terminal is gone."""

    _app: Ending
    is_entered = False
    """Whether the terminal is in the state that the screen needs."""
    _suspends = False
    _is_over = False

    def __init__(
        self,
        app: Ending,
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert sys.__stdout__ is not None  # run_app draws on a terminal
        # Textual asks Rich until the first event says the size, and Rich takes a terminal that does
        # not know its own for 80 × 25, where the event says 24: each laid the screen out anew, and
        # both went round for ever.
        self._size = self._size or self._get_terminal_size()
        self._file: Any = ForgivingFile(sys.__stdout__, self._terminal_lost)
        self._woken, self._waker = os.pipe()
        # Textual's own handlers expect that the terminal is switched over. Not SIG_IGN, which a
        # program that is started now would inherit.
        signal.signal(signal.SIGTSTP, lambda *_: None)
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        app.terminal = self

    def start_application_mode(self) -> None:
        """Switch the terminal to the other screen, and have it send raw keys and the mouse."""
        # Textual does both inside the signal's handler, between any two of its own instructions: in
        # the middle of this method, or of a write, whose lock the handler then waits for.
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop_until_continued)
        self._loop.add_signal_handler(signal.SIGCONT, self._continue)
        self.is_entered = True
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGWINCH,))
        try:
            super().start_application_mode()  # type: ignore[no-untyped-call]
            # Amid one handler of Textual's comes the next: the size that was read last is said
            # first, and the one before it stayed.
            self._loop.add_signal_handler(signal.SIGWINCH, self._send_size)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGWINCH,))
        # In the background it is not: SIGCONT says when it may.
        self.is_entered = self._writer_thread is not None

    def _send_size(self) -> None:
        size = Size(*self._get_terminal_size())
        self._app.post_message(events.Resize(size, size))

    def _stop_until_continued(self) -> None:
        if self.is_entered:
            self.suspend_application_mode()
        self._must_signal_resume = True
        os.kill(os.getpid(), signal.SIGSTOP)

    def _continue(self) -> None:
        """Also after a SIGSTOP, which nobody hears of: the shell has set its own modes since."""
        if self._is_over:
            return
        if self.is_entered:
            self.suspend_application_mode()
        self.resume_application_mode()
        self._app.call_later(self._app.draw_anew)

    def suspend_application_mode(self) -> None:
        """Put the terminal back until the program is continued."""
        self._suspends = True
        super().suspend_application_mode()
        self._suspends = False

    def stop_application_mode(self) -> None:
        """Put the terminal back, its modes last: with them keys are echoed, once in a million amid
        a sequence, and the cursor stayed hidden. At the end a Ctrl-Z or another size means nothing
        to the screen any more: Textual's handlers would draw by a loop that has ended."""
        modes, self.attrs_before = self.attrs_before, None
        if threading.current_thread() is threading.main_thread() and not self._suspends:
            self._is_over = True
            for number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
                signal.signal(number, signal.SIG_DFL)
        super().stop_application_mode()
        self.close()  # once all of it is out
        self.is_entered = False
        if modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fileno, termios.TCSANOW, modes)

    def write(self, data: str) -> None:
        """Draw; nothing while the terminal is another program's."""
        if self._writer_thread is not None:
            super().write(data)

    def close(self) -> None:
        """Wait until all is drawn. What is drawn after it, nobody would take from the queue."""
        super().close()
        self._writer_thread = None

    def _get_terminal_size(self) -> tuple[int, int]:
        """The terminal's own: exported COLUMNS and LINES, which Textual prefers, do not change
        with the window."""
        size: tuple[int, ...] = ()
        with contextlib.suppress(OSError):
            size = tuple(os.get_terminal_size(self.fileno))
        columns, lines = size if size and all(size) else super()._get_terminal_size()
        return min(columns, _MOST_COLUMNS), min(lines, _MOST_LINES)

    def _query_in_band_window_resize(self) -> None:
        """Not asked: the signal and the kernel say the size."""

    @property
    def is_behind(self) -> bool:
        """Whether the line has not taken yet what was drawn."""
        writer = self._writer_thread
        return self._file.is_writing or (writer is not None and writer._queue.qsize() > 0)

    def _enable_mouse_support(self) -> None:
        if self._mouse:
            self.write(_MOUSE_ON)
            self.flush()

    def _disable_mouse_support(self) -> None:
        if self._mouse:
            self.write(_MOUSE_OFF)
            self.flush()

    def _terminal_lost(self) -> None:
        self._app.lose_terminal()

    def disable_input(self) -> None:
        """End the thread that reads keys."""
        os.write(self._waker, b"\0")
        super().disable_input()

    def _run_input_thread(self) -> None:
        """Read keys; a failure of that is one of the screen, where Textual forgets which."""
        try:
            self.run_input_thread()
        except Exception as error:
            with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
                self._loop.call_soon_threadsafe(self._app._handle_exception, error)

    def run_input_thread(self) -> None:
        """Read keys until the program quits or the input ends."""
        keys = Keys(self._debug)
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            quiet = 0
            is_woken = False
            while not self.exit_event.is_set():
                ready = selector.select(_WAIT_S if is_woken or quiet < _TICKS else None)
                quiet = 0 if ready else quiet + 1
                for key, _ in ready:
                    if key.fd == self._woken:
                        # The end is said only once a slow line has taken what was drawn: asleep
                        # for good meanwhile, this thread would be waited for for ever.
                        is_woken = os.read(self._woken, 1) != b""
                        continue
                    try:
                        data = os.read(self.fileno, 4096)
                    except OSError:
                        data = b""
                    if not data:
                        self._terminal_lost()
                        return
                    self._pass_on(keys.feed(data))
                self._pass_on(keys.tick())

    def _pass_on(self, parsed: Iterator[Message]) -> None:
        for event in parsed:
            # Whatever it fails of, the keys after it count; a loop that has ended takes none.
            with contextlib.suppress(Exception):
                self.process_message(event)


# Only what changed.


def _by_column(run: tuple[int, int, int, int, Strip]) -> tuple[int, int]:
    x, y, start, end, _ = run
    return (x + start, y) if end - start == 1 else (-1, y)


class NarrowUpdate(ChopsUpdate):
    """The pieces of lines that may have changed, without the cells that did not."""

    def __init__(self, update: ChopsUpdate, width: int, frame: SentCells) -> None:
        super().__init__(update.chops, update.spans, update.chop_ends)
        self._width = width
        self._frame = frame

    def render_segments(self, console: Console) -> str:
        runs = []
        for y, first, last in self.spans:
            # A piece beside the span may be that of what lies under the widget there.
            for stop, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                if strip is not None and x < last and stop > first:
                    runs += [(x, y, *run, strip) for run in self._frame.changed(x, y, strip)]
        pen = Pen(console, self._width)
        # Charts beside one another each move on by a column: down one, then down the next, instead
        # of across both in each line, which would cost a move and a colour a cell.
        for x, y, start, end, strip in sorted(runs, key=_by_column):
            pen.move_to(x + start, y)
            pen.write(strip, start, end)
        return pen.text()


class FullUpdate(LayoutUpdate):
    """All lines; of those just sent, what changed since."""

    def __init__(self, update: LayoutUpdate, frame: SentCells) -> None:
        super().__init__([list(line) for line in update.strips], update.region)
        self._frame = frame

    def render_segments(self, console: Console) -> str:
        pen = Pen(console, self.region.right)
        self._frame.begin_whole()
        for y, line in enumerate(self.strips, self.region.y):
            x = self.region.x
            for strip in line:
                for start, end in self._frame.changed(x, y, strip):
                    pen.move_to(x + start, y)
                    pen.write(strip, start, end)
                x += strip.cell_length
        return pen.text()


class NarrowCompositor(Compositor):
    """Textual's compositor, whose updates hold the cells that changed and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = SentCells()

    def _get_renders(
        self, crop: Region | None = None
    ) -> Iterable[tuple[Region, Region, list[Strip]]]:
        # Textual's paints what lies wholly under others too: each container, and the screen.
        covered: set[int] = set()
        for widget, (region, clip) in self.visible_widgets.items():
            shown = region.intersection(clip)
            lines = shown if crop is None else shown.intersection(crop)
            if lines and not covered.issuperset(lines.line_range):
                yield region, clip, widget.render_lines(shown.translate(-region.offset))
                if shown.width >= self.size.width:
                    covered.update(lines.line_range)

    def render_partial_update(self) -> ChopsUpdate | None:
        update = super().render_partial_update()
        return None if update is None else NarrowUpdate(update, self.size.width, self.frame)

    def render_full_update(self, simplify: bool = False) -> LayoutUpdate:
        return FullUpdate(super().render_full_update(simplify), self.frame)


# Screens.


if TYPE_CHECKING:
    _Screen = Screen[Any]
else:
    _Screen = object  # a class takes its look from the first base that has one


@_where_known
class Resized(_Screen):
    """A screen that is laid out at the newest size, always. Laid out anew, a screen sends itself a
    Resize; where a window's edge is dragged, that of one size came after the next size, and both
    went round for ever: gputui drew without end and took no signal."""

    @property
    def gputui(self) -> GputuiApp:
        """The application, of whose parts screens know."""
        return cast("GputuiApp", self.app)

    def _screen_resized(self, size: Size) -> None:
        del size
        super()._screen_resized(self.app.size)

    def _compositor_refresh(self) -> None:
        # Amid a batch Textual drops what it has painted, and takes it for drawn: another size that
        # came while a view was mounted was not drawn until something else changed.
        if self.app._batch_count:
            self._repaint_required = True
        else:
            super()._compositor_refresh()


@_where_known
class Narrow(Resized, Screen[None]):
    """One whose unchanged cells are not sent, and whose frames wait for a slow line."""

    def __init__(self) -> None:
        super().__init__()
        self._compositor: NarrowCompositor = NarrowCompositor()

    def on_resize(self) -> None:
        """What stands on the terminal is unknown."""
        self._compositor.frame.forget()

    def on_screen_resume(self) -> None:
        """A dialog was closed, which drew there."""
        self._compositor.frame.forget()

    def _on_timer_update(self) -> None:
        # Until the line has taken the last frame, changes add up to the next one.
        if not getattr(self.app._driver, "is_behind", False):
            super()._on_timer_update()


# The application.


class Closing(App[None]):
    """An application that keeps what it failed of, for the one who ran it to print."""

    crash: BaseException | None = None
    terminal: Terminal | None = None

    def send(self, sequence: str) -> None:
        """Send a sequence to the terminal, between two frames."""

    def draw_anew(self) -> None:
        """Draw all of the screen: what stands on the terminal is another program's."""

    def lose_terminal(self) -> None:
        """The terminal is gone; said from any thread."""


@_where_known
class Reporting(Closing):
    """One that says of a failure what failed, and nothing else: Textual would print the local
    variables of every frame, other people's command lines."""

    def send(self, sequence: str) -> None:
        """Send a sequence to the terminal, between two frames."""
        if self._driver is not None:
            self._driver.write(sequence)

    def draw_anew(self) -> None:
        """Draw all of the screen: what stands on the terminal is another program's."""
        for screen in self.screen_stack:
            if isinstance(screen, Narrow):
                screen._compositor.frame.forget()
        self.refresh()

    def set_timer(
        self,
        delay: float,
        callback: TimerCallback | None = None,
        *,
        name: str | None = None,
        pause: bool = False,
    ) -> Timer:
        """Call a function after a delay, also where that is over before the timer first looks: then
        Textual's never comes. That of another size has 8 ms: on a busy machine no other size was
        drawn any more."""
        timer = super().set_timer(delay, callback, name=name, pause=pause)
        timer._skip = False
        return timer

    def _end_batch(self) -> None:
        super()._end_batch()
        if not self._batch_count and self.screen_stack:
            self.screen.check_idle()  # Textual's own word goes to the application alone

    def _handle_exception(self, error: Exception) -> None:
        inner = error.error if isinstance(error, WorkerFailed) else error
        self.crash = self.crash or inner
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()

    def panic(self, *renderables: Any) -> None:
        """Leave without Textual's report; `run_app` prints one line."""
        del renderables
        if self.crash is None:
            self.crash = sys.exc_info()[1] or RuntimeError("the terminal driver failed")
        self._return_code = 1
        self._close_messages_no_wait()
