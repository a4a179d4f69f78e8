"""A line of the time tree, and what is known of the chosen one in words."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.model.leaves import CAUSES, LEAVES, Leaf
from gputui.model.units import count, duration, percent
from gputui.report.explain import Finding, Verdict
from gputui.report.explain.finding import capital
from gputui.report.explain.lines import AT_A_LINE, line_shares
from gputui.report.explain.verdict import SPEAKS
from gputui.report.statistics import TableRow
from gputui.report.tables.bounds import idle_phases
from gputui.state import Run
from gputui.tui.widgets.canvas import Row, fit, heading, labelled, paragraph, wrap
from gputui.tui.widgets.names import cut_middle
from gputui.tui.widgets.view import Lead

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
    run: Run, found: Verdict, line: Line, own: Sequence[TableRow], width: int,
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
    finding = next((one for one in found.findings if key in (one.cause, *one.covers)), None)
    if finding is None:
        rows += meaning
        if (cause := CAUSES.get(leaf)) is not None:
            gain = (found.tree.share(line.ns) if found.tree else 0.0) * cause.recoverable
            why = " It takes too little for a finding." if gain < SPEAKS else ""
            rows += [(), *_labelled("Try", f"{cause.advice}.{why}", width)]
    else:
        rows += _finding(finding, meaning, width)
    rows += _labelled("Key", f"{key}, in --fail-if and in JSON", width)
    return rows + _evidence(run, leaf, own, width, leads)


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
    run: Run, leaf: Leaf, own: Sequence[TableRow], width: int, leads: dict[Row, Lead]
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
        for row in own[:MOST_KERNELS]:
            name = cut_middle(row.short_name, width - 26)
            figures = f" {duration(row.total):>9} {count(row.instances):>8} ×"
            rows.append(((f"  {fit(name, width - 26)}", "text"), (figures, "value")))
            leads[rows[-1]] = Lead("kernels", row.name)
        return rows
    idle = idle_phases(run)[:5]
    if idle:
        rows += [(), (("  Phases  in which the GPU idled, for any cause", "head"),)]
        for path, part in idle:
            share = f"  {percent(100 * part):>6} "
            rows.append(((share, "value"), (cut_middle(path, width - 10), "text")))
            leads[rows[-1]] = Lead("phases", path)
    rows += [(), (("  Enter ", "key"), ("shows the steps", "dim"))]
    leads[rows[-1]] = Lead("timeline", LEAVES[leaf].key)
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
