"""Who is late, trial by trial in one launch: nobody, a late host, longer sequences, two at once.

    python tests/gpu/late_trials.py [--ranks 2] [--trials 12] [--cpu]

Needs torch and as many GPUs as ranks; with --cpu ranks speak through Gloo. Between two trials the
ranks rest, so that what was captured in each can be summed up by itself. Prints a line a trial and
the counts of each kind; status 1 where a trial names other ranks than those that were late.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from gputui.model.events import AnyEvent, CaptureDelta
from gputui.playback.opening import open_recording
from gputui.state import Session
from tests.sessions_for_tests import analysed

PROGRAM = Path(__file__).with_name("programs") / "late_trials_rank.py"
INTERVAL_S = 0.1
REST_S = {"cuda": 0.6, "cpu": 1.6}
"""Between trials. Records of a GPU that rests come with the next reading; Gloo's ranks end their
collectives apart, which are then matched a second later."""

MARGIN_S = 15
"""Of the time-out, in which no trial begins any more: the last one, and the recording's end."""

SETTLED_NS = 100_000_000
"""How long before the next trial begins what is reported is of this one."""


class Trial(NamedTuple):
    """As the program writes it."""

    kind: str
    late: list[int]
    began_ns: int
    ended_ns: int


def recorded(folder: Path, options: argparse.Namespace) -> tuple[list[Trial], Path]:
    """The trials that were made, and the recording of all of them."""
    path, trials = folder / "trials.gputui", folder / "trials.json"
    rest_s = REST_S["cpu" if options.cpu else "cuda"]
    until_s = time.time() + options.timeout - MARGIN_S
    words = {"trials": options.trials, "cpu": options.cpu, "rest_s": rest_s, "until_s": until_s}
    words["out"] = str(trials)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    command = [sys.executable, *torchrun, str(PROGRAM), json.dumps(words)]
    options_of_it = ["-o", str(path), "--interval", str(INTERVAL_S)]
    gputui = [sys.executable, "-m", "gputui", "--record", *options_of_it, "--", *command]
    subprocess.run(gputui, check=True, stdout=subprocess.DEVNULL, timeout=options.timeout)
    return [Trial(*row) for row in json.loads(trials.read_text())], path


def sessions(trials: list[Trial], path: Path) -> Iterator[tuple[Trial, Session]]:
    """A session a trial, of the collectives in it. What is known by steps may come many seconds
    later, once it is known what a step is: that is left out, and with it the cause on a GPU."""
    events: list[AnyEvent] = list(open_recording(str(path)))
    ends_ns = [*(trial.began_ns for trial in trials[1:]), events[-1].time_ns + SETTLED_NS]
    for trial, next_ns in zip(trials, ends_ns, strict=True):
        session = Session()
        last_ns = next_ns - SETTLED_NS
        session.apply(
            replace(event, leaf_times=(), loops=(), step_blocks=())
            if isinstance(event, CaptureDelta)
            else event
            for event in events
            if not isinstance(event, CaptureDelta) or trial.began_ns < event.time_ns <= last_ns
        )
        yield trial, session


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trials", type=int, default=12, help="of each kind, if there is time")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--timeout", type=float, default=170)
    parser.add_argument("--keep", type=Path, help="a folder for the recording and the trials")
    options = parser.parse_args()
    right, all_of_them = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        for trial, session in sessions(*recorded(options.keep or Path(name), options)):
            assert session.run is not None
            found = analysed(session.run).lateness
            named = sorted(one.time.rank for one in found.late) if found else []
            share = f"{100 * found.share:.1f} %" if found else "-"
            is_right = named == trial.late
            right[trial.kind] += is_right
            all_of_them[trial.kind] += 1
            verdict = "ok" if is_right else "WRONG"
            print(f"{verdict:<6} {trial.kind}: late {trial.late}, named {named} {share}")
    for kind, count in all_of_them.items():
        print(f"{kind}: {right[kind]} of {count}")
    return 0 if right == all_of_them else 1


if __name__ == "__main__":
    sys.exit(main())
