"""Power and energy of phases, as columns of their table."""

from __future__ import annotations

from gputui.model.units import joules, watts
from gputui.report.phase_tree import PhaseKey
from gputui.report.phases import PhaseRow
from gputui.report.roofline import roofs_of_phase
from gputui.report.schema import Column
from gputui.report.tables.energy import joules_per_kernel_ns
from gputui.tui.model import Model, Tables
from gputui.tui.widgets.table import column


class PhaseEnergy:
    """What is known of them, read once for each state of the run."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._read: tuple[int, float | None, dict[PhaseKey, float]] = (-1, None, {})

    def columns(self, tables: Tables, rows: list[PhaseRow]) -> list[Column[PhaseRow]]:
        """The mean power while a phase went on, of the outermost ones that were sampled; the energy
        of a phase's kernels. None of what no phase has."""
        revision = self._model.revision
        if self._read[0] != revision:
            power = _watts(tables, rows)
            tree = self._model.analysis(tables.run, tables.session).tree
            per_ns = joules_per_kernel_ns(tables.run, tree)
            self._read = revision, per_ns, power
        _, per_ns, power = self._read
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
