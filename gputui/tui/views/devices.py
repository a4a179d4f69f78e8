"""Devices: every GPU with its charts, the host, and the processes on the GPUs."""

from __future__ import annotations

from itertools import chain
from math import ceil

from gputui.report.machine_now import out_of_line
from gputui.report.tables.processes import (
    ProcessRow,
    filter_rows,
    launcher_rows,
    process_facts,
    process_rows,
    tree_rows,
)
from gputui.state import Gpu
from gputui.tui.model import Model
from gputui.tui.source import Playback, Runner
from gputui.tui.widgets import gpu as cards
from gputui.tui.widgets.canvas import Row, beside, clip, fact_rows, flow, heading, wrap
from gputui.tui.widgets.gpu import detail_rows
from gputui.tui.widgets.gpu_charts import (
    ChartedView,
    chart_grid,
    host_charts,
    host_details,
    host_items,
    link_rows,
)
from gputui.tui.widgets.processes import ProcessListView, process_columns, told_rows
from gputui.tui.widgets.run import alert_rows, has_alert, scope_rows
from gputui.tui.widgets.table import Move, table_rows
from gputui.tui.widgets.view import Details


class DevicesView(ProcessListView, ChartedView):
    """The machine."""

    ABOVE = "gpus"
    offers = ProcessListView.offers | ChartedView.offers | {"processes", "tree"}

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.chosen = 0
        self.listed: list[ProcessRow] = []

    def rows(self, width: int, height: int) -> list[Row]:
        session = self.model.session
        if session.header is None:
            if self.model.hosts is not None:
                return [(), *link_rows(self.model, width)]
            waiting = self.model.failure or "reading the machine"
            return [(), ((f"  {waiting}…" if not self.model.failure else waiting, "dim"),)]
        self.mark_phases()
        if not session.gpus or (isinstance(self.model.source, Playback) and not self.model.is_read):
            return self._without_gpu(width, height)
        matching = filter_rows(process_rows(session), self.needle)
        matching.sort(key=lambda row: row.pid)
        self.listed = self.in_order(process_columns(False, lambda row: row), matching)
        if self.as_tree:
            self.listed = tree_rows(self.listed, launcher_rows(session))
        host = flow(host_items(session), width, 1)
        host = [*link_rows(self.model, width), *host]
        if flagged := out_of_line(list(session.gpus.values())):
            host = [clip(((f"! {'; '.join(flagged)}", "warn"),), width), *host]
        host = [*alert_rows(session, width), *self._what_of(width), *host]
        table = self._process_lines(height - len(host))
        room = height - table - len(host)
        rows = self._gpus(width, room)
        rows = (rows + [()] * room)[:room]
        rows += host
        rows += self._processes(width, table, len(rows))
        return rows

    # --- keys

    def move(self, move: Move) -> None:
        """Left and right choose a GPU, the others a process."""
        if move in ("left", "right"):
            count = len(self.model.session.gpus)
            if self.focus_on == "gpus" and count <= 1:
                self.nothing_chosen("there is no other GPU: ↑ ↓ choose a process")
            elif self.focus_on == "gpus":
                self.chosen = (self.chosen + (1 if move == "right" else -1)) % count
            self.focus_on = self.ABOVE
        else:
            if self.focus_on == "processes":
                self.cursor.move(move)
            self.focus_on = "processes"
        self.draw()

    def activate(self) -> Details | None:
        """Details of the chosen process or GPU, or of the host if there is none."""
        session = self.model.session
        process = self.process
        if process is not None:
            start_ns = process.start_time_ns
            return Details(
                f"Process {process.pid}",
                fact_rows(process_facts(process, session)),
                None
                if start_ns is None or not isinstance(self.model.source, Runner)
                else lambda: told_rows(process.pid, start_ns),
            )
        if session.gpus:
            gpu = self._chosen_gpu()
            rows = detail_rows(gpu, session.now_ns, self.model.interval_s)
            return Details(f"GPU {gpu.facts.index}  {gpu.facts.name}", rows)
        return Details("Host", host_details(session)) if session.header else None

    @property
    def process(self) -> ProcessRow | None:
        """The chosen process; None while a GPU is chosen."""
        row: ProcessRow | None = self.item if self.focus_on == "processes" else None
        return row

    def toggle_tree(self) -> None:
        """Processes under what launched them, or in one list."""
        self.as_tree = not self.as_tree
        self.draw()

    def follow(self) -> None:
        """Return to the newest moment, with a GPU chosen."""
        super().follow()
        self.focus_on = self.ABOVE

    # --- parts

    def _chosen_gpu(self) -> Gpu:
        gpus = list(self.model.session.gpus.values())
        self.chosen = min(self.chosen, len(gpus) - 1)
        return gpus[self.chosen]

    def _card(self, gpu: Gpu, width: int, height: int) -> list[Row]:
        interval_s, now_ns = self.model.interval_s, self.model.session.now_ns
        several = len(self.model.session.gpus) > 1
        return cards.card_rows(
            gpu,
            width,
            height,
            interval_s,
            now_ns,
            self.look,
            alerted=has_alert(self.model.session, gpu),
            chosen=several and self.focus_on == "gpus" and gpu is self._chosen_gpu(),
            run=self.model.run,
        )

    def _gpus(self, width: int, height: int) -> list[Row]:
        gpus = list(self.model.session.gpus.values())
        columns = 1 if len(gpus) == 1 else 4 if width >= 200 and len(gpus) > 6 else 2
        lines = ceil(len(gpus) / columns)
        least = cards.CARD_HEIGHT
        if height // lines < least or width // columns < cards.CARD_WIDTH:
            return self._list(gpus, width, height)
        gap = 2
        card_width = (width - gap * (columns - 1)) // columns
        card_height = height // lines
        rows: list[Row] = []
        for line in range(lines):
            block = gpus[line * columns : (line + 1) * columns]
            rows += beside(
                [(self._card(gpu, card_width, card_height), card_width) for gpu in block], gap
            )
        return rows

    def _list(self, gpus: list[Gpu], width: int, height: int) -> list[Row]:
        """One line per GPU, and the chosen one's card if there is room."""
        if height < 2:
            return []
        chosen = self._chosen_gpu()
        room = height - 1
        shown = gpus
        if len(gpus) > room:
            first = max(0, min(self.chosen - room // 2, len(gpus) - room))
            shown = gpus[first : first + room]
        rows = table_rows(
            cards.list_columns(self.model, 18, self.look),
            shown,
            width,
            selected=shown.index(chosen),
        )
        left = height - len(rows)
        if left >= 6:
            rows += self._card(chosen, width, left)
        return rows

    def _what_of(self, width: int) -> list[Row]:
        """What the figures above are of, once a run has ended, or part of it is the scope."""
        run = self.model.run
        if self.model.scope is not None:
            return scope_rows(self.model, width, "the newest readings of the GPUs")
        if run is None or run.is_active:
            return []
        means = cards.means_in(run, self._chosen_gpu(), self.model.analysis(run).tree)
        text = "The run has ended: these are the last readings"
        return wrap(f"{text}; {means}." if means else f"{text}.", width, "text")[:2]

    def _process_lines(self, height: int) -> int:
        if self.only_processes:
            gpus = len(self.model.session.gpus) + 1
            return height - (gpus if gpus <= height // 3 else 0)
        wanted = 2 + max(1, len(self.listed))
        return min(wanted, max(4, height // 4))

    def _processes(self, width: int, height: int, top: int) -> list[Row]:
        session = self.model.session
        reason = session.host_unavailable.get("processes")
        rows = [heading(f"Processes on the GPUs  {self._counted()}", width, self._note(height))]
        if not self.listed:
            ended = self.model.run is not None and not self.model.run.is_active
            text = f"not known: {reason}" if reason else f"none{': the run has ended' * ended}"
            if self.needle:
                text = "no process matches the filter (Esc clears it)"
            return [*rows, ((f"  {text}", "dim"),)]
        keys = [row.identity for row in self.listed]
        many_instances = any(gpu.facts.mig_instances for gpu in session.gpus.values())
        columns = process_columns(many_instances, lambda row: row)
        return rows + self.table(columns, self.listed, keys, width, height - 1, top + 1)

    def _counted(self) -> int:
        return sum(not row.is_launcher for row in self.listed)

    def _note(self, height: int) -> str:
        """The state of the list, and the moment at which charts are read."""
        parts = [self.filter_note, "tree" * self.as_tree]
        if len(self.listed) > height - 2 and self.focus_on == "processes":
            parts.append(f"{self.cursor.index + 1} of {len(self.listed)}")
        parts.append(self.moment_note())
        return "  ".join(part for part in parts if part)

    def _without_gpu(self, width: int, height: int) -> list[Row]:
        session = self.model.session
        header = session.header
        known_reason = header.gpu_unavailable_reason if header else None
        is_recorded = isinstance(self.model.source, Playback)
        if is_recorded and known_reason is None and not self.model.is_read:
            rows = [heading("No readings of the machine", width), ()]
            rows += [(("  This recording holds none of its GPUs and host.", "text"),), ()]
            facts = [self._card(gpu, width, 1) for gpu in session.gpus.values()]
            return [*rows, *chain.from_iterable(facts)]
        rows = [*alert_rows(session, width), heading("No NVIDIA GPU to show", width), ()]
        rows += wrap(f"Why: {known_reason or 'no device was found'}", width - 2, "text", "  ")
        rows.append(())
        keys = (
            ("w", "runs a workload on the CPU, with its phases and its summary"),
            ("gputui --demo", "plays runs that were recorded on a real GPU"),
            ("gputui doctor", "checks what is missing on this machine, and how to fix it"),
        )
        for key, text in () if self.model.is_remote or is_recorded else keys:
            rows.append((("  ", "text"), (f"{key:<14}", "key"), (f" {text}", "text")))
        rows += link_rows(self.model, width)
        rows += [(), heading(f"Host  {header.host.hostname if header else ''}", width)]
        rows += flow(host_items(session), width, 2)
        room = min(height - len(rows), 18)
        if room >= 3:
            rows += chart_grid(host_charts(session), width, room, self.model.interval_s, self.look)
        return rows[:height]
