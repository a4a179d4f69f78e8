"""Phases: the run's range tree, live, its last step, and the kernels of the chosen phase."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.model.events import StepTimeline
from gputui.model.naming import is_library_domain
from gputui.report.phase_tree import PhaseKey, ranges_below
from gputui.report.phases import PhaseRow, phase_rows
from gputui.report.statistics import kernel_rows
from gputui.report.tables.nsys import KERNELS
from gputui.state import Run
from gputui.tui.widgets.canvas import Row, heading, wrap
from gputui.tui.widgets.marks import newest_rows
from gputui.tui.widgets.run import metric_rows, problems, progress_row, title_row
from gputui.tui.widgets.standout import StandOut
from gputui.tui.widgets.statistics import time_rows
from gputui.tui.widgets.table import Move, declared, table_rows
from gputui.tui.widgets.timeline import LEAST_HEIGHT, timeline_rows
from gputui.tui.widgets.tree import (
    SORTS,
    library_roots,
    ordered,
    phase_colors,
    phase_details,
    running,
    tree_columns,
    visible_rows,
)
from gputui.tui.widgets.view import Details, Model, View, no_run

_TALL = 30
"""Rows from which there is room for more than the tree needs."""

_STEP_SHOWN_NS = 3_000_000_000
"""A timeline stays at least this long: many colours are many bytes, and reading takes time."""


class PhasesView(View):
    """The program on the machine."""

    SORTS = True
    FILTERS = True

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.collapsed: set[PhaseKey] = set()
        self.listed: list[PhaseRow] = []
        self._everything: list[PhaseRow] = []
        self.follows = True
        self.libraries = False
        self.raw_names = False
        self.sorting = 0
        self.other_way = False
        self._stands_out = StandOut()
        self._step: StepTimeline | None = None
        self._step_run: Run | None = None

    def rows(self, width: int, height: int) -> list[Row]:
        run = self.model.run
        if run is None:
            self.first_item_line = 0
            return no_run(self.model, _invitation(self.model), width, height)
        lost_end = self.model.lost_end
        rows = [title_row(run, width, lost_end=lost_end)]
        progress = progress_row(run, width, lost_end=lost_end)
        if progress:
            rows.append(progress)
        rows += metric_rows(run, width, 1 if height < _TALL else 2)
        rows += newest_rows(run, width, 1 if height < _TALL else 2, libraries=self.libraries)
        wrong = problems(run, width, self.model.remark)
        rows += wrong
        if height >= _TALL or not wrong:
            rows += self._stands_out.rows(self.model.session, run, width)
        live, run = run, self._named(run)
        self._everything = everything = phase_rows(
            run, inherited=True, library_domains=self.libraries
        )
        by = SORTS[self.sorting]
        placed = ordered(everything, by, other_way=self.other_way)
        self.listed = visible_rows(placed, self.collapsed, self.needle)
        left = height - len(rows)
        colors = phase_colors(run)
        chosen_key = self.cursor.key
        below = self._last_step(live, colors, width, left)
        kernels = self._kernels(run, width, left - len(below))
        tree_height = left - len(below) - len(kernels)
        rows += self._tree(run, everything, colors, width, tree_height, len(rows))
        if chosen_key != self.cursor.key and kernels:
            kernels = self._kernels(run, width, left - len(below))
        rows += [()] * (height - len(below) - len(kernels) - len(rows))
        return rows + kernels + below

    def move(self, move: Move) -> None:
        """Left closes a phase or goes to its parent, right opens it or goes to its first child."""
        row = self._chosen()
        self.follows = False
        if row is None or move not in ("left", "right"):
            super().move(move)
            self.draw()
            return
        if move == "left":
            if row.has_children and row.key not in self.collapsed:
                self.collapsed.add(row.key)
            else:
                self._choose_parent(row)
        elif row.key in self.collapsed:
            self.collapsed.discard(row.key)
        elif row.has_children:
            self.cursor.move("down")
        self.draw()

    def activate(self) -> Details | None:
        """Open or close the chosen phase; details of one that has no phases inside."""
        row = self._chosen()
        if row is None:
            return None
        self.follows = False
        if row.has_children:
            self.collapsed ^= {row.key}
            self.draw()
            return None
        run = self.model.run
        details = phase_details(
            row,
            on_gpu=run is not None and _on_gpu(run),
            inherited=self._inherited(run).get(row.key, 0),
        )
        return Details(row.path, details)

    def chosen_by_hand(self) -> None:
        self.follows = False

    def follow(self) -> None:
        """Keep what runs now in sight, until the person chooses a line."""
        self.follows = True

    def sort(self) -> None:
        """Order sibling phases by another figure."""
        self.sorting = (self.sorting + 1) % len(SORTS)
        self.draw()

    def reverse(self) -> None:
        self.other_way = not self.other_way
        self.draw()

    def toggle_libraries(self) -> str:
        """Show or hide the ranges of NCCL, CUB and their like."""
        run = self.model.run
        if run is None or not (
            library_roots(run) or any(is_library_domain(domain) for _, domain, _ in run.mark_counts)
        ):
            return "no library (NCCL, CUB) wrote a range or a mark here"
        self.libraries = not self.libraries
        self.draw()
        return ""

    def toggle_raw_names(self) -> str:
        """Call phases as their ranges are, or fold numbering."""
        if not self.raw_names and not any(row.names > 1 for row in self._everything):
            return "no names number themselves here"
        self.raw_names = not self.raw_names
        self.draw()
        return ""

    def _named(self, run: Run) -> Run:
        """A run with names as they were asked for."""
        return replace(run, raw_names=True) if self.raw_names else run

    def _chosen(self) -> PhaseRow | None:
        return next((row for row in self.listed if row.key == self.cursor.key), None)

    def _choose_parent(self, row: PhaseRow) -> None:
        index = self.listed.index(row)
        for above in range(index - 1, -1, -1):
            if self.listed[above].depth < row.depth:
                self.cursor.choose(above)
                return

    def _tree(
        self,
        run: Run,
        everything: list[PhaseRow],
        colors: dict[str, int],
        width: int,
        height: int,
        top: int,
    ) -> list[Row]:
        keys = [row.key for row in self.listed]
        room = height - 2
        last = None
        if self.follows and run.is_active:
            found = running(self.listed, room)
            if found is not None:
                self.cursor.take(keys, found.start)
                last = found.stop - 1
        window = self.cursor.window(keys, room, last)
        inherited = self._inherited(run)
        rows = [heading("Phases", width, self._note(run, room, bool(inherited)))]
        if not self.listed:
            self.first_item_line = 0
            text = "no phase matches the filter (Esc clears it)" if everything else _waiting(run)
            said = [*rows, *wrap(text, width, "dim", "  ")]
            steps = [] if everything else time_rows(self.model.session, run, width)
            return [*said, (), *steps] if steps else said
        self.first_item_line = top + 2
        columns = tree_columns(
            self.collapsed,
            colors,
            on_gpu=_on_gpu(run),
            ranks=len(run.processes) > 1,
            wide=width >= 132,
            inherited=inherited,
        )
        selected = self.cursor.index - self.cursor.offset
        return rows + table_rows(columns, self.listed[window], width, selected=selected)

    def _note(self, run: Run, room: int, inherited: bool) -> str:
        """The right part of the heading: what is hidden, and how to show it."""
        hidden = 0 if self.libraries else len(library_roots(run))
        return "  ".join(
            part
            for part in (
                f"filter: {self.needle}" if self.needle else "",
                f"by {SORTS[self.sorting]}{' ▲' * self.other_way}"
                if self.sorting or self.other_way
                else "",
                "* launched by threads without a range" if inherited else "",
                f"d: {hidden} of libraries" if hidden else "",
                "0 follows" if run.is_active and not self.follows else "",
                f"{self.cursor.index + 1} of {len(self.listed)}" if len(self.listed) > room else "",
            )
            if part
        )

    def _inherited(self, run: Run | None) -> dict[PhaseKey, int]:
        """By path, kernels launched by threads without a range of their own (autograd)."""
        if run is None or not any(kernel.inherited for kernel in run.kernels):
            return {}
        alone = phase_rows(self._named(run), library_domains=self.libraries)
        return {
            row.key: row.kernels - own.kernels
            for row, own in zip(self._everything, alone, strict=True)
            if row.kernels > own.kernels
        }

    def _last_step(self, run: Run, colors: dict[str, int], width: int, height: int) -> list[Row]:
        newest = max(run.steps.values(), key=lambda step: step.start_ns, default=None)
        known = self._step
        if (
            newest is None
            or known is None
            or self._step_run is not run
            or not run.is_active
            or newest.start_ns - known.start_ns >= _STEP_SHOWN_NS
        ):
            self._step, self._step_run = newest, run
        if self._step is None or height < LEAST_HEIGHT + 8:
            return []
        room = min(7, height - 8)
        return timeline_rows(self._step, run, colors, width, room, libraries=self.libraries)

    def _kernels(self, run: Run, width: int, height: int) -> list[Row]:
        tree = min(len(self.listed) + 2, 14)
        room = min(height - tree, 8)
        row = self._chosen()
        if row is None or room < 4 or not row.kernels:
            return []
        found = kernel_rows(self.model.session, run, ranges_below(row.phase))[: room - 2]
        names = declared(KERNELS, "short_name", "category", short_name="kernel")
        figures = ("time_percent", "total_ns", "instances", "med_ns")
        columns = [*names, *declared(KERNELS, *figures, total_ns="GPU time")]
        return [heading(f"Kernels of {row.path}", width), *table_rows(columns, found, width)]


def _on_gpu(run: Run) -> bool:
    return any(device.busy_ns for device in run.devices.values())


def _waiting(run: Run) -> str:
    if run.unseen_reason:
        return f"no phase so far; {run.unseen_reason}"
    if run.is_active:
        return "waiting for the program's first NVTX range…"
    return "the program opened no NVTX range"


def _invitation(model: Model) -> list[Row]:
    if not model.can_start:
        return [(("the recording holds no run so far", "text"),)]
    return [
        (("w", "key"), ("              choose a workload and start it", "text")),
        (("gputui -- CMD", "key"), ("  runs your own program, with its NVTX ranges", "text")),
    ]
