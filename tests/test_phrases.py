"""Phrases that no engineer writes stay out of the code's words, the README and the docs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PHRASES = {
    r"\btells? of\b": "reports, describes, concerns",
    r"\btold (of|by|apart)\b": "reported, described, distinguished",
    r"\btells? (it|them) from\b": "distinguishes",
    r"\bnot told\b": "unknown",
    r"\bthe mend\b": "how to fix it",
    r"\b(came|come) about\b": "happened",
    r"\bwhat is said\b": "what is reported",
    r"\bsaid (again|anew|of)\b": "repeated, sent again",
    r"\bfrom afar\b": "remotely",
    r"\b(is|are) spared\b": "does not see",
    r"\bbefell\b": "happened to",
    r"\bAs [A-Z]\w+'s\.": "say what it does",
    r"\bthese alone\b|\b(GPUs|characters|table|ranges) alone\b": "only",
}


def test_the_phrases_are_not_used() -> None:
    files = [ROOT / "README.md"]
    for folder in ("gputui", "workloads"):
        files += [
            path
            for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in {".py", ".md", ".c", ".h"}
        ]
    any_of_them = re.compile("|".join(PHRASES))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: write {better!r}"
        for path, text in texts.items()
        if any_of_them.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        for phrase, better in PHRASES.items()
        if (match := re.search(phrase, line))
    ]
    assert not found, "\n".join(found)
