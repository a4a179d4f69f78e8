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
from gputui.attribute.accounting.intervals import NEVER, Busy, union


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
        self._busy: dict[tuple[str, int], Busy] = {}

    def exchange(self, members: Sequence[Member]) -> None:
        """Show each process when the others on its GPUs were busy, and hold it back until that is
        known."""
        if len(members) < 2:
            return
        users: dict[str, list[_User]] = defaultdict(list)
        for member in members:
            for number, device in member.accounting.devices.items():
                users[_gpu(number, member.visible)].append(_User(member, device))
        for gpu, of in users.items():
            if len(of) > 1:
                self._exchange(gpu, of)

    def _exchange(self, gpu: str, users: list[_User]) -> None:
        until_ns = min((u.member.until_ns for u in users if u.member.until_ns), default=None)
        needed_ns = min(user.device.time.accounted_ns for user in users)
        busy = {}
        for member, device in users:
            known = self._busy.get((gpu, member.number), NEVER)
            known = device.time.busy_after(known, until_ns).after(needed_ns)
            self._busy[gpu, member.number] = busy[member.number] = known
        for member, device in users:
            device.time.others = union(
                one for number, one in busy.items() if number != member.number
            )
            device.until_ns = until_ns


def _gpu(device: int, visible: str | None) -> str:
    """Which GPU a process means: what CUDA_VISIBLE_DEVICES says in its place, as far as it does."""
    names = visible.split(",") if visible else []
    return names[device].strip() if device < len(names) else str(device)
