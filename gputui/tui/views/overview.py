"""Overview: what limits the run, then the evidence in short: every panel leads to its view."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from gputui.base.sanitize import cut_middle
from gputui.model.leaves import LEAF_OF_KEY, LEAVES, Leaf
from gputui.model.naming import command_key
from gputui.model.units import duration, percent, quantity
from gputui.report.explain import Finding, Verdict
from gputui.report.explain.evidence import largest_part
from gputui.report.explain.finding import Gain, capital
from gputui.report.explain.rank_causes import RankTime
from gputui.report.explain.time_tree import TimeTree
from gputui.report.explain.verdict import Headline, verdict
from gputui.report.phases import PhaseRow, in_main_step, main_step, phase_rows
from gputui.report.scope import beside_benchmark, beside_words, of_benchmark
from gputui.report.statistics import TableRow, kernel_rows
from gputui.report.tables.energy import RunEnergy, run_energy
from gputui.report.tables.ranks import ranks_side_by_side
from gputui.report.verdict_words import how_sure
from gputui.state import Run
from gputui.store.recordings import RecordingEntry, command_of, run_before, what_changed
from gputui.tui.model import Model, Tables
from gputui.tui.source import ManyHosts, Playback
from gputui.tui.views.hosts import short_hosts
from gputui.tui.views.ranks import waits
from gputui.tui.views.serving import engine_rows
from gputui.tui.widgets import run_panels as short
from gputui.tui.widgets.canvas import Row, Span, chosen_row, clip, fit, paragraph, wrap
from gputui.tui.widgets.causes import cured_bar, hundred_bar, legend
from gputui.tui.widgets.gpu import gpu_panel, host_panel
from gputui.tui.widgets.lanes import newest_step_panel
from gputui.tui.widgets.recordings import RecordingLibrary, date_text
from gputui.tui.widgets.run import (
    MOST_SEEN,
    NO_VERDICT,
    alert_rows,
    evidence,
    metric_rows,
    no_run,
    notes,
    problems,
    run_row,
    scope_rows,
    unaccounted,
    verdict_rows,
)
from gputui.tui.widgets.run_panels import (
    Layout,
    Panel,
    columns_of,
    cpu_step_times,
    distribution,
)
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.view import Details, Lead, View

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp


# The runs of a command that were recorded before, in short, for the overview.


_WITH_RATES = 76
"""Columns from which there is room for tokens per second."""


def earlier_runs(library: RecordingLibrary, run: Run | None) -> list[RecordingEntry]:
    """The newest runs of this run's command, before it; of any command where there is none."""
    entries = [one for one in library.entries if one.problem is None and one.name]
    return [one for one in entries if run is None or _is_before(one, run)]


def last_runs(
    library: RecordingLibrary, run: Run | None, height: int, chosen: Lead | int, width: int
) -> Panel:
    """The first of them, one a row."""
    runs = earlier_runs(library, run)[:height]
    if run is None or not run.is_active:  # reading them would slow the screen of a run
        library.read_facts(runs)
    has_rates = width >= _WITH_RATES
    room = max(8, width - 44 - 11 * has_rates)
    rows: list[Row] = []
    items: dict[int, Lead] = {}
    for entry in runs:
        facts = library.facts(entry)
        step = duration(facts.step.amount) if facts is not None and facts.step else ""
        rate = f"{quantity(facts.rate)}/s" if facts is not None and facts.rate else ""
        what = what_changed(entry, run_before(entry, library.entries))
        row: Row = (
            (f" {date_text(entry.started_ns)[5:]}  ", "dim"),
            (fit(what if run is not None else f"{entry.name}  {what}", room), "text"),
            (f" {step:>9}{f' {rate:>10}' * has_rates}  ", "value"),
            (fit(facts.cause if facts is not None else "", 18), "text"),
        )
        to = items[len(rows)] = Lead("sessions", entry.path)
        rows.append(chosen_row(row, width) if to == chosen else row)
    title = "Last runs" if run is None else "Runs of this command before"
    return Panel(title, rows, "7 all", items, "sessions")


def _is_before(entry: RecordingEntry, run: Run) -> bool:
    started = run.started
    own = command_key(started.kind, started.name, started.arguments)
    return command_of(entry) == own and (
        entry.started_ns + (entry.length_ns or 0) <= started.time_ns
    )


# The panels of the overview, as many as there is room for.


Make = tuple[Callable[..., Panel], int]
"""Makes a panel of so many rows and a `width`, and the rows that it would have."""

FEW = 4
"""Points of which a chart over time would say nothing."""

TWO_COLUMNS, THREE_COLUMNS = 100, 160
_NARROW_PHASES = 4
_LEAST_DISTRIBUTION = 9
_GROWS = 3
"""Rows by which a chart grows: a line printed below it does not draw it anew."""
_FEWEST_ROWS = 4
"""A table of phases with fewer says less than a row of them."""


@dataclass(frozen=True, slots=True)
class Read:
    """What the panels show, at one state of the run."""

    revision: int
    found: Verdict | None
    tree: TimeTree | None
    others: tuple[Finding, ...]
    """What does not lead."""
    steps: tuple[PhaseRow, ...]
    """The phases of a step, or the outermost ones."""
    kernels: tuple[TableRow, ...]
    energy: tuple[RunEnergy, ...]
    meaning: str
    """What a step is, where that must be said."""
    benchmark: str
    """What the steps are of, where they are rows of different work."""
    tables: Tables
    """Where phases and kernels are from."""
    main: PhaseRow | None
    """The step that the program's own ranges name."""
    ranks: Sequence[RankTime]
    """Those of a job of several that can be compared."""
    inside: str
    """Where the cause is that leads, where no line is known."""

    @property
    def lead(self) -> Leaf | None:
        """The leaf that the verdict is about."""
        findings = self.found.findings if self.found is not None else ()
        return next(iter(findings[0].of_leaves), None) if findings else None

    @property
    def grow(self) -> bool:
        """Whether it is about steps that grow."""
        return self.found is not None and any(
            one.cause == "steps_grow" for one in self.found.findings[:1]
        )


def fill(
    layout: Layout, model: Model, run: Run, read: Read, height: int, chosen: Lead | int,
    library: Callable[[], RecordingLibrary],
) -> None:  # fmt: skip
    """As many as there is room for, the most telling first."""
    left = height - len(layout.rows)
    width = layout.width
    if left < 3:
        return
    tree = read.tree
    columns = 3 if width >= THREE_COLUMNS else 2 if width >= TWO_COLUMNS else 1
    if columns == 1:
        _stack(layout, model, run, read, left, chosen)
        return
    low = 8
    points = short.step_points(tree)[0] if tree is not None and tree.has_steps else []
    makes: list[Make] = []
    # Of a stretch of steps there is no distribution.
    if tree is not None and (len(points) >= FEW or (points and not tree.step_ns.values)):
        makes.append((partial(short.steps, tree, grow=read.grow), low))
    if tree is not None and tree.step_ns.values and (columns == 3 or 0 < len(points) < FEW):
        makes.append((partial(distribution, tree.step_ns), low))
    on_cpu = tree is None and not read.kernels
    if on_cpu and read.main is not None and read.main.cpu.values:
        makes.append((partial(cpu_step_times, read.main), low))
    if model.session.gpus:
        makes.append((partial(gpu_panel, model, read.tables, read.energy, tree), low + 1))
    elif on_cpu and model.session.host is not None:
        makes.append((partial(host_panel, model), low))
    if tree is not None:
        show_causes = partial(short.causes, tree, chosen=chosen, lead=read.lead)
        makes.append((show_causes, min(max(4, left - low - 3), 14)))
    if read.steps:
        show_phases = partial(short.phases, read.steps, chosen=chosen, running=run.is_active)
        makes.append((show_phases, 12))
    if read.ranks:
        makes.append((partial(waits, read.ranks), min(8, len(read.ranks))))
    if read.kernels:
        show_kernels = partial(short.kernels, read.kernels, model.kernel_names, chosen=chosen)
        makes.append((show_kernels, 13))
    if columns == 2 and tree is not None and len(points) >= FEW and not read.steps:
        makes.append((partial(distribution, tree.step_ns), low + 1))
    if run.log_lines and run.outcome != "ended":
        makes.append((partial(short.output, run), max(4, left - low - (25 if on_cpu else 18))))
    can_look = columns == 3 and not isinstance(model.source, ManyHosts)
    if can_look and earlier_runs(library(), run):
        makes.append((partial(last_runs, library(), run, chosen=chosen), 6))
    wants_lanes = on_cpu or (columns == 3 and left >= _HIGH)
    step = newest_step_panel(model.session, run, width, _STEP_ROWS) if wants_lanes else None
    lanes = len(step.rows) + 2 if step is not None else 0
    stacks, widths = _columns(makes, columns, width, left - lanes)
    layout.stacks([[(_named(panel, read.tables), len(panel.rows) + 1) for panel in stack]
                   for stack in stacks], widths)  # fmt: skip
    if step is not None:
        layout.add([()] * bool(makes))
        layout.stacks([[(step, len(step.rows) + 1)]], [width])


def _columns(
    makes: Sequence[Make], columns: int, width: int, room: int
) -> tuple[list[list[Panel]], list[int]]:
    """Panels, each below the column that is the shortest so far. The last one of a column has what
    is left of it, and what that does not need the chart at its top."""
    widths = columns_of(width, max(1, min(columns, len(makes))))
    stacks: list[list[Panel]] = [[] for _ in widths]
    last: dict[int, Make] = {}
    free = [room] * len(widths)
    for number, (make, most) in enumerate(makes):
        at = max(range(len(free)), key=lambda column: (free[column], -column))
        left = free[at] - bool(stacks[at])
        if left < (_LEAST_DISTRIBUTION if getattr(make, "func", None) is distribution else 4):
            continue
        panel = make(most, width=widths[at])
        size = max(4, left - (5 if number + len(widths) < len(makes) else 0))
        if (over := len(panel.rows) + 1 - size) > 0:
            most -= over
            panel = make(most, width=widths[at])
        last[at] = make, most
        stacks[at].append(panel)
        free[at] = left - len(panel.rows) - 1
    for at, (make, most) in last.items():
        before = len(stacks[at][-1].rows)
        stacks[at][-1] = make(most + free[at], width=widths[at])
        free[at] -= len(stacks[at][-1].rows) - before
    if stacks[0] and free[0] > 0:
        chart, most = makes[0]
        grown = min(free[0] // _GROWS * _GROWS, most)
        stacks[0][0] = chart(most + grown, width=widths[0])
    return stacks, widths


def _stack(
    layout: Layout, model: Model, run: Run, read: Read, left: int, chosen: Lead | int
) -> None:
    """One column: causes, steps, the GPU, phases, output."""
    tree = read.tree
    width = layout.width
    panels: list[tuple[Panel, int]] = []
    if tree is not None:
        most = max(3, min(8, left - 7))
        panels.append((short.causes(tree, most, chosen, read.lead, width), most + 1))
        if tree.has_steps and len(short.step_points(tree)[0]) >= FEW:
            panels.append((short.steps(tree, 1, width, grow=read.grow), 2))
    if model.session.gpus:
        gpu = gpu_panel(model, read.tables, read.energy, tree, 4, width, is_narrow=True)
        panels.append((gpu, 4))
    if read.steps:
        most = _NARROW_PHASES if tree is not None else 8
        found = short.phases(read.steps, most, chosen, run.is_active, width)
        panels.append((found, most + 1))
    if tree is None and read.kernels:
        panels.append((short.kernels(read.kernels, model.kernel_names, 5, chosen, width), 6))
    if run.log_lines and run.outcome != "ended":
        panels.append((short.output(run, 8, width), 8))
    for panel, most in panels:
        size = min(most, len(panel.rows) + 1, left)
        if size < 2:
            break
        if panel.view == "phases" and size < min(most, _FEWEST_ROWS):
            panel, size = short.phase_line(read.steps, width), 2
        layout.stacks([[(_named(panel, read.tables), size)]], [width])
        left -= size


def _named(panel: Panel, tables: Tables) -> Panel:
    """With of which time it is in the title, where it is added up over the run."""
    if panel.view == "kernels" or (panel.view == "phases" and tables.of):
        panel.title += f", {tables.span}"
    return panel


_STEP_ROWS = 8
"""Of the last step: its axis, the GPU and why it idled, a stream or two, ranges."""

_HIGH = 30
"""Rows from which there is room for what was seen of where a cause is."""

_CURE = 24
"""Cells of a cure's name before its bar at most."""

_MOST_ALSO = 2
"""Lines of a further finding; a longer one is cut to a single line, whole at Enter."""


def _panel_of(key: Lead | int) -> str:
    """What the arrows to the side go through: the rows of a panel are one, and the findings."""
    return key.view if isinstance(key, Lead) else ""


class OverviewView(View):
    """The answer first."""

    offers = View.offers | {"scope", "scale"}

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._read: Read | None = None
        self._headline = Headline()
        self._keys: list[Lead | int] = []
        self._chosen: Lead | int = 0
        """Where it leads, or which of the findings: the verdict is the first."""
        self._has_looked = False

    def _library(self) -> RecordingLibrary:
        """Read from the folder once there is room to show some of it."""
        library = cast("GputuiApp", self.app).main.library
        if not self._has_looked:
            self._has_looked = True
            library.look()
        return library

    def rows(self, width: int, height: int) -> list[Row]:
        """The run, the verdict, the 100 % bar, the panels."""
        run = self.model.run
        self._keys = []
        if run is None:
            if self.model.hosts is not None:
                return short_hosts(self.model.hosts, width, height, self.model.interval_s)
            return self._without_run(width, height)
        read = self._of(run)
        layout = Layout(width, self._linked, chosen=self._chosen)
        layout.add([run_row(run, width, lost_end=self.model.lost_end)])
        layout.add(scope_rows(self.model, width))
        layout.add(alert_rows(self.model.session, width))
        layout.add(problems(run, width, self.model.remark))
        noted = notes(run, width, max(2, height // 12))
        answer_first = read.found is not None
        layout.add([] if answer_first else noted)
        self._answer(layout, run, read, height)
        layout.add(noted if answer_first else [])
        others = range(1, min(len(read.others), max(1, height // 12)) + 1)
        also: list[Row] = []
        if height >= _HIGH:  # else at the bottom: what must give way is not the panels
            self._keys += others
            layout.add(self._also(read, width, height))
        else:
            also = self._also(read, width, height)
        layout.add(engine_rows(self.model.session, width))
        if run.metrics:
            layout.add(metric_rows(run, width, 1))
        fill(
            layout, self.model, run, read, height - len(also), self._chosen,
            self._library,
        )  # fmt: skip
        rows = layout.rows[: height - len(also)]
        rows += [()] * (height - len(also) - len(rows)) + also
        self._keys += [key for key in others if key not in self._keys]
        self._keys += dict.fromkeys(to for y, to in layout.keys if y < height)
        if self._chosen not in self._keys:
            self._chosen = 0
        return rows

    def _without_run(self, width: int, height: int) -> list[Row]:
        """How to start one, and those that were recorded."""
        rows = no_run(self.model, width, height)
        room = height - len(rows) - 1
        can_look = room >= 4 and not (self.model.failure or self.model.remark)
        if not can_look or isinstance(self.model.source, Playback | ManyHosts):
            return rows
        if not earlier_runs(self._library(), None):
            return rows
        panel = last_runs(self._library(), None, min(room - 1, 12), self._chosen, width)
        layout = Layout(width, self._linked, [*rows, ()], chosen=self._chosen)
        layout.stacks([[(panel, len(panel.rows) + 1)]], [width])
        self._keys += dict.fromkeys(to for _, to in layout.keys)
        return layout.rows

    # --- keys

    def move(self, move: Move) -> None:
        """Up and down through all that can be chosen; left and right from panel to panel."""
        if not self._keys:
            return
        at = self._keys.index(self._chosen) if self._chosen in self._keys else -1
        steps = {"up": -1, "down": 1, "page_up": -5, "page_down": 5}
        if move in steps:
            at += steps[move]
        elif move in ("home", "end"):  # who goes to the end of a recording wants its answer
            at = 0
        else:
            panels = list(dict.fromkeys(map(_panel_of, self._keys)))
            place = panels.index(_panel_of(self._keys[at])) if at >= 0 else -1
            wanted = panels[(place + (1 if move == "right" else -1)) % len(panels)]
            at = next(n for n, key in enumerate(self._keys) if _panel_of(key) == wanted)
        self._chosen = self._keys[max(0, min(at, len(self._keys) - 1))]
        self.draw()

    def activate(self) -> Details | Lead | None:
        """The evidence of what is chosen: of the verdict, where nothing is."""
        read, chosen = self._read, self._chosen
        if isinstance(chosen, Lead) and chosen in self._keys:
            self._go(chosen)
            return None
        if self.model.run is None and self.model.is_remote:
            return Lead("hosts")
        if read is None or self.model.run is None:
            why = "no run yet: w starts one" if self.model.can_start else "no run so far"
            self.nothing_chosen(why)
            return None
        if isinstance(chosen, int) and 0 < chosen <= len(read.others):
            return evidence(read.others[chosen - 1])
        if read.found is None or not read.found.findings:
            return Lead("phases" if read.tree is None else "time")
        return evidence(read.found.findings[0])

    def follow(self) -> None:
        """Back to the verdict."""
        self._chosen = 0

    # --- parts

    def _of(self, run: Run) -> Read:
        if self._read is None or self._read.revision != self.model.revision:
            session, scoped = self.model.session, self.model.scoped or run
            tables = self.model.tables or Tables(session, run)
            if scoped is session.run:
                concluded, others = self.model.found
                found = self._headline.update(run, concluded)
            else:  # facts beside the time tree are of the whole run
                found = verdict(self.model.analysis(scoped))
                others = [*found.findings] if found is not None else []
            if found is None:  # what the first steps seem to say is no verdict
                others = [one for one in others if one.cause not in LEAF_OF_KEY]
            led = found.findings[0].cause if found is not None and found.findings else ""
            tree = found.shares_tree if found is not None else self.model.analysis(scoped).tree
            of_tables = self.model.analysis(tables.run, tables.session)
            phases = phase_rows(tables.run)
            whole = session.run or run
            several = len(whole.processes) > 1
            ranks = ranks_side_by_side(self.model.analysis(whole)) if several else []
            self._read = Read(
                self.model.revision,
                found,
                tree,
                tuple(one for one in others if one.cause != led),
                short.telling(tables.run, in_main_step(run, phases)),
                tuple(kernel_rows(tables.session, tables.run)),
                tuple(run_energy(tables.run, of_tables.tree)),
                beside_benchmark(run, tree) if tree is not None and tree.has_steps else "",
                of_benchmark(run, tree) if tree is not None and tree.has_steps else "",
                tables,
                main_step(run, phases),
                ranks if len(ranks) > 1 and ranks[0].late is not None else (),
                largest_part(session, run, found.findings[0], self.model.kernel_names)
                if found is not None and found.findings else "",
            )  # fmt: skip
        return self._read

    def _answer(self, layout: Layout, run: Run, read: Read, height: int) -> None:
        """The verdict's word, its sentence, what to try, and all of the time in one bar."""
        width, found, tree = layout.width, read.found, read.tree
        if tree is None and found is None:
            # What is not captured, and why, stands above already.
            why = NO_VERDICT if run.unseen_reason else unaccounted(run)
            layout.add(self._in_phases(read, width))
            layout.add(wrap(why, width, "text", " ")[:2])
            return
        if tree is not None and found is None:
            text = f"Watching the first steps: {tree.steps} so far. The verdict comes after 2 s."
            layout.add(wrap(text, width, "text", " ")[:2])
            self._bar(layout, tree)
            return
        assert found is not None
        self._keys.append(0)
        is_placed = bool(found.findings) and (found.findings[0].placed or "?") in found.headline
        gains = [
            gain
            for gain in (found.findings[0].gains if found.findings and height >= _HIGH else ())
            if gain.text and not read.benchmark
        ]
        seen = MOST_SEEN if height >= _HIGH else 0 if is_placed else 2
        rows = verdict_rows(
            found,
            width,
            is_chosen=self._chosen == 0,
            most_seen=seen,
            inside=read.inside,
            benchmark=read.benchmark,
            has_bars=bool(gains),
        )
        layout.add([self.doing(row, partial(self._click, 0)) for row in rows])
        word, sure = how_sure(found)
        if sure:
            layout.add(paragraph(f" {word:<5} ", sure, width))
        is_little = tree is not None and sum(tree.beside_ns.values()) > tree.wall_ns
        if tree is not None and is_little and height >= _HIGH and (rest := beside_words(tree)):
            text = f"most of the run is not in these steps: {rest}"
            layout.add(paragraph(" Rest  ", text, width))
        if tree is not None:
            self._bar(layout, tree, read.lead, gains)
        if read.meaning:
            is_high = height >= _HIGH
            rows = wrap(read.meaning, width, "dim", " ") if is_high else [
                clip(((f" {read.meaning}", "dim"),), width)]  # fmt: skip
            layout.add(rows)

    def _in_phases(self, read: Read, width: int) -> list[Row]:
        """Without GPU work the answer is in phases: which takes most of the program's step."""
        ranked = sorted(read.steps, key=lambda row: -(row.share_percent or 0.0))[:4]
        if read.main is None or not ranked or not ranked[0].share_percent:
            return []
        first, *others = ranked
        text = f"{first.name} takes {percent(first.share_percent)} of each {read.main.name}: "
        text += f"{duration(first.per_step_ns)} of {duration(read.main.cpu.average)}"
        more = [f"{row.name} {percent(row.share_percent)}" for row in others if row.share_percent]
        text += f"; then {', '.join(more)}." if more else "."
        return paragraph(" PHASES  ", text, width, "value", "title")

    def _bar(
        self, layout: Layout, tree: TimeTree, lead: Leaf | None = None, gains: Sequence[Gain] = ()
    ) -> None:
        """All of the time in one bar, each part of which leads to its leaf, as its name below
        does; below it, on the same scale, what each of the `gains` leaves of it."""
        now, left = "100 %", [f"{100 / gain.high:.0f} to {100 / gain.low:.0f} %" for gain in gains]
        if step_ns := tree.turn_mean_ns if tree.with_pauses else tree.step_mean_ns:
            now = f"{duration(step_ns)} a step{', pauses too' * tree.with_pauses}"
            left = [gain.step_left(step_ns) for gain in gains]
        cures = [cut_middle(gain.cure.partition(" (")[0] or "cured", _CURE) for gain in gains]
        start = 3 + max(map(len, ("Now", *cures))) if gains else 1
        is_told = gains or (step_ns and layout.width >= TWO_COLUMNS)
        label = 2 + max(map(len, (now, *left))) if is_told else 0
        drawn, leaves = hundred_bar(tree, room := layout.width - 1 - start - label)
        parts = [
            self._linked((span,), Lead("time", LEAVES[leaf].key), True)[0]
            for span, leaf in zip(drawn, leaves, strict=True)
        ]
        head = f" {'Now' * bool(gains)}".ljust(start)
        layout.add([((head, "label"), *parts, (f"  {now}" * bool(label), "text"))])
        for gain, cure, text in zip(gains, cures, left, strict=True):
            lead_in = f" {cure if re.search('[A-Z0-9]', cure) else capital(cure)}".ljust(start)
            layout.add([((lead_in, "label"), *cured_bar(gain, room), (f"  {text}", "text"))])
        names: Row = ((" ", "text"), *legend(tree, layout.width - 2, lead))
        keys = {LEAVES[leaf].label: LEAVES[leaf].key for leaf in tree.leaves} | {"busy": "busy"}
        spans: list[Span] = []
        for text, role in names:
            key = keys.get(text.partition(" %")[0].rstrip("<.0123456789 "))
            name: Row = ((text, role),)
            spans += name if key is None else self._linked(name, Lead("time", key), True)
        layout.add([tuple(spans)])

    def _also(self, read: Read, width: int, height: int) -> list[Row]:
        """Further findings, each a sentence or two lines of it."""
        shown = read.others[: max(1, height // 12)]
        rows: list[Row] = []
        for number, one in enumerate(shown, 1):
            lead = f" also  {one.word}  "
            # Of the pauses the verdict says all.
            said = f"{one.sentence.partition(': ')[0]}." if one.with_pauses else one.sentence
            whole = f"{said} {one.placed} {one.gain_beside_bars}".replace("  ", " ").rstrip()
            lines = paragraph(lead, whole, width)
            if len(lines) > _MOST_ALSO:
                lines = paragraph(lead, said, width)
            if len(lines) > _MOST_ALSO:
                lines = [clip(((lead, "label"), (said, "text")), width)]
            if self._chosen == number:
                lines = [chosen_row(row, width) for row in lines]
            rows += [self.doing(row, partial(self._click, number)) for row in lines]
        return rows

    def _linked(self, row: Row, to: Lead, at_once: bool) -> Row:
        return self.doing(row, partial(self._go if at_once else self._click, to))

    def _click(self, key: Lead | int) -> None:
        """Choose it; what is chosen, as Enter."""
        if key == self._chosen:
            self.ask("activate")
        else:
            self._chosen = key
            self.draw()

    def _go(self, lead: Lead) -> None:
        if lead.view == "log":  # it is a pane below every view
            self.ask("log")
        else:
            self.lead(lead)
