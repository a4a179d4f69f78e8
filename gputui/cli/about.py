"""The subcommands about what is available: workloads, doctor."""

from __future__ import annotations

import sys

from gputui.base.standard_streams import say
from gputui.cli.parsing import Parser, print_json


def workloads(arguments: list[str]) -> int:
    """`gputui workloads`; the exit status."""
    parser = Parser(prog="gputui workloads", description="List the workloads, or describe one.")
    parser.add_argument("name", nargs="?", help="show this one's parameters")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--new", metavar="NAME", help="write a package that adds a workload")
    options = parser.parse_args(arguments)
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


def doctor(arguments: list[str]) -> int:
    """`gputui doctor`; the exit status."""
    parser = Parser(
        prog="gputui doctor", description="What works here, and how to fix what does not."
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(arguments)
    from gputui.cli.doctor import document, examine, text

    checks = examine()
    if options.json:
        print_json(document(checks))
    else:
        sys.stdout.write(text(checks))
        sys.stdout.flush()
    return 0
