"""Which keys deserve a place in the key bar now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gputui.tui.model import Model
from gputui.tui.shell.keys import VIEWS, Key
from gputui.tui.shell.views import GROUP_OF, TABS, Group
from gputui.tui.source import JobElsewhere, Playback
from gputui.tui.widgets.bars import hints
from gputui.tui.widgets.view import View

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
        actions.add("zoom(-1)")
    if view.SCALES:
        actions.add("scale")
    if view.PROCESSES:
        actions |= {"processes", "tree"} if model.session.gpus else set()
        actions -= set() if model.session.gpus else {"sort", "filter"}
    return actions


def hinted(model: Model, view: View, current: str, trail: Sequence[str]) -> list[Key]:
    """These keys: Escape says where it leads, space what it does, the view's own key what is
    next."""
    actions = possible(model, view)
    to = trail[-1] if trail else view.LEADS_BACK_TO
    keys = hints(actions | {"clear"} if to else actions)
    labels = {"clear": f"back to {GROUP_OF[to].title}"} if to else {}
    if model.paused:
        labels["pause"] = "go on"
    elif model.is_at_end:
        labels["pause"] = "play it"
    keys = [replace(one, label=labels.get(one.action, one.label)) for one in keys]
    own = [Key((shown,), shown, action, "", VIEWS, label) for shown, label, action in view.HINTS]
    keys = [one for one in keys if one.shown.split()[0] not in {key.shown for key in own}]
    first = sum(one.action in ("go_home", "clear", "activate") for one in keys)
    keys[first:first] = own
    names = tabs_of(model, GROUP_OF[current])
    if len(names) > 1 and current in names:
        following = TABS[names[(names.index(current) + 1) % len(names)]]
        key = GROUP_OF[current].key
        turns = Key((key,), key, f"views('{key}')", "", VIEWS, following.title.lower())
        keys.insert(len(keys) - 3, turns)
    return keys


def tabs_of(model: Model, group: Group) -> list[str]:
    """The views that a key turns through."""
    several = model.hosts is not None
    names = [
        tab.name
        for tab in group.tabs
        if tab.turns
        and (several or not tab.of_hosts)
        and (not tab.of_operations or model.has_operations)
        and (not tab.of_servers or bool(model.session.servers))
    ]
    return sorted(names, key=lambda name: model.shows_only_ranks and name != "ranks")
