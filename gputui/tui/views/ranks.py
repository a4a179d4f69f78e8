"""Ranks: who is late and why, the ranks of the job side by side, the worst first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from gputui.model.leaves import LEAVES, Leaf
from gputui.model.units import duration, percent_range
from gputui.report.answer import clocks_of
from gputui.report.explain.finding import MOST_NAMED, capital, rank_names
from gputui.report.explain.rank_causes import RankTime
from gputui.report.explain.rank_waits import hosts, rank_processes, why_not_matched
from gputui.report.explain.ranks import Lateness, RankLane, lanes_together, late_over_steps
from gputui.report.tables.ranks import RANKS, ranks_side_by_side, why_unknown
from gputui.report.tables.time import whole_in_words
from gputui.state import Run, Session
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, Span, heading, joined, wrap
from gputui.tui.widgets.causes import cause_rows, look
from gputui.tui.widgets.run import badged, no_run, scope_rows
from gputui.tui.widgets.run_panels import Panel
from gputui.tui.widgets.table import Move, column, declared
from gputui.tui.widgets.view import Details, Notice, TableView

# A step of each rank, one lane each on one time axis: who computes, who waits in collectives.


LABEL = 12

EXACT = 20
"""How much finer than a step its clocks must be known for hosts to be drawn on one axis."""


def aligned_by(session: Session, run: Run) -> tuple[dict[str, int] | None, str]:
    """How far each host's clock is ahead of the first's, None where that is not known well enough
    to draw a step of theirs on one axis; and that in words, "" of one host."""
    clocks = clocks_of(session, run)
    if not clocks:
        return {}, ""
    known = {one.host: clock for one in clocks if (clock := one.offset) is not None}
    if len(known) < len(clocks):
        return None, "each from its start: clocks of hosts are not compared"
    error_ns = max(clock.error_ns for clock in known.values())
    step_ns = max((lanes.duration_ns for lanes in run.step_lanes), default=0)
    if error_ns * EXACT > step_ns:
        return None, f"each from its start: clocks of hosts are known to ± {duration(error_ns)}"
    first = {min(hosts(run)): 0}
    offsets = first | {host: clock.offset_ns for host, clock in known.items()}
    return offsets, f"clocks of hosts aligned to ± {duration(error_ns)}"


def together_rows(lanes: Sequence[RankLane], note: str, width: int) -> list[Row]:
    """A heading with a note, the lanes, and what their ink means."""
    start_ns = min(lane.offset_ns for lane in lanes)
    span_ns = max(lane.offset_ns + lane.step.duration_ns for lane in lanes) - start_ns
    columns = max(10, width - LABEL - 1)
    rows: list[Row] = [heading(f"A step of each rank  {duration(span_ns)}", width, note)]
    for lane in lanes:
        cells = [
            _cell(lane, start_ns + span_ns * at / columns, start_ns + span_ns * (at + 1) / columns)
            for at in range(columns)
        ]
        rows.append(((f" rank {lane.rank}".ljust(LABEL), "dim"), *joined(cells)))
    work, alone = look(Leaf.MATMUL), look(Leaf.RANK)
    rows.append((
        (" " * LABEL, "text"), (work.texture, work.role), (" computing  ", "dim"),
        (alone.texture, alone.role), (" only collectives: transfer, or waiting for a rank", "dim"),
    ))  # fmt: skip
    return rows


def _cell(lane: RankLane, from_ns: float, to_ns: float) -> Span:
    """What leads in a stretch of the axis; blank beside the step, or where little is known."""
    step = lane.step
    middle = (from_ns + to_ns) / 2 - lane.offset_ns
    parts = len(step.busy)
    if not 0 <= middle < step.duration_ns or not parts:
        return (" ", "text")
    at = min(parts - 1, int(middle * parts / step.duration_ns))
    alone = step.alone[at] if len(step.alone) == parts else 0
    if step.busy[at] >= 500:
        return look(Leaf.RANK if alone * 2 >= step.busy[at] else Leaf.MATMUL)
    known = [
        (lane_of.parts[at], lane_of.leaf)
        for lane_of in step.idle
        if lane_of.leaf in LEAVES and len(lane_of.parts) == parts
    ]
    if not known:
        return (" ", "text")
    return look(Leaf(max(known)[1]))


ALIKE = 0.01
"""How far apart shares of ranks are that are shown as one, 0 to 1."""

SHOWN = 3
"""Ranks that are not late and stand by themselves, before those like them are folded."""

HEAT_LABEL, HEAT_FIGURE = 12, 10
"""Cells beside the row of a rank in the map of waits."""

HEAT = " ░▒▓█"
"""From no wait to the longest: by ink, so that it needs no colour."""

_TALL = 30
"""Lines from which the map has room above the table: below it is under it."""
_LEAST_CAUSES, _DETAILS = 5, 80
"""Lines from which there is room for the causes of a rank; columns of those in a dialog."""

_COLUMNS = (
    "rank", "host", "gpu", "late_percent", "late_ns", "other_rank_percent", "busy_percent",
    "compute_percent", "transfer_percent", "hidden_percent", "idle_percent", "host_percent",
    "launch_percent", "step_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fold:
    """Ranks that are alike, shown as one line."""

    ranks: tuple[RankTime, ...]

    @property
    def text(self) -> str:
        late = percent_range([100 * one.late for one in self.ranks if one.late is not None])
        waits = percent_range([100 * one.waited for one in self.ranks if one.waited is not None])
        return f"▸ {len(self.ranks)} more ranks, late {late}, waiting {waits}"


def folded(ranks: Sequence[RankTime], late: Lateness | None) -> list[RankTime | Fold]:
    """Ranks in their order; those that are alike, and not late, as one."""
    named = {id(one.time) for one in late.late} if late is not None else set()
    others = [one for one in ranks if id(one) not in named]
    first = [one for one in ranks if id(one) in named]
    if len(others) <= SHOWN + 1:
        return [*first, *others]
    found: list[RankTime | Fold] = [*first, *others[:SHOWN]]
    group: list[RankTime] = []
    for one in others[SHOWN:]:
        if group and not _is_alike(group[0], one):
            found += _as_one(group)
            group = []
        group.append(one)
    return found + _as_one(group)


def _as_one(group: list[RankTime]) -> list[RankTime | Fold]:
    return [Fold(tuple(group))] if len(group) > 1 else [*group]


def _is_alike(one: RankTime, other: RankTime) -> bool:
    pairs = ((one.late, other.late), (one.waited, other.waited))
    return all(abs((a or 0.0) - (b or 0.0)) <= ALIKE for a, b in pairs)


def waits(ranks: Sequence[RankTime], height: int, width: int) -> Panel:
    """How long each rank waited for others, over the steps: the late one is the light row. Where
    there are more ranks than rows several share one, which shows the longest wait."""
    columns = max(2, width - HEAT_LABEL - HEAT_FIGURE)
    late = late_over_steps(ranks, columns)
    shown = sorted((one for one in ranks if (one.process, one.device) in late),
                   key=lambda one: one.rank)  # fmt: skip
    title = "Waiting for other ranks, by step"
    if height < 2 or not shown:
        return Panel(title, [], view="ranks")
    latest = [max(values) for values in zip(*late.values(), strict=True)]
    each = -(-len(shown) // height)
    groups = [shown[first : first + each] for first in range(0, len(shown), each)]
    waited = [
        [most - min(late[one.process, one.device or 0][step] for one in group)
         for step, most in enumerate(latest)]
        for group in groups
    ]  # fmt: skip
    highest = max(map(max, waited)) or 1.0
    rows: list[Row] = []
    for group, values in zip(groups, waited, strict=True):
        line = [values[x * len(values) // columns] / highest for x in range(columns)]
        ink = "".join(HEAT[min(len(HEAT) - 1, round(part * (len(HEAT) - 1)))] for part in line)
        last = f"–{group[-1].rank}" if len(group) > 1 else ""
        rows.append(
            (
                (f" rank {group[0].rank}{last}".ljust(HEAT_LABEL), "dim"),
                (ink, "cause-rank"),
                (duration(sum(values) / len(values)).rjust(HEAT_FIGURE), "value"),
            )
        )
    return Panel(title, rows, f"to {duration(highest)} {HEAT[1:]}, newest right", view="ranks")


class RanksView(TableView):
    """The ranks of the run: all of them, whichever the other views are of."""

    offers = frozenset({"activate", "recording('mark')"})

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._open = False
        self._listed: list[RankTime | Fold] = []

    def rows(self, width: int, height: int) -> list[Row]:
        """The answer, the table, and a bar for each rank where there is room."""
        run = self.model.session.run
        if run is None:
            return no_run(self.model, width, height)
        ranks, late = self.model.once(self, partial(self._ranks, run))
        if not ranks:
            return [*self._lost(width), *wrap(_why_none(run), width - 2, "text", "  ")]
        rows = scope_rows(self.model, width, "all ranks, the steady steps")
        # The view opens with a rank that hangs or died.
        rows += self._lost(width) or _answer(late, why_unknown(run, ranks), width)
        note = "m: the other views of this one"
        if any(one.late is not None for one in ranks):
            note = f"the latest first, {note}"
        if height >= _TALL:
            heat = waits(ranks, min(len(ranks), height // 3 - 2), width)
            rows += [heading(heat.title, width, heat.note), *heat.rows, ()] if heat.rows else []
        rows.append(heading(f"Ranks  {len(ranks)}", width, note))
        self._listed = list(ranks) if self._open else folded(ranks, late)
        keys: list[Hashable] = [_key(one) for one in self._listed]
        lines = max(3, min(len(keys), (height - len(rows)) * 2 // 3))
        marked = set(self.model.ranks)
        columns = [
            one
            for one in declared(RANKS, *_COLUMNS)
            if one.seen([one.cell(each) for each in ranks])
        ]
        if marked:
            columns.insert(0, column("", lambda one: "●" if one.rank in marked else "", width=1))
        items = [
            one
            if isinstance(one, RankTime)
            else ("●" if {each.rank for each in one.ranks} <= marked else " ") + one.text
            for one in self._listed
        ]
        rows += self.table(columns, items, keys, width, lines + 1, len(rows))
        if height < _TALL:
            heat = waits(ranks, height - len(rows) - 3, width)
            rows += [(), heading(heat.title, width, heat.note), *heat.rows] if heat.rows else []
        rows += self._timeline(width, height - len(rows) - 1)
        return (rows + self._causes(width, height - len(rows) - 1))[:height]

    def move(self, move: Move) -> None:
        """Right opens ranks that are folded, left folds them."""
        has_folded = self._open or any(isinstance(one, Fold) for one in self._listed)
        if move in ("left", "right") and has_folded:
            self._open = move == "right"
            self.draw()
        else:
            super().move(move)

    @property
    def _chosen(self) -> RankTime | Fold | None:
        return next((one for one in self._listed if _key(one) == self.cursor.key), None)

    def on_recording(self, what: str) -> bool:
        """Mark the chosen rank, or all that are folded there: figures and tables are of those."""
        chosen = self._chosen
        if what != "mark" or chosen is None:
            return False
        own = {one.rank for one in (chosen.ranks if isinstance(chosen, Fold) else [chosen])}
        marked = set(self.model.ranks)
        marked = marked - own if own <= marked else marked | own
        self.model.choose_ranks(marked)
        names = rank_names(marked) if marked else "all ranks"
        self.post_message(Notice(f"scope: {names}, in all views but this one"))
        self.draw()
        return True

    def activate(self) -> Details | None:
        """Where a rank's time goes; of folded ones, each."""
        chosen = self._chosen
        if isinstance(chosen, Fold):
            self.move("right")
            return None
        if chosen is None or chosen.tree is None:
            self.nothing_chosen("where a rank's time goes is not known here")
            return None
        rows, _ = cause_rows(chosen.tree, _DETAILS, len(chosen.tree.leaves))
        return Details(chosen.name, tuple(rows))

    def _lost(self, width: int) -> list[Row]:
        """The rank for which the run does not go on, where one died, failed or hangs."""
        concluded, found = self.model.found
        first = concluded.findings if concluded is not None else ()
        lost = next((one for one in (*first, *found) if one.ends_run), None)
        if lost is None:
            return []
        rows = badged(lost.word.upper(), lost.sentence, width)
        return [*rows, *wrap(f"Try: {lost.advice}.", width - 2, "dim", " "), ()]

    def _ranks(self, run: Run) -> tuple[list[RankTime], Lateness | None]:
        analysis = self.model.analysis(run)
        ranks = ranks_side_by_side(analysis)
        return ranks, analysis.lateness if ranks else None

    def _timeline(self, width: int, height: int) -> list[Row]:
        """A step of each rank, on one time axis."""
        run = self.model.session.run
        assert run is not None
        listed = [one for one in self._listed if isinstance(one, RankTime)]
        offsets_ns, note = aligned_by(self.model.session, run)
        lanes = lanes_together(run, listed, offsets_ns)
        if height < 4 or not lanes:
            return []
        return [(), *together_rows(lanes[: height - 3], note, width)]

    def _causes(self, width: int, height: int) -> list[Row]:
        """Where the time of the chosen rank goes."""
        chosen = self._chosen
        if height < _LEAST_CAUSES or not isinstance(chosen, RankTime) or chosen.tree is None:
            return []
        rows, _ = cause_rows(chosen.tree, width, height - 2)
        title = f"Where the time of rank {chosen.rank} goes"
        return [(), heading(title, width, whole_in_words(chosen.tree)), *rows]


def _why_none(run: Run) -> str:
    """Why no ranks are listed."""
    ranks = rank_processes(run)
    if len(ranks) > 1:
        why = why_not_matched(run) or "neither work on a GPU nor their collectives are seen"
        who = rank_names(ranks.values(), MOST_NAMED)
        return f"{capital(who)} cannot be compared: {why}."
    return (
        "One process, or none that says its rank: start a job with torchrun, mpirun or srun, and "
        "its ranks appear here side by side."
    )


def _answer(late: Lateness | None, unknown: str, width: int) -> list[Row]:
    if late is None:
        nobody = "No rank is late, or waits are spread over all"
        text = unknown[:1].upper() + unknown[1:] or nobody
        return [*wrap(f"{text}.", width - 2, "text", " "), ()]
    rows = badged(late.word, late.sentence, width)
    for line in late.evidence:
        rows += wrap(f"{line}.", width - 2, "text", " ")
    return [*rows, *wrap(f"Try: {late.advice}.", width - 2, "dim", " "), ()]


def _key(one: RankTime | Fold) -> Hashable:
    first = one.ranks[0] if isinstance(one, Fold) else one
    return isinstance(one, Fold), first.process, first.device
