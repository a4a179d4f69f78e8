"""The one place where outside strings are made safe to draw and to store.

Control characters, escape sequences and characters that reorder text are replaced, texts are cut to
a width in cells, and what an encoding lacks gets an ASCII substitute. Secrets among the words of
command lines are hidden.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

# ASCII substitutes for the other characters gputui prints.

_PAIRS = {
    "▁▂▃▄▅▆▇█": "_.:-=+*#",
    "▏▎▍▌▋▊▉▕": "|::=++##|",
    "░▒▓╱╲∙╳╌╬▚": ".:%/~,x;=&",
    "─│┤└├┬┴┼╭╮╰╯┌┐┘━┃": "-||+|---........-|",
    "▾▸●▶■✓✗›‹↑↓←→▼▲…×·•µ°±≤≥–—◆❚−": "v>*>#+x><^v<>v^~x.*u'~<>--*|-",
}
_LINES = (0x09, 0x12, 0x24, 0xC0)
"""The bits of a braille cell's dots, from the top line."""


def _likeness_of_dots(bits: int) -> str:
    """A stroke at the height of a braille cell's highest dot; upright where most lines have one."""
    used = [number for number, line in enumerate(_LINES) if bits & line]
    return "|" if len(used) > 2 else "'-._"[used[0]]


LIKENESS = str.maketrans(
    {
        special: plain
        for specials, plains in _PAIRS.items()
        for special, plain in zip(specials, plains, strict=False)
    }
    | {chr(0x2800 + bits): _likeness_of_dots(bits) for bits in range(1, 256)}
)
"""For `str.translate`: one ASCII character for each that gputui draws with."""


def for_encoding(error: UnicodeError) -> tuple[str, int]:
    """A handler of codec errors: prints the substitute of a character that cannot be encoded, or
    "?".
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end].translate(LIKENESS)
    return "".join(c if c.isascii() else "?" for c in lacking), error.end


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1 controls: escape sequences start here
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls reorder a line
    "\u2028\u2029\ufeff"  # line and paragraph separators, byte-order mark
    "\ud800-\udfff]"  # lone surrogates cannot be encoded
)
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)


def sanitize(text: str, limit: int = 4096) -> str:
    """`text` without control characters, at most `limit` characters long.

    Tabs become spaces; every other control character, bidirectional override and lone surrogate
    becomes U+FFFD, so that its position stays visible. A truncated text ends in "…".
    """
    # Tabs expand, so replace them first, and only in the part that is kept.
    text = text[: limit + 1].replace("\t", "    ")
    if len(text) > limit:
        text = text[: max(0, limit - 1)] + "…"
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(REPLACEMENT, text)


def sanitize_document(value: Any) -> Any:
    """A decoded JSON value, with every string in it sanitized that is not printable ASCII."""
    if isinstance(value, str):
        # Packed bytes are such strings, which a length that fits names would cut.
        return value if value.isascii() and value.isprintable() else sanitize(value)
    if isinstance(value, list):
        return [sanitize_document(item) for item in value]
    if isinstance(value, dict):
        return {sanitize(key, 200): sanitize_document(item) for key, item in value.items()}
    return value


def clean_output(line: str, limit: int = 2000) -> str:
    """One line of a program's output: terminal colours removed, then sanitized.

    Of a line redrawn with carriage returns (a progress bar) the last state is kept, as a terminal
    would show it.
    """
    line = _ESCAPE_SEQUENCE.sub("", line.rstrip("\r\n"))
    if "\r" in line:
        line = line.rsplit("\r", 1)[1]
    return sanitize(line, limit)


def cell_width(text: str) -> int:
    """Terminal columns occupied by `text`: wide East Asian characters take two."""
    if text.isascii() or max(text) < _FIRST_OTHER_WIDTH:
        return len(text)
    return sum(_character_width(character) for character in text)


# Characters before this one, Latin letters and signs such as µ, all take one column.
_FIRST_OTHER_WIDTH = "\u0300"

# Characters that are looked at for each column: combining ones take none of their own.
_MARKS = 4


def width_up_to(text: str, limit: int) -> int:
    """`cell_width` or `limit`, the lesser: of a long text only the beginning is measured."""
    if text.isascii():
        return min(len(text), limit)
    return min(limit, cell_width(text[: _MARKS * limit]))


def cut_to_width(text: str, width: int) -> str:
    """`text` in at most `width` columns of a terminal; a text that is cut ends in "…"."""
    start = text[: _MARKS * (width + 1)]
    if len(start) == len(text) and cell_width(text) <= width:
        return text
    columns = 0
    for place, character in enumerate(start):
        columns += _character_width(character)
        if columns >= width:
            return start[:place] + "…"
    return start + "…"


def cut_middle(text: str, width: int) -> str:
    """`text` in at most `width` columns: its head and its tail, where that can be at underscores
    or `::`."""
    if cell_width(text) <= width:
        return text
    if width < 8:
        return cut_to_width(text, width) if width > 0 else ""
    tail_room = (width - 1) // 2
    tail = text[-tail_room:]
    while cell_width(tail) > tail_room:
        tail = tail[1:]
    underscore = tail.find("_")
    tail = tail[underscore if 0 <= underscore <= tail_room // 2 else 0 :]
    head = cut_to_width(text, width - cell_width(tail)).rstrip("…").rstrip()
    return f"{head}…{tail.lstrip('…')}"


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


# --- Secrets on command lines: hidden before gputui stores or shows the words of one.
#
# Recordings and pages made of them are passed on, and their readers need the words of a command,
# not its keys. What is hidden becomes MASK: the value of an option or of NAME=VALUE whose name is a
# secret's (`--token`, `--password`, `HF_TOKEN=`, `model.api_key=`), also in the query of a URL; the
# user information of a URL; what follows `Bearer`; and words with the form of keys of Hugging Face,
# OpenAI and GitHub. A secret under a name or in a form that is none of these stays.

MASK = "***"

# Compiled when a command line is read: commands that read none start without it.
_compiled = functools.cache(re.compile)

_SECRET_NAME = (
    r"(?i)(?:token|password|passwd|passphrase|secret|credentials?"
    r"|(?:api|access|secret|private|auth|account|wandb)_?key)\Z"
)
# Tokens of a tokenizer, which options of language models name.
_VOCABULARY = (
    r"(?i)(?:^|_)(?:eos|bos|pad|unk|sep|cls|mask|stop|start|end|image|video|audio|special|prefix|suffix"
    r"|per|by|next|first|last|new)_?token\Z"
)

_ASSIGNMENT = r"""(?s)(['"]?[-+~]*)([A-Za-z_][\w.\-/]*)=(.+)"""
_OPTION = r"-{1,2}([A-Za-z_][\w.\-]*)"
_USER_INFORMATION = r"(?<=://)[^/\s?#]+@"
_QUERY = r"([?&])([\w.\-]+)=([^&#\s]+)"
_KEY_FORM = r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,})"

_READS_A_SCRIPT = r"-?(?:.*/)?(?:\w*sh|su|runuser|script|python[\d.]*)"

_keeps: list[bool] = []


def configure_masking(*, keep: bool) -> None:
    """Whether from here on command lines are kept as they are."""
    _keeps[:] = [keep]


def masked_words(words: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line without secrets, as many as before."""
    if any(_keeps):
        return tuple(words)
    masked = []
    hides_next = False
    closing = ""
    for word in words:
        if closing or (hides_next and not word.startswith("-")):
            # In the words of a shell's line a quoted value may be several.
            closing = closing or (word[0] if word[:1] in {'"', "'"} else "")
            if len(word) > 1 and word.endswith(closing):
                closing = ""
            masked.append(MASK)
            hides_next = False
            continue
        masked.append(_masked(word))
        option = _compiled(_OPTION).fullmatch(word.strip("'\""))
        is_secret = option is not None and _is_secret(option[1])
        hides_next = is_secret or word.strip("'\"").casefold() == "bearer"
    return tuple(masked)


def launcher_words(words: Iterable[str]) -> tuple[str, ...]:
    """The command line of a process that only started others, without the script that was given to
    a shell or Python on it: such a script may set a whole environment (`bash -c 'export …'`)."""
    masked = masked_words(words)
    if any(_keeps) or not masked or not _compiled(_READS_A_SCRIPT).fullmatch(masked[0]):
        return masked
    for index, word in enumerate(masked):
        if _compiled(r"-[a-z]*c").fullmatch(word):
            return (*masked[: index + 1], "…")
    return masked


def masked_line(line: str) -> str:
    """What `masked_words` gives of a command line whose words are joined by spaces: of a value
    with spaces in it only the first word is known to belong to it.
    """
    return " ".join(masked_words(line.split(" ")))


def _masked(word: str) -> str:
    if " " in word:  # a shell's line, or a header
        return masked_line(word)
    assignment = _compiled(_ASSIGNMENT).fullmatch(word)
    if assignment is not None and _is_secret(assignment[2]):
        return f"{assignment[1]}{assignment[2]}={MASK}"
    word = _compiled(_USER_INFORMATION).sub(f"{MASK}@", word)
    word = _compiled(_QUERY).sub(
        lambda match: f"{match[1]}{match[2]}={MASK if _is_secret(match[2]) else match[3]}", word
    )
    return _compiled(_KEY_FORM).sub(MASK, word)


def _is_secret(name: str) -> bool:
    last = re.split(r"[./]", name)[-1].replace("-", "_")
    return (
        _compiled(_SECRET_NAME).search(last) is not None
        and _compiled(_VOCABULARY).search(last) is None
    )
