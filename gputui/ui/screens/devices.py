"""Devices: every GPU with its charts, the host, and the processes on the GPUs."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from gputui.analysis.formats import MISSING, percent, size
from gputui.events import ProcessSample
from gputui.session import Gpu, Session
from gputui.ui.widgets import gpu as cards
from gputui.ui.widgets.chart import Chart
from gputui.ui.widgets.lines import Row, beside, flow, heading, wrap
from gputui.ui.widgets.table import Column, Move, table_rows
from gputui.ui.widgets.view import Details, Model, View


def _descending(
    figure: Callable[[ProcessSample], float | None],
) -> Callable[[ProcessSample], float]:
    def key(process: ProcessSample) -> float:
        value = figure(process)
        return -1.0 if value is None else float(value)

    return key


_SORTS: tuple[tuple[str, Callable[[ProcessSample], float]], ...] = (
    ("GPU memory", _descending(lambda p: p.gpu_memory_bytes)),
    ("SM", _descending(lambda p: p.sm_percent)),
    ("CPU", _descending(lambda p: p.cpu_percent)),
    ("host memory", _descending(lambda p: p.host_memory_bytes)),
    ("PID", lambda p: -p.pid),
)


class DevicesView(View):
    """The machine."""

    SORTS = True

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.chosen = 0
        self.sorting = 0

    def rows(self, width: int, height: int) -> list[Row]:
        """GPUs above, the host's line, processes below."""
        session = self.model.session
        if session.header is None:
            waiting = self.model.failure or "reading the machine"
            return [(), ((f"  {waiting}…" if not self.model.failure else waiting, "dim"),)]
        if not session.gpus:
            self.first_item_line = 0
            return self._without_gpu(width, height)
        table = self._process_lines(height)
        host = flow(_host_items(session), width, 1)
        room = height - table - len(host)
        rows = self._gpus(width, room)
        rows = (rows + [()] * room)[:room]
        rows += host
        rows += self._processes(width, table, len(rows))
        return rows

    def move(self, move: Move) -> None:
        """Left and right choose a GPU, the rest a process."""
        if move in ("left", "right"):
            count = len(self.model.session.gpus)
            if count > 1:
                self.chosen = (self.chosen + (1 if move == "right" else -1)) % count
                self.draw()
        else:
            super().move(move)

    def activate(self) -> Details | None:
        """Every figure of the chosen GPU, or of the host where there is none."""
        session = self.model.session
        if session.gpus:
            gpu = self._chosen_gpu()
            return Details(f"GPU {gpu.facts.index}  {gpu.facts.name}", cards.detail_rows(gpu))
        if session.header is None:
            return None
        host = session.header.host
        facts: list[Row] = [
            (("host          ", "label"), (host.hostname, "text")),
            (("system        ", "label"), (host.system, "text")),
            (("CPU           ", "label"), (host.cpu_model or MISSING, "text")),
            (("cores         ", "label"), (str(host.cpu_count), "text")),
            (("memory        ", "label"), (size(host.memory_total_bytes), "text")),
        ]
        for field, reason in session.host_unavailable.items():
            facts.append(((f"{field:<14}", "label"), (f"n/a: {reason}", "dim")))
        return Details("Host", tuple(facts))

    def sort(self) -> None:
        """Sort processes by the next column."""
        self.sorting = (self.sorting + 1) % len(_SORTS)
        self.draw()

    def _chosen_gpu(self) -> Gpu:
        gpus = list(self.model.session.gpus.values())
        self.chosen = min(self.chosen, len(gpus) - 1)
        return gpus[self.chosen]

    def _gpus(self, width: int, height: int) -> list[Row]:
        gpus = list(self.model.session.gpus.values())
        interval_s = self.model.interval_s
        columns = 1 if len(gpus) == 1 else 4 if width >= 200 and len(gpus) > 6 else 2
        lines = ceil(len(gpus) / columns)
        if height // lines >= cards.CARD_HEIGHT and width // columns >= 56:
            gap = 2
            card_width = (width - gap * (columns - 1)) // columns
            card_height = height // lines
            rows: list[Row] = []
            for line in range(lines):
                block = gpus[line * columns : (line + 1) * columns]
                rows += beside(
                    [
                        (cards.card_rows(gpu, card_width, card_height, interval_s), card_width)
                        for gpu in block
                    ],
                    gap,
                )
            return rows
        chosen = self._chosen_gpu()
        listed = gpus
        room = height - 1
        if len(gpus) > room:
            first = max(0, min(self.chosen - room // 2, len(gpus) - room))
            listed = gpus[first : first + room]
        rows = table_rows(
            cards.list_columns(interval_s, 18), listed, width, selected=listed.index(chosen)
        )
        left = height - len(rows)
        if left >= 6:
            rows += cards.card_rows(chosen, width, left, interval_s)
        return rows

    def _process_lines(self, height: int) -> int:
        wanted = 2 + max(1, len(self.model.session.processes))
        return min(wanted, max(4, height // 4))

    def _processes(self, width: int, height: int, top: int) -> list[Row]:
        session = self.model.session
        run = session.run
        ours: set[int] = set()
        if run is not None and run.is_active:
            ours = {process.attached.pid for process in run.processes.values()}
            if run.started.pid is not None:
                ours.add(run.started.pid)
        reason = session.host_unavailable.get("processes")
        count = len(session.processes)
        rows = [heading(f"Processes on the GPUs  {count}", width, "")]
        if not count:
            text = f"not known: {reason}" if reason else "none"
            return [*rows, ((f"  {text}", "dim"),)]
        name, key = _SORTS[self.sorting]
        listed = sorted(session.processes, key=lambda p: (-key(p), p.pid, p.gpu))
        window = self.cursor.window([(p.pid, p.gpu) for p in listed], height - 2)
        self.first_item_line = top + 2
        columns: list[Column[ProcessSample]] = [
            Column("PID", lambda p: str(p.pid), 0, width=7),
            Column("GPU", lambda p: str(p.gpu), 2),
            Column("user", lambda p: (p.user or MISSING)[:12], 5, right=False, width=8),
            Column("GPU memory", lambda p: size(p.gpu_memory_bytes), 1),
            Column("SM", lambda p: percent(p.sm_percent), 3, width=6),
            Column("CPU", lambda p: percent(p.cpu_percent), 4, width=6),
            Column("host memory", lambda p: size(p.host_memory_bytes), 6),
            Column(
                "command",
                lambda p: ("● " if p.pid in ours else "") + (p.command or MISSING),
                0,
                flexible=True,
                right=False,
                width=16,
                role=lambda p: "accent" if p.pid in ours else "text",
            ),
        ]
        shown = listed[window]
        selected = self.cursor.index - self.cursor.offset
        return rows + table_rows(columns, shown, width, selected=selected, sorted_by=name)

    def _without_gpu(self, width: int, height: int) -> list[Row]:
        session = self.model.session
        header = session.header
        reason = (header.gpu_unavailable_reason if header else None) or "no device was found"
        rows: list[Row] = [heading("No NVIDIA GPU to show", width), ()]
        rows += wrap(f"Why: {reason}", width - 2, "text", "  ")
        rows.append(())
        for key, text in (
            ("w", "runs a workload on the CPU: its phases, times and summary all work"),
            ("gputui --demo", "plays a session that was recorded on a real H200"),
            ("gputui doctor", "says what is missing on this machine, and the mend"),
        ):
            rows.append((("  ", "text"), (f"{key:<14}", "key"), (f" {text}", "text")))
        rows += [(), heading(f"Host  {header.host.hostname if header else ''}", width)]
        rows += flow(_host_items(session), width, 2)
        room = min(height - len(rows), 18)
        if room >= 3:
            rows += cards.chart_grid(
                _host_charts(session), session.host_history, width, room, self.model.interval_s
            )
        return rows[:height]


def _host_items(session: Session) -> list[Row]:
    host = session.host
    header = session.header
    if host is None or header is None:
        return [(("host: no reading yet", "dim"),)]
    total = header.host.memory_total_bytes
    load = MISSING if host.load_1m is None else f"{host.load_1m:.2f}"
    items: list[Row] = [
        (("host ", "label"), (header.host.hostname[:40], "text")),
        (("CPU ", "label"), (f"{percent(host.cpu_percent):>5}", "value")),
        (
            ("memory ", "label"),
            (f"{size(host.memory_used_bytes)} of {size(total)}", "value"),
        ),
        (("load ", "label"), (load, "value"), (f" on {header.host.cpu_count} CPUs", "dim")),
    ]
    if session.own_cpu_percent is not None:
        items.append(
            (("gputui ", "label"), (percent(session.own_cpu_percent), "value"), (" CPU", "dim"))
        )
    if header.driver_version:
        items.append((("driver ", "label"), (header.driver_version, "text")))
    if header.cuda_driver_version:
        items.append((("CUDA ", "label"), (header.cuda_driver_version, "text")))
    return items


def _host_charts(session: Session) -> list[Chart]:
    header, host = session.header, session.host
    total = header.host.memory_total_bytes if header else 0
    used = host.memory_used_bytes if host else None
    return [
        Chart(
            (("CPU", percent(host.cpu_percent if host else None)),),
            "utilization",
            100.0,
            lambda value: f"{value:.0f} %",
            ((time_ns, sample.cpu_percent) for time_ns, sample in reversed(session.host_history)),
        ),
        Chart(
            (("Memory", f"{size(used)} of {size(total)}"), ("Memory", size(used))),
            "memory",
            float(total) or None,
            size,
            (
                (time_ns, sample.memory_used_bytes)
                for time_ns, sample in reversed(session.host_history)
            ),
        ),
    ]
