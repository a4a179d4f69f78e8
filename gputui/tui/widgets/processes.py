"""The processes on the GPUs as table rows: columns, order, filter, tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gputui.model.units import MISSING
from gputui.report.schema import Column
from gputui.report.tables.processes import OUTSIDE, PROCESSES_NOW, ProcessRow, gpus_text
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, fact_rows
from gputui.tui.widgets.table import column
from gputui.tui.widgets.view import TableView

T = TypeVar("T")

_LAYOUT = (
    ("pid", 0, 7),
    ("gpu", 1, 4),
    ("user", 5, 8),
    ("kind", 10, 0),
    ("gpu_memory_bytes", 1, 11),
    ("sm_percent", 3, 6),
    ("memory_bandwidth_percent", 8, 7),
    ("cpu_percent", 4, 6),
    ("host_memory_bytes", 7, 8),
    ("run_time_ns", 6, 7),
    ("command", 0, 16),
)
"""The columns in the order of the screen, each with its priority and its least width."""

_TITLES = tuple(PROCESSES_NOW.column(key).heading for key, _, _ in _LAYOUT if key != "kind")
"""The columns that rows are sorted by, by heading: of types there are too few."""

_OF_LAUNCHERS = ("pid", "user", "run_time_ns", "command")
"""The columns that a launcher has, too: it is not on a GPU itself."""


def process_columns(many_instances: bool, of: Callable[[T], ProcessRow]) -> list[Column[T]]:
    """The columns of lines each of which is `of` a process; the least useful ones are dropped first
    if there is no room."""
    words: dict[str, Callable[[ProcessRow], str]] = {
        "gpu": lambda row: gpus_text(row, many_instances),
        "user": lambda row: (row.user or MISSING)[:12],
        "command": command_text,
    }

    def made(key: str, priority: int, width: int) -> Column[T]:
        declared = PROCESSES_NOW.column(key)
        show = words.get(key, declared.text)

        def text(line: T) -> str:
            row = of(line)
            return "" if row.is_launcher and key not in _OF_LAUNCHERS else show(row)

        is_text, is_command = key in ("user", "kind", "command"), key == "command"
        return column(
            declared.heading, text, priority, flexible=is_command, right=not is_text, width=width,
            role=(lambda line: _role(of(line))) if is_command else "text",
            by=lambda line: declared.cell(of(line)), show=declared.show,
        )  # fmt: skip

    return [made(*each) for each in _LAYOUT]


def command_text(row: ProcessRow) -> str:
    """The lines of the tree, whether it belongs to the run and its rank, and the command."""
    lines = ""
    if len(row.ancestors_last) > 1:
        lines = "".join("   " if last else "│  " for last in row.ancestors_last[1:-1])
        lines += "└─ " if row.ancestors_last[-1] else "├─ "
    ours = "" if row.run is None else "● " if row.rank is None else f"● rank {row.rank}  "
    return f"{lines}{ours}{row.command or OUTSIDE}"


def _role(row: ProcessRow) -> str:
    return "accent" if row.run is not None else "dim" if row.is_launcher else "text"


def told_rows(pid: int, start_ns: int) -> tuple[Row, ...]:
    """The host's knowledge of a process, and its environment. For a thread: it takes a while.

    Raises ProcessGoneError.
    """
    from gputui.collect.processes import process_details

    told = process_details(pid, start_ns)
    rows: list[Row] = [(), (("The host says", "head"),), *fact_rows(told.facts)]
    rows += [(), (("Environment", "head"),)]
    if told.environment is None:
        rows.append(((f"{MISSING}: {told.unavailable.get('environment', 'unknown')}", "dim"),))
    for name, value in (told.environment or {}).items():
        rows.append(((f"{name}=", "label"), (value, "text")))
    return tuple(rows)


# What views share that list processes below something else: keys, order, and the table.


class ProcessListView(TableView):
    """A view whose lower part lists processes; `ABOVE` names its upper part."""

    ABOVE: str

    orders = _TITLES

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.sorting = self.orders.index("GPU memory")
        self.as_tree = False
        """Whether processes stand under what launched them."""
        self.focus_on = self.ABOVE
        """Which part the keys go to: `ABOVE` or "processes"."""
        self.only_processes = False

    def chosen_by_hand(self) -> None:
        """A process was clicked."""
        self.focus_on = "processes"

    @property
    def is_choosing(self) -> bool:
        return self.focus_on == "processes"

    @property
    def has_lines(self) -> bool:
        return True  # above the processes

    def toggle_processes(self) -> None:
        """Give processes the whole view, or not."""
        self.only_processes = not self.only_processes
        self.focus_on = "processes" if self.only_processes else self.ABOVE
        self.draw()
