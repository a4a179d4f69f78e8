"""Kernel names → categories, by the user's rules and those of `kernel_rules`, ignoring case."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from gputui.model.kernel_rules import RULES

OTHER = "other"

_GROUP = re.compile(r"\([^()]*\)[*?]?")
_OPTIONAL = re.compile(r"\[[^]]*\][*?]?|\\.[*?]?|.[*?]|[\^$|]")


def _needing(pattern: str) -> tuple[str, str | None]:
    """A pattern, after a text that must be there for it to match; None where the text is all.

    Looking for a plain text is a hundred times faster than for a pattern, and names may be long.
    """
    plain, groups = pattern, 1
    while groups:  # the innermost first
        plain, groups = _GROUP.subn("\0", plain)
    parts = [] if "|" in plain else _OPTIONAL.sub("\0", plain).split("\0")
    text = max(parts, key=len, default="")
    return text, None if text == pattern else pattern


@functools.cache
def _rules() -> tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...]:
    return tuple((category, tuple(map(_needing, patterns))) for category, patterns in RULES)


_compiled = functools.cache(re.compile)
"""Patterns are compiled when a name may match: all of them would take as long as a first frame."""


_LOOKED_AT = 600
"""Characters of a name: what follows are further arguments of templates, thousands of them."""

_own: list[tuple[re.Pattern[str], str]] = []


def configure(rules: Sequence[tuple[re.Pattern[str], str]]) -> None:
    """From here on these rules, a pattern and its category each, come before gputui's."""
    _own[:] = rules
    category.cache_clear()


@functools.lru_cache(maxsize=65536)
def category(name: str) -> str:
    """The category of a kernel by its demangled name; "other" if no rule matches."""
    for pattern, label in _own:
        if pattern.search(name):
            return label
    low = name[:_LOOKED_AT].lower()
    for label, alternatives in _rules():
        for needed, rest in alternatives:
            if needed in low and (rest is None or _compiled(rest).search(low)):
                return label
    return OTHER
