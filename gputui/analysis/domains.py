"""A run with the ranges of some NVTX domains alone."""

from __future__ import annotations

import msgspec

from gputui.session import Run

DEFAULT = "default"
"""What the domain without a name is called."""


def domains_of(run: Run) -> list[str]:
    """The domains that have ranges, the default one first."""
    found = {node.definition.domain or DEFAULT for node in run.ranges.values()}
    return sorted(found, key=lambda name: (name != DEFAULT, name.lower()))


def of_domains(run: Run, domains: list[str]) -> Run:
    """The same run, its ranges outside `domains` left out (by their names, in any case)."""
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
        roots=[number for number, node in kept.items() if node.definition.parent not in kept],
    )
