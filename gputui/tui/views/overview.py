"""Overview: what limits the run, then the evidence in short: every panel leads to its view."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from gputui.model.leaves import LEAVES, Leaf
from gputui.report.explain import Finding, Verdict, findings
from gputui.report.explain.headline import Headline
from gputui.report.explain.time_tree import TimeTree, time_tree
from gputui.report.explain.verdict import verdict
from gputui.report.main_step import in_main_step
from gputui.report.phases import PhaseRow, phase_rows
from gputui.report.statistics import TableRow, kernel_rows
from gputui.report.step_meaning import step_meaning
from gputui.state import Run
from gputui.tui.model import Model
from gputui.tui.widgets import run_panels as short
from gputui.tui.widgets.alerts import alert_rows
from gputui.tui.widgets.canvas import Row, clip, fit, wrap
from gputui.tui.widgets.causes import hundred_bar, legend
from gputui.tui.widgets.gpu_panel import gpu_panels
from gputui.tui.widgets.hosts import short_hosts
from gputui.tui.widgets.panels import Layout, Panel, columns_of
from gputui.tui.widgets.run import metric_rows, problems, run_row
from gputui.tui.widgets.run_panels import Chosen
from gputui.tui.widgets.scope import scope_rows
from gputui.tui.widgets.step_lanes import newest_step
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.verdict import evidence, unaccounted, verdict_rows
from gputui.tui.widgets.view import (
    Details,
    Lead,
    Place,
    View,
    no_run,
)

TWO_COLUMNS, THREE_COLUMNS = 100, 160
FINDING = "finding"
_NARROW_PHASES = 4


@dataclass(frozen=True, slots=True)
class _Read:
    """What the panels show, at one state of the run."""

    revision: int
    found: Verdict | None
    tree: TimeTree | None
    others: tuple[Finding, ...]
    """What does not lead."""
    steps: tuple[PhaseRow, ...]
    """The phases of a step, or the outermost ones."""
    kernels: tuple[TableRow, ...]
    meaning: str
    """What a step is, where that must be said."""


class OverviewView(View):
    """The answer first."""

    FOLLOWS_SCOPE = True

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._read: _Read | None = None
        self._headline = Headline()
        self._keys: list[Chosen] = []
        self._chosen: Chosen | None = None

    def rows(self, width: int, height: int) -> list[Row]:
        """The run, the verdict, the 100 % bar, the panels."""
        run = self.model.run
        self._keys = []
        if run is None:
            if self.model.hosts is not None:
                return short_hosts(self.model.hosts, width, height, self.model.interval_s)
            return no_run(self.model, width, height)
        read = self._of(run)
        layout = Layout(width)
        layout.add([run_row(run, width, lost_end=self.model.lost_end)])
        layout.add(scope_rows(self.model, width))
        layout.add(alert_rows(self.model.session, width))
        layout.add(problems(run, width, self.model.remark)[: height // 4])
        self._answer(layout, run, read, height)
        if run.metrics:
            layout.add(metric_rows(run, width, 1))
        also = self._also(read, width, height)
        self._panels(layout, run, read, height - len(also))
        rows = layout.rows[: height - len(also)]
        rows += [()] * (height - len(also) - len(rows)) + also
        self._keys += [
            spot.key for spot in layout.spots if spot.y < height and isinstance(spot.key, Chosen)
        ]
        self._keys += [Chosen(FINDING, number) for number in range(1, len(also) + 1)]
        if self._chosen is not None and self._chosen not in self._keys:
            self._chosen = None
        for spot in layout.spots:
            act = partial(self._click, spot.key)
            self.places.append(Place(spot.y, spot.start, spot.end, act))
        for title in layout.titles:
            go = partial(self._go, Lead(str(title.key)))
            self.places.append(Place(title.y, title.start, title.end, go))
        return rows

    # --- keys

    def move(self, move: Move) -> None:
        """Up and down through all that can be chosen; left and right from panel to panel."""
        if not self._keys:
            return
        at = -1 if self._chosen is None else self._keys.index(self._chosen)
        steps = {"up": -1, "down": 1, "page_up": -5, "page_down": 5}
        if move in steps:
            at += steps[move]
        elif move in ("home", "end"):
            at = 0 if move == "home" else len(self._keys) - 1
        else:
            kinds = list(dict.fromkeys(key.kind for key in self._keys))
            kind = self._chosen.kind if self._chosen else ""
            place = kinds.index(kind) if kind in kinds else -1
            wanted = kinds[(place + (1 if move == "right" else -1)) % len(kinds)]
            at = next(n for n, key in enumerate(self._keys) if key.kind == wanted)
        self._chosen = self._keys[max(0, min(at, len(self._keys) - 1))]
        self.draw()

    def activate(self) -> Details | Lead | None:
        """The evidence of what is chosen: of the verdict, where nothing is."""
        read, chosen = self._read, self._chosen
        if self.model.run is None and self.model.is_remote:
            return Lead("hosts")
        if read is None or self.model.run is None:
            return None
        if chosen is None or chosen.kind == FINDING:
            number = chosen.key if chosen is not None and isinstance(chosen.key, int) else 0
            if 0 < number <= len(read.others):
                return evidence(read.others[number - 1])
            if read.found is None or not read.found.findings:
                return Lead("phases" if read.tree is None else "time")
            return evidence(read.found.findings[0])
        if chosen.kind == "leaf" and isinstance(chosen.key, Leaf):
            return Lead("time", LEAVES[chosen.key].key)
        return Lead("phases" if chosen.kind == "phase" else "kernels", chosen.key)

    def follow(self) -> None:
        """Back to the verdict."""
        self._chosen = None

    def show_item(self, key: Hashable) -> None:
        self._chosen = key if isinstance(key, Chosen) else None

    # --- parts

    def _of(self, run: Run) -> _Read:
        if self._read is None or self._read.revision != self.model.revision:
            session, scoped = self.model.session, self.model.scoped or run
            if scoped is run:
                found, others = self._headline.of(session, run), findings(session, run)
            else:  # facts beside the time tree are of the whole run
                found = verdict(scoped, session.kernel_names)
                others = [*found.findings] if found is not None else []
            led = found.findings[0].cause if found is not None and found.findings else ""
            tree = found.tree if found is not None else time_tree(scoped)
            self._read = _Read(
                self.model.revision,
                found,
                tree,
                tuple(one for one in others if one.cause != led),
                short.telling(run, in_main_step(run, phase_rows(run))),
                tuple(kernel_rows(session, run)),
                step_meaning(run, tree) if tree is not None else "",
            )
        return self._read

    def _answer(self, layout: Layout, run: Run, read: _Read, height: int) -> None:
        """The verdict's word, its sentence, what to try, and all of the time in one bar."""
        width, found, tree = layout.width, read.found, read.tree
        if tree is None:
            layout.add(wrap(unaccounted(run), width, "text", " ")[:2])
            return
        if found is None:
            text = f"Watching the first steps: {tree.steps} so far. The verdict comes after 2 s."
            layout.add(wrap(text, width, "text", " ")[:2])
            self._bar(layout, tree)
            return
        is_chosen = self._chosen is None or self._chosen == Chosen(FINDING, 0)
        top = len(layout.rows)
        self._keys.append(Chosen(FINDING, 0))
        layout.add(verdict_rows(found, width, height, is_chosen=is_chosen))
        for y in range(top, len(layout.rows)):
            act = partial(self._click, Chosen(FINDING, 0))
            self.places.append(Place(y, 0, width, act))
        self._bar(layout, tree)
        if read.meaning:
            layout.add([clip(((f" {read.meaning}", "dim"),), width)])

    def _bar(self, layout: Layout, tree: TimeTree) -> None:
        """All of the time in one bar, each part of which leads to its leaf."""
        width = layout.width - 2
        drawn, leaves = hundred_bar(tree, width)
        for start, end, leaf in leaves:
            go = partial(self._go, Lead("time", LEAVES[leaf].key))
            self.places.append(Place(len(layout.rows), start + 1, end + 1, go))
        layout.add([((" ", "text"), *drawn), ((" ", "text"), *legend(tree, width))])

    def _also(self, read: _Read, width: int, height: int) -> list[Row]:
        """Further findings, one line each in short; in a tall screen with what to try."""
        shown = read.others[: max(1, height // 12)]
        rows: list[Row] = []
        for number, one in enumerate(shown, 1):
            key = Chosen(FINDING, number)
            row: Row = ((" also  ", "label"), (f"{one.word}  ", "value"), (one.sentence, "text"))
            if self._chosen == key:
                row = ((fit("".join(text for text, _ in row), width), "cursor"),)
            rows.append(clip(row, width))
            act = partial(self._click, key)
            self.places.append(Place(height - len(shown) + number - 1, 0, width, act))
        return rows

    def _panels(self, layout: Layout, run: Run, read: _Read, height: int) -> None:
        """As many as there is room for, the most telling first."""
        left = height - len(layout.rows)
        width = layout.width
        if left < 3:
            return
        tree = read.tree
        columns = 3 if width >= THREE_COLUMNS else 2 if width >= TWO_COLUMNS else 1
        widths = columns_of(width, columns)
        stepped = tree is not None and tree.has_steps and bool(short.step_points(tree)[0])
        first: list[Panel] = []
        second: list[Panel] = []
        low = 8 if columns > 1 else 2
        wide = widths[0]
        if columns == 1:
            self._stack(layout, run, read, left)
            return
        if stepped and tree is not None:
            first.append(short.steps(tree, wide, low))
            if columns == 3 and tree.step_ns.values:
                first.append(short.distribution(tree.step_ns, wide, low))
        first += gpu_panels(self.model, run, wide, low + 1, is_narrow=False)
        if tree is not None:
            rows = max(4, left - low - 3)
            second.append(short.causes(tree, wide, min(rows, 14), self._chosen))
        if read.steps:
            found = short.phases(read.steps, wide, 12, self._chosen, run.is_active)
            second.append(found)
        third: list[Panel] = []
        if read.kernels:
            most = max(len(panel.rows) for panel in second) if columns == 3 and second else left
            third.append(short.kernels(read.kernels, wide, most, self._chosen))
        spread = tree.step_ns.values if stepped and tree is not None else None
        if columns == 2 and spread and tree is not None and not read.steps:
            third.append(short.distribution(tree.step_ns, wide, low + 1))
        if run.log_lines:
            third.append(short.output(run, wide, max(4, left - low - 18)))
        everything = [*first, *second, *third]
        bands = [everything[at : at + columns] for at in range(0, len(everything), columns)]
        if columns == 3 and len(bands) > 2 and (lanes := newest_step(run, width)) is not None:
            bands.insert(2, [lanes])
        for number, band in enumerate(bands):
            room = height - len(layout.rows) - (1 if number else 0)
            if room < 4:
                break
            most = max(len(panel.rows) for panel in band) + 1
            size = min(most, room if number == len(bands) - 1 else max(4, min(most, room - 4)))
            if number:
                layout.add([()])
            layout.band(band, columns_of(width, len(band)) if len(band) < columns else widths,
                        size)  # fmt: skip

    def _stack(self, layout: Layout, run: Run, read: _Read, left: int) -> None:
        """One column: causes, steps, the GPU, phases, output."""
        tree = read.tree
        width = layout.width
        panels: list[tuple[Panel, int]] = []
        if tree is not None:
            most = max(3, min(8, left - 9))
            panels.append((short.causes(tree, width, most, self._chosen), most + 1))
            if tree.has_steps and short.step_points(tree)[0]:
                panels.append((short.steps(tree, width, 1), 2))
        panels += [(panel, 4) for panel in gpu_panels(self.model, run, width, 4, is_narrow=True)]
        if read.steps:
            most = _NARROW_PHASES if tree is not None else 8
            found = short.phases(read.steps, width, most, self._chosen, run.is_active)
            panels.append((found, most + 1))
        if tree is None and read.kernels:
            panels.append((short.kernels(read.kernels, width, 5, self._chosen), 6))
        if run.log_lines:
            panels.append((short.output(run, width, 8), 8))
        for panel, most in panels:
            size = min(most, len(panel.rows) + 1, left)
            if size < 2:
                break
            layout.band([panel], [width], size)
            left -= size

    def _click(self, key: Hashable) -> None:
        if isinstance(key, Chosen):
            if self._chosen == key:
                self.enter()
                return
            self._chosen = key
            self.draw()

    def _go(self, lead: Lead) -> None:
        self.lead(lead)
