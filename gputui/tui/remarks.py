"""Problems of the recording being played or written, reported once and kept in the model; and
alerts, at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base.sanitize import sanitize
from gputui.model.events import Alert, AnyEvent
from gputui.report.alerts import alert_text
from gputui.tui.model import Model
from gputui.tui.source import Playback

if TYPE_CHECKING:
    from gputui.store.journal.writer import RecordingWriter

_LONGEST = 1000


class Remarks:
    """Adds them to the model; `say` shows a line at the bottom of the screen, which `unsay` takes
    back, `notify` has the terminal notify of it."""

    def __init__(
        self,
        model: Model,
        say: Callable[[str], None],
        unsay: Callable[[str], None],
        notify: Callable[[str], None],
    ) -> None:
        self._notify = notify
        self._model = model
        self._say = say
        self._unsay = unsay
        self._told = 0
        self._told_home = False

    def of_alerts(self, events: Iterable[AnyEvent], where: str = "") -> None:
        """Those among live events, also while the screen is paused or shows a recording. `where`
        is put before the text."""
        for event in events:
            if isinstance(event, Alert):
                text = f"{where}{alert_text(event)}"
                self._say(text)
                if event.raised:
                    self._notify(text)

    def of_playback(self, playback: Playback) -> None:
        """Where the recording is damaged, and whether more of it is to come."""
        text = "; ".join(playback.remarks)
        folder = str(Path(playback.name).parent)
        self._note(text if folder == "." else text.replace(f"{folder}/", ""), playback.has_ended)

    def of_recording(self, recording: RecordingWriter) -> None:
        """Why it stopped, and what was left out or removed to make room."""
        self._note(recording.failure or "", False)
        if len(recording.notices) > self._told:
            self._told = len(recording.notices)
            self._say(sanitize(recording.notices[-1]))

    def of_home(self, recording: RecordingWriter) -> None:
        """Why the background recording stopped: reported once; the screen shows another source."""
        if recording.failure is not None and not self._told_home:
            self._told_home = True
            self._say(sanitize(recording.failure, _LONGEST))

    def _note(self, text: str, lost_end: bool) -> None:
        remark, before = sanitize(text, _LONGEST), self._model.remark
        if self._model.note(remark, lost_end=lost_end):
            self._say(remark)
        elif before and not remark:
            self._unsay(before)
