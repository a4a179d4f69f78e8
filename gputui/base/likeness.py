"""ASCII substitutes for the other characters gputui prints."""

from __future__ import annotations

_PAIRS = {
    "▁▂▃▄▅▆▇█": "_.:-=+*#",
    "▏▎▍▌▋▊▉▕": "|::=++##|",
    "░▒▓╱╲∙╳╌╬▚": ".:%/~,x;=&",
    "─│┤└├┬┴┼╭╮╰╯┌┐┘━┃": "-||+|---........-|",
    "▾▸●▶■✓✗›‹↑↓←→▼▲…×·•µ°±≤≥–—◆❚−": "v>*>#+x><^v<>v^~x.*u'~<>--*|-",
}
LIKENESS = str.maketrans(
    {
        special: plain
        for specials, plains in _PAIRS.items()
        for special, plain in zip(specials, plains, strict=False)
    }
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
