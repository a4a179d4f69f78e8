"""Names of ranges that number themselves: which numbers say what a range is, and which only when.

`Step 3` and `Step 4` are one phase at two moments; `h.0` and `h.1` are two modules. What stands
before a number decides, and how many siblings differ in nothing else:

1. *Of an instance*, always folded: annotations (`aten::to, seq = 46013, op_id = 993413`,
   `sizes = [[2, 3]]`), hexadecimal ids, UUIDs, numbers of seven digits, sizes in brackets, and
   numbers after a word that counts (`Step 3`, `iter_7`, `ProfilerStep#12`, `request 4`).
2. *Free*, as in `Compute 260`: folded where more than MOST_FREE siblings differ only in such
   numbers. Fewer may be different things: `test 1`, `test 2`.
3. *Of a part*, as in `h.0`, `layers[3]`, `expert 7`, `conv2`: an index into a structure, in
   dotted or bracketed notation, after a word that names a part, or written onto a name. Folded
   only where more than MOST_PARTS siblings differ in nothing else.

Numbers that are folded become `#`; annotations are dropped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import NamedTuple

MOST_FREE = 8
MOST_PARTS = 256
"""No model has as many layers; the largest have 256 experts in one."""

_COUNTS = (
    "step", "iter", "iteration", "batch", "epoch", "token", "request", "sample", "prompt", "frame",
    "tick", "episode", "sequence",
)  # fmt: skip
"""Words before a number that counts instances; longer ones may end in these: ProfilerStep."""

_SHORT_COUNTS = {"req", "seq", "op", "id"}

_PARTS = (
    "layer", "layers", "block", "blocks", "head", "heads", "expert", "experts", "stage", "rank",
    "gpu", "cuda", "device", "stream", "worker", "thread", "process", "pid", "node", "shard",
    "partition", "level", "bucket", "group", "module", "stack", "unit",
)  # fmt: skip
"""Words before a number that tells parts apart."""

_ANNOTATION = re.compile(
    r",\s{0,4}[A-Za-z_][A-Za-z_ ]{0,30}(?:=[\d\s,.\[\]()x×-]*)?…$"  # of a name that was cut
    r"|,\s{0,4}[A-Za-z_][A-Za-z_ ]{0,30}=\s{0,4}(?:-?\d[\d.]*|[\[(][\d\s,.\[\]()x×-]*[\])])"
)
_ID = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|(?<![0-9A-Za-z])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z.])\d{7,}(?![0-9A-Za-z])"
)
_SIZES = re.compile(r"\[[\s\[\](,]*\d+(?:[\s\[\]()]*[,x×][\s\[\]()]*\d+)+[\s\[\]),]*\]")
_NUMBER = re.compile(
    r"(?P<word>[A-Za-z]*)(?P<between>[\s#:=_./(\[-]{0,4})"
    r"(?P<number>\d+(?:x\d+)*)(?P<after>[A-Za-z]?)"
)


class _Levels(NamedTuple):
    """A name without numbers of an instance; without free ones too; without any."""

    instance: str
    free: str
    part: str


@lru_cache(maxsize=1 << 15)
def _levels(name: str) -> _Levels:
    if not any(map(str.isdigit, name)):
        return _Levels(name, name, name)
    plain = _SIZES.sub("[#]", _ID.sub("#", _ANNOTATION.sub("", name))).rstrip() or "#"
    texts = ["", "", ""]
    end = 0
    for number in _NUMBER.finditer(plain):
        before, least = plain[end : number.start()], _level(number)
        short = f"{number['word']}{number['between'].rstrip('#')}#{number['after']}"
        for level in range(3):
            texts[level] += before + (number[0] if level < least else short)
        end = number.end()
    return _Levels(*(text + plain[end:] for text in texts))


def _level(number: re.Match[str]) -> int:
    word, between = number["word"].lower(), number["between"]
    counts = word.endswith(_COUNTS) or word in _SHORT_COUNTS
    if counts and not number["after"] and not between.endswith((".", "[")):
        return 0
    is_part = not between or between[-1] in ".[" or word.endswith(_PARTS) or number["after"]
    return 2 if is_part and word else 1


def without_numbers(name: str) -> str:
    """A name without any number: what is left where there are too many to tell apart."""
    return _levels(name).part


def sibling_names(ranges: Iterable[tuple[Hashable, str]]) -> dict[tuple[Hashable, str], str]:
    """What each of the ranges inside one phase is called, by (kind, name): only those of one kind
    are siblings."""
    distinct = dict.fromkeys(ranges)
    levels = {raw: _levels(raw) for _, raw in distinct}
    names = {key: levels[key[1]].instance for key in distinct}
    for level, most in ((1, MOST_FREE), (2, MOST_PARTS)):
        groups: dict[tuple[Hashable, str], set[str]] = defaultdict(set)
        for (kind, raw), name in names.items():
            groups[kind, levels[raw][level]].add(name)
        many = {group for group, members in groups.items() if len(members) > most}
        if many:
            names = {
                (kind, raw): levels[raw][level] if (kind, levels[raw][level]) in many else name
                for (kind, raw), name in names.items()
            }
    return names
