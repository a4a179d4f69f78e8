"""Which keys deserve a place in the key bar now."""

from __future__ import annotations

from gputui.tui.model import Model
from gputui.tui.source import JobElsewhere, Playback
from gputui.tui.widgets.view import (
    View,
)

_OF_RECORDINGS = ("mark", "compare", "rename", "delete", "folder")


def possible(model: Model, view: View) -> set[str]:
    """The actions, as the keys name them."""
    run = model.run
    actions = {"help", "quit", "palette"}
    if model.visited:
        actions.add("go_home")
    if view.SORTS:
        actions.add("sort")
    if view.FILTERS:
        actions.add("filter")
    if view.RECORDINGS:
        own = {f"recording('{name}')" for name in _OF_RECORDINGS}
        return {*actions, *own, "activate", "export"}
    actions |= {"pause", "log"} | ({"activate"} if view.OPENS and run is not None else set())
    if model.can_start:
        active = run is not None and run.is_active
        actions.add("stop_run" if active else "workloads")
    elif (
        not model.readonly
        and run is not None
        and run.is_active
        and (model.is_remote or isinstance(model.source, JobElsewhere))
    ):
        actions.add("stop_run")
    if isinstance(model.source, Playback):
        actions |= {"replay_jump", "replay_phase", "replay_event"}
    if run is not None:
        actions.add("export")
    if view.FOLLOWS_SCOPE and run is not None:
        actions.add("scope")
    if view.MARKS and run is not None:
        actions.add("recording('mark')")
    if view.CHARTS:
        actions.add("zoom(1)")
    if view.PROCESSES:
        actions |= {"processes", "tree"} if model.session.gpus else set()
        actions -= set() if model.session.gpus else {"sort", "filter"}
    return actions
