"""A cure is added in one file: the recipe of docs, carried out on a copy of the package."""

from __future__ import annotations

from pathlib import Path

from tests.package_copies_for_tests import check_copy, copy_package

_CURE = '''

class PlainRows(Cure):
    """Lists instead of dictionaries from the csv module."""

    name = "plain_rows"
    title = "rows are lists"
    answers = ("idle.input",)
    result = EXACT
    change = "csv.reader(file)"
    library = "csv"

    def apply(self, csv: Any) -> Undo:
        if csv.field_size_limit() < 0:
            raise CannotApply("this csv has no limit")
        return replaced((csv, "DictReader", csv.reader))
'''

_CHECK = """
import json, os, subprocess, sys, tempfile
from pathlib import Path
import gputui
from gputui.cures import cures
from gputui.inject.environment import trial_environment
from gputui.trial.planning import plan
from gputui.report.explain.finding import Finding

assert gputui.__file__.startswith(FOLDER), gputui.__file__
assert "plain_rows" in cures()
finding = Finding(cause="idle.input", word="", sentence="", advice="", value=1.0, threshold=0.1,
                  source="")
assert "plain_rows" in [candidate.name for candidate in plan([finding])]
with tempfile.TemporaryDirectory() as folder:
    environment = trial_environment(Path(folder), os.environ, ("plain_rows",), "{}")
    program = "import csv; print(csv.DictReader is csv.reader)"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True,
                          text=True, check=True)
    assert done.stdout.strip() == "True", done.stderr
    (said,) = Path(folder).glob("cures-*")
    assert json.loads(said.read_text()) == {"cure": "plain_rows", "applied": True}
"""


def test_a_cure_is_a_class_in_one_file(tmp_path: Path) -> None:
    """In the module of its family, with what that imports already."""
    family = copy_package(tmp_path) / "cures" / "runtime.py"
    family.write_text(family.read_text(encoding="utf-8") + _CURE, encoding="utf-8")
    check_copy(tmp_path, _CHECK)


def test_a_family_is_one_file(tmp_path: Path) -> None:
    head = (
        "from __future__ import annotations\n\nfrom . import EXACT, CannotApply, Cure, replaced\n"
    )
    family = copy_package(tmp_path) / "cures" / "rows.py"
    family.write_text(head + _CURE, encoding="utf-8")
    check_copy(tmp_path, _CHECK)
