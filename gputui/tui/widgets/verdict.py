"""The verdict in rows: its word, its sentence, what to try; and where its evidence is."""

from __future__ import annotations

from gputui.model.leaves import LEAF_OF_KEY
from gputui.model.units import count, duration
from gputui.report.explain import Finding, Verdict
from gputui.report.schema import why_unaccounted
from gputui.report.statistics import half_width
from gputui.state import Run
from gputui.tui.widgets.canvas import Row, paragraph, row_width, wrap
from gputui.tui.widgets.view import Details, Lead

_WHERE = "Enter shows where"


def verdict_rows(found: Verdict, width: int, *, is_chosen: bool) -> list[Row]:
    """The answer: all of it, however low the screen: what stands below gives way."""
    badge = "verdict" if found.findings else "verdict-good"
    word: Row = ((f" {found.word} ", badge if is_chosen else "title"), ("  ", "text"))
    lead = len(found.word) + 4
    rows: list[Row] = [
        (*word, *line) if not number else ((" " * lead, "text"), *line)
        for number, line in enumerate(wrap(found.headline, width - lead, "value"))
    ]
    room = width - row_width(rows[0]) - len(_WHERE) - 1
    if found.findings and room > 1:
        rows[0] = (*rows[0], (" " * room, "text"), (_WHERE, "dim"))
    if found.findings:
        best = found.findings[0]
        rows += paragraph(" Try   ", f"{best.advice}. {best.gain_text}".rstrip(), width)
    if found.speed:
        rows += paragraph(" Speed ", found.speed, width)
    return rows


def how_sure(found: Verdict) -> str:
    """Of how many steps the verdict is, and the 95 % intervals of the cause and of a step, from
    blocks of them; empty where that is not known."""
    tree = found.tree
    if tree is None or not tree.has_steps or not found.findings:
        return ""
    leaf = LEAF_OF_KEY.get(found.findings[0].cause)
    means = [tree.leaf_mean(leaf) if leaf is not None else None, tree.step_mean]
    intervals = [
        f"{duration(mean.amount)} ± {duration(half_ns)}"
        for mean in means
        if mean is not None and (half_ns := half_width(mean)) is not None
    ]
    text = f"{count(tree.steps)} steady steps"
    return f"{text}: {' of '.join(intervals)} each (95 %)" if intervals else text


def evidence(finding: Finding) -> Lead | Details:
    """Where a finding's evidence is: its leaf, or what is known of a fact."""
    if finding.cause in LEAF_OF_KEY:
        return Lead("time", finding.cause)
    if finding.kernel:
        return Lead("kernels", finding.kernel)
    if finding.view:
        # What findings call the timeline is a matter of whole steps.
        return Lead("steps" if finding.view == "timeline" else finding.view)
    rows: list[Row] = [((finding.sentence, "text"),), *(((f"{one}.", "text"),) for one in
                       finding.evidence), ((f"Try: {finding.advice}.", "text"),),
                       ((f"Measured by: {finding.source}", "dim"),)]  # fmt: skip
    return Details(finding.word, tuple(rows))


NO_VERDICT = "No verdict: no GPU work is seen in this run."


def unaccounted(run: Run) -> str:
    """Why there is no verdict."""
    if run.kernels:
        return _no_verdict(run, why_unaccounted(run))
    statuses = {process.attached.cuda_status for process in run.processes.values()}
    if run.is_active and "tracing" in statuses:
        return "No kernel yet: the verdict comes with the first steps."
    if run.is_active and statuses == {"no CUDA"}:
        return (
            "No verdict yet: the program has not loaded CUDA. Phases (4) and the host (6) are "
            "measured meanwhile; the verdict comes with the first steps on a GPU."
        )
    why = why_empty(run)
    if run.is_active:
        why += " It comes by itself with the first steps."
    return _no_verdict(run, why)


def _no_verdict(run: Run, why: str) -> str:
    return f"No verdict{' yet' if run.is_active else ''}: {why[0].lower()}{why[1:]}"


def why_empty(run: Run) -> str:
    """Why no GPU work is listed, in words."""
    if run.leaf_times and not run.kernels:
        return "No kernels were kept in this recording; 2 shows where the time went."
    statuses = {process.attached.cuda_status for process in run.processes.values()}
    reasons = sorted(status for status in statuses if status != "tracing")
    if run.unseen_reason:
        # Without access to CUDA this cannot be known.
        reasons = [run.unseen_reason, *(status for status in reasons if status != "no CUDA")]
    if reasons == ["no CUDA"]:
        return "No GPU work is seen in this run: the program did not load CUDA."
    if reasons:
        return f"No GPU work is seen in this run: {'; '.join(reasons)}"
    if run.is_active:
        return "No GPU work so far."
    return "The program ran nothing on a GPU."
