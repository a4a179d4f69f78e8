"""`gputui workloads`: the workloads there are."""

from __future__ import annotations

import argparse

from gputui.base.standard_streams import say
from gputui.cli.parsing import print_json


def run(options: argparse.Namespace) -> int:
    """List the workloads, describe one, or write a new one; return the exit status. Raises
    CatalogueError."""
    import msgspec

    from gputui.collect.catalogue import load_catalogue, new_workload, workload_text

    if options.new:
        return new_workload(options.new)
    catalogue = load_catalogue()
    if options.name:
        workload = catalogue.find(options.name)
        if options.json:
            print_json({"schema": catalogue.schema, **msgspec.to_builtins(workload)})
        else:
            print(workload_text(workload), end="")
        return 0
    if options.json:
        print_json(catalogue)
        return 0
    width = max((len(workload.name) for workload in catalogue.workloads), default=0)
    for workload in catalogue.workloads:
        print(f"{workload.name:<{width}}  {workload.summary}")
    for broken in catalogue.broken:
        say(f"{broken.name} cannot be run: {broken.error}")
    return 0
