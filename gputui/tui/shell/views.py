"""The views and their keys: each key's view has tabs, which the same key goes through."""

from __future__ import annotations

from typing import NamedTuple


class Tab(NamedTuple):
    """One view: where it is, and its title among the tabs of its key."""

    name: str
    module: str
    kind: str
    title: str
    turns: bool = True
    """Whether its key leads to it; else another view does."""
    of_hosts: bool = False
    """Whether it is only of use with other hosts."""
    of_operations: bool = False
    """Whether it needs steps that can be looked into: in a trace, or kept."""
    of_servers: bool = False
    """Whether it needs a serving engine's metrics."""


class Group(NamedTuple):
    """The views of one key."""

    key: str
    title: str
    help: str
    tabs: tuple[Tab, ...]


def _tab(name: str, kind: str, title: str) -> Tab:
    return Tab(name, f"gputui.tui.views.{name}", kind, title)


# Modules by name, so that the first frame waits for one view only.
GROUPS: tuple[Group, ...] = (
    Group(
        "1",
        "Overview",
        "what limits the run; again: who waits at its server, all its tables",
        (
            _tab("overview", "OverviewView", "Overview"),
            _tab("serving", "ServingView", "Serving")._replace(of_servers=True),
            _tab("summary", "SummaryView", "All tables"),
        ),
    ),
    Group(
        "2",
        "Time",
        "where the time goes; again: as a picture",
        (_tab("time", "TimeView", "By cause"), _tab("icicle", "IcicleView", "Icicle")),
    ),
    Group(
        "3",
        "Timeline",
        "what happened when: kernels, ranges and calls by name; again: the steps",
        (
            _tab("timeline", "TimelineView", "Operations")._replace(of_operations=True),
            _tab("steps", "StepsView", "Steps"),
        ),
    ),
    Group("4", "Phases", "the program's NVTX ranges", (_tab("phases", "PhasesView", "Tree"),)),
    Group(
        "5", "Kernels", "kernels, CUDA calls, copies", (_tab("kernels", "KernelsView", "Kernels"),)
    ),
    Group(
        "6",
        "GPUs",
        "the GPUs, processes; again: memory, ranks, hosts",
        (
            _tab("devices", "DevicesView", "Devices"),
            _tab("memory", "MemoryView", "Memory"),
            _tab("ranks", "RanksView", "Ranks"),
            _tab("hosts", "HostsView", "Hosts")._replace(of_hosts=True),
        ),
    ),
    Group(
        "7",
        "Runs",
        "recordings, to open and compare",
        (
            _tab("sessions", "SessionsView", "Runs"),
            _tab("compare", "CompareView", "Compare")._replace(turns=False),
        ),
    ),
)
TABS = {tab.name: tab for group in GROUPS for tab in group.tabs}
GROUP_OF = {tab.name: group for group in GROUPS for tab in group.tabs}
