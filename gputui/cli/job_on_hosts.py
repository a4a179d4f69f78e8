"""A run on each of several hosts: the copies of its recordings here are one job on the screen."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base.standard_streams import say
from gputui.cli.hosts import connected, status_of
from gputui.cli.output_name import plain
from gputui.cli.record_hosts import Recorder, files
from gputui.cli.screen import run_screen
from gputui.playback.player import Playback
from gputui.store.journal import default_path, make_folder

if TYPE_CHECKING:
    from gputui.collect.hosts.far_options import FarRun
    from gputui.collect.hosts.fleet import Fleet
    from gputui.tui.source import Source


class JobOnHosts(Playback):
    """The copies as they grow, and the hosts on which the run can be ended."""

    fleet: Fleet

    def stop_run(self) -> None:
        """Ask that the run be ended on each host: where the link is lost, as soon as it is back."""
        for link in self.fleet.links.values():
            if link.run_goes_on:
                link.stop_run()

    @property
    def goes_on_at(self) -> dict[str, bool]:
        """The hosts on which it goes on, and whether the link is up."""
        links = self.fleet.links
        return {name: link.is_up for name, link in links.items() if link.run_goes_on}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Those of the copies, and why a host is out of sight."""
        links = self.fleet.links.items()
        lost = [(name, link.failure) for name, link in links if link.failure and not link.is_over]
        return (*(f"{name}: {failure.line}" for name, failure in lost), *super().remarks)

    def look_again(self) -> None:
        """A link is lost, or back."""
        self._notify()


def screen_of_job(options: argparse.Namespace, run: FarRun) -> int:
    """Copy the recordings of all hosts here, and show them as one job; the exit status."""
    typed = Path(run.recording).name
    name = run.name or re.sub(r"^\d{8}-\d{6}-|(-[0-9a-f]{8})?\{.*", "", typed)
    folder = default_path(name, time.time()).with_suffix("")
    make_folder(folder)
    try:
        return _screen_of_job(options, run, folder)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # of what nothing came


def _screen_of_job(options: argparse.Namespace, run: FarRun, folder: Path) -> int:
    with (
        files(options, lambda host: folder / f"{plain(host)}.gputui") as copies,
        connected(options, run) as fleet,
    ):
        shown: list[JobOnHosts] = []

        def on_link() -> None:
            for one in shown:
                one.look_again()

        recorder = Recorder(options, fleet, copies, on_link=on_link)
        recorder.take()  # each that is up has begun
        copying = threading.Thread(target=recorder.run, name="copies", daemon=True)
        copying.start()

        def connect(notify: Callable[[], None]) -> Source:
            job = JobOnHosts.open(str(folder), notify, follow=True)
            job.fleet = fleet
            shown.append(job)
            return job

        status = run_screen(connect, options, shows_run=True)
        recorder.end()
        copying.join()
        links = list(fleet.links.values())
    recorder.finish(shows_run=False)
    say(f"see it again: gputui --replay {shlex.quote(str(folder))}")
    found = status_of(links, options)
    return status or found
