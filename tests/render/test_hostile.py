"""Files that mean harm, or were harmed, through everything that reads files.

Whatever is in one, each reader ends with a status, says at most a few lines that are its own, and
prints nothing that a terminal, a browser or a spreadsheet would act on.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputui.base import JournalError
from gputui.cli.dispatch import run as gputui
from gputui.playback.player import Playback
from gputui.state import Session
from gputui.store import trace_path
from gputui.store.trace import RECORDS_AT
from tests.conftest import DATA
from tests.imports.nsys_for_tests import Export
from tests.render.pages_for_tests import Page

RECORDING = (DATA / "h200-inference.gputui").read_bytes()

READERS = (
    ("summary",),
    ("summary", "--format", "json"),
    ("summary", "--format", "md"),
    ("summary", "--table", "nvtx_kern_sum", "--format", "csv"),
    ("summary", "--table", "kernel_shapes"),
    *(
        ("export", "--format", name, "-o", "OUT")
        for name in (
            "csv",
            "json",
            "md",
            "html",
            "openmetrics",
            "parquet",
            "snapshot",
            "collapsed",
            "speedscope",
        )
    ),
    ("compare", str(DATA / "h200-inference.gputui")),
    ("compare", str(DATA / "h200-inference.gputui"), "--format", "json"),
)
_DIFFERENT = tuple(
    words
    for words in READERS
    if words == READERS[0] or {"html", "openmetrics", "parquet", "compare"} & set(words)
)
"""Readers that read in ways of their own."""
TRACED = (
    ("export", "--format", "chrome", "-o", "OUT"),
    ("export", "--format", "nsys", "-o", "OUT"),
)

MARKUP = (
    "<script>alert(1)</script></td></table><img src=x onerror=alert(1)>",
    "\x1b[31m\x1b]0;owned\x07\u202e\u2066\x9b31m\x00",
    "=HYPERLINK(1)[bold]x[/bold]\\[",
    "a\nb\r\n# EOF\n",
    '"\\"",|`*_',
    "x" * 9000,
)

_CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

folders = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)


def read(path: Path, words: tuple[str, ...]) -> tuple[int, str, str, list[Path]]:
    """Status, both streams, and the files that were made, of one reader of `path`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        told = [str(out) if word == "OUT" else word for word in words[1:]]
        streams = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            status = gputui([words[0], str(path), *told])
        made = sorted(Path(folder).rglob("*"))
        assert all(not entry.name.startswith(".") for entry in made)
        for entry in made:
            if entry.is_file() and words[-3] in ("csv", "json", "md", "html", "openmetrics"):
                streams[0].write(entry.read_text(encoding="utf-8"))
    return status, streams[0].getvalue(), streams[1].getvalue(), made


def is_tame(path: Path, readers: tuple[tuple[str, ...], ...] = READERS) -> set[int]:
    """The statuses with which the readers of a file end, once all that must hold does."""
    statuses = set()
    for words in readers:
        status, out, err, _ = read(path, words)
        assert status in (0, 1), (words, err)
        assert not _CONTROLS.search(out), words
        assert not _CONTROLS.search(err), words
        lines = err.splitlines()
        assert len(lines) <= 4, lines
        assert all(line.startswith("gputui: ") and len(line) < 1000 for line in lines), lines
        if status == 0:
            _reads_back(words, out)
        else:
            words_of_damage = ("damaged", "cut", "were dropped")
            assert len(lines) == 1 or any(word in err for word in words_of_damage), lines
        statuses.add(status)
    return statuses


def _reads_back(words: tuple[str, ...], out: str) -> None:
    if "json" in words and "chrome" not in words:
        json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    elif "html" in words:
        assert Page(out).is_inert
    elif "csv" in words:
        rows = list(csv.reader(io.StringIO(out)))
        assert not [
            cell
            for row in rows
            for cell in row
            if cell.lstrip().startswith(("=", "+", "@")) and not _is_number(cell)
        ]
    elif "openmetrics" in words:
        parser = pytest.importorskip("prometheus_client.openmetrics.parser")
        assert list(parser.text_string_to_metric_families(out))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- recordings --------------------------------------------------------------------------------


def rewritten(change: Callable[[str | None, Any], Any]) -> bytes:
    """The recording with every value given to `change` with the name of its field."""

    def walk(name: str | None, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(name, item) for item in value]
        return change(name, value)

    lines = [json.dumps(walk(None, json.loads(line))) for line in RECORDING.splitlines()]
    return "\n".join([*lines, ""]).encode()


_WORDS_OF_THE_FORMAT = {"event", "kind", "style", "stream", "lane", "memory_kind"}


@pytest.mark.parametrize("markup", MARKUP, ids=lambda markup: ascii(markup)[:24])
def test_markup_in_every_string_is_only_text(tmp_path: Path, markup: str) -> None:
    path = tmp_path / "x.gputui"
    path.write_bytes(
        rewritten(
            lambda name, value: (
                markup + value
                if isinstance(value, str) and name not in _WORDS_OF_THE_FORMAT
                else value
            )
        )
    )
    # All but the snapshot, which there is none of.
    assert is_tame(path, tuple(words for words in READERS if "snapshot" not in words)) == {0}


@pytest.mark.parametrize("figure", [0, -1, 2**62, 2**63 - 1, 2**64, 10**400, 1e308, 5e-324, 1.5])
@pytest.mark.parametrize("every", [1, 7])
def test_figures_of_any_size(tmp_path: Path, figure: float, every: int) -> None:
    seen = 0

    def change(_name: str | None, value: Any) -> Any:
        nonlocal seen
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        seen += 1
        return figure if seen > 60 and seen % every == 0 else value

    path = tmp_path / "x.gputui"
    path.write_bytes(rewritten(change))
    is_tame(path)


@folders
@given(data=st.data())
def test_a_harmed_recording_is_read_as_far_as_it_goes(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    path.write_bytes(_harmed(RECORDING, data))
    is_tame(path, READERS[:1] + tuple(data.draw(st.sets(st.sampled_from(READERS), max_size=3))))


def _harmed(content: bytes, data: st.DataObject) -> bytes:
    """Cut, or with some bytes that are others."""
    if data.draw(st.booleans()):
        return content[: data.draw(st.integers(0, len(content)))]
    harmed = bytearray(content)
    places = st.integers(0, len(content) - 1)
    for at in data.draw(st.lists(places, min_size=1, max_size=40)):
        harmed[at] = data.draw(st.integers(0, 255))
    return bytes(harmed)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 2_000_000,
        b'{"event":"metrics","time_ns":1,"run":1,"metrics":' + b'{"a":' * 100_000,
        b'{"event":"sample","time_ns":NaN}',
        b'{"event":"sample","time_ns":"1"}',
        b'{"event":["sample"]}',
        b"x" * (40 << 20),
        b"\xff\xfe\x00",
        b"null",
    ],
    ids=["deep", "deep metrics", "NaN", "wrong type", "wrong kind", "huge", "no text", "null"],
)
def test_a_line_that_is_none_ends_the_reading_and_is_said(tmp_path: Path, line: bytes) -> None:
    lines = RECORDING.splitlines(keepends=True)
    path = tmp_path / "x.gputui"
    path.write_bytes(b"".join(lines[:20]) + line + b"\n" + b"".join(lines[20:]))
    status, out, err, _ = read(path, ("summary",))
    assert status == 0
    assert "line 21" in err
    assert "read until there" in err
    assert "NVIDIA H200" in out
    is_tame(path, _DIFFERENT)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"{}\n", b"SQLite format 3\x00", b"\x1f\x8b", b"PK"]
)
def test_what_is_no_session_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gputui"
    path.write_bytes(content)
    assert is_tame(path, (*READERS, *TRACED)) == {1}


def _gzip(portion: bytes, times: int) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, out) as packed:
        for _ in range(times):
            packed.write(portion)
    return out.getvalue()


def _zstd(portion: bytes, times: int) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    packer = zstandard.ZstdCompressor(level=19).compressobj()
    return b"".join(packer.compress(portion) for _ in range(times)) + bytes(packer.flush())


_MEASURED = """
import json, re, sys
from pathlib import Path
from gputui.cli.dispatch import run
for words in json.loads(sys.argv[1]):
    status = run(words)
    # Not ru_maxrss, which begins with the parent's.
    used = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
    print(f"{words[0]}: status {status}, most {used >> 10} MiB", file=sys.stderr)
    if status or used >= 400 << 10:
        sys.exit(f"{words}")
"""


@pytest.fixture(scope="module", params=[_gzip, _zstd])
def bomb(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording that begins as others do, and then hundreds of megabytes of nothing."""
    path = tmp_path_factory.mktemp("bomb") / "x.gputui"
    lines = b"".join(RECORDING.splitlines(keepends=True)[:20])
    path.write_bytes(request.param(lines, 1) + request.param(b"\0" * (1 << 20), 60) * 8)
    return path


def test_a_bomb_is_put_down_by_every_reader_in_bounded_memory(tmp_path: Path, bomb: Path) -> None:
    readers = [
        [words[0], str(bomb), *(str(tmp_path / words[2]) if w == "OUT" else w for w in words[1:])]
        for words in _DIFFERENT
    ]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, json.dumps(readers)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("read until there") == len(readers)


# --- replayed without a screen -----------------------------------------------------------------


def replayed(path: Path) -> Session | None:
    """The state at the end of a replay; None where there is nothing to replay."""
    changed = threading.Event()
    try:
        playback = Playback.open(str(path), changed.set, speed=64)
    except JournalError:
        return None
    session = Session()
    playback.start()
    try:
        playback.seek(1e9)
        while not playback.has_ended:
            changed.wait(0.05)
            changed.clear()
            jumped, events = playback.drain()
            session = jumped or session
            session.apply(events)
        jumped, events = playback.drain()
        session = jumped or session
        session.apply(events)
        return session
    finally:
        playback.close()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.ExceptHookArgs]]:
    """What threads died of: nothing, when the test ends."""
    found: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", found.append)
    yield found
    assert found == []


@folders
@given(data=st.data())
def test_a_harmed_recording_is_replayed_as_far_as_it_goes(
    data: st.DataObject, tmp_path: Path, faults: list[threading.ExceptHookArgs]
) -> None:
    path = tmp_path / "x.gputui"
    path.write_bytes(_harmed(RECORDING, data))
    replayed(path)
    assert faults == []


# --- traces and exports of nsys ----------------------------------------------------------------


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with a trace beside it, made of what an nsys export holds."""
    from tests.render.test_traces import traced_ranks

    return traced_ranks(tmp_path_factory.mktemp("traced"))


@folders
@given(data=st.data())
def test_a_harmed_trace_is_exported_as_far_as_it_goes(
    data: st.DataObject, tmp_path: Path, traced: Path
) -> None:
    path = tmp_path / traced.name
    shutil.copyfile(traced, path)
    content = trace_path(traced).read_bytes()
    first = data.draw(st.sampled_from([0, RECORDS_AT]))
    harmed = content[:first] + _harmed(content[first:], data)
    trace_path(path).write_bytes(harmed)
    is_tame(path, TRACED)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An nsys export, the strings of which mean harm."""
    export = Export()
    for number, markup in enumerate((*MARKUP, "")):
        text = markup.encode("utf-8", "replace").decode()
        export.range(text, 1000 * number, 1000 * number + 900)
        export.kernel(text, (1000 * number, 1000 * number + 50), (2000, 2100), number + 1)
    return export.write(tmp_path_factory.mktemp("nsys") / "r.sqlite").read_bytes()


def test_markup_in_an_nsys_export_is_only_text(tmp_path: Path, report: bytes) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(report)
    readers = tuple(words for words in READERS if "snapshot" not in words)
    assert is_tame(path, (*readers, *TRACED)) == {0}


@folders
@given(data=st.data())
def test_a_harmed_nsys_export_is_read_as_far_as_it_goes(
    data: st.DataObject, tmp_path: Path, report: bytes
) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(_harmed(report, data))
    readers = (*READERS, *TRACED)
    is_tame(path, READERS[:1] + tuple(data.draw(st.sets(st.sampled_from(readers), max_size=2))))


@settings(folders, max_examples=40)
@given(data=st.data(), text=st.text(max_size=300), cell=st.text(max_size=40))
def test_any_table_of_nsys_stats_is_read_or_refused(
    data: st.DataObject, text: str, cell: str, tmp_path: Path
) -> None:
    head = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns)"
    for name, label in (("nvtx_pushpop_sum", "Range"), ("cuda_gpu_kern_sum", "Name")):
        content = f"{text}\n{head},{label}\n1,{cell},3,4,5,6,7,8,{cell}\n{text}"
        (tmp_path / f"r_{name}.csv").write_bytes(content.encode("utf-8", "replace"))
    is_tame(tmp_path, READERS[:1] + tuple(data.draw(st.sets(st.sampled_from(READERS), max_size=2))))
