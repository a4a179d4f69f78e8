"""Which host, and the command that gives a pipe to it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from gputui.base.errors import WRONG_USAGE, GputuiError
from gputui.base.sanitize import sanitize

SSH_OPTIONS = (
    "-T", "-a", "-x",
    "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oServerAliveCountMax=3",
    "-oClearAllForwardings=yes",
)  # fmt: skip
"""No terminal, nothing forwarded to a host that may be anybody's, and a dead link known in 15 s."""

_LONGEST_NAME = 60


class TargetError(GputuiError):
    """What was typed names no host. One line."""

    exit_status = WRONG_USAGE


class HostTarget(msgspec.Struct, frozen=True):
    """A host. `prefix` is the command whose pipe leads there; `ssh` what ssh is asked to connect
    to, "" where it is not ssh. `control` is the socket of a connection that is open already.
    """

    name: str
    prefix: tuple[str, ...] = ()
    ssh: str = ""
    control: str = ""
    by_smi: bool = False
    """Whether its nvidia-smi is read, where there is no gputui."""
    there: tuple[str, ...] = ()
    """How gputui is called there, where that differs from the other hosts."""

    @property
    def address(self) -> str:
        """Its name without a user's, as other hosts may know it."""
        return (self.ssh or self.name).rpartition("@")[2]

    _NO_QUESTIONS: ClassVar = ("-oBatchMode=yes",)

    def argv(self, words: Sequence[str]) -> list[str]:
        """The local command that runs `words` there."""
        if not self.ssh:
            return [*self.prefix, *words]
        through = ("-oControlMaster=no", f"-oControlPath={self.control}") if self.control else ()
        return [
            *("ssh", *SSH_OPTIONS, *self._NO_QUESTIONS, *through, "--", self.ssh),
            # Whatever the login shell is; and one that waits, so that it reports a signal.
            f"exec sh -c {shlex.quote(f'{_command(words)}; exit $?')}",
        ]


def _command(words: Sequence[str]) -> str:
    """`words` for a shell, in which only the first may begin in the home folder."""
    first, *rest = words
    home = first.startswith("~/")
    quoted = f"~/{shlex.quote(first[2:])}" if home else shlex.quote(first)
    return " ".join([quoted, *map(shlex.quote, rest)])


def ssh_target(typed: str) -> HostTarget:
    """USER@BOX, or any name that ssh knows. Raises TargetError."""
    if not typed or typed.startswith("-") or not typed.isprintable() or " " in typed:
        raise TargetError(f"--host {sanitize(typed, 60)!r}: give USER@BOX, or a name ssh knows")
    return HostTarget(sanitize(typed, _LONGEST_NAME), ssh=typed)


def command_target(typed: str) -> HostTarget:
    """A command that gives a pipe, named by its last word. Raises TargetError."""
    try:
        words = shlex.split(typed)
    except ValueError as error:
        raise TargetError(f"--via {sanitize(typed, 60)!r}: {str(error).lower()}") from None
    if not words:
        raise TargetError("--via: give a command, as in 'kubectl exec -i POD --'")
    name = next((word for word in reversed(words) if word != "--"), words[0])
    return HostTarget(sanitize(name, _LONGEST_NAME), prefix=tuple(words))


def distinct(targets: Iterable[HostTarget]) -> list[HostTarget]:
    """The targets, each with a name of its own."""
    by_name: dict[str, HostTarget] = {}
    for target in targets:
        name, number = target.name, 1
        while name in by_name:
            number += 1
            name = f"{target.name} ({number})"
        by_name[name] = msgspec.structs.replace(target, name=name)
    return list(by_name.values())
