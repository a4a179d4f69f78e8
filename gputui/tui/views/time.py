"""Time: where the time goes, as a tree whose leaves add up to 100 %, and the chosen leaf."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from gputui.base.sanitize import cut_middle
from gputui.model.kernel_categories import cut_apart
from gputui.model.leaves import CAUSES, COPIES, LEAVES, Leaf, leaf_of_kernel
from gputui.model.naming import XLA_COMPILES, xla_range
from gputui.model.units import count, duration, percent
from gputui.report.explain import Finding, Verdict, verdict
from gputui.report.explain.evidence import idle_phases
from gputui.report.explain.finding import capital
from gputui.report.explain.lines import AT_A_LINE, line_shares
from gputui.report.explain.time_tree import TimeTree
from gputui.report.explain.verdict import SPEAKS
from gputui.report.phases import in_main_step, outside_ns, phase_rows
from gputui.report.schema import Column
from gputui.report.scope import scope_words
from gputui.report.statistics import TableRow, kernel_rows, memory_time_rows
from gputui.report.tables.memory import OUTSIDE
from gputui.report.tables.time import (
    LeafShares,
    leaf_shares,
    time_a_step,
    whole_in_words,
)
from gputui.state import Run
from gputui.tui.model import Model
from gputui.tui.views.icicle import picture, step_boxes
from gputui.tui.widgets.canvas import (
    Row,
    Span,
    bar,
    beside,
    fit,
    heading,
    labelled,
    paragraph,
    wrap,
)
from gputui.tui.widgets.causes import share_bar
from gputui.tui.widgets.run import MARK, has_alert, no_run, scope_rows, unaccounted
from gputui.tui.widgets.run_panels import phases
from gputui.tui.widgets.table import Move, column
from gputui.tui.widgets.view import Details, Lead, TableView

# A line of the time tree, and what is known of the chosen one in words.


MOST_KERNELS = 8
"""Kernels of a cause that are shown."""


class Line:
    """A line of the tree."""

    __slots__ = ("depth", "fold", "kernel", "key", "label", "leaf", "ns", "share")

    def __init__(
        self, key: str, depth: int, label: str, share: str, ns: int, *, fold: str = "",
        leaf: Leaf | None = None, kernel: TableRow | None = None,
    ) -> None:  # fmt: skip
        self.key, self.depth, self.label, self.share, self.ns = key, depth, label, share, ns
        self.fold, self.leaf, self.kernel = fold, leaf, kernel


def where(line: Line) -> str:
    """The chosen line, as headings name it."""
    meaning = LEAVES.get(line.leaf) if line.leaf is not None else None
    if meaning is None:
        return line.key
    return f"{'idle' if meaning.is_idle else 'busy'} › {meaning.label}"


def about(
    model: Model, run: Run, found: Verdict, line: Line, own: Sequence[TableRow], width: int,
    leads: dict[Row, Lead],
) -> list[Row]:  # fmt: skip
    """What was seen of a line, what to try, what that gains, and the evidence. `own` are the
    kernels of its cause. Where rows lead is added to `leads`."""
    rows = [heading(where(line), width, line.share if line.kernel is None else "")]
    if line.leaf is None:
        text = "at least one kernel, copy or memset ran" if line.key == "busy" else (
            "nothing ran on the GPU; the causes are those of the launching thread")  # fmt: skip
        return [*rows, *wrap(text, width, "text", "  ")]
    if line.kernel is not None:
        rows += wrap(line.kernel.name, width - 2, "text", "  ")[:6]
        pairs = [("  count", count(line.kernel.instances))]
        pairs.append(("  median", duration(line.kernel.median)))
        return [*rows, *labelled(pairs, 11, "value")]
    leaf = line.leaf
    says = LEAVES[leaf].meaning
    meaning = wrap(f"{capital(says)}.", width - 2, "text", "  ")
    key = LEAVES[leaf].key
    finding = next(
        (one for one in found.findings if key in (one.cause, *one.covers, *one.explains)),
        None,
    )
    if finding is None:
        rows += meaning
        if (cause := CAUSES.get(leaf)) is not None:
            gain = (found.tree.share(line.ns) if found.tree else 0.0) * cause.recoverable
            why = " It takes too little for a finding." if gain < SPEAKS else ""
            rows += [(), *_labelled("Try", f"{cause.advice}.{why}", width)]
    else:
        rows += _finding(finding, meaning, width)
    rows += _labelled("Name", f"{key}, for --fail-if and in JSON", width)
    return rows + _evidence(model, run, leaf, own, width, leads)


def _finding(finding: Finding, meaning: list[Row], width: int) -> list[Row]:
    """What was seen, then what to do: what the cause means in general comes last."""
    rows = wrap(finding.sentence, width - 2, "value", "  ")
    for each in finding.evidence:
        rows += wrap(f"{each}.", width - 2, "text", "  ")
    rows += [(), *_labelled("Try", f"{finding.advice}.", width)]
    if finding.gain_text:
        rows += _labelled("Gain", finding.gain_text, width)
    return [*rows, (), *meaning]


_WHEN = {
    Leaf.SYNC: "that wait for the GPU",
    Leaf.COPY_PAGEABLE: "that wait for the GPU",
    Leaf.ALLOCATION: "that allocate",
    Leaf.LAUNCH: "that launch",
    Leaf.INPUT: "that wait for input",
    Leaf.COMPILE: "that compile",
    Leaf.RANK: "in collectives",
}


def _evidence(
    model: Model, run: Run, leaf: Leaf, own: Sequence[TableRow], width: int, leads: dict[Row, Lead]
) -> list[Row]:
    """Source lines of an idle leaf and the phases the GPU idled in; kernels of a busy one."""
    rows: list[Row] = []
    if leaf in AT_A_LINE and (lines := line_shares(run, leaf=leaf)[:4]):
        rows += [(), ((f"  Source lines  {_WHEN.get(leaf, 'outside CUDA')}", "head"),)]
        for line in lines:
            share = f"  {percent(100 * line.seen / line.samples):>6} "
            rows.append(((share, "value"), (cut_middle(line.where, width - 10), "text")))
            if line.inside:
                rows.append(((f"         in {cut_middle(line.function, width - 12)}", "text"),))
    if not LEAVES[leaf].is_idle:
        if own:
            rows += [(), (("  Kernels  of this cause, by GPU time; Enter shows them", "head"),)]
        own, names = own[:MOST_KERNELS], model.kernel_names
        shown = cut_apart([names.get(row.name, row.short_name) for row in own], width - 26)
        for row, name in zip(own, shown, strict=True):
            figures = f" {duration(row.total):>9} {count(row.instances):>8} ×"
            rows.append(((f"  {fit(name, width - 26)}", "text"), (figures, "value")))
            leads[rows[-1]] = Lead("kernels", row.name)
        return rows
    idle = [each for each in idle_phases(run) if not XLA_COMPILES.match(each[0])][:5]
    if idle:
        rows += [(), (("  Phases  in which the GPU idled, for any cause", "head"),)]
        for path, part in idle:
            share = f"  {percent(100 * part):>6} "
            name = cut_middle(xla_range(path) or path, width - 10)
            rows.append(((share, "value"), (name, "text")))
            leads[rows[-1]] = Lead("phases", path)
    rows += [(), (("  Enter ", "key"), ("shows the steps", "dim"))]
    leads[rows[-1]] = Lead("steps", LEAVES[leaf].key)
    return rows


def in_room(rows: list[Row], room: int, line: Line) -> list[Row]:
    """Rows in so many: without the blank ones where they are too many, and what is left out is
    counted."""
    if len(rows) > room:
        rows = [row for row in rows if row]
    if len(rows) <= room or room < 1:
        return rows[: max(0, room)]
    keys, more = "→ →" if line.fold == "▸" else "→", len(rows) - room + 1
    lines = f"  … {more} more line{'s' * (more > 1)}  "
    return [*rows[: room - 1], ((lines, "dim"), (keys, "key"), (" shows all", "dim"))]


def _labelled(label: str, text: str, width: int) -> list[Row]:
    return paragraph(f"  {label:<5} ", text, width - 1)


_LEAST_PICTURE = 8
"""Rows from which there is one below the tree."""
BESIDE = 100
"""Columns from which the chosen leaf stands beside the tree, not below it."""

_NAME, _SHARE = 26, 10
"""Width in cells of the columns of names and of shares."""

_STATES = ("busy", "idle")
_WHOLE = 100
"""Columns of what is known of a line, shown whole."""


class TimeView(TableView):
    """Where the time goes."""

    offers = frozenset({"activate", "scope"})

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.closed: set[str] = set()
        self.opened: set[str] = set()
        """Busy leaves whose kernels are shown."""
        self._read: tuple[Verdict | None, dict[Leaf, list[TableRow]]] = (None, {})

    def rows(self, width: int, height: int) -> list[Row]:
        """The scope where it is not the usual one, then what is of it."""
        head = scope_rows(self.model, width)
        return [*head, *self._body(width, height - len(head), len(head))]

    def _body(self, width: int, height: int, top: int) -> list[Row]:
        """The tree, and beside or below it the chosen leaf."""
        run = self.model.run
        if run is None:
            return no_run(self.model, width, height)
        found, kernels = self._read = self.model.once(self, partial(self._of, run))
        tree = found.shares_tree if found else None
        if found is None or tree is None:
            why = wrap(unaccounted(run), width - 2, "text", "  ")
            return [*why, *self._on_cpu(run, width, height - len(why))]
        is_beside = width >= BESIDE
        left = (width * 5 + 4) // 9 if is_beside else width
        lines = self._listed(tree, kernels)
        keys = [line.key for line in lines]
        if self.cursor.key is None and found.findings:
            led = [LEAVES[leaf].key for leaf in found.findings[0].of_leaves]
            largest = max(tree.leaves, key=lambda leaf: tree.leaves[leaf])
            self.cursor.key = next((key for key in led if key in keys), LEAVES[largest].key)
        tall = height - 2 if is_beside else min(len(keys), max(6, height - 12))
        rows = self.table(self._columns(tree, left), lines, keys, left, tall + 1, top)
        total = f" {'total':<{_NAME}}{'100.0 %':>{_SHARE + 1}}"
        figure = time_a_step(tree, tree.wall_ns).rjust(left - len(total))
        rows.append(((fit(total + figure, left), "dim"),))
        if is_beside:
            for words in scope_words(tree, self.model.scope):
                rows += wrap(words, left - 2, "dim", " ")
            rows += self._from_above(run, left, height - len(rows))
        chosen = self._line
        if chosen is None:
            return rows
        leads: dict[Row, Lead] = {}
        at, y = (left + 2, 0) if is_beside else (0, len(rows))
        known = about(self.model, run, found, chosen, self._own(chosen), width - at, leads)
        known = self.leading(in_room(known, height - y, chosen), leads)
        return beside([(rows, left), (known, width - at)]) if is_beside else [*rows, *known]

    def _from_above(self, run: Run, width: int, height: int) -> list[Row]:
        """The same as a picture, where there is room, which leads to the view of it."""
        if height < _LEAST_PICTURE:
            return []
        whole, steps, _ = step_boxes(self.model, run)
        if not whole.ns:
            return []
        drawn = picture(run, whole, steps, width, height - 2)
        rows = [heading("As a picture", width, "2 has it larger"), *drawn]
        return [(), *(self.doing(row, partial(self.lead, Lead("icicle"))) for row in rows)]

    def _on_cpu(self, run: Run, width: int, height: int) -> list[Row]:
        """Where the time of the CPU goes, by phase: all that is known without GPU work."""
        steps = in_main_step(run, phase_rows(run))
        panel = phases(steps, max(0, height - 3), 0, run.is_active, width)
        if not panel.rows:
            return []
        rows = [(), heading(panel.title, width, "4 shows all of them"), *panel.rows]
        leads = {
            row: Lead("phases", step.key) for row, step in zip(panel.rows, steps, strict=False)
        }
        rows = self.leading(rows, {rows[1]: Lead("phases"), **leads})
        if not steps[0].per_step_ns and (ns := outside_ns(run)):
            rows.append(((f" {OUTSIDE}  ", "dim"), (duration(ns), "value")))
        return rows

    # --- keys

    def move(self, move: Move) -> None:
        """Left closes what is open, right opens it; what cannot be opened further is shown whole,
        where the screen has no room for all that is known of it."""
        line = self._line
        if line is None or move not in ("left", "right"):
            super().move(move)
        elif line.fold == ("▾" if move == "left" else "▸"):
            self._toggle(line.key)
        elif move == "left":
            self.nothing_chosen("nothing to close in this line")
        else:
            self._show_whole(line)

    def _show_whole(self, line: Line) -> None:
        from gputui.tui.dialogs.boxes import DetailsBox

        run, found = self.model.run, self._read[0]
        if run is not None and found is not None:
            width = min(_WHOLE, self.app.size.width - 10)
            _, *rows = about(self.model, run, found, line, self._own(line), width, {})
            self.app.push_screen(DetailsBox(Details(where(line), tuple(rows))))

    def activate(self) -> Details | Lead | None:
        """The evidence: the kernels of a busy leaf, the steps of an idle one."""
        line = self._line
        if line is None:
            self.nothing_chosen("no time is accounted for yet")
            return None
        if line.kernel is not None:
            return Lead("kernels", line.kernel.name)
        if line.leaf is None:
            self._toggle(line.key)
            return None
        if LEAVES[line.leaf].is_idle:
            view = "timeline" if self.model.has_operations else "steps"
            return Lead(view, LEAVES[line.leaf].key)
        own = self._own(line) or self._beside(line.leaf)
        return Lead("kernels", own[0].name if own else None)

    def show_item(self, key: Hashable) -> None:
        self.cursor.key = key

    # --- parts

    @property
    def _line(self) -> Line | None:
        line: Line | None = self.item
        return line

    def _own(self, line: Line) -> list[TableRow]:
        """The kernels of its cause."""
        return self._read[1].get(line.leaf, []) if line.leaf is not None else []

    def _beside(self, leaf: Leaf) -> list[TableRow]:
        """What a leaf without kernels of its own is of, the largest first: copies, and for chains
        the elementwise ones."""
        if leaf is Leaf.ELEMENTWISE_CHAIN:
            return self._read[1].get(Leaf.ELEMENTWISE, [])
        run = self.model.run
        rows = memory_time_rows(run) if run is not None and leaf in COPIES else []
        of_host = leaf is not Leaf.COPY_DEVICE
        return [row for row in rows if ("Host" in row.name) == of_host]

    def _of(self, run: Run) -> tuple[Verdict | None, dict[Leaf, list[TableRow]]]:
        kernels: dict[Leaf, list[TableRow]] = {}
        for row in kernel_rows(self.model.session, run):
            kernels.setdefault(leaf_of_kernel(row.name), []).append(row)
        scoped = self.model.scoped or run
        is_all = scoped is self.model.session.run
        found = self.model.found[0] if is_all else verdict(self.model.analysis(scoped))
        tree = found.tree if found is not None else None
        if tree is not None and tree.leaves.get(Leaf.ATTENTION_UNFUSED):  # known by its softmax
            kernels.setdefault(Leaf.ATTENTION_UNFUSED, kernels.get(Leaf.SOFTMAX, []))
        return found, kernels

    def _toggle(self, key: Hashable) -> None:
        name = str(key)
        if name in _STATES:
            self.closed ^= {name}
        else:
            self.opened ^= {name}
        self.cursor.key = key
        self.draw()

    def _listed(self, tree: TimeTree, kernels: dict[Leaf, list[TableRow]]) -> list[Line]:
        known, names = leaf_shares(tree), self.model.kernel_names
        parts = sorted(
            zip(_STATES, (known.busy, known.idle), strict=True),
            key=lambda part: -sum(tree.leaves[leaf] for leaf in part[1]),
        )
        lines = []
        for state, leaves in parts:
            ns = sum(tree.leaves[leaf] for leaf in leaves)
            fold = "▸" if state in self.closed else "▾"
            lines.append(Line(state, 0, state, known.text(leaves), ns, fold=fold))
            if state in self.closed:
                continue
            for leaf in leaves:
                name = LEAVES[leaf].key
                own = kernels.get(leaf, [])
                fold = "" if not own else "▾" if name in self.opened else "▸"
                lines.append(_leaf_line(tree, known, leaf, fold))
                if name in self.opened:
                    whole = sum(row.total for row in own) or 1
                    lines += [
                        Line(f"{name} {row.name}", 2, names.get(row.name, row.short_name),
                              f"{percent(100 * row.total / whole)} of it",
                              0, leaf=leaf, kernel=row)
                        for row in own[:MOST_KERNELS]
                    ]  # fmt: skip
        return lines

    def _columns(self, tree: TimeTree, width: int) -> list[Column[Line]]:
        """Name, share, a bar and the time a step of a line; of a kernel what all of them took."""
        of = whole_in_words(tree)
        room = max(4, width - _NAME - _SHARE - 16)  # one for a bar to scroll with

        def name(line: Line) -> str:
            leaf = line.leaf if line.kernel is None else None
            alerted = leaf is not None and has_alert(self.model.session, leaf)
            label = f"{MARK} " * alerted + cut_middle(line.label, 23 - 2 * line.depth - 2 * alerted)
            return f" {'  ' * line.depth}{line.fold or ' '} {label}"

        def drawn(line: Line) -> Span:
            if line.kernel is not None:
                return f"{duration(line.kernel.total)} in all", "dim"
            share = tree.share(line.ns)
            if line.leaf is None:
                return bar(share, room), "label"  # of several causes
            return share_bar(line.leaf, share, room)

        roles = ("title", "text", "dim")
        return [
            column(
                " cause", name, right=False, width=_NAME, role=lambda line: roles[line.depth]
            ),
            column("share", lambda line: line.share, width=_SHARE, role="value"),
            column(
                of * (len(of) <= room), lambda line: drawn(line)[0], flexible=True, right=False,
                width=room, role=lambda line: drawn(line)[1],
            ),
            column("", lambda line: "" if line.kernel else time_a_step(tree, line.ns), width=9),
        ]  # fmt: skip

    def click_mark(self, line: int, x: int) -> bool:
        """That of a line opens or closes it."""
        one: Line = self.items[line]
        if not one.fold or not 0 <= x - 1 - 2 * one.depth < 2:
            return False
        self._toggle(one.key)
        return True


def _leaf_line(tree: TimeTree, known: LeafShares, leaf: Leaf, fold: str) -> Line:
    meaning = LEAVES[leaf]
    return Line(
        meaning.key, 1, meaning.label, known.text([leaf]), tree.leaves[leaf], fold=fold, leaf=leaf
    )
