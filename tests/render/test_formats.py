"""The registry of formats: what one declaration brings, and where formats are listed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gputui
from gputui.cli.dispatch import run as main
from gputui.model.events import ResultColumn, ResultTable, RunResult
from gputui.render import ExportError, formats
from gputui.render.columnar import typed_columns
from tests.conftest import DATA
from tests.events_for_tests import at, header, run_started

RECORDING = DATA / "h200-inference.gputui"

ONE_FILE = """
from gputui.render.formats import Format

SHOUT = Format(
    key="shout",
    title="the name, louder",
    text=lambda session, run, width: f"{run.started.name.upper()}!",
)
FORMATS = (SHOUT,)
"""
LISTED = """
import asyncio
from pathlib import Path
from gputui.render import formats
from gputui.tui.dialogs.boxes import ExportDialog
from textual.app import App
from textual.widgets import OptionList
dialog = ExportDialog(Path("x"), formats.every(), "Export the recording")
async def main():
    async with App().run_test() as pilot:
        await pilot.app.push_screen(dialog)
        print("\\n".join(f" {one.prompt}" for one in dialog.query_one(OptionList).options))
asyncio.run(main())
"""


def test_one_file_adds_a_format(tmp_path: Path) -> None:
    package = tmp_path / "gputui"
    shutil.copytree(
        Path(gputui.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "src")
    )
    (package / "render" / "formats" / "loud.py").write_text(ONE_FILE)

    def python(*arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True, text=True, check=False, cwd=tmp_path, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    program = ("-m", "gputui", "export")
    assert python(*program, str(RECORDING), "--format", "shout") == "INFERENCE!"
    assert "  shout        the name, louder\n" in python(*program, "--help")
    assert " shout        the name, louder" in python("-c", LISTED)


def test_a_format_is_found_by_its_key() -> None:
    assert all(formats.find(each.key) is each for each in formats.every())
    orders = [(each.order, each.key) for each in formats.every()]
    assert orders == sorted(orders)
    assert all(bool(each.text) != bool(each.write) for each in formats.every())
    with pytest.raises(ExportError, match="there is no format 'xml'; known: json, csv"):
        formats.find("xml")


def test_declarations_bring_nothing_heavy() -> None:
    code = (
        "import sys; from gputui.render import formats; formats.every();"
        "print(*{'numpy', 'pyarrow', 'textual', 'gputui.report'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_the_help_says_what_each_format_needs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    text = capsys.readouterr().out
    for known in formats.every():
        [line] = [line for line in text.splitlines() if line.startswith(f"  {known.key} ")]
        assert known.title in line
        assert known.requirements in line
        assert line.endswith("; -o OUT") == known.needs_path
    assert "needs a recording with --trace" in text
    assert "pyarrow (pip install 'gputui[export]')" in text


def test_a_missing_package_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    with pytest.raises(ExportError, match=r"needs the package pyarrow: pip install 'gputui\[ex"):
        formats.export(formats.ExportSource(str(RECORDING)), "parquet", tmp_path / "out")


def test_a_session_at_hand_has_no_samples_and_no_trace(tmp_path: Path) -> None:
    loaded = formats.ExportSource(str(RECORDING)).load()
    source = formats.ExportSource.in_memory(loaded.session, loaded.run)
    out = tmp_path / "x"
    with pytest.raises(ExportError, match="the chrome format needs a recording with --trace"):
        formats.export(source, "chrome", out)
    with pytest.raises(ExportError, match="the openmetrics format needs a recording"):
        formats.export(source, "openmetrics", out)
    written = formats.export(source, "json", out)
    assert written.paths == (out,)
    assert out.read_text() == formats.summary(loaded.session, loaded.run, "json")


@pytest.mark.parametrize("is_there", [True, False])
def test_csv_in_a_folder_has_a_file_each_table(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "tables"
    if is_there:
        folder.mkdir()
        (folder / "phases.csv").write_text("old")
        (folder / "mine.txt").write_text("kept")
    out = str(folder) if is_there else f"{folder}/"
    assert main(["export", str(RECORDING), "--format", "csv", "-o", out]) == 0
    loaded = formats.ExportSource(str(RECORDING)).load()
    sections = formats.summary(loaded.session, loaded.run, "csv").split("\n\n")
    found = {path.stem: path.read_text() for path in folder.glob("*.csv")}
    assert list(found) != []
    # Every table, also those that only --table shows.
    assert len(found) > len(sections)
    assert "nvtx_pushpop_sum" in found
    for section in sections:
        title, _, rows = section.partition("\n")
        name = title.strip('"').removeprefix("# ").partition(":")[0]
        assert found[name].rstrip("\n") == rows.rstrip("\n")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.csv")} == {0o600}
    if is_there:
        assert (folder / "mine.txt").read_text() == "kept"
    else:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not any(tmp_path.rglob(".*"))


@pytest.mark.parametrize("key", ["csv", "parquet"])
def test_names_of_tables_do_not_lead_out_of_a_folder(tmp_path: Path, key: str) -> None:
    if key == "parquet":
        pytest.importorskip("pyarrow")
    names = ("../../out", "/nowhere/x", "..", "", "samples", "phases", "Phases", "a\0b" * 99)
    tables = tuple(
        ResultTable(name=name, title="x", columns=(ResultColumn(name="n"),), rows=((1,),))
        for name in names
    )
    recording = tmp_path / "deep" / "x.gputui"
    recording.parent.mkdir()
    result = RunResult(
        time_ns=at(1), run=1, complete=True, parameters={}, results={}, tables=tables
    )
    events = (header(), run_started(), result)
    recording.write_bytes(msgspec.json.Encoder().encode_lines(events))
    out = tmp_path / "deep" / "er" / "out"
    out.parent.mkdir()
    assert main(["export", str(recording), "--format", key, "-o", f"{out}/"]) == 0
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - {recording}
    assert {path.parent for path in made} == {out}
    assert len(made) >= len(names)
    assert {path.suffix for path in made} == {f".{key}"}


def test_parquet_is_private_typed_and_says_what_it_holds(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "tables"
    assert main(["export", str(RECORDING), "--format", "parquet", "-o", str(folder)]) == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    for path in folder.iterdir():
        schema = parquet.read_schema(path)
        assert "null" not in {str(field.type) for field in schema}, path
        assert schema.metadata[b"table"].decode() == path.stem
        if path.stem != "samples":
            assert schema.metadata[b"run"] == b"inference #1"
    kernels = parquet.read_schema(folder / "cuda_gpu_kern_sum.parquet")
    assert kernels.metadata[b"title"] == b"CUDA GPU Kernel Summary"
    assert kernels.field("total_ns").metadata[b"unit"] == b"ns"
    assert kernels.field("name").metadata[b"meaning"] == b"The kernel's demangled name"
    samples = parquet.read_schema(folder / "samples.parquet")
    assert samples.field("power_watts").metadata[b"unit"] == b"W"
    assert samples.field("power_watts").metadata[b"meaning"]


def test_values_that_do_not_go_together_become_columns_of_one_type() -> None:
    class Pair(msgspec.Struct):
        a: int

    cells: list[tuple[Any, list[Any], dict[str, tuple[Any, list[Any]]]]] = [
        (int, [1, None], {"x": (int, [1, None])}),
        (int, [1, 2.5], {"x": (float, [1.0, 2.5])}),
        (int, [2**63, 1], {"x": (float, [2.0**63, 1.0])}),
        (float, [1, 2**2000], {"x": (float, [1.0, None])}),
        (int | None, [], {"x": (int, [])}),
        (object, [None], {"x": (str, [None])}),
        (list[int] | None, [], {"x": (list[int], [])}),
        (tuple[int, int, int], [(1, 2, 3), None], {"x": (list[int], [[1, 2, 3], None])}),
        (list[str], [[1, 2.5], []], {"x": (list[float], [[1.0, 2.5], []])}),
        (str, ["a", 1, None, True],
         {"x": (float, [None, 1.0, None, None]), "x_text": (str, ["a", None, None, "True"])}),
        (str, ["a", True], {"x": (str, ["a", "True"])}),
        (bool, [True, None], {"x": (bool, [True, None])}),
        (Pair | None, [Pair(1), {"b": 2}], {"x": (str, ['{"a":1}', '{"b":2}'])}),
    ]  # fmt: skip
    for declared, values, expected in cells:
        found = typed_columns({"x": declared}, [{"x": value} for value in values])
        assert {one.name: (one.kind, one.values) for one in found} == expected
