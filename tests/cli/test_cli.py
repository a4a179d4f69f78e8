"""What a person types, through the real program: in a process of its own where that matters."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gputui.cli.dispatch import run
from gputui.cli.doctor import self_test
from gputui.inject.environment import library_path
from gputui.state import Session
from gputui.store.journal.reader import JournalReader

PROGRAM = [sys.executable, "-m", "gputui"]
LIMIT_S = 120
"""Against what hangs: the machine may be slow."""

READS_KEYS = b"\x1b[?1000h"
"""What the screen writes once it reads keys: the first reading is drawn before."""

TINY = ["--workload", "inference", "-p", "size=tiny", "-p", "tokens=4", "-p", "device=cpu"]


def gputui(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    given = {"stdin": subprocess.DEVNULL} if "input" not in options else {}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*PROGRAM, *words], capture_output=True, text=True, check=False, **given, **options
    )


def inside(*words: str) -> subprocess.CompletedProcess[str]:
    """The same in this process: what reads a file, or is refused, needs none of its own."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(words)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def one_line(done: subprocess.CompletedProcess[str], status: int, words: str) -> None:
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("gputui: ")
    assert done.stdout == ""


def folded(path: Path) -> Session:
    return Session.from_events(JournalReader.open(path))


class Terminal:
    """One on which `words` run, or whose other side has the descriptor `of`; `seen` is what was
    written to it."""

    def __init__(self, *words: str, of: int | None = None, **environment: str) -> None:
        self._pid = None
        if of is None:
            self._pid, of = pty.fork()
            if self._pid == 0:
                os.environ |= environment
                os.execvp(words[0], words)
        self._side = of
        self.seen = b""

    def until(self, shown: Callable[[bytes], bool]) -> None:
        """Read until `shown` holds of all that was seen."""
        deadline = time.monotonic() + LIMIT_S
        while not shown(self.seen):
            assert self._read(deadline), self.seen

    def type(self, keys: bytes) -> None:
        os.write(self._side, keys)

    def ended(self) -> int:
        """The status of what ran on it, once nobody writes any more."""
        deadline = time.monotonic() + LIMIT_S
        while self._read(deadline):
            pass
        os.close(self._side)
        assert self._pid is not None
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self, deadline: float) -> bool:
        left_s = max(0.0, deadline - time.monotonic())
        assert select.select([self._side], [], [], left_s)[0], self.seen
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
            more = os.read(self._side, 65536)
            self.seen += more
            return bool(more)
        return False


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made where a package of somebody else's is called workloads too."""
    folder = tmp_path_factory.mktemp("recording")
    (folder / "workloads").mkdir()
    (folder / "workloads" / "__init__.py").write_text("raise SystemExit('I am somebody else')")
    path = folder / "x.gputui"
    done = gputui("--record", *TINY, "-o", str(path), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "  by phase " in done.stdout
    assert str(path) in done.stderr
    return path


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag: str) -> None:
    assert gputui(flag).stdout.startswith("gputui ")


def test_help_names_every_mode() -> None:
    text = gputui("--help").stdout
    for word in ("--record", "--replay", "--once", "workloads", "summary", "export", "doctor"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recrod"], "--recrod (did you mean --record?)"),
        (["summary", "--tabel", "x", "y"], "--tabel (did you mean --table?)"),
        (["summry", "x"], "there is no command 'summry' (did you mean summary?)"),
        (["python", "x.py"], "did you mean: gputui -- python x.py"),
        (["python", "x.py", "--json"], "did you mean: gputui -- python x.py --json"),
        (["--record", "-i", "2", "./a b"], "did you mean: gputui --record -i 2 -- './a b'"),
        (["x.gputui"], "did you mean: gputui --replay x.gputui"),
        (["--theme", "nope"], "--theme nope: give one of gputui-dark, "),
        (["--theme", "norf"], "(did you mean nord?)"),
        (["help", "summery"], "there is no topic 'summery' (did you mean summary?)"),
        (["completion", "tcsh"], "give one of bash, zsh, fish"),
        (["--record", "--once"], "--record and --once exclude each other"),
        (["--record", "--workload", "inference", "--", "true"], "not both"),
        (["--once", "--workload", "inference"], "--once does not run anything"),
        (["--"], "nothing to run after --"),
        (["-p", "size=tiny"], "-p needs --workload"),
        (["--json"], "--json needs --once"),
        (["--watch"], "--watch needs --once"),
        (["--duration", "5s"], "--duration needs --record"),
        (["--record", "--duration", "soon"], "--duration soon: give a time like 30s"),
        (["--record", "--duration", "0"], "--duration 0: give a time"),
        (["--record", "--duration", f"{10**20}s"], "give a time like 30s"),
        (["-o", "-"], "-o - needs --record"),
        (["--re\x1b[31m"], "unrecognized arguments: --re\N{REPLACEMENT CHARACTER}[31m"),
        (["--record", "--alert", "gpu.temprature > 85"], "did you mean gpu.temperature_celsius"),
        (["--record", "--notify", "mail"], "--notify mail: give one of bell, osc9, osc777"),
        (["--demo", "--alert", "idle > 5%"], "--alert needs a recording"),
        (["--record", "-i", "0.01"], "--interval 0.01: give 0.1 to 3600 seconds"),
        (["--record", "-i", "nan"], "--interval nan: give 0.1 to 3600 seconds"),
        (["--record", "--workload", "inferense"], "did you mean inference"),
        (["--record", "--workload", "inference", "-p", "size"], "give KEY=VALUE"),
        (["--record", "--workload", "inference", "-p", "sise=1"], "did you mean size"),
        (["--record", "--workload", "inference", "-p", "batch=x"], "batch=x: expected"),
        (["--replay", "x", "--speed", "1000"], "--speed 1000: give 0.25 to 64"),
        (["summary"], "required: FILE"),
        (["compare", "-", "-"], "- is standard input, which can be read once"),
        (["export", "x"], "required: --format"),
        (["--config", "/no/such/file", "--once"], "there is no such file"),
        (["--readonly", "--workload", "inference"], "--readonly starts nothing"),
        (["attach", "2", "--readonly"], "--readonly leaves every process as it is"),
        (["detach", "2", "--readonly"], "--readonly leaves every process as it is"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(words: list[str], message: str) -> None:
    one_line(inside(*words), 2, message)


def test_the_screen_needs_a_terminal() -> None:
    one_line(gputui(), 2, "the screen needs a terminal")


def test_read_only_mode_is_enforced_wherever_it_is_set(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("readonly = true\n")
    words = ["--record", "-o", str(tmp_path / "x.gputui"), "--", "touch", str(tmp_path / "ran")]
    in_file, plain = ["--config", str(config)], dict(os.environ)
    one_line(gputui("--readonly", *words), 2, "--readonly starts nothing")
    variable = plain | {"GPUTUI_READONLY": "yes"}
    one_line(gputui(*words, env=variable), 2, "GPUTUI_READONLY=yes starts nothing")
    one_line(gputui(*in_file, *words), 2, "config.toml: readonly = true starts nothing")
    assert not (tmp_path / "ran").exists()
    overruled = plain | {"GPUTUI_READONLY": "no"}
    assert gputui(*in_file, *words, env=overruled).returncode == 0
    assert (tmp_path / "ran").exists()


def test_wrong_usage_leaves_no_file_behind(tmp_path: Path) -> None:
    words = ["--record", "--trace", "-o", str(tmp_path / "x.gputui"), "--duration", "soon"]
    one_line(gputui(*words), 2, "--duration soon")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["summary", "/no/such/file"], "no such file or directory"),
        (["summary", "/etc/passwd"], "is not a gputui session"),
        (["summary", "/"], "no recording in it is of a rank of a job; name a file"),
        (["export", "/dev/null", "--format", "csv"], "not a file"),
        (["--record", "-o", "/no/such/folder/x.gputui"], "no such file or directory"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line_and_status_1(
    words: list[str], message: str
) -> None:
    one_line(inside(*words), 1, message)


def test_once_as_json_has_the_names_of_the_document() -> None:
    done = gputui("--once", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["schema"] == 2
    assert document["host"]["cpu_count"] >= 1
    assert isinstance(document["gpus"], list)
    assert document["gpus"] or document["gpu_unavailable_reason"]


def test_once_for_people_fits_eighty_columns_and_says_why_there_is_no_gpu() -> None:
    done = gputui("--once")
    assert done.returncode == 0
    assert "CPU" in done.stdout


def test_workloads_lists_and_describes() -> None:
    assert "inference" in gputui("workloads").stdout
    assert "tokens" in gputui("workloads", "inference").stdout
    document = json.loads(gputui("workloads", "inference", "--json").stdout)
    assert document["name"] == "inference"
    one_line(gputui("workloads", "nope"), 2, "there is no workload")


def test_a_recorded_workload_sums_up_with_the_counts_its_shape_implies(recording: Path) -> None:
    document = json.loads(inside("summary", str(recording), "--format", "json").stdout)
    instances = {row["path"]: row["instances"] for row in document["phases"]}
    # 4 tokens: one from the prompt pass, 3 decode steps; size tiny has 2 layers.
    assert instances["decode/step"] == 3
    assert instances["decode/step/attention"] == 3 * 2
    assert instances["decode/step/norm"] == 3 * (2 * 2 + 1)
    assert instances["prefill/step/mlp"] == 2
    assert document["run"]["exit_code"] == 0
    assert document["run"]["parameters"]["batch"] == 1
    assert document["metrics"]["output_tokens"] == 4
    assert document["dropped_events"] == 0
    assert document["kernels"] == []
    decode = next(row for row in document["phases"] if row["path"] == "decode")
    assert decode["kernels"] is None
    assert decode["gpu_busy_ns"] is None


def test_one_table_as_csv(recording: Path) -> None:
    done = inside("summary", str(recording), "--table", "nvtx_pushpop_sum", "--format", "csv")
    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert rows[0] == [
        "Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)",
        "Max (ns)", "StdDev (ns)", "Range",
    ]  # fmt: skip
    assert ":attention" in {row[-1] for row in rows[1:]}
    one_line(inside("summary", str(recording), "--table", "nope"), 2, "there is no table 'nope'")


def test_several_tables_at_once(recording: Path) -> None:
    both = ("--table", "nvtx_sum", "--table", "cuda_api_sum", "--format")
    several = [inside("summary", str(recording), *both, form) for form in ("csv", "json")]
    names = ("nvtx_sum", "cuda_api_sum")
    alone = [
        [inside("summary", str(recording), "--table", name, "--format", form).stdout
         for name in names] for form in ("csv", "json")
    ]  # fmt: skip
    sections = several[0].stdout.split("# ")[1:]
    assert [section.partition("\n")[2].rstrip() for section in sections] == [
        text.rstrip() for text in alone[0]
    ]
    assert json.loads(several[1].stdout) == [json.loads(text) for text in alone[1]]
    refused = inside("summary", str(recording), *both[:-1], "--table", "cuda_gpu_trace")
    one_line(refused, 2, "--table cuda_gpu_trace: a table of single events is printed by itself")


@pytest.mark.parametrize("name", ["csv", "json", "md"])
def test_export_writes_a_file_whole(recording: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / f"out.{name}"
    done = inside("export", str(recording), "--format", name, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "attention" in out.read_text()
    assert list(tmp_path.iterdir()) == [out]
    done = inside("export", str(recording), "--format", name, "-o", "/no/such/x")
    one_line(done, 1, "cannot write /no/such/x")


def test_an_export_of_one_table_is_that_of_the_summary(recording: Path, tmp_path: Path) -> None:
    wanted = (str(recording), "--format", "csv", "--table", "nvtx_pushpop_sum")
    out = tmp_path / "out.csv"
    done = inside("export", *wanted, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert out.read_text() == inside("summary", *wanted).stdout
    done = inside("export", *wanted[:-1], "nope")
    one_line(done, 2, "there is no table 'nope'")
    done = inside("export", *wanted[:-1], "cuda_gpu_trace")
    one_line(done, 2, "gputui summary writes single events")


def test_an_export_never_replaces_what_it_reads(recording: Path) -> None:
    before = recording.read_bytes()
    done = inside("export", str(recording), "--format", "json", "-o", str(recording))
    one_line(done, 2, "that is the file to read")
    assert recording.read_bytes() == before


def test_a_cut_recording_sums_up_and_says_where_it_ends(recording: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gputui"
    cut.write_bytes(recording.read_bytes()[:-20])
    done = inside("summary", str(cut))
    assert done.returncode == 0
    assert "is truncated; read until there" in done.stderr
    assert "  by phase " in done.stdout


def test_a_journal_on_stdout_can_be_read_from_a_pipe() -> None:
    marks = [sys.executable, "-c", "import nvtx; nvtx.push_range('a'); nvtx.pop_range()"]
    done = gputui("--record", "-o", "-", "--", *marks)
    assert done.returncode == 0
    assert done.stderr == ""  # the pipe's reader may draw on the same terminal
    again = gputui("summary", "-", "--format", "json", input=done.stdout)
    assert [phase["path"] for phase in json.loads(again.stdout)["phases"]] == ["a"]


def test_a_command_keeps_its_streams_and_its_status(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    script = "echo out; echo err >&2; exit 7"
    done = gputui("--record", "-o", str(path), "--", "sh", "-c", script)
    assert done.returncode == 7
    assert done.stdout == "out\n"
    assert done.stderr.startswith("err\n")
    run = folded(path).run
    assert run is not None
    assert {(line.stream, line.text) for line in run.log} >= {("stdout", "out"), ("stderr", "err")}


@pytest.mark.parametrize("kept", [False, True])
def test_secrets_of_a_command_line_are_recorded_only_where_that_is_asked_for(
    tmp_path: Path, kept: bool
) -> None:
    path = tmp_path / "r.gputui"
    words = ["--record", "-o", str(path), *["--keep-arguments"] * kept, "--"]
    secrets = ["--token", "first-secret", "API_KEY=second-secret", "http://third-secret@box/a"]
    assert gputui(*words, "true", *secrets, "plain").returncode == 0
    recorded = path.read_text()
    assert "plain" in recorded
    for secret in ("first-secret", "second-secret", "third-secret"):
        assert (secret in recorded) == kept


def test_arguments_that_are_no_text_leave_the_recording_readable(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    done = gputui("--record", "-o", str(path), "--", "true", b"\xff")  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    session = folded(path)
    assert session.header is not None
    assert session.header.arguments[-1] == "\N{REPLACEMENT CHARACTER}"


def test_a_command_killed_by_a_signal_gives_128_and_the_signal(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    done = gputui("--record", "-o", str(path), "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 128 + 9


def test_a_command_that_is_not_there_gives_127(tmp_path: Path) -> None:
    done = gputui("--record", "-o", str(tmp_path / "x.gputui"), "--", "no-such-command")
    assert done.returncode == 127
    assert done.stderr == "gputui: cannot start no-such-command: command not found\n"
    assert not list(tmp_path.iterdir())


def test_a_workload_that_refuses_gives_its_reason_and_status_2(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    words = ["--workload", "inference", "-p", "prompt=1000", "-p", "tokens=1000"]
    done = gputui("--record", "-o", str(path), *words)
    assert done.returncode == 2
    assert "1000 + 1000 = 2000 is more than the context of 1024" in done.stderr
    assert "not captured" not in done.stderr
    assert folded(path).run is not None


def test_a_profiler_that_finds_cupti_taken_is_explained_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.gputui"
    refused = "echo CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED >&2"
    done = gputui("--record", "-o", str(path), "--", "sh", "-c", f"{refused}; {refused}; exit 3")
    assert done.returncode == 3
    assert done.stderr.count("gputui: a profiler in the command needs CUPTI too") == 1
    assert path.read_text().count("run with --no-kernels") == 1


def test_recording_the_machine_ends_after_its_duration(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    alert = "host.memory_used_bytes > 1kiB"
    words = ["--record", "--duration", "3s", "-i", "0.1", "-o", str(path)]
    done = inside(*words, "--alert", alert, "--notify", "bell")
    assert done.returncode == 0
    session = folded(path)
    assert session.samples >= 1
    assert [(span.raised.condition, span.lasts) for span in session.alerts] == [(alert, True)]
    assert done.stderr.count(f"gputui: ALERT {alert}: ") == 1
    assert "\x07" not in done.stderr  # it is no terminal
    assert f"ALERT          {alert}: " in done.stdout


@pytest.mark.parametrize(
    ("duration_s", "words"),
    [
        (0.001, ["--", "sleep", "300"]),
        (1, ["--", "sh", "-c", "trap 'exit 9' TERM; sleep 300 & wait"]),
        (3, ["--workload", "train", "-p", "size=tiny", "-p", "steps=100000", "-p", "device=cpu"]),
    ],
)
def test_what_the_duration_ends_is_a_success(
    tmp_path: Path, duration_s: float, words: list[str]
) -> None:
    path = tmp_path / "x.gputui"
    done = gputui("--record", "--duration", f"{duration_s}s", "-o", str(path), *words)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("gputui: ")]
    # A command that loads neither NVTX nor CUDA; on a busy machine the workload has not yet either.
    if words[0] == "--" or "not captured" in said[0]:
        assert "no phases and no kernels" in said.pop(0)
    assert len(said) == 2  # where the recording is, and why it ended
    assert said[1].endswith(f"was stopped: --duration {duration_s} s is over")
    run = folded(path).run
    assert run is not None
    assert run.ended is not None
    assert run.ended.stopped


def test_what_failed_before_its_duration_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    words = ["--record", "--duration", "100s", "-o", str(path), "--", "sh", "-c", "exit 7"]
    assert gputui(*words).returncode == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_recording_whole_with_no_orphan(tmp_path: Path, number: int) -> None:
    path, marker = tmp_path / "x.gputui", tmp_path / "pid"
    script = f"echo $$ > {marker}.tmp; mv {marker}.tmp {marker}; echo up; exec sleep 300"
    words = [*PROGRAM, "--record", "-o", str(path), "--", "sh", "-c", script]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as monitor:
        assert monitor.stdout is not None
        assert monitor.stdout.readline() == "up\n"
        child = int(marker.read_text())
        monitor.send_signal(number)
        monitor.wait(LIMIT_S)
        assert monitor.returncode != 0
    assert not Path(f"/proc/{child}").exists()
    reader = JournalReader.open(path)
    session = Session.from_events(reader)
    assert reader.damage is None
    assert session.run is not None
    assert session.run.ended is not None
    assert session.run.ended.signal is not None


def test_settings_come_from_flag_then_environment_then_file(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("interval = 30\n")

    def interval(*words: str, **environment: str) -> float:
        path = tmp_path / f"{time.time_ns()}.gputui"
        done = gputui(
            "--record", "--duration", "200ms", "--config", str(config), "-o", str(path), *words,
            env={**os.environ, **environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return JournalReader.open(path).header.interval_s

    assert interval() == 30
    assert interval(GPUTUI_INTERVAL="20") == 20
    assert interval("-i", "10", GPUTUI_INTERVAL="20") == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("intervall = 1", "did you mean interval"),
        ("interval = 'x'", "interval x: give a time"),
        ("readonly = 3", "readonly = 3: give true or false"),
        ("interval = ", "not readable as TOML"),
        (f"interval = {10**400}", "give 0.1 to 3600 seconds"),
        (f"interval = {'[' * 5000}", "not readable as TOML"),
    ],
)
def test_a_wrong_settings_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    done = gputui("--config", str(config), "--once")
    one_line(done, 2, message)
    assert str(config) in done.stderr


def test_doctor_says_what_works_and_what_does_not() -> None:
    document = json.loads(gputui("doctor", "--json").stdout)
    status = {check["name"]: check["status"] for check in document["checks"]}
    assert status["python"] == "ok"
    assert "driver" in status
    assert "capture library" in status
    assert "capture library" in gputui("doctor").stdout


def test_without_a_screen_textual_is_never_imported() -> None:
    given = ["--version", "--help", "--once", "workloads", "help", "help recipes/option"]
    given += ["completion bash", "completion words --re", "doctor"]
    program = (
        "import sys, runpy\n"
        "others = {}\n"
        f"for words in {given!r}:\n"
        "    sys.argv = ['gputui', *words.split()]\n"
        "    try: runpy.run_module('gputui', run_name='__main__')\n"
        "    except SystemExit: pass\n"
        "    loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "    others[words] = loaded & {'textual', 'rich', 'torch', 'workloads'}\n"
        "print([words for words in others if others[words]], len(others), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == f"[] {len(given)}"


def test_recording_a_machine_loads_neither_numpy_nor_an_exporter(tmp_path: Path) -> None:
    words = ["--record", "--duration", "200ms", "-o", str(tmp_path / "x.gputui")]
    program = (
        "import sys\n"
        "from gputui.cli.dispatch import run\n"
        # What draws the screen's first frame needs neither of these, which take longer than it.
        "from gputui.cli import live\n"
        "from gputui.collect.nvml import opening\n"
        "from gputui.tui.early import first_frame\n"
        "early = {'msgspec', 'psutil'} & {*sys.modules}\n"
        f"status = run({words!r})\n"
        "print(status, *early, sorted({'numpy', 'pyarrow', 'textual', 'gputui.attribute.reader',\n"
        "    'gputui.render.html', 'gputui.render.columnar', 'gputui.render.prometheus_server'}\n"
        "    & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "0 []"


@pytest.mark.parametrize(
    "words",
    [
        ["summary"],
        ["summary", "--format", "json"],
        ["export", "--format", "csv"],
        ["export", "--format", "openmetrics"],
        ["compare"],
        ["workloads"],
        ["workloads", "--json"],
    ],
    ids=" ".join,
)
def test_a_full_disk_under_stdout_is_one_line_and_status_1(
    recording: Path, words: list[str]
) -> None:
    files = {"workloads": [], "compare": [recording] * 2}.get(words[0], [recording])
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [*PROGRAM, *words, *files],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "gputui: cannot write to standard output: no space left on device\n"


def test_a_folder_that_was_deleted_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = tmp_path / "deleted"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()
    one_line(inside("try", "--", "true"), 1, "this folder was deleted")


def test_no_room_for_a_thread_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under ulimit -u and ulimit -v."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    one_line(inside("--once"), 1, "no thread can be started")


def test_a_reader_that_went_leaves_the_commands_status(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = ["--record", "-o", str(tmp_path / "x.gputui"), "--", "sh", "-c", "echo out; exit 3"]
    done = subprocess.run(
        [*PROGRAM, *words], stdout=write, stderr=write, stdin=subprocess.DEVNULL, check=False
    )
    os.close(write)
    assert done.returncode == 3
    run = folded(tmp_path / "x.gputui").run
    assert run is not None
    assert run.ended is not None


def test_a_run_outlives_the_reader_of_its_recording(tmp_path: Path) -> None:
    """`gputui --record -o - -- CMD | gputui --replay -`, and `q`: nobody asked to end CMD."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        [*PROGRAM, "--record", "-o", "-", "--", "sh", "-c", f"read line < {fifo}; exit 3"],
        stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE, text=True,
    ) as recording:  # fmt: skip
        os.close(write)
        assert recording.stderr is not None
        assert "sh goes on without it: Ctrl-C ends it" in next(recording.stderr)
        fifo.write_text("now\n")
        assert recording.wait(LIMIT_S) == 3
        assert "stopped" not in recording.stderr.read()


def test_progress_that_has_hardly_begun_has_no_time_left(tmp_path: Path) -> None:
    report = '{"type":"progress","stage":"x","done":5e-324,"total":1}'
    code = f"import os, time; os.write(int(os.environ['GPUTUI_REPORT_FD']), b'{report}\\n')"
    words = ["--record", "-o", str(tmp_path / "x.gputui"), "-i", "0.1"]
    main, side = os.openpty()
    recording = subprocess.Popen(
        [*PROGRAM, *words, "--", sys.executable, "-c", f"{code}\ntime.sleep(600)"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=side,
    )  # fmt: skip
    os.close(side)
    terminal = Terminal(of=main)
    terminal.until(lambda seen: b"x 4.94" in seen)
    terminal.until(lambda seen: seen.count(b"\r\x1b[K") >= 8)
    recording.send_signal(signal.SIGTERM)
    assert recording.wait(LIMIT_S) == 128 + signal.SIGTERM
    os.close(main)
    assert b"ETA" not in terminal.seen


def test_a_reader_that_stopped_reading_cannot_hold_the_program(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import gputui.cli.record\ngputui.cli.record._CLOSING_S = 1.0\n"
    )
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"full")
    os.set_blocking(write, True)
    with subprocess.Popen(
        [*PROGRAM, "--record", "-o", "-", "--", "sh", "-c", f"echo $$ > {fifo}; exec sleep 600"],
        stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
    ) as recording:  # fmt: skip
        child = psutil.Process(int(fifo.read_text()))
        recording.send_signal(signal.SIGTERM)
        assert recording.wait(LIMIT_S) == 1
        assert recording.stderr is not None
        assert "stopped reading" in recording.stderr.read()
    assert not psutil.wait_procs([child], LIMIT_S)[1]
    os.close(read)
    os.close(write)


def test_recordings_begun_at_once_all_find_a_name(tmp_path: Path) -> None:
    place = {"XDG_DATA_HOME": str(tmp_path)}
    together = [
        subprocess.Popen([*PROGRAM, "--record", "--", "true"], env=os.environ | place,
                         stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(4)
    ]  # fmt: skip
    assert [one.wait(LIMIT_S) for one in together] == [0] * 4
    assert len(list(tmp_path.rglob("*.gputui"))) == 4


def test_a_recording_that_did_not_begin_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    path.write_text("precious")
    done = gputui("--record", "--trace", "-o", str(path), "--", "true")
    one_line(done, 1, "already exists")
    assert [entry.name for entry in tmp_path.glob("x*")] == ["x.gputui"]
    assert path.read_text() == "precious"


def test_a_folder_of_settings_that_nobody_can_look_into_is_no_settings() -> None:
    done = gputui("--once", "--json", env=os.environ | {"XDG_CONFIG_HOME": "/dev/null"})
    assert done.returncode == 0, done.stderr


def test_an_encoding_without_arrows_loses_the_arrows_alone(recording: Path) -> None:
    plain = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = gputui("summary", str(recording), "--full", env=plain)
    assert done.returncode == 0, done.stderr
    assert "  by phase " in done.stdout
    assert "\n-----" in done.stdout
    assert "?????" not in done.stdout


def test_a_terminal_that_only_prints_is_told_what_to_use_instead() -> None:
    main, side = os.openpty()
    done = subprocess.run(
        [*PROGRAM, "--demo"],
        stdin=side,
        stdout=side,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "dumb"},
        text=True,
        check=False,
    )
    os.close(side)
    os.close(main)
    assert done.returncode == 2
    assert done.stderr.startswith("gputui: TERM=dumb draws no screen: set TERM")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(library_path() is None, reason="the capture library is not built")
def test_doctor_does_not_wait_for_a_child_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvtx.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = self_test(timeout_s=0.5)
    assert (check.status, check.detail) == (
        "missing",
        "a child that makes one NVTX range hung for 0.5 s",
    )
    assert check.mend


def test_doctor_prints_nothing_that_a_terminal_obeys() -> None:
    nowhere = {"TERM": "x\x1b[31m", "XDG_DATA_HOME": "/dev/null"}
    checks = json.loads(gputui("doctor", "--json", env=os.environ | nowhere).stdout)["checks"]
    found = {check["name"]: (check["status"], check["detail"]) for check in checks}
    assert found["terminal"][1].startswith("x\N{REPLACEMENT CHARACTER}[31m")
    assert found["recordings"] == ("warning", "/dev/null cannot be written")


def test_a_folder_called_workloads_is_not_taken_for_ours(recording: Path) -> None:
    assert (recording.parent / "workloads" / "__init__.py").exists()
    assert "inference" in gputui("workloads", cwd=recording.parent).stdout
    made = folded(recording).run
    assert made is not None
    assert made.started.name == "inference"


def test_what_a_catalogue_says_is_cleaned(tmp_path: Path) -> None:
    stranger = tmp_path / "workloads"
    stranger.mkdir()
    document = '{"schema":1,"workloads":[{"name":"\\u001b[31mred","summary":"\x9b1m"}]}'
    (stranger / "__init__.py").touch()
    (stranger / "__main__.py").write_text(f"print({document!r})", encoding="utf-8")
    done = gputui("workloads", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    odd = "\N{REPLACEMENT CHARACTER}"
    assert done.stdout == f"{odd}[31mred  {odd}1m\n"


def test_a_piped_recording_is_shown_and_keys_come_from_the_terminal(recording: Path) -> None:
    program = f"cat {recording} | {sys.executable} -m gputui --replay -; echo STATUS $?"
    terminal = Terminal("sh", "-c", program)
    terminal.until(lambda seen: b"inference" in seen and READS_KEYS in seen)
    terminal.type(b"q")
    terminal.until(lambda seen: b"STATUS" in seen)
    assert terminal.ended() == 0
    assert b"STATUS 0" in terminal.seen


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_screen_around_a_command_gives_its_status(
    tmp_path: Path, script: str, status: int
) -> None:
    terminal = Terminal(*PROGRAM, "--", "sh", "-c", script, XDG_DATA_HOME=str(tmp_path))
    terminal.until(lambda seen: b"FAILED" in seen and READS_KEYS in seen)
    terminal.type(b"q")
    assert terminal.ended() == status


def test_recording_says_at_once_what_another_tool_holds(tmp_path: Path) -> None:
    held = {"NVTX_INJECTION64_PATH": "/opt/other/libx.so"}
    words = ["--record", "-o", str(tmp_path / "x.gputui"), "--", sys.executable, "-c", "pass"]
    done = gputui(*words, env=os.environ | held)
    said = "not captured: no phases (kernels are captured): NVTX_INJECTION64_PATH is held by"
    assert done.returncode == 0
    assert done.stderr.startswith(f"gputui: {said} another tool (libx.so)\n")
    assert done.stderr.count("not captured") == 1
    assert said in inside("summary", str(tmp_path / "x.gputui"), "--full").stdout


def test_recording_a_program_that_loads_nothing_says_so(tmp_path: Path) -> None:
    done = gputui("--record", "-o", str(tmp_path / "x.gputui"), "--", "true")
    assert done.returncode == 0
    assert "not captured: no phases and no kernels: no process of the run loaded" in done.stderr


def test_medians_that_are_not_exact_are_marked_in_every_format(tmp_path: Path) -> None:
    path = str(tmp_path / "x.gputui")
    code = "import nvtx\nfor i in range(20_000):\n with nvtx.annotate('a'): list(range(i % 900))"
    done = gputui("--record", "-o", path, "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    note = "medians within 1 %"

    def table(form: str, name: str = "nvtx_sum") -> subprocess.CompletedProcess[str]:
        done = inside("summary", path, "--table", name, "--format", form)
        assert done.returncode == 0, done.stderr
        return done

    assert note in table("table").stdout
    assert note in table("md").stdout
    made = table("csv")
    assert made.stderr == f"gputui: nvtx_sum: {note}\n"
    (row,) = csv.DictReader(io.StringIO(made.stdout))  # nothing but nsys's columns and rows
    assert (row["Instances"], row["Range"]) == ("20000", ":a")
    assert json.loads(table("json").stdout)["note"] == note
    # A table without medians has nothing to mark.
    assert table("csv", "metrics").stderr == ""
    assert json.loads(table("json", "metrics").stdout)["note"] is None


def on_a_terminal(path: Path, code: str, go_on: Path | None = None) -> bytes:
    """What a terminal gets of a recording around a Python program, which waits for a word through
    the fifo `go_on` until its line of progress has changed."""
    words = ["--record", "-o", str(path), "-i", "0.1", "--", sys.executable, "-c", code]
    terminal = Terminal(*PROGRAM, *words)
    if go_on is not None:
        terminal.until(lambda seen: seen.count(b"\r\x1b[K") > 1)
        go_on.write_text("go on")
    assert terminal.ended() == 0
    return terminal.seen


@pytest.mark.parametrize(
    ("stream", "written", "between"),
    [
        ("stdout", "x", b"\r\n"),
        ("stderr", "x\n", b""),
        ("stdout", "x\n\33[0m", b""),
        ("stderr", "\33[1mx\33[0m", b"\r\n"),
    ],
)
def test_our_lines_begin_below_what_a_command_left_on_the_terminal(
    tmp_path: Path, stream: str, written: str, between: bytes
) -> None:
    seen = on_a_terminal(tmp_path / "x.gputui", f"import sys; sys.{stream}.write({written!r})")
    shown = re.sub(
        rb"\xe2\x97\x8f [^\r\n]*\r\x1b\[K", b"", seen
    )  # a line of progress comes and goes
    assert shown.startswith(written.replace("\n", "\r\n").encode() + between + b"gputui: ")
    assert b"\r\n\r\n" not in shown.partition(b" run 1 ")[0]


def test_a_line_of_progress_makes_way_for_what_a_command_writes(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = f"import sys; open({str(fifo)!r}).read(); sys.stdout.write('name? ')"
    seen = on_a_terminal(tmp_path / "x.gputui", code, fifo)
    before, _, after = seen.partition(b"name? ")
    assert before.endswith(b"\r\x1b[K")
    assert after.startswith(b"\r\ngputui: ")


def test_a_command_whose_output_is_piped_gets_it_through_byte_for_byte(tmp_path: Path) -> None:
    code = "import os; os.write(1, b'data\\xff'); os.write(2, b'half')"
    words = ["--record", "-o", str(tmp_path / "x.gputui"), "--", sys.executable, "-c", code]
    done = subprocess.run([*PROGRAM, *words], capture_output=True, check=False)
    assert done.stdout == b"data\xff"
    assert done.stderr.startswith(b"half\ngputui: ")
