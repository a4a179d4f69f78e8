"""The chosen steps of a run, read again from its recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.model.units import duration
from gputui.tui.model import Tables

if TYPE_CHECKING:
    from gputui.report.scope import RunScope
    from gputui.state import Run
    from gputui.tui.app import GputuiApp


def read_again(app: GputuiApp, run: Run, scope: RunScope) -> None:
    """Have the model take the tables of these steps once they are read, or why they are not."""
    from gputui.playback.opening import read_stretch
    from gputui.report.explain.time_tree import main_loops
    from gputui.report.scope import of_ranks

    path, source, ranks = app.recorded, app.model.source, app.model.ranks
    if path is None:
        app.model.take_stretch(scope, "there is no recording of it")
        return
    number, loops = run.started.run, main_loops(run)

    def read() -> Tables:
        found = read_stretch(str(path), number, loops, scope.first, scope.last)
        length = duration(found.run.duration_ns)
        of = of_ranks(found.run, ranks) if ranks else found.run
        return Tables(found.session, of, f"the scope, about {length}")

    def take(found: Tables | str) -> None:
        if app.model.source is source and app.model.ranks == ranks:
            app.model.take_stretch(scope, found)
            app.main.draw()

    def fail(reason: str) -> None:
        take("the scope cannot be read")
        app.main.refuse(reason)

    app.in_thread(read, take, fail)
