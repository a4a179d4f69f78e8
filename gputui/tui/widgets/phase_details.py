"""What is known of one phase, in rows."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.model.leaves import LEAVES
from gputui.model.payloads import payload_text
from gputui.model.units import count, duration, joules, percent, quantity
from gputui.report.phases import PhaseRow
from gputui.report.roofline import Roof
from gputui.report.tables.bounds import PhaseCauses
from gputui.tui.widgets.canvas import Row, labelled
from gputui.tui.widgets.chart import spark

MOST_CAUSES = 6
"""Leaves of a phase among its details."""


def phase_details(
    row: PhaseRow,
    *,
    on_gpu: bool,
    causes: PhaseCauses | None = None,
    roofs: Sequence[Roof] = (),
) -> tuple[Row, ...]:
    """Details of a phase; `causes` are why the GPU idled and what it did, `roofs` what its counters
    said meanwhile.
    """
    whose = f"{row.pid}" if row.rank is None else f"{row.pid}, rank {row.rank}"
    pairs = [
        ("path", row.path),
        ("domain", row.domain or "(default)"),
        ("process", whose),
        ("category", row.category or ""),
        ("newest payload", payload_text(row.payload) if row.payload else ""),
        ("instances", count(row.instances)),
        ("CPU time", duration(row.cpu_total_ns)),
        ("average", duration(row.cpu.average)),
        ("median", duration(row.cpu.median)),
        ("shortest", duration(row.cpu.minimum)),
        ("longest", duration(row.cpu.maximum)),
        ("deviation", duration(row.cpu.deviation)),
    ]
    if (in_order := row.in_order_ns) is not None:
        highest = max(in_order, default=0.0)
        pairs.insert(6, ("names, see #", count(row.names)))
        pairs.insert(
            8, ("average, in order", f"{spark([*in_order], highest)} to {duration(highest)}")
        )
    if row.threads:
        pairs.insert(3, ("threads", ", ".join(row.threads)))
    if on_gpu:
        pairs += [
            ("GPU busy", duration(row.gpu_busy_ns)),
            ("GPU time", duration(row.gpu_total_ns)),
            ("GPU span, average", _span(row)),
            ("kernels", count(row.kernels)),
            (
                "  of other threads",
                f"{count(row.inherited_kernels)} (autograd's, in no range of their own)"
                if row.inherited_kernels
                else "",
            ),
            ("launches", count(row.launches)),
        ]
        if replayed := row.launched.replayed:
            pairs.append(("replayed by graphs", f"{count(replayed)} kernels captured here"))
    if causes is not None:
        pairs.append(("bound by", causes.bound or "(nothing leads)"))
        largest = sorted(causes.leaves.items(), key=lambda part: -part[1])[:MOST_CAUSES]
        pairs += [
            (f"  {LEAVES[leaf].label}", f"{100 * ns / causes.wall_ns:.1f} %  {duration(ns)}")
            for leaf, ns in largest
        ]
    for roof in roofs:
        pairs.append((f"GPU {roof.gpu} in it", f"{count(roof.samples)} samples"))
        pairs += [(f"  {label}", text) for label, text in _counters(roof)]
    return labelled([pair for pair in pairs if pair[1]], 20)


def _span(row: PhaseRow) -> str:
    if row.gpu_projected_ns is None:
        return duration(None)
    return f"{duration(row.projected.average)} from its first operation's start to its last's end"


def _counters(roof: Roof) -> list[tuple[str, str]]:
    """Those that were read."""
    read = [
        ("power", roof.watts, quantity(roof.watts, "W")),
        ("energy", roof.joules, joules(roof.joules)),
        ("SM active", roof.sm_active_percent, percent(roof.sm_active_percent)),
        ("of tensor peak", roof.tensor_peak_percent, percent(roof.tensor_peak_percent)),
        ("of memory peak", roof.memory_peak_percent, percent(roof.memory_peak_percent)),
    ]
    return [(label, text) for label, value, text in read if value is not None]
