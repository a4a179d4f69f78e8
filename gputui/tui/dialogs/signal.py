"""Which signal to send to a process, naming the process first."""

from __future__ import annotations

from gputui.model.units import size
from gputui.report.tables.processes import OUTSIDE, ProcessRow
from gputui.tui.dialogs.dialog import Dialog, key_hints
from gputui.tui.widgets.canvas import Row, wrap

CHOICES = (
    ("TERM", "t", "asks it to end; most programs save and clean up"),
    ("INT", "i", "as Ctrl-C in its terminal"),
    ("KILL", "k", "ends it at once; nothing is saved"),
)
_MOST_LINES = 4


class SignalDialog(Dialog[str | None]):
    """Returns the name of a signal, None if cancelled."""

    widest = 84

    def __init__(self, process: ProcessRow) -> None:
        super().__init__()
        self._process = process
        self._chosen: int | None = None
        self._first_line = 0

    def rows(self, width: int) -> list[Row]:
        """The process, then the signals."""
        process = self._process
        gpus = ", ".join(f"GPU {gpu}" for gpu in process.gpus)
        uses = f" on {gpus}" if gpus else ""
        if process.gpu_memory_bytes is not None:
            uses += f" with {size(process.gpu_memory_bytes)}"
        who = f"process {process.pid} of {process.user or 'an unknown user'}{uses}"
        command = wrap(process.command or OUTSIDE, width - 2, "title", "  ")
        rows: list[Row] = [
            (("Send a signal to this process?", "title"),),
            (),
            *wrap(who, width),
            *command[:_MOST_LINES],
        ]
        if process.run is not None:
            rows += wrap("It is part of gputui's own run: x ends all of that.", width, "warn")
        rows.append(())
        self._first_line = len(rows)
        for number, (name, key, does) in enumerate(CHOICES):
            role = "tab-active" if number == self._chosen else "tab"
            rows.append(((f" {name:<5}", role), (f" {key} ", "key"), (does, "text")))
        return rows

    def footer(self, width: int) -> list[Row]:
        sends = "send none" if self._chosen is None else f"send {CHOICES[self._chosen][0]}"
        return key_hints(width, ("Enter", sends), ("↑ ↓", "choose"), ("Esc", "send none"))

    def clicked(self, line: int) -> None:
        """A signal: only chosen, as by its letter."""
        if 0 <= line - self._first_line < len(CHOICES):
            self._chosen = line - self._first_line
            self.draw()

    def key(self, key: str, character: str | None) -> None:
        """A letter only chooses: nothing is sent without Enter, nor by Enter alone."""
        del character
        if key in ("escape", "q", "n"):
            self.dismiss(None)
        elif key == "enter":
            self.dismiss(None if self._chosen is None else CHOICES[self._chosen][0])
        else:
            letters = {letter: number for number, (_, letter, _) in enumerate(CHOICES)}
            step = {"up": -1, "down": 1}.get(key, 0)
            before = self._chosen
            if step:
                first = 0 if step > 0 else len(CHOICES) - 1
                self._chosen = first if before is None else (before + step) % len(CHOICES)
            else:
                self._chosen = letters.get(key.lower(), before)
            self.draw()
