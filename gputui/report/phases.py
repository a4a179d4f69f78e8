"""The range tree as rows: what each phase costs on the CPU and on the GPU.

Three clocks, three columns: `cpu_*` is time inside the range on the launching thread (what
nsys's nvtx_pushpop_sum shows), `gpu_busy_ns` the time the GPU ran something launched inside it,
`gpu_projected_ns` first operation's start to last one's end, summed over instances.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gputui.model.events import Payload, RangeDefined
from gputui.model.naming import is_kernel_launch
from gputui.model.sketch import Accumulator
from gputui.report.paths import Paths, PhaseKey
from gputui.state import Range, Run

STEP_NAMES = re.compile(
    r"^(step|iter|iteration|train_step|training_step|decode_step|batch"
    r"|ProfilerStep)([ #_:]?\d+)?$",
    re.IGNORECASE,
)
"""Common range names of one step, unless the workload declares its own."""


_SILENCE_NS = 1_000_000_000
"""A process silent for longer than this has not changed: readers take less time to report it."""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One path of the range tree in one rank; threads of a process are summed.

    `share_percent` is of the GPU's busy time if the run used a GPU, otherwise of the time in the
    domain's outermost ranges; `per_step_ns` is the CPU time per step of the nearest enclosing step.
    `open_since_ns` is set while an instance is open; `cpu_total_ns` and `cpu_exclusive_ns` include
    its time so far, `instances` and `cpu` only what ended.
    """

    key: PhaseKey
    path: str
    name: str
    depth: int
    domain: str
    style: str
    rank: int | None
    pid: int
    color: int | None
    instances: int
    cpu: Accumulator
    projected: Accumulator
    cpu_total_ns: int
    cpu_exclusive_ns: int
    gpu_busy_ns: int
    gpu_total_ns: int
    per_step_ns: float | None
    kernels: int
    kernel_ns: int
    launches: int
    memcpy_bytes: int
    share_percent: float | None
    open_since_ns: int | None
    has_children: bool
    category: str | None = None
    """The name, or the program's number if it has no name."""
    payload: Payload | None = None
    """Of an instance that had one: the newest in each thread."""
    on_gpu: bool = False
    """Whether the run used a GPU."""
    threads: tuple[str, ...] = ()
    """Name and id of the threads it ran on, if the main one is not among them; those without a name
    are left out.
    """

    @property
    def whose(self) -> str:
        """Its rank, or its process if there is none."""
        return str(self.pid if self.rank is None else self.rank)

    @property
    def known_launches(self) -> int | None:
        """None if kernels are counted but their calls are not: calls are counted in the innermost
        Push/Pop range of the program, not also in Start/End ranges and other domains.
        """
        return None if self.kernels and not self.launches else self.launches

    @property
    def gpu_idle_ns(self) -> int | None:
        """Time in which the GPU ran nothing of this phase between its first and last operation,
        summed over instances; None before an instance's operations have arrived.
        """
        if not self.projected.count:
            return None
        return max(0, self.projected.total - self.gpu_busy_ns)

    @property
    def is_open(self) -> bool:
        """Whether the program is in this phase now."""
        return self.open_since_ns is not None


@dataclass(slots=True)
class _Counts:
    """What was launched in one node itself, and including its descendants."""

    kernels: int = 0
    kernel_ns: int = 0
    launches: int = 0
    memcpy_bytes: int = 0

    def add(self, other: _Counts) -> None:
        self.kernels += other.kernels
        self.kernel_ns += other.kernel_ns
        self.launches += other.launches
        self.memcpy_bytes += other.memcpy_bytes


def phase_rows(
    run: Run, *, inherited: bool = False, library_domains: bool = False
) -> list[PhaseRow]:
    """The run's range tree, parents before children, in order of first appearance.

    With `inherited`, kernels launched by threads that have no range of their own (autograd)
    count in the range open on the process's main thread; without it they count in none, as in
    nsys. `library_domains` adds the ranges of NCCL, CUB and their like.
    """
    tree = _Tree(run, library_domains)
    own = _own_counts(run, inherited)
    return [tree.row(key, own) for key in tree.keys]


def share_note(run: Run, rows: Sequence[PhaseRow]) -> str:
    """What the shares of `rows` refer to."""
    basis = "of GPU busy time" if run.devices else "of the time in outermost ranges"
    domains = {row.domain for row in rows}
    return f"share {basis}" + ", in each domain by itself" * (len(domains) > 1)


class _Tree(Paths):
    """The paths of a run with the totals their shares refer to."""

    def __init__(self, run: Run, library_domains: bool) -> None:
        super().__init__(run, library_domains)
        self.run = run
        self.gpu_ns = sum(device.busy_ns for device in run.devices.values())
        # By domain: ranges of several domains overlap, so their times do not add up.
        self.cpu_ns: dict[str, int] = {}
        for key in self.roots:
            elapsed = sum(map(self._elapsed, self.nodes[key]))
            self.cpu_ns[key[1]] = self.cpu_ns.get(key[1], 0) + elapsed

    def _elapsed(self, node: Range) -> int:
        """Time in the range so far, including the instance that is open now."""
        since_ns = node.open_since_ns
        if since_ns is None:
            return node.cpu.total
        # A short range is open in one delta and has ended long before the next is made.
        until_ns = self.run.processes[node.definition.process].updated_ns
        if self.run.updated_ns - until_ns > _SILENCE_NS:
            until_ns = self.run.updated_ns
        return node.cpu.total + max(0, until_ns - since_ns)

    def row(self, key: PhaseKey, own: dict[int, _Counts]) -> PhaseRow:
        """The row of one path."""
        process, domain, names = key
        nodes = self.nodes[key]
        attached = self.run.processes[process].attached
        counts = self._inclusive(nodes, own)
        cpu = _together([node.cpu for node in nodes])
        gpu_busy = sum(node.gpu_busy_ns for node in nodes)
        elapsed = sum(map(self._elapsed, nodes))
        inside = sum(
            self._elapsed(node) for child in self.children[key] for node in self.nodes[child]
        )
        opened = [node.open_since_ns for node in nodes if node.open_since_ns is not None]
        if opened:
            # What ended inside may have been read slightly after the delta's time.
            elapsed = max(elapsed, inside)
        cpu_ns = self.cpu_ns.get(domain, 0)
        whole, part = (self.gpu_ns, gpu_busy) if self.gpu_ns else (cpu_ns, elapsed)
        steps = self._enclosing_steps(key)
        return PhaseRow(
            key=key,
            path="/".join(names),
            name=names[-1],
            depth=len(names) - 1,
            domain=domain,
            style=nodes[0].definition.style,
            rank=attached.rank,
            pid=attached.pid,
            color=nodes[0].definition.color,
            instances=cpu.count,
            cpu=cpu,
            projected=_together([node.projected for node in nodes]),
            cpu_total_ns=elapsed,
            cpu_exclusive_ns=max(0, elapsed - inside),
            gpu_busy_ns=gpu_busy,
            gpu_total_ns=sum(node.gpu_total_ns for node in nodes),
            per_step_ns=cpu.total / steps if steps else None,
            kernels=counts.kernels,
            kernel_ns=counts.kernel_ns,
            launches=counts.launches,
            memcpy_bytes=counts.memcpy_bytes,
            share_percent=100.0 * part / whole if whole else None,
            open_since_ns=min(opened) if opened else None,
            has_children=bool(self.children[key]),
            category=_category(nodes[0].definition),
            payload=next((node.payload for node in reversed(nodes) if node.payload), None),
            on_gpu=bool(self.run.devices),
            threads=self._threads(process, nodes),
        )

    def _threads(self, process: int, nodes: list[Range]) -> tuple[str, ...]:
        known = self.run.processes[process]
        threads = {node.definition.thread for node in nodes}
        if known.attached.pid in threads:
            return ()
        named = sorted(thread for thread in threads if thread in known.threads)
        return tuple(f"{known.threads[thread].name} ({thread})" for thread in named)

    def _inclusive(self, nodes: list[Range], own: dict[int, _Counts]) -> _Counts:
        total = _Counts()
        stack = [node.definition.range for node in nodes]
        while stack:
            number = stack.pop()
            if number in own:
                total.add(own[number])
            stack.extend(self.run.ranges[number].children)
        return total

    def _enclosing_steps(self, key: PhaseKey) -> int:
        """Instances of the nearest step at or around `key`, 0 if there is none."""
        wanted = self.run.started.step_range
        at: PhaseKey | None = key
        # By the parents, not by the names: a file may nest a range in one of another domain.
        while at is not None:
            name = at[2][-1]
            if name == wanted if wanted else STEP_NAMES.match(name):
                return sum(node.cpu.count for node in self.nodes[at])
            at = self.parents[at]
        return 0


def is_copy(operation: str) -> bool:
    """Whether a memory operation of this name copies bytes."""
    return "memcpy" in operation


def _category(known: RangeDefined) -> str | None:
    if known.category_id is None:
        return known.category
    return known.category or str(known.category_id)


def _together(parts: list[Accumulator]) -> Accumulator:
    """One accumulator for several threads; the usual single one is not copied."""
    return parts[0] if len(parts) == 1 else Accumulator.of(parts)


def _own_counts(run: Run, inherited: bool) -> dict[int, _Counts]:
    own: dict[int, _Counts] = {}

    def of(number: int) -> _Counts:
        return own.setdefault(number, _Counts())

    for kernel, kernels in run.kernels.items():
        if inherited or not kernel.inherited:
            of(kernel.range).kernels += kernels.time.count
            of(kernel.range).kernel_ns += kernels.time.total
    # In ranges of other domains and of the Start/End style, beside those that count them once.
    for kernel, kernels in run.secondary_domain_kernels.items():
        if kernel.range:
            of(kernel.range).kernels += kernels.time.count - kernels.repeats
            of(kernel.range).kernel_ns += kernels.time.total
    for call, times in run.api.items():
        if (inherited or not call.inherited) and is_kernel_launch(call.name):
            of(call.range).launches += times.count
    for operation, both in run.memory_operations.items():
        if (inherited or not operation.inherited) and is_copy(operation.operation):
            of(operation.range).memcpy_bytes += both.size.total
    return own
