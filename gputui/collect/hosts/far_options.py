"""What a far end is asked for: readings of its machine, or a run to begin or to follow there."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence

import msgspec

HELLO_S = 20.0
"""From starting the command to the far end's first line: Python on a cold network disk is slow."""

SILENCE_S = 20.0
"""Longer than the time is not asked for: a link without any answer is dead."""


RECORDING = "{recording}"
"""Stands for the file's name in the words for gputui there."""

NODE = "{node}"
"""Stands for the number of a host among several."""


class FarRun(msgspec.Struct, frozen=True):
    """A run to begin there, or with `recording` the file of one that was begun."""

    run_id: str = ""
    name: str = ""
    words: tuple[str, ...] = ()
    recording: str = ""
    is_of_all: bool = False
    """Whether it may be begun, or followed, on each of several hosts."""
    pids: tuple[int, ...] = ()
    """The process to attach to on each host: the last of its words."""

    def on(self, place: int, head: str, hosts: int) -> FarRun:
        """Host `place` of several: `{node}` in its words is that number, `{nodes}` how many there
        are, `{head}` the first's name. Each has a number of its own: they may share their disk."""
        run = self
        if self.pids:
            run = msgspec.structs.replace(run, words=(*run.words, str(self.pids[place])))
        if hosts == 1:
            return run
        values = {NODE: str(place), "{nodes}": str(hosts), "{head}": head}
        return msgspec.structs.replace(
            run,
            run_id=f"{run.run_id}{place}" if run.run_id else "",
            words=tuple(_filled(word, values) for word in run.words),
            recording=run.recording.replace(NODE, str(place)),
        )


def begun_now(name: str, words: Sequence[str]) -> FarRun:
    """A run that is begun once, however often the link is cut."""
    run_id = f"{int(time.time())}-{secrets.token_hex(4)}"
    return FarRun(run_id, re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40] or "run", tuple(words))


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


class FarOptions(msgspec.Struct, frozen=True):
    """How gputui is called there, and what it is asked for."""

    there: tuple[str, ...] = ("gputui",)
    interval_s: float = 1.0
    only: tuple[int, ...] | None = None
    zstandard: bool = False
    run: FarRun | None = None
    """What to follow instead of readings of now."""
    hello_s: float = HELLO_S
    silence_s: float = SILENCE_S

    def words(
        self, token: str, there: tuple[str, ...], recording: str = "", offset: int = 0
    ) -> list[str]:
        """The command there, where gputui is called `there` if that is another way; `recording` is
        the file to go on with, from byte `offset`.
        """
        how = ["--zstandard"] if self.zstandard else []
        words = [*(there or self.there), "stream", "--token", token, *how]
        if recording:
            return [*words, "--file", recording, "--offset", str(offset)]
        if self.run is not None:
            begin = ["--run-id", self.run.run_id, "--name", self.run.name]
            return [*words, *begin, "--", *self.run.words]
        only = ["--only", *map(str, self.only)] if self.only else []
        return [*words, "--interval", f"{self.interval_s:g}", *only]
