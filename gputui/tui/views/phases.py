"""Phases: the run's range tree, live, and the kernels of the chosen phase."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set

from gputui.base.sanitize import cut_middle
from gputui.model.naming import is_library_domain
from gputui.model.units import duration, joules, watts
from gputui.report.phase_tree import PhaseKey, ranges_below
from gputui.report.phases import PhaseRow, are_of_rows, is_inside, main_step, phase_rows
from gputui.report.roofline import roofs_of_phase
from gputui.report.schema import Column
from gputui.report.statistics import kernel_rows
from gputui.report.tables.bounds import causes_of, phase_facts
from gputui.report.tables.energy import joules_per_kernel_ns
from gputui.report.tables.nsys import KERNELS
from gputui.report.tables.phases import (
    SORTS,
    library_roots,
    order_phases,
    scope_text,
    why_little,
    why_no_phases,
)
from gputui.state import Run
from gputui.tui.model import Model, Tables
from gputui.tui.widgets.canvas import Row, halved, heading, labelled, wrap
from gputui.tui.widgets.chart import spark
from gputui.tui.widgets.run import metric_rows, no_run, notes, problems, run_row, scope_rows
from gputui.tui.widgets.run_panels import telling
from gputui.tui.widgets.table import Move, column, declared, table_rows
from gputui.tui.widgets.tree import (
    SORT_OF_TITLE,
    indent,
    phase_colors,
    running,
    tree_columns,
    visible_rows,
)
from gputui.tui.widgets.view import Details, Lead, Notice, TableView, time_rows, with_bars

# Power and energy of phases, as columns of their table.


def energy_columns(model: Model, tables: Tables, rows: list[PhaseRow]) -> list[Column[PhaseRow]]:
    """The mean power while a phase went on, of the outermost ones that were sampled; the energy of
    a phase's kernels. None of what no phase has."""
    power = _watts(tables, rows)
    tree = model.analysis(tables.run, tables.session).tree
    per_ns = joules_per_kernel_ns(tables.run, tree)
    columns: list[Column[PhaseRow]] = []
    if power:
        columns.append(
            column("power", lambda row: watts(power[row.key]) if row.key in power else "", 8)
        )
    if per_ns is not None:
        columns.append(
            column(
                "energy",
                lambda row: joules(row.kernel_ns * per_ns) if row.kernel_ns else "",
                7,
                width=7,
            )
        )
    return columns


def _watts(tables: Tables, rows: list[PhaseRow]) -> dict[PhaseKey, float]:
    found: dict[PhaseKey, float] = {}
    for row in rows:
        parts = [] if row.depth else roofs_of_phase(tables.session, tables.run, row)
        known = [roof.watts for roof in parts if roof.watts is not None]
        if known and len(known) == len(parts):
            found[row.key] = sum(known)
    return found


# The kernels that a phase launched, below the tree of phases.


_WITH_BARS = 100
"""Columns from which there is room for bars."""


def phase_kernels(
    tables: Tables, names: Mapping[str, str], phase: PhaseRow, width: int, height: int
) -> tuple[list[Row], dict[Row, Lead]]:
    """Those that took most, by their short `names`, in so many rows, the heading and the titles
    included, and where each leads."""
    known = kernel_rows(tables.session, tables.run, ranges_below(phase.phase))
    found = known[: height - 2]
    if not found:
        return [], {}
    columns = [
        column("kernel", lambda row: names.get(row.name, row.short_name), 0, flexible=True,
               right=False, width=24),
        *declared(KERNELS, "category", "time_percent", "total_ns", "instances", "med_ns",
                  time_percent="share", total_ns="GPU time"),
    ]  # fmt: skip
    if width >= _WITH_BARS:
        with_bars(columns, known, are_kernels=True)
    titles, *rows = table_rows(columns, found, width)
    leads = {row: Lead("kernels", one.name) for row, one in zip(rows, found, strict=True)}
    note = f"100 % = {duration(sum(row.total for row in known))}"
    note = f"{len(found)} of {len(known)}, {note}" if len(found) < len(known) else note
    return [heading(f"Kernels of {phase.path}", width, note), titles, *rows], leads


_WIDE = 132
"""Columns from which bars are long, and power and energy have room."""

_MOST_OPEN = 200
"""Phases up to which all are open, of a program without a step: XLA's passes are thousands."""

_TALL = 30
"""Rows from which there is room for more than the tree needs."""


class PhasesView(TableView):
    """The program on the machine."""

    offers = TableView.offers | {"scope"}
    orders = SORTS

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.turned: set[PhaseKey] = set()
        """Those that were opened or closed by hand: what is not in the main step is closed."""
        self.collapsed: frozenset[PhaseKey] = frozenset()
        self._scope: PhaseRow | None = None
        self._led_to: Hashable = None
        self.listed: list[PhaseRow] = []
        self._everything: list[PhaseRow] = []
        self.follows = True
        self.libraries = False

    def rows(self, width: int, height: int) -> list[Row]:
        run, tables = self.model.run, self.model.tables
        if run is None or tables is None:
            return no_run(self.model, width, height)
        lost_end = self.model.lost_end
        rows = [run_row(run, width, lost_end=lost_end)]
        rows += scope_rows(self.model, width, tables.instead)
        rows += metric_rows(run, width, 1 if height < _TALL else 2)
        rows += [*problems(run, width, self.model.remark), *notes(run, width)]
        run = tables.run
        self._everything = everything = phase_rows(run, library_domains=self.libraries)
        self._scope = main = main_step(run, everything)
        is_long = len(everything) > _MOST_OPEN
        beside = {
            row.key
            for row in everything
            if row.has_children and row.depth == 0
            and (is_long if main is None else not is_inside(main, row))
        }  # fmt: skip
        self._open_around(beside)
        self.collapsed = frozenset(beside ^ self.turned)
        by = SORTS[self.sorting]
        placed = order_phases(everything, by, other_way=self.other_way, main=main)
        self.listed = visible_rows(placed, self.collapsed, self.needle)
        left = height - len(rows)
        colors = phase_colors(run)
        chosen_key = self.cursor.key
        kernels, leads = self._kernels(tables, width, left)
        tree_height = left - len(kernels)
        rows += self._tree(tables, run, everything, colors, width, tree_height, len(rows))
        if chosen_key != self.cursor.key and kernels:
            kernels, leads = self._kernels(tables, width, left)
        rows += [()] * (height - len(kernels) - len(rows))
        return rows + self.leading(kernels, leads)

    def move(self, move: Move) -> None:
        """Left closes a phase or goes to its parent, right opens it or goes to its first child."""
        row = self._chosen()
        self.follows = False
        if row is None or move not in ("left", "right"):
            super().move(move)
            self.draw()
            return
        if move == "left":
            if row.has_children and not self.needle and row.key not in self.collapsed:
                self.turned ^= {row.key}
            else:
                self._choose_parent(row)
        elif row.key in self.collapsed and not self.needle:
            self.turned ^= {row.key}
        elif row.has_children:
            self.cursor.move("down")
        self.draw()

    def activate(self) -> Details | None:
        """Open or close the chosen phase; details of one that has no phases inside."""
        row = self._chosen()
        if row is None:
            self.nothing_chosen()
            return None
        self.follows = False
        if row.has_children and not self.needle:  # a filter shows what is in it
            self.turned ^= {row.key}
            self.draw()
            return None
        tables = self.model.tables
        if tables is None:
            return None
        return Details(row.path, self._details(tables, row))

    def _details(self, tables: Tables, row: PhaseRow) -> tuple[Row, ...]:
        means_ns = row.in_order_ns or []
        facts = phase_facts(
            row,
            on_gpu=_on_gpu(tables.run),
            causes=causes_of(tables.run, row),
            roofs=roofs_of_phase(tables.session, tables.run, row),
            in_order=spark([*means_ns], max(means_ns, default=0.0)),
        )
        return labelled(facts, 20)

    def on_recording(self, what: str) -> bool:
        """Mark the chosen phase: the tables of Kernels are of it, or of all again."""
        row = self._chosen()
        if what != "mark" or row is None:
            return False
        name = "" if self.model.phase == row.name else row.name
        self.model.choose_phase(name)
        where = f"inside {name}; m again: of all" if name else "of the whole scope"
        self.post_message(Notice(f"kernels, calls and copies (5) are {where}"))
        self.draw()
        return True

    def chosen_by_hand(self) -> None:
        self.follows = False

    def follow(self) -> None:
        """Keep what runs now in sight, until the person chooses a line."""
        self.follows = True

    def sort_by(self, title: str) -> None:
        """By what a column shows."""
        order = SORT_OF_TITLE.get(title)
        super().sort_by(title if order is None else SORTS[order])

    def toggle_libraries(self) -> str:
        """Show or hide the ranges of NCCL, CUB and their like."""
        run = self.model.run
        if run is None or not library_roots(run):
            return "no library (NCCL, CUB) wrote a range here"
        self.libraries = not self.libraries
        self.draw()
        return ""

    def show_item(self, key: Hashable) -> None:
        """A phase, by its key or its path, that another view led to, with those around it open."""
        run = self.model.run
        if isinstance(key, str) and run is not None:
            key = next((row.key for row in phase_rows(run) if row.path == key), None)
        super().show_item(key)
        self._led_to = key

    def _open_around(self, beside: Set[PhaseKey]) -> None:
        """Open what is closed around the phase that another view led to."""
        row = next((row for row in self._everything if row.key == self._led_to), None)
        if row is not None:
            process, domain, names = row.key
            around = {(process, domain, names[:length]) for length in range(1, len(names))}
            self.turned ^= around & (beside ^ self.turned)
            self._led_to = None

    @property
    def copied(self) -> str:
        row = self._chosen()
        return row.path if row is not None else super().copied

    def click_mark(self, line: int, x: int) -> bool:
        """That of a phase opens or closes it. What is drawn may be older than what is listed."""
        key = self.cursor.keys[line]
        row = next((row for row in self.listed if row.key == key), None)
        if row is None or not row.has_children or not 0 <= x - indent(row.depth) < 2:
            return False
        self._turn(row.key)
        return True

    def _turn(self, key: PhaseKey) -> None:
        self.turned ^= {key}
        self.draw()

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
        tables: Tables,
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
        inherited = any(row.inherited_kernels for row in everything)
        rows = [heading("Phases", width, self._note(tables, run, inherited))]
        rows[0] = self.hinting(rows[0], "0 follows", "follow")
        rows[0] = self.hinting(rows[0], " of libraries", "libraries")
        if not self.listed:
            text = (
                "no phase matches the filter (Esc clears it)" if everything else why_no_phases(run)
            )
            said = [*rows, *wrap(text, width, "dim", "  ")]
            # Where a program has no ranges its steps are all that there is to show.
            steps = [] if everything else time_rows(self.model.session, run, width)
            return [*said, (), *steps] if steps else said
        columns = tree_columns(
            frozenset() if self.needle else self.collapsed,
            colors,
            on_gpu=_on_gpu(run),
            processes=everything,
            wide=width >= _WIDE,
        )
        if width >= _WIDE:
            columns += self.model.once(self, lambda: energy_columns(self.model, tables, everything))
        rows += self.table(columns, self.listed, keys, width, height - 1, top + 1, is_sorted=False)
        self.records.keep_in_sight(last)
        if not (self.needle or run.is_active or telling(run, everything)):
            # As helpful as without any range: a library's say nothing of where the time goes.
            more = [(), *wrap(why_little(run, everything), width, "dim", "  "), (),
                    *time_rows(self.model.session, run, width)]  # fmt: skip
            rows += more[: max(0, height - len(rows))]
        return rows

    def _note(self, tables: Tables, run: Run, inherited: bool) -> str:
        """The right part of the heading: what is hidden, and how to show it."""
        # Where a program has no others, they are shown unasked.
        are_shown = self.libraries or any(is_library_domain(one.domain) for one in self.listed)
        hidden = 0 if are_shown else len(library_roots(run))
        return "  ".join(
            part
            for part in (
                self.filter_note,
                tables.of,
                "100 % = a step of its row"
                if are_of_rows(run, self._everything)
                else scope_text(run, self._scope),
                f"by {SORTS[self.sorting]}{' ▲' * self.other_way}"
                if self.sorting or self.other_way
                else "",
                "* launched by threads without a range" if inherited else "",
                f"d: {hidden} of libraries" if hidden else "",
                "0 follows" if run.is_active and not self.follows else "",
            )
            if part
        )

    def _kernels(
        self, tables: Tables, width: int, height: int
    ) -> tuple[list[Row], dict[Row, Lead]]:
        whole = len(self.listed) + 2
        # What the tree leaves free, and where it leaves little a few rows of it.
        room = max(min(height - min(whole, 14), 8), height - whole - 1)
        row = self._chosen()
        if row is None or room < 4:
            return [], {}
        if not row.kernels:  # what it spends its time on is all that there is to say of it
            known = halved(self._details(tables, row), width)
            return [(), heading(cut_middle(row.path, width - 8), width), *known][:room], {}
        return phase_kernels(tables, self.model.kernel_names, row, width, room)


def _on_gpu(run: Run) -> bool:
    return any(device.busy_ns for device in run.devices.values())
