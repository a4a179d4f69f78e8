"""The screen, whatever its source, and the replay of a recording on it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base.errors import did_you_mean
from gputui.base.standard_streams import has_colors, read_keys_from_terminal
from gputui.cli.declaration import UsageError

if TYPE_CHECKING:
    from gputui.tui.early import Shown
    from gputui.tui.running import GoOn
    from gputui.tui.source import Connect, Source


def replay(options: argparse.Namespace) -> int:
    """Show a recording; the exit status."""
    from gputui.tui.source import AT_END_S

    is_played = options.speed is not None or options.follow or options.replay == "-"
    start_s = 0.0 if is_played else AT_END_S
    if options.start is not None:
        start_s = options.start
    path, folder = options.replay, None
    if options.demo:
        from gputui.tui.scenes import SCENES

        path, start_s = str(SCENES[0].paths[0]), SCENES[0].start_s
    from gputui.playback.opening import check_readable
    from gputui.playback.player import Playback

    speed = options.speed if options.speed is not None else 1.0
    need_terminal(options)
    if path == "-":
        if sys.stdin.isatty():
            raise UsageError("--replay - shows a recording piped in, and nothing is")
        try:
            read_keys_from_terminal()
        except OSError:
            raise UsageError("the screen needs a terminal to read keys from") from None

    elif not options.follow:
        check_readable(path)
        folder = Path(path).absolute().parent

    def connect(notify: Callable[[], None]) -> Source:
        return Playback.open(path, notify, speed=speed, start_s=start_s, follow=options.follow)

    return run_screen(connect, options, shows_run=True, is_demo=bool(options.demo), folder=folder)


def need_terminal(options: argparse.Namespace) -> None:
    """Raises UsageError if standard output is not a terminal, or one that cannot place
    characters, and if there is no such theme.
    """
    if "theme" in options.set_by:
        from gputui.tui.themes import NAMES

        if options.theme not in NAMES:
            raise UsageError(
                f"{options.set_by['theme']}: give one of {', '.join(NAMES)}"
                f"{did_you_mean(options.theme, NAMES)}"
            )
    if not sys.stdout.isatty():
        raise UsageError("the screen needs a terminal; use --record or --once without one")
    if os.environ.get("TERM") == "dumb":
        raise UsageError(
            "TERM=dumb draws no screen: set TERM to your terminal's, or use --record or --once"
        )


def show_first(options: argparse.Namespace) -> Shown | None:
    """Draw the first frame, where the terminal shows it as it is meant."""
    if options.ascii or options.reader or not sys.stdin.isatty():
        return None
    from gputui.tui.early import Shown

    def frame(width: int, height: int) -> str:
        from gputui.collect.nvml.opening import glance
        from gputui.tui.first_frame import first_frame

        return first_frame(*glance(options.only or None), width, height)

    return Shown(frame)


def run_screen(
    connect: Connect,
    options: argparse.Namespace,
    *,
    shows_run: bool,
    starts_run: bool = False,
    is_demo: bool = False,
    shows_hosts: bool = False,
    shown: Shown | None = None,
    folder: Path | None = None,
    go_on: GoOn = lambda _why, _session: None,
) -> int:
    """Run the screen on what `connect` opens behind its first frame, which may be `shown`
    already; the exit status. `go_on` goes on with a run that the screen leaves behind."""
    if options.no_color or not has_colors():
        os.environ["NO_COLOR"] = "1"
    from gputui.tui.running import run_app
    from gputui.tui.source import Options

    look = Options(
        theme=options.theme,
        ascii=options.ascii,
        reader=options.reader,
        shows_run=shows_run,
        shows_hosts=shows_hosts,
        is_demo=is_demo,
        tour=not options.no_tour,
        readonly=options.readonly,
        notify=options.notify,
        folder=folder,
        starts_run=starts_run,
        keep_running=options.keep_running,
    )
    return run_app(connect, look, shown=shown, go_on=go_on)
