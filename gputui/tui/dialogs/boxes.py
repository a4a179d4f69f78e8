"""Small dialogs: a question, details, the help."""

from __future__ import annotations

from gputui.tui.dialogs.dialog import Dialog, key_hints
from gputui.tui.shell.keys import keys_of
from gputui.tui.widgets.canvas import Row, beside, paragraph, wrap
from gputui.tui.widgets.field import TextField
from gputui.tui.widgets.view import Details


class Question(Dialog[bool]):
    """Yes or no. Only y is yes: Enter, the key for everything, must not end a run."""

    widest = 64

    def __init__(self, title: str, text: str, yes: str) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._yes = yes

    def rows(self, width: int) -> list[Row]:
        return [((self._title, "title"),), (), *wrap(self._text, width)]

    def footer(self, width: int) -> list[Row]:
        return key_hints(width, ("y", self._yes), ("n Esc Enter", "no"))

    def key(self, key: str, character: str | None) -> None:
        del character
        if key in ("y", "Y"):
            self.dismiss(True)
        elif key in ("n", "N", "escape", "q", "enter"):
            self.dismiss(False)


class DetailsBox(Dialog[None]):
    """Details of something, to be read."""

    is_read_only = True

    def __init__(self, details: Details) -> None:
        super().__init__()
        self._details = details
        self._more: tuple[Row, ...] = ()

    def add(self, rows: tuple[Row, ...]) -> None:
        """Show what was found out meanwhile."""
        self._more = rows
        if self.is_attached:
            self.draw()

    def failed(self, reason: str) -> None:
        """Show why nothing was found out."""
        self.add(((), ((f"! {reason}", "warn"),)))

    def rows(self, width: int) -> list[Row]:
        """The text, with long lines wrapped."""
        rows: list[Row] = [*wrap(self._details.title, width, "title"), ()]
        for row in (*self._details.rows, *self._more):
            if len(row) == 2 and sum(len(text) for text, _ in row) > width:
                (label, of), (text, role) = row
                rows += paragraph(label, text, width, role, of)
            elif len(row) == 1:
                rows += wrap(row[0][0], width, row[0][1])
            else:
                rows.append(row)
        return rows

    def footer(self, width: int) -> list[Row]:
        return key_hints(width, ("Esc", "close"), ("↑ ↓ PgUp PgDn", "scroll"))

    def key(self, key: str, character: str | None) -> None:
        if key in ("escape", "backspace", "enter", "q"):
            self.dismiss(None)
        elif not self.scroll_key(key):
            self.pass_on(key, character)


class Help(Dialog[None]):
    """Every key; what is typed filters them."""

    widest = 150
    is_read_only = True

    def __init__(self, *, replays: bool) -> None:
        super().__init__()
        self._replays = replays
        self._field = TextField()

    def rows(self, width: int) -> list[Row]:
        """Keys by group, in two columns where there is room."""
        groups: dict[str, list[Row]] = {}
        words = self._field.text.lower().split()
        for key in keys_of(self._replays):
            said = f"{key.shown} {key.help}".lower()
            if not all(word in said for word in words):
                continue
            rows = groups.setdefault(key.group, [((key.group, "head"),)])
            rows.append(((f"{key.shown:<12} ", "key"), (key.help, "text")))
        blocks = [[*rows, ()] for rows in groups.values()]
        title: list[Row] = [(("Keys  ", "title"), *self._field.spans(width - 6)), ()]
        if not blocks:
            return [*title, (("no key does that", "dim"),)]
        if width < 128:
            return title + [row for block in blocks for row in block]
        half = (width - 2) // 2
        lines = sum(map(len, blocks))
        left: list[Row] = []
        while blocks and 2 * (len(left) + len(blocks[0])) <= lines + 6:
            left += blocks.pop(0)
        right = [row for block in blocks for row in block]
        return title + beside([(left, half), (right, half)])

    def footer(self, width: int) -> list[Row]:
        return key_hints(
            width, ("Esc", "close"), ("↑ ↓ PgUp PgDn", "scroll"), ("a word", "filters")
        )

    def key(self, key: str, character: str | None) -> None:
        if key in ("escape", "enter", "question_mark", "f1"):
            self.dismiss(None)
        elif len(key) > 1 and self.scroll_key(key):  # letters are typed
            return
        elif self._field.key(key, character):
            self.top = 0
            self.draw()
        else:
            self.pass_on(key, character)
