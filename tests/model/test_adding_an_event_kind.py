"""A kind of event is added in two files, its declaration and its fold: the recipe of docs, carried
out on a copy of the package.
"""

from __future__ import annotations

from pathlib import Path

from tests.package_copies_for_tests import check_copy, copy_package

_DECLARATION = '''

class SeedSet(Event, frozen=True, kw_only=True, tag="seed_set"):
    """A process seeded its generator."""

    about = About.PROCESS
    defines = True
    repeated_for = ("process",)

    process: ProcessNumber
    seed: Integer
'''
_FOLD = '''

@folds(SeedSet)
def seed_set(_: Session, run: Run, event: SeedSet) -> None:
    """Counted as records, so that a repetition that is folded again shows."""
    run.processes[event.process].records += event.seed
'''
_IMPORT = "from gputui.model.events import (\n"

_CHECK = """
from contextlib import closing
from pathlib import Path

import gputui
from gputui.model.events import (
    JOURNAL_SCHEMA, Header, HostFacts, ProcessAttached, RunEnded, RunOutput, RunStarted, SeedSet,
)
from gputui.playback.job_recording import renumbered
from gputui.model.events import Numbered
from gputui.playback.index import Index
from gputui.playback.opening import open_recording
from gputui.state import Session
from tests.reference import recording_page
from gputui.store.journal import Limits
from gputui.store.journal.reader import open_journal
from gputui.store.journal.writer import JournalWriter

assert gputui.__file__.startswith(FOLDER), gputui.__file__
second = 10**9
host = HostFacts(hostname="h", system="s", cpu_count=1, memory_total_bytes=1)
seed = SeedSet(time_ns=3 * second, process=1, seed=42)
events = [
    Header(time_ns=second, schema=JOURNAL_SCHEMA, gputui_version="0", python_version="3",
           monotonic_ns=0, interval_s=1.0, host=host),
    RunStarted(time_ns=second, run=1, kind="command", name="r", arguments=("r",), parameters={},
               pid=1),
    ProcessAttached(time_ns=2 * second, process=1, run=1, pid=1, parent_pid=0, command="r",
                    cuda_status="tracing"),
    seed,
    *(RunOutput(time_ns=(4 + n) * second, run=1, stream="stdout", lines=("x" * 500,))
      for n in range(30)),
    RunEnded(time_ns=90 * second, run=1, exit_code=0, reason="done"),
]
path = Path(FOLDER, "x.gputui")
writer = JournalWriter(path, Limits(rotate_bytes=6000))
for event in events:
    writer.write([event])
writer.close()
assert list(open_journal(path)) == events
second_file = path.with_name("x.2.gputui")
assert seed in list(open_journal(second_file)), "repeated at the head of a later file"
with closing(Index(open_recording(str(path)))) as index:
    index.build()
    replayed, _ = index.state(len(index))
for session in (Session.from_events(events), replayed):
    assert session.run.processes[1].records == 42
    assert session.unknown_references == 0
lost = Session.from_events([*events[:2], seed])
assert lost.unknown_references == 1, "its process is unknown"
numbers = dict.fromkeys(Numbered, lambda number: number + 6)
assert renumbered(seed, numbers).process == 7
assert "### `seed_set`" in recording_page()
"""


def test_a_kind_of_event_is_its_declaration_and_its_fold(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    declarations = package / "model/events/capture.py"
    folds = package / "state/fold.py"
    declarations.write_text(declarations.read_text(encoding="utf-8") + _DECLARATION, "utf-8")
    text = folds.read_text(encoding="utf-8")
    assert text.count(_IMPORT) == 1
    folds.write_text(text.replace(_IMPORT, f"{_IMPORT}    SeedSet,\n") + _FOLD, "utf-8")
    check_copy(tmp_path, _CHECK)
