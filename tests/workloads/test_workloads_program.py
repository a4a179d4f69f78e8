"""`python -m workloads` from outside: statuses, streams, reports, signals, plug-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workloads.workload_child import ROOT, Child


def run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else None
    return subprocess.run(
        [sys.executable, "-m", "workloads", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_catalogue_declares_inference_and_imports_no_torch() -> None:
    check = (
        "import sys, runpy; sys.argv = ['workloads', '--catalogue']\n"
        "try: runpy.run_module('workloads', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "heavy = {'torch', 'numpy', 'nvtx', 'gputui'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    catalogue = json.loads(done.stdout)
    assert catalogue["schema"] == 1
    inference = next(w for w in catalogue["workloads"] if w["name"] == "inference")
    parameters = {parameter["name"]: parameter for parameter in inference["parameters"]}
    assert list(parameters) == [
        "size", "model", "text", "batch", "prompt", "tokens", "precision", "attention",
        "compile", "graphs", "snapshot", "device", "seed", "warmup",
    ]  # fmt: skip
    size = parameters["size"]
    assert size["choices"][:3] == ["gpt2-tiny", "gpt2", "gpt2-medium"]
    assert (size["default"], size["cpu_default"]) == ("gpt2", "gpt2-tiny")
    # What two workloads called by one name is called apart, and the old names still do.
    assert size["aliases"]["small"] == "gpt2"
    assert "older names: tiny = gpt2-tiny, small = gpt2," in size["help"]
    assert "llama-3.2-1b: 1.24 B" in size["help"]
    assert "vocabulary 128,256, context 131,072" in size["help"]
    # The padding counts among the parameters: GPT-2 has 124.4 million without it.
    assert (
        "gpt2: 124.5 M, 12 layers, 768 wide, 12 heads, vocabulary 50,257 padded to 50,304"
        in (size["help"])
    )
    train = next(w for w in catalogue["workloads"] if w["name"] == "train")
    assert train["parameters"][0]["aliases"]["small"] == "cs336-small"
    assert (parameters["prompt"]["min"], parameters["prompt"]["max"]) == (1, 131071)
    assert inference["step_range"] == "step"
    assert inference["source"] == "built-in"


def test_a_package_adds_workloads_and_a_broken_one_hides_no_other(plugins: Path) -> None:
    done = run("--catalogue", path=plugins)
    catalogue = json.loads(done.stdout)
    sources = {w["name"]: w["source"] for w in catalogue["workloads"]}
    assert sources["inference"] == "built-in"
    assert sources["count"] == "counting"
    broken = {failed["name"]: failed["error"] for failed in catalogue["broken"]}
    assert broken == {
        "exits": "counting: SystemExit: 5",
        "missing": "counting: AttributeError: module 'counting' has no attribute 'NOTHING'",
        "none": "counting: counting:NONE is not a Workload",
        "count": "counting: another workload is already named 'count'",
    }


def test_without_arguments_it_lists_what_can_be_run(plugins: Path) -> None:
    done = run(path=plugins)
    assert done.returncode == 0
    assert "inference       GPT-2 and Llama" in done.stdout
    assert "exits           fails to load: counting: SystemExit: 5" in done.stdout


def test_help_lists_parameters_on_stdout() -> None:
    done = run("inference", "--help")
    assert done.returncode == 0
    assert "--precision" in done.stdout
    assert "on the CPU gpt2-tiny" in " ".join(done.stdout.split())


def test_stdout_carries_the_document_alone_and_the_pipe_the_same(plugins: Path) -> None:
    finished = Child("count", "--to", "5", path=plugins).finish()
    assert finished.status == 0
    assert finished.document() == {
        "schema": 1,
        "workload": "count",
        "complete": True,
        "parameters": {"to": 5},
        "results": {"last": None},
        "unavailable": {},
        "tables": [
            {
                "name": "squares",
                "title": "Squares",
                "columns": [
                    {"name": "n", "unit": None, "help": "a number"},
                    {"name": "square_m2", "unit": "m2", "help": "its square"},
                ],
                "rows": [[0, 0], [1, 1], [2, 4], [3, None], [4, None], [5, None]],
            }
        ],
    }
    assert "noise on stdout" in finished.stderr
    assert finished.reports[-1] == {"type": "result", "result": finished.result()}
    (table,) = finished.reported("table")
    assert table == {"type": "table", **finished.document()["tables"][0]}
    # Others come where the machine is slow: they are limited by time.
    first, *_, last = [p["done"] for p in finished.reported("progress")]
    assert (first, last) == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["infrence"], "there is no workload 'infrence' (did you mean 'inference'?)"),
        (["inference", "--bach", "3"], "there is no parameter 'bach' (did you mean 'batch'?)"),
        (["inference", "--bach=3"], "there is no parameter 'bach' (did you mean 'batch'?)"),
        (["inference", "--batch", "0"], "batch: '0' is not a whole number from 1 to 65536"),
        (["inference", "--batch"], "argument --batch: expected one argument"),
        (["inference", "stray"], "'stray' does not belong to a parameter"),
        (["inference", "--preset", "quik"], "there is no preset 'quik' (did you mean 'quick'?)"),
        (["--nonsense"], "there is no workload '--nonsense'"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], complaint: str) -> None:
    finished = Child(*arguments).finish()
    assert finished.status == 2
    assert finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert line.startswith(f"workloads: {arguments[0]}: wrong usage: {complaint}")
    (error,) = finished.reports
    assert (error["type"], error["error"]) == ("error", "wrong usage")
    assert complaint in error["detail"]


def test_running_out_of_memory_is_one_line_status_1_and_an_error_report(plugins: Path) -> None:
    finished = Child("fail", path=plugins).finish()
    assert finished.status == 1
    last = finished.stderr.splitlines()[-1]
    assert last == "workloads: fail: out of memory: Tried to allocate 2 GiB."
    assert finished.reports == [
        {"type": "error", "error": "out of memory", "detail": "Tried to allocate 2 GiB."}
    ]


def test_a_bug_in_a_workload_shows_its_traceback_and_ends_in_one_line(plugins: Path) -> None:
    finished = Child("bug", path=plugins).finish()
    assert finished.status == 1
    assert finished.stderr.splitlines()[-1] == r"workloads: bug: failed: KeyError: 'a\nb'"
    assert finished.reported("metrics") == [{"type": "metrics", "metrics": {"reached": 1}}]
    assert finished.reports[-1]["error"] == "failed"


def test_a_package_that_does_not_load_says_why_when_it_is_asked_for(plugins: Path) -> None:
    finished = Child("exits", path=plugins).finish()
    assert finished.status == 1
    assert "exits: cannot run: it fails to load: counting: SystemExit: 5" in finished.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_what_there_is(plugins: Path, number: int) -> None:
    child = Child("wait", path=plugins)
    child.wait_for("progress", "waiting")
    child.process.send_signal(number)
    finished = child.finish()
    assert finished.status == 128 + number
    assert finished.document()["complete"] is False
    assert finished.reports[-1]["type"] == "result"
    assert "Traceback" not in finished.stderr


def test_a_monitor_that_died_ends_the_run_quietly(plugins: Path) -> None:
    child = Child("wait", path=plugins)
    child.wait_for("progress", "waiting")
    child.pipe.close()
    stdout, stderr = child.process.communicate()
    assert child.process.returncode == 1
    assert stdout == ""
    assert "Traceback" not in stderr


def test_a_report_descriptor_that_is_not_open_is_wrong_usage(plugins: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(plugins), "GPUTUI_REPORT_FD": "77"}
    done = subprocess.run(
        [sys.executable, "-m", "workloads", "count"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == ("workloads: GPUTUI_REPORT_FD is '77', not the number of an open pipe; unset it")
