"""The first frame on the terminal, and the source connected, while the screen is loaded.

Loading it takes much longer than a few figures do. Only the machine is shown so early, never a run:
a signal that ends the program now leaves nothing behind but the terminal, which is put back.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from gputui.model.units import celsius, percent, size, watts
from gputui.tui.shell.views import GROUP_OF, GROUPS
from gputui.tui.widgets.canvas import Row, clip, flow, heading, wrap

if TYPE_CHECKING:
    from gputui.collect.nvml.opening import Glance
    from gputui.tui.source import Connect, Source

ENDING_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGABRT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGXCPU,
)
"""What would end the program and leave the terminal raw; keys never send these once Textual reads
them."""

PATIENCE_S = 0.3
"""A driver that takes longer is waited for while the screen is loaded."""

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"


class Shown:
    """A frame on the alternate screen, drawn as soon as there is one, until Textual takes over; a
    signal gives the terminal back."""

    def __init__(self, frame: Callable[[int, int], str]) -> None:
        """`frame` gives the text for a width and a height. Called in a thread: drivers may hang."""
        # Nothing made while starting is garbage: looking for some costs the first frame 20 ms.
        gc.disable()
        self._frame = frame
        self._lock = threading.RLock()  # re-entered by a signal
        self._is_over = False
        self._is_drawn = False
        self._handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
        for number in ENDING_SIGNALS:
            signal.signal(number, self._end)
        thread = threading.Thread(target=self._draw, name="first-frame", daemon=True)
        thread.start()
        thread.join(PATIENCE_S)

    def hand_over(self) -> None:
        """Nothing is drawn from here on but by Textual."""
        with self._lock:
            self._is_over = True

    def take_back(self) -> None:
        """Leave: Textual did not come to take over."""
        self.hand_over()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._is_drawn:
            with contextlib.suppress(OSError):
                os.write(1, _LEAVE.encode())

    def _draw(self) -> None:
        with contextlib.suppress(Exception):  # whatever it is, the screen says it
            size = os.get_terminal_size(1)
            if size.columns < 60 or size.lines < 16:
                return
            text = self._frame(size.columns, size.lines)
            with self._lock:
                if not self._is_over:
                    self._is_drawn = True
                    sys.stdout.write(_ENTER + text)
                    sys.stdout.flush()

    def _end(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.take_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


class Connection:
    """A source that is connected and started at once, in a thread."""

    def __init__(self, connect: Connect) -> None:
        self._connect_to = connect
        self._tell: Callable[[], None] | None = None
        self._source: Source | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name="connect", daemon=True)
        self._thread.start()

    def connect(self, notify: Callable[[], None]) -> Source:
        """The source, already started, which calls `notify` from here on."""
        self._tell = notify
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._source is not None
        return self._source

    def _main(self) -> None:
        try:
            source = self._connect_to(self._notice)
            source.start()
            self._source = source
        except Exception as error:  # the screen says it
            self._error = error

    def _notice(self) -> None:
        if self._tell is not None:
            self._tell()


# The machine's GPUs as that frame shows them.


_BOLD, _DIM, _REVERSE, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[0m"
_LOOKS = {
    **dict.fromkeys(("title", "value", "warn"), _BOLD),
    **dict.fromkeys(("dim", "rule", "label", "tab"), _DIM),
    "tab-active": _REVERSE,
}
"""Without the theme, which comes with Textual."""


def first_frame(gpus: Sequence[Glance], reason: str | None, width: int, height: int) -> str:
    """All lines but the last; `reason` says why there is no GPU."""
    devices = GROUP_OF["devices"]
    rows: list[Row] = [tuple(
        (f" {group.key} {group.title} ", "tab-active" if group is devices else "tab")
        for group in GROUPS
    )]  # fmt: skip
    for gpu in gpus:
        rows += [heading(f"GPU {gpu.gpu}  {gpu.name}", width), *flow(_figures(gpu), width, 1)]
    if not gpus:
        rows += [(), *wrap(reason or "no GPU", width - 2, "warn", "  ")]
    rows += [(), (("  the other figures need a second reading", "dim"),)] if gpus else []
    return "".join(
        f"\x1b[{y};1H{_styled(clip(row, width))}" for y, row in enumerate(rows[: height - 1], 1)
    )


def _figures(gpu: Glance) -> list[Row]:
    memory = gpu.memory
    used = f"{size(memory.used)} of {size(memory.total)}" if memory else None
    limit = f" of {watts(gpu.power_limit_watts)}" if gpu.power_limit_watts else ""
    told = (
        ("GPU utilization", gpu.utilization_percent, percent(gpu.utilization_percent)),
        ("memory", used, used),
        ("power", gpu.power_watts, watts(gpu.power_watts) + limit),
        ("temperature", gpu.temperature_celsius, celsius(gpu.temperature_celsius)),
        ("SM clock", gpu.sm_clock_mhz, f"{gpu.sm_clock_mhz} MHz"),
    )
    return [
        ((f"{label} ", "label"), (text, "value"))
        for label, value, text in told
        if value is not None and text is not None
    ]


def _styled(row: Row) -> str:
    return "".join(f"{_LOOKS.get(role, '')}{text}{_PLAIN}" for text, role in row)
