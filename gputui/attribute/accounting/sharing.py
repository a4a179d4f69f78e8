"""Several traced processes on one GPU: while one idles, another may run there.

What the others ran in a process's gap is no idle time of the GPU, so every process is shown when
they were busy before its own time is accounted for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from gputui.attribute.accounting.account import Accounting
from gputui.attribute.accounting.device_steps import DeviceSteps
from gputui.attribute.intervals import NEVER, Busy, union


class Member(NamedTuple):
    """A process: its number, its account, CUDA_VISIBLE_DEVICES as it was, and before when all that
    had ended has come; None where it has ended."""

    number: int
    accounting: Accounting
    visible: str | None
    until_ns: int | None


class _User(NamedTuple):
    member: Member
    device: DeviceSteps


class Sharing:
    """Processes of one machine in, each time before they are collected."""

    def __init__(self) -> None:
        self._busy: dict[str, dict[int, Busy]] = defaultdict(dict)
        """By GPU and process: of those that ended as well, as long as others need it."""

    def exchange(self, members: Sequence[Member]) -> None:
        """Show each process when the others on its GPUs were busy, and hold it back until that is
        known."""
        users: dict[str, list[_User]] = defaultdict(list)
        for member in members:
            for number, device in member.accounting.devices.items():
                users[_gpu(number, member.visible)].append(_User(member, device))
        for gpu, of in users.items():
            if len(of) > 1 or self._busy[gpu].keys() - {of[0].member.number}:
                self._exchange(self._busy[gpu], of)
            else:
                of[0].device.time.others = of[0].device.until_ns = None

    @staticmethod
    def _exchange(busy: dict[int, Busy], users: list[_User]) -> None:
        until_ns = min((u.member.until_ns for u in users if u.member.until_ns), default=None)
        needed_ns = min(user.device.time.accounted_ns for user in users)
        for member, device in users:
            known = busy.get(member.number, NEVER)
            # Of one that ended, all: it is not there the next time.
            busy[member.number] = device.time.busy_after(known, member.until_ns and until_ns)
        for number in [*busy]:
            busy[number] = busy[number].after(needed_ns)
            if not len(busy[number].ends) and all(u.member.number != number for u in users):
                del busy[number]
        for member, device in users:
            others = [one for number, one in busy.items() if number != member.number]
            device.time.others = union(others) if others else None
            device.until_ns = until_ns


def _gpu(device: int, visible: str | None) -> str:
    """Which GPU a process means: what CUDA_VISIBLE_DEVICES says in its place, as far as it does."""
    names = visible.split(",") if visible else []
    return names[device].strip() if device < len(names) else str(device)
