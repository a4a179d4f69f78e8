"""Every figure of files of other tools, as the documents of `summary --format json`, and what they
came to when they were stored: making the reading faster must not change one.

    python -m tests.imports.figures_for_tests write          store them anew
    python -m tests.imports.figures_for_tests of FILE OUT    those of any file
    python -m tests.imports.figures_for_tests compare A B    which differ
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gputui.playback.opening import load
from gputui.report.summary_document import summary_document
from tests.bench.bench_imports import RichReport, repeat_report, write_chrome

DATA = Path(__file__).parents[1] / "data"
STORED = DATA / "foreign-figures.json.gz"

EPOCH_NS = 1_750_000_000_000_000_000
"""When all of these files were last written: of those without a date it becomes the run's."""

Figures = dict[str, Any]

SECTIONS = ("all", "api", "devices", "kernels", "launch_shapes", "marks", "memops_size",
            "memops_time", "phase_causes", "phases", "time", "timing")  # fmt: skip
"""The document's parts that are figures; what is concluded from them has tests of its own."""


def make_files(folder: Path) -> Iterator[Path]:
    """The files whose figures are stored: those of tests/data, and made ones with so many rows
    that they are read in blocks and kept in buckets."""
    import os

    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "h200-ranges.sqlite"
    with gzip.open(DATA / "h200-ranges.sqlite.gz") as packed, report.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    repeat_report(report, folder / "h200-ranges-repeated.sqlite", 20)
    RichReport(folder / "rich.sqlite").write(12)
    write_chrome(folder / "chrome.json", 10)
    shutil.copyfile(DATA / "h100-training.json.gz", folder / "h100-training.json.gz")
    for path in sorted(folder.iterdir()):
        os.utime(path, ns=(EPOCH_NS, EPOCH_NS))
        yield path


def figures_of(path: Path) -> Figures:
    """The figures of a file, by the document's sections."""
    loaded = load(str(path))
    encoded = msgspec.json.encode(summary_document(loaded.session, loaded.run))
    document: Figures = json.loads(encoded)
    return {name: document[name] for name in SECTIONS}


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Where two documents differ, a line each; what is new in the second is no difference.

    Floats are equal if their first twelve digits are: deviations are sums of floats, and depend on
    the order of addition from there on."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before):
            yield from differences(before.get(key), after.get(key), f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from differences(left, right, f"{place}/{number}")
    elif isinstance(before, float) or isinstance(after, float):
        if before is None or after is None or f"{before:.12g}" != f"{after:.12g}":
            yield f"{place}: {before} -> {after}"
    elif before != after:
        yield f"{place}: {str(before)[:200]} -> {str(after)[:200]}"


def stored() -> dict[str, Figures]:
    """The stored documents by the names of their files."""
    with gzip.open(STORED) as file:
        documents: dict[str, Figures] = json.load(file)
        return documents


def main() -> None:
    """Store the figures, or look at those of one file or of two documents."""
    import tempfile

    match sys.argv[1:]:
        case ["write"]:
            with tempfile.TemporaryDirectory() as folder:
                documents = {path.name: figures_of(path) for path in make_files(Path(folder))}
            text = json.dumps(documents, separators=(",", ":"), sort_keys=True)
            with STORED.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
                packed.write(text.encode())
        case ["of", file_name, out]:
            Path(out).write_text(json.dumps(figures_of(Path(file_name)), indent=1, sort_keys=True))
        case ["compare", first, second]:
            before, after = (json.loads(Path(name).read_text()) for name in (first, second))
            for line in differences(before, after):
                print(line)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
