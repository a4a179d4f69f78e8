"""Secrets on command lines: hidden before gputui stores or shows the words of one.

Recordings and pages made of them are passed on, and their readers need the words of a command, not
its keys. What is hidden becomes MASK: the value of an option or of NAME=VALUE whose name is a
secret's (`--token`, `--password`, `HF_TOKEN=`, `model.api_key=`), also in the query of a URL; the
user information of a URL; what follows `Bearer`; and words with the form of keys of Hugging Face,
OpenAI and GitHub. A secret under a name or in a form that is none of these stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"

_SECRET_NAME = re.compile(
    r"(?:token|password|passwd|passphrase|secret|credentials?"
    r"|(?:api|access|secret|private|auth|account|wandb)_?key)\Z",
    re.IGNORECASE,
)
# Tokens of a tokenizer, which options of language models name.
_VOCABULARY = re.compile(
    r"(?:^|_)(?:eos|bos|pad|unk|sep|cls|mask|stop|start|end|image|video|audio|special|prefix|suffix"
    r"|per|by|next|first|last|new)_?token\Z",
    re.IGNORECASE,
)

_ASSIGNMENT = re.compile(r"""(['"]?[-+~]*)([A-Za-z_][\w.\-/]*)=(.+)""", re.DOTALL)
_OPTION = re.compile(r"-{1,2}([A-Za-z_][\w.\-]*)")
_USER_INFORMATION = re.compile(r"(?<=://)[^/\s?#]+@")
_QUERY = re.compile(r"([?&])([\w.\-]+)=([^&#\s]+)")
_KEY_FORM = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,})"
)

_keeps: list[bool] = []


def configure(*, keep: bool) -> None:
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
        option = _OPTION.fullmatch(word.strip("'\""))
        is_secret = option is not None and _is_secret(option[1])
        hides_next = is_secret or word.strip("'\"").casefold() == "bearer"
    return tuple(masked)


def masked_line(line: str) -> str:
    """The same of a command line whose words are joined by spaces: of a value with spaces in it
    only the first word is known to belong to it.
    """
    return " ".join(masked_words(line.split(" ")))


def _masked(word: str) -> str:
    if " " in word:  # a shell's line, or a header
        return masked_line(word)
    assignment = _ASSIGNMENT.fullmatch(word)
    if assignment is not None and _is_secret(assignment[2]):
        return f"{assignment[1]}{assignment[2]}={MASK}"
    word = _USER_INFORMATION.sub(f"{MASK}@", word)
    word = _QUERY.sub(
        lambda match: f"{match[1]}{match[2]}={MASK if _is_secret(match[2]) else match[3]}", word
    )
    return _KEY_FORM.sub(MASK, word)


def _is_secret(name: str) -> bool:
    last = re.split(r"[./]", name)[-1].replace("-", "_")
    return _SECRET_NAME.search(last) is not None and _VOCABULARY.search(last) is None
