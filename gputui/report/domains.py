"""A run restricted to the ranges of some NVTX domains."""

from __future__ import annotations

import msgspec

from gputui.model.events import Mark
from gputui.state import MARKS, Run
from gputui.state.history import History

DEFAULT = "default"
"""What the domain without a name is called."""


def domains_of(run: Run) -> list[str]:
    """The domains that have ranges or marks, the default one first."""
    found = {node.definition.domain or DEFAULT for node in run.ranges.values()}
    found |= {mark.domain or DEFAULT for mark in run.marks.values()}
    return sorted(found, key=lambda name: (name != DEFAULT, name.lower()))


def of_domains(run: Run, domains: list[str]) -> Run:
    """The same run, without ranges and marks outside `domains` (by their names, in any case)."""
    wanted = {name.lower() for name in domains}
    kept = {
        number: node
        for number, node in run.ranges.items()
        if (node.definition.domain or DEFAULT).lower() in wanted
    }
    return msgspec.structs.replace(
        run,
        ranges={
            number: msgspec.structs.replace(
                node, children=[child for child in node.children if child in kept]
            )
            for number, node in kept.items()
        },
        marks={
            key: mark
            for key, mark in run.marks.items()
            if (mark.domain or DEFAULT).lower() in wanted
        },
        newest_marks=History(
            Mark,
            MARKS,
            (mark for mark in run.newest_marks if (mark.domain or DEFAULT).lower() in wanted),
        ),
        roots=[number for number, node in kept.items() if node.definition.parent not in kept],
    )
