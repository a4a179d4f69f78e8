"""Where the time of each device goes: steps, and every nanosecond under one leaf."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gputui.attribute import STREAM, TimedOperations
from gputui.attribute.accounting.device import DeviceTime, PhaseLeaves
from gputui.attribute.accounting.device_steps import DeviceSteps
from gputui.attribute.accounting.host_threads import HostThreads, kind_of_call
from gputui.attribute.accounting.operations import Kernels, columns
from gputui.attribute.accounting.program_steps import ProgramSteps
from gputui.attribute.accounting.thread_readings import LineHit, LineReading
from gputui.attribute.accounting.tracker import FIRST_TRY, WINDOW, LaunchOrder, StepTracker
from gputui.attribute.arrays import (
    LATEST_NS,
    NEVER,
    Bools,
    Busy,
    Holes,
    Int64s,
    Slots,
    distinct,
    union,
)
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.instances import Finalised
from gputui.attribute.local_collectives import LocalCollectives
from gputui.attribute.range_stacks import RangeStacks
from gputui.model.cards import entry_of
from gputui.model.events import (
    BESIDE_RUNNING,
    RECOMPUTING,
    LeafTime,
    LineSamples,
    LoopDelta,
    RangeLeaf,
    StepBlock,
    StepLanes,
    StepSource,
)
from gputui.model.leaves import Leaf
from gputui.model.naming import NOT_A_STEP

# --- The time of traced processes: the account of each one, and what those on one GPU know of each
# other.
#
# For `traced_process`, and `reader`, which shows each process what the others ran.

# --- The time of one traced process: its steps, and what each device did in them.

# Chosen: a bound, since a record may name any number.
MAX_DEVICES = 64

PAUSE_OF_HOST_NS = 200_000
"""Up to so long after a declared step that ends with its range the next one follows without a gap:
a thread that waits for autograd's wakes up when short kernels are over. Chosen."""

LONG_GAP_NS = 1_000_000_000
"""If no step begins for this long, the last one is taken to have ended."""

SHORT_GAP_NS = 5_000_000
"""Up to so long after a declared step for which the program did not wait, the next one follows it
without a gap: launches may be further apart than operations are. Chosen: between the rows of a
benchmark lie 20 ms and more."""

LATE_NS = 300_000_000
"""How long a mark, and the time axis, wait at most for buffers that a flush has not brought: five
steps of 4 ms were one of 19, and five of 18.7 ms lacked half of their operations every 3 s (H200).
Flushes are 100 ms apart."""

_NONE = np.empty(0, np.int64)


class Accounting:
    """Calls and operations of one process in; its time by scope and leaf out."""

    def __init__(
        self,
        process: int,
        main_thread: int,
        stacks: RangeStacks,
        program_steps: ProgramSteps,
        *,
        live: bool,
        declares_step: bool = False,
    ) -> None:
        """`live` bounds what finding steps may cost by the time that passes. `declares_step` says
        that a range names the steps: none of them is warm-up. (`Nodes` sees to it that none are
        sought before it comes.)"""
        self._process = process
        self._main_thread = main_thread
        self._stacks = stacks
        self._program_steps = program_steps
        self._declares_step = declares_step
        self._threads = HostThreads()
        self._kernels = Kernels()
        self._launches = LaunchOrder(self._kernels)
        self._tracker = StepTracker(
            self._launches.meanings, measured=live, first_try=FIRST_TRY if live else WINDOW
        )
        self.devices: dict[int, DeviceSteps] = {}
        """The devices that ran something, by the program's own numbers."""
        self.holes = Holes()
        """The intervals in which nothing is known of the devices."""
        self.collectives = LocalCollectives()
        self._busy: dict[int, Busy] = {}
        self._early = (_NONE, _NONE, _NONE, _NONE)
        """Steps whose launches have not arrived yet: when their ranges began and ended, which these
        are, and when all was over that they launched."""
        self._unended = (_NONE, _NONE, _NONE)
        """The newest declared step: when its range began and ended, and which it is."""
        self._launched = [(_NONE, _NONE)]
        """When operations were called and ended, where the steps are declared."""
        # By the number of a call's name.
        self._kinds = np.zeros(1, np.int8)
        self._graphs = np.zeros(1, np.bool_)
        self._has_graphs = False

    @property
    def sampled(self) -> list[int]:
        """The threads whose lines are read."""
        return self._threads.lines.threads

    @property
    def watched(self) -> list[int]:
        """The threads that made CUDA calls, then the threads whose lines are read."""
        return list(dict.fromkeys([*self._threads.launching, *self._threads.lines.threads]))

    def add_state(
        self, thread: int, time_ns: int, run_ns: int, delay_ns: int, asleep_in: Leaf
    ) -> None:
        """Adds a reading of a thread: how long it ran so far, and how long it waited for a core."""
        self._threads.add_state(thread, time_ns, run_ns, delay_ns, asleep_in)

    def add_line(self, thread: int, reading: LineReading) -> None:
        """Add a reading of the line that a Python thread was at."""
        self._threads.lines.add(thread, reading)

    def add_recomputation(self, reading: LineReading) -> None:
        """Add a reading of a line at which a backward pass computed a forward pass again."""
        for device in self.devices.values():
            device.time.blame.line_hits.append(LineHit.from_reading(reading, RECOMPUTING))

    def add_lock_holder(self, thread: int, reading: LineReading) -> None:
        """Adds a reading of a thread that held Python's lock. If that thread launches nothing, the
        threads that launch wait for it."""
        if thread in self._threads.launching:
            return
        for device in self.devices.values():
            device.time.blame.line_hits.append(LineHit.from_reading(reading, BESIDE_RUNNING))

    def define_kernel(self, number: int, name: str) -> None:
        """Note a kernel's demangled name, from which its leaf and its family follow."""
        self._kernels.define(number, name)
        self.collectives.define_kernel(number, name)

    def define_shape(self, number: int, threads: int) -> None:
        """Notes with how many threads a kernel of this launch shape is launched."""
        self._kernels.define_shape(number, threads)

    def define_call(self, name: str) -> None:
        """The next number of a CUDA call's name."""
        self._kinds = np.append(self._kinds, np.int8(kind_of_call(name)))
        self._graphs = np.append(self._graphs, "GraphLaunch" in name)
        self._has_graphs = bool(self._graphs.any())

    def add_calls(self, names: Int64s, threads: Int64s, starts: Int64s, ends: Int64s) -> None:
        """Calls of the window: the numbers of their names, who made them and when."""
        if len(names):
            self._threads.add(threads, starts, ends, self._kinds.take(names))

    def add_operations(
        self,
        records: Slots,
        calls: Slots,
        timed: TimedOperations,
        origins: Int64s,
    ) -> None:
        """Operations with their calls, also as columns; the streams that they ran on."""
        self.collectives.add_kernels(timed)
        operations = columns(records, timed, self._kernels)
        if self._declares_step:
            # One whose call is not known is of no step's launches: as the first of all, the replay
            # of a graph had every step before it end with it.
            has_call = operations.called_ns > 0
            self._launched.append((operations.called_ns[has_call], operations.ends[has_call]))
        present = distinct(timed.devices).tolist()
        for device in present:
            if device not in self.devices:
                if len(self.devices) >= MAX_DEVICES:
                    continue
                phases = PhaseLeaves(self._stacks, self._main_thread)
                self.devices[device] = DeviceSteps(
                    self._process,
                    device,
                    DeviceTime(self._threads, self._main_thread, phases, self.holes, self._kernels),
                )
                self.devices[device].awaits_declared = self._declares_step
            its_own = operations
            if len(present) > 1:
                its_own = operations.pick(np.flatnonzero(timed.devices == device))
            self.devices[device].add(its_own)
        graphs = self._graphs if self._has_graphs else None
        self._launches.add(operations, records, calls, timed, origins & STREAM, graphs)

    def mark_steps(self, started_ns: Int64s) -> None:
        """The times at which ranges with the name of a step began. Steps by these ranges replace
        those that were found otherwise. On a device, a step begins with the first operation that
        was launched after such a time."""
        if len(started_ns):
            moments = self._launches.starts_after(started_ns)
            for device in self.devices.values():
                device.mark(moments, renewed=False)

    def _arrived(
        self, finalised: Finalised, is_step: Bools, settled_ns: int | None
    ) -> tuple[Int64s, ...]:
        """Of the ranges of steps (starts, ends, nodes), those whose launches have arrived, in
        order; others wait. Where operations are long, hundreds of launches come with the last of
        them. Of two steps the later may be complete first, as long as not all has settled that
        ended before it: what lay between two rows of a benchmark was in a step then."""
        over_ns = np.maximum(finalised.ends_ns, finalised.last_ns)
        new = (finalised.starts_ns, finalised.ends_ns, finalised.nodes, over_ns)
        starts, ends, nodes, over_ns = (
            np.concatenate((early, column[is_step]))
            for early, column in zip(self._early, new, strict=True)
        )
        here = np.full(len(starts), True)
        if settled_ns is not None:
            here = (starts <= self._launches.newest_ns) & (over_ns <= settled_ns)
        self._early = (starts[~here], ends[~here], nodes[~here], over_ns[~here])
        order = np.argsort(starts[here], kind="stable")
        return starts[here][order], ends[here][order], nodes[here][order]

    def _mark_declared(self, *ranges: Int64s, ended: bool) -> None:
        """Where declared steps begin and end, by the ranges of some that came together (starts,
        ends, nodes; in order).

        One ends with its range if the program waited in it for what it had launched, else with the
        last of these operations, where the next does not follow soon, or is in other ranges: in
        another row of a benchmark. After such an end, and before all others, a step begins with its
        range if the device idles then, for its first operation is often not the first thing that it
        does (it allocates, or reads a file); else with the first operation. Steps of several
        threads at once have no such ends.
        """
        new = len(ranges[0])
        starts, ends, nodes = (
            np.concatenate(batches) for batches in zip(self._unended, ranges, strict=True)
        )
        if not len(starts):
            return
        is_over = ended or self._launches.newest_ns - ends[-1] > LONG_GAP_NS
        if not new and not is_over:
            return
        called, last = self._ends_by_call()
        before, inside = np.searchsorted(called, starts), np.searchsorted(called, ends, "right")
        # When everything was over that had been called by then; 0 where nothing was.
        done_before, done = (np.append(0, last).take(rows) for rows in (before, inside))
        # Whether the last one ends by itself shows when the next one begins, or when the program
        # has launched other work for long.
        moments = np.maximum(ends, done)
        is_over = ended or self._launches.newest_ns - moments[-1] > LONG_GAP_NS
        following = np.append(starts[1:], LATEST_NS if is_over else starts[-1])
        room_ns = following - moments
        are_ends = room_ns > np.where(done <= ends, PAUSE_OF_HOST_NS, SHORT_GAP_NS)
        are_ends |= (room_ns > 0) & np.append(nodes[1:] != nodes[:-1], False)
        are_apart = len(starts) < 2 or (starts[1:] >= ends[:-1]).all()
        kept = slice(len(starts) - (not is_over), None)
        self._unended = (starts[kept], ends[kept], nodes[kept])
        is_alone = np.append(len(starts) == new, are_ends[:-1]) & (done_before <= starts)
        is_alone &= are_apart & (before > 0)  # else nothing is known of the device before
        is_new = np.arange(len(starts)) >= len(starts) - new
        begins = starts[is_new & is_alone & (before < inside)]
        if len(others := np.flatnonzero(is_new & ~is_alone)):
            # What comes on the main stream once a row is over is not of its last step.
            limits_ns = np.where(are_ends, ends, np.append(starts[1:], ends[-1]))[others]
            begun = self._launches.starts_after(starts[others], limits_ns)
            begins = np.concatenate((begins, begun))
        for device in self.devices.values():
            device.mark(begins, renewed=False)
            if are_apart:
                device.mark_ends(moments[are_ends])
        # Of what was called before, the latest end is enough.
        first = max(int(inside[-1]) - 1, 0)
        self._launched = [(called[first:], last[first:])]

    def _ends_by_call(self) -> tuple[Int64s, Int64s]:
        """When operations were called, in order, and when each and all before it had ended."""
        called, last = (np.concatenate(batches) for batches in zip(*self._launched, strict=True))
        order = np.argsort(called, kind="stable")
        return called[order], np.maximum.accumulate(last[order])

    def take_lanes(self, time_ns: int) -> list[StepLanes]:
        """Steps of each device in parts, of those whose steps the last collection ended."""
        return [lanes for device in self.devices.values() for lanes in device.take_lanes(time_ns)]

    def _show_siblings(self, until_ns: int | None) -> None:
        """Let each device know when the others of this process were busy."""
        needed_ns = min(device.time.accounted_ns for device in self.devices.values())
        for number, device in self.devices.items():
            was_busy = device.time.busy_after(self._busy.get(number, NEVER), until_ns)
            self._busy[number] = was_busy.after(needed_ns)
        for number, device in self.devices.items():
            # Where one GPU of a process idles while another works it depends on it: the sync was
            # blamed for that once.
            device.time.siblings = union(
                busy for other, busy in self._busy.items() if other != number
            )

    @property
    def accounted_ns(self) -> int:
        """Up to when the time of every device is divided; 0 before the first."""
        accounted = (device.time.accounted_ns for device in self.devices.values())
        return min(accounted, default=0)

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """Time by step and leaf, and by range and leaf. Ranges that name themselves steps win over
        the marks of the program, and these over steps that are found by what repeats."""
        nodes, finalised = collection.nodes, collection.finalised
        steps_named = nodes.likeliest_step != NOT_A_STEP
        if steps_named:
            is_step = nodes.step_rank[finalised.nodes] == nodes.likeliest_step
            ended = collection.until_ns is None
            ranges = self._arrived(finalised, is_step, collection.settled_ns)
            if self._declares_step:
                for device in self.devices.values():
                    device.trust_steps()
                self._mark_declared(*ranges, ended=ended)
            else:
                self.mark_steps(ranges[0])
            source: StepSource = "nvtx"
        elif self._take_program_steps(collection.settled_ns):
            assert self._program_steps.chosen is not None
            source = self._program_steps.chosen.source
        else:
            source = "repetition"
        until_ns = collection.until_ns
        if until_ns is not None and collection.settled_ns is not None:
            until_ns = min(until_ns, max(collection.settled_ns, until_ns - LATE_NS))
        fields = self.collect(until_ns, source)
        if not collection.due:
            return fields
        fields["range_leaves"] = tuple(
            RangeLeaf(device, int(nodes.number[node]), leaf, ns)
            for device, steps in self.devices.items()
            for (node, leaf), ns in steps.time.phases.take_sums().items()
            if ns
        )
        return fields

    def _take_program_steps(self, settled_ns: int | None) -> bool:
        """Whether the program marks its steps. A step begins with the first operation that is
        launched after its mark, so a mark waits until that has arrived: buffers do not come in
        their order."""
        steps, launches = self._program_steps, self._launches
        newest_ns = until_ns = launches.newest_ns
        if settled_ns is not None:
            newest_ns = launches.newest_of_main_ns
            until_ns = min(newest_ns, max(settled_ns, newest_ns - LATE_NS))
        moments = steps.take_moments(launches.first_ns, newest_ns, until_ns)
        if steps.chosen is None:
            return False  # nothing speaks, or not any more: what repeats from here on is sought
        rest = steps.rest_ns
        if rest is not None and len(rest):
            begins = self._launches.starts_after(rest)
            for device in self.devices.values():
                device.mark(begins, renewed=False)
        for device in self.devices.values():
            device.micro_batches = steps.micro_batches
            if steps.is_new and not steps.follows:
                device.forget_boundaries()
        if steps.left_ns is not None:
            if not launches.are_between(int(moments[-1]), steps.left_ns):
                moments = moments[:-1]
            after = launches.starts_after(np.array([steps.left_ns]))
            for device in self.devices.values():
                device.leave_loop(steps.left_ns, int(after[0]) if len(after) else LATEST_NS)
        if len(moments):
            begins = self._launches.starts_after(moments)
            entered_ns = steps.entered_ns
            if entered_ns is not None and len(begins) and launches.had_begun(entered_ns):
                # The first turn waits for its batch before it launches anything.
                begins[0] = min(begins[0], entered_ns)
            for device in self.devices.values():
                device.mark(begins, renewed=steps.is_new, another=steps.follows)
        return True

    def collect(self, until_ns: int | None, source: StepSource) -> DeltaParts:
        """Time by step and leaf up to `until_ns`, None at the end. `source` is what says where
        steps begin: they are sought only in what repeats where nothing else says it."""
        for device in self.devices.values():
            device.source = source
            device.readings = None
        may_wait = False
        if source != "repetition":
            self._launches.keep_newest()
            may_wait = source != "nvtx" and not self._program_steps.is_settled
        else:
            if any(device.holds_much for device in self.devices.values()):
                self._tracker.hurry()
            new, ahead = self._launches.take_before(until_ns)
            ended = until_ns is None
            marks, renewed = self._tracker.feed(new.tokens, new.starts, ahead, ended=ended)
            level = self._tracker.level
            micro_batches = level.micro_batches if level is not None else None
            for device in self.devices.values():
                device.mark(marks, renewed)
                device.micro_batches = micro_batches
                device.readings = level.readings if level is not None else None
            may_wait = self._tracker.seen < WINDOW
        if len(self.devices) > 1:
            self._show_siblings(until_ns)
        deltas = [
            part for device in self.devices.values() for part in device.collect(until_ns, may_wait)
        ]
        # A thread that polls while nothing runs had a night of calls kept: a megabyte a second at
        # 50,000 calls.
        self._threads.forget(self.accounted_ns)
        devices = self.devices.values()
        return {
            "leaf_times": tuple(part for part in deltas if isinstance(part, LeafTime)),
            "loops": tuple(part for part in deltas if isinstance(part, LoopDelta)),
            "step_blocks": tuple(part for part in deltas if isinstance(part, StepBlock)),
            "line_samples": tuple(part for part in deltas if isinstance(part, LineSamples)),
            "line_launches": tuple(
                launched for device in devices for launched in device.take_line_launches()
            ),
            "stretches": tuple(stretch for device in devices if (stretch := device.take_stretch())),
        }


# --- Several traced processes on one GPU: while one idles, another may run there.
#
# What the others ran in a process's gap is no idle time of the GPU, so every process is shown when
# they were busy before its own time is accounted for.


class SharingProcess(NamedTuple):
    """A process: its number, its account, CUDA_VISIBLE_DEVICES as it was, and before when all that
    had ended has come; None where it has ended."""

    number: int
    accounting: Accounting
    visible: str | None
    until_ns: int | None


class _User(NamedTuple):
    member: SharingProcess
    device: DeviceSteps


class GpuSharing:
    """Processes of one machine in, each time before they are collected."""

    def __init__(self) -> None:
        self._busy: dict[str, dict[int, Busy]] = defaultdict(dict)
        """By GPU and process: of those that ended as well, as long as others need it."""

    def exchange(self, members: Sequence[SharingProcess]) -> None:
        """Show each process when the others on its GPUs were busy, and hold it back until that is
        known."""
        users: dict[str, list[_User]] = defaultdict(list)
        for member in members:
            for number, device in member.accounting.devices.items():
                users[entry_of(number, member.visible)].append(_User(member, device))
        for gpu, sharers in users.items():
            if len(sharers) > 1 or self._busy[gpu].keys() - {sharers[0].member.number}:
                self._exchange(self._busy[gpu], sharers)
            else:
                sharers[0].device.time.others = sharers[0].device.until_ns = None

    @staticmethod
    def _exchange(busy: dict[int, Busy], users: list[_User]) -> None:
        until_ns = min((u.member.until_ns for u in users if u.member.until_ns), default=None)
        needed_ns = min(user.device.time.accounted_ns for user in users)
        for member, device in users:
            was_busy = busy.get(member.number, NEVER)
            # Of one that ended, all: it is not there the next time.
            busy[member.number] = device.time.busy_after(was_busy, member.until_ns and until_ns)
        for number in [*busy]:
            busy[number] = busy[number].after(needed_ns)
            if not len(busy[number].ends) and all(u.member.number != number for u in users):
                del busy[number]
        for member, device in users:
            others = [
                busy_of_other for number, busy_of_other in busy.items() if number != member.number
            ]
            device.time.others = union(others) if others else None
            device.until_ns = until_ns
