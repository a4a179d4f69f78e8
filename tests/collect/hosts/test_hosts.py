"""Links to far ends: a real one, and those that misbehave, each with its own reason."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.cli import dispatch, record
from gputui.cli.declaration import UsageError
from gputui.cli.hosts import NoHostError
from gputui.collect.hosts import (
    FailureKind,
    FarOptions,
    TargetError,
    command_target,
    distinct,
    ended_failure,
    ssh_target,
)
from gputui.collect.hosts.fleet import Fleet
from gputui.collect.hosts.link import ClockEstimate
from gputui.model.events import Alert, Header, HostSample, MachineSample
from gputui.report.alerts import Alerts, parse
from gputui.state.session import ClockOffset, HostNews, Hosts
from gputui.store.journal.reader import JournalReader
from tests.collect.fake_machine import FakeMachine
from tests.collect.hosts.ssh_server import PATIENCE_S

MISBEHAVING = Path(__file__).with_name("misbehaving.py")
PATIENT = FarOptions(hello_s=PATIENCE_S, silence_s=PATIENCE_S)


def misbehaving(*words: str) -> str:
    return shlex.join([sys.executable, "-SE", str(MISBEHAVING), *words])


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    """Connects to far ends that misbehave so."""
    made: list[Fleet] = []

    def start(*commands: str, options: FarOptions = PATIENT) -> Fleet:
        made.append(Fleet(distinct(map(command_target, commands)), options))
        made[-1].connect(PATIENCE_S)
        return made[-1]

    yield start
    assert all(one.close() for one in made)


def test_a_real_far_end_is_read_through_a_shell_that_makes_noise(
    machine: FakeMachine,
    library: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine.reset(2)
    machine.write()
    noisy = 'echo "Welcome!"; printf "box> "; exec "$@"'
    words = ["env", f"LD_LIBRARY_PATH={library}", f"FAKE_NVML={machine.path}"]
    via = shlex.join([*words, "sh", "-c", noisy, "box"])
    gone = shlex.join([sys.executable, "-c", "raise SystemExit(127)"])
    there = f"{sys.executable} -m gputui"
    typed = ["--once", "--json", "--via", via, "--via", gone, "--there", there]
    assert dispatch.run_mode(typed, None) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    box, other = document["hosts"]
    assert (box["name"], box["unavailable_reason"]) == ("box", None)
    assert [gpu["name"] for gpu in box["machine"]["gpus"]] == ["NVIDIA H200"] * 2
    assert abs(box["clock_offset_ns"]) <= box["clock_error_ns"]
    assert other["machine"] is None
    assert "gputui is not there" in other["unavailable_reason"]
    assert "gputui is not there" in err


def test_hosts_are_recorded_each_into_its_file_and_alerts_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if "ALERT" in line and sum("ALERT" in one for one in lines) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(record, "say", say)
    ways = [word for name in "ab" for word in ("--via", f"{misbehaving('answers')} {name}")]
    typed = ["--record", "--alert", "host.cpu_percent > 90", *ways]
    assert dispatch.run_mode([*typed, "-o", f"{tmp_path}/{{host}}.gputui"], None) == 0
    for name in "ab":
        path = tmp_path / f"{name}.gputui"
        events = list(JournalReader.open(path))
        assert [type(event) for event in events] == [Header, MachineSample, Alert]
        assert any(line.startswith(f"{name}: ALERT host.cpu_percent > 90") for line in lines)
        assert any(line.startswith(f"recorded {path}") for line in lines)
    with pytest.raises(UsageError, match="give each host a file"):
        dispatch.run_mode([*typed, "-o", "x.gputui"], None)
    with pytest.raises(NoHostError):
        dispatch.run_mode(
            ["--record", "--via", misbehaving("missing"), "-o", f"{tmp_path}/x"], None
        )
    assert not (tmp_path / "x").exists()


def test_a_recording_of_hosts_under_nohup_outlives_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hangup: list[object] = []

    def say(line: str) -> None:
        if "ALERT" in line:
            at_hangup.append(signal.getsignal(signal.SIGHUP))
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(record, "say", say)
    typed = ["--record", "--alert", "host.cpu_percent > 90", "--via", misbehaving("answers")]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert dispatch.run_mode([*typed, "-o", f"{tmp_path}/x.gputui"], None) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert at_hangup == [signal.SIG_IGN]


def test_every_way_to_misbehave_has_its_own_reason(fleet: Callable[..., Fleet]) -> None:
    expected = {
        "missing": (FailureKind.NOT_THERE, "gputui is not there"),
        "no-python": (FailureKind.NO_PYTHON, "Python is missing there"),
        "old": (FailureKind.WRONG_VERSION, "too old for --host"),
        "newer": (FailureKind.WRONG_VERSION, "schema 99"),
        "latin": (FailureKind.NO_JOURNAL, "64 KiB"),
        "noisy": (FailureKind.NO_JOURNAL, "64 KiB"),
        "other": (FailureKind.NO_JOURNAL, "not a recording"),
    }
    links = fleet(*map(misbehaving, expected), "/nowhere/kubectl exec x").links
    for (kind, words), link in zip(expected.values(), links.values(), strict=False):
        assert link.failure is not None, link.target
        assert link.failure.kind is kind, link.failure
        assert words in link.failure.line
    [mute] = fleet(misbehaving("mute"), options=FarOptions(hello_s=0.5)).links.values()
    assert mute.failure == (FailureKind.TIME_OUT, "no answer within 0.5 s")
    assert links["x"].failure is not None
    assert links["x"].failure.line == "there is no program /nowhere/kubectl on this machine"


def test_what_was_up_and_ends_is_named_and_tried_again(
    fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    commands = [misbehaving(kind) for kind in ("killed", "frozen", "complains")]
    commands.append(misbehaving("returns", str(tmp_path / "was"), "box"))
    running = fleet(*commands, options=FarOptions(hello_s=PATIENCE_S, silence_s=1.5))
    hosts = Hosts(running.names)
    reasons: dict[str, set[str]] = {name: set() for name in hosts}
    wanted = {
        "killed": "gputui there was killed (SIGKILL)",
        "frozen": "the link is lost: nothing came for 1.5 s",
        "complains": "gputui there ended: gputui: cannot go on",
        "box": "gputui there was killed (SIGKILL)",
    }
    of_box: list[str] = []
    notice = threading.Event()
    running.on_news(notice.set)
    while len(of_box) < 3 or not all(wanted[name] in reasons[name] for name in wanted):
        assert notice.wait(PATIENCE_S), reasons
        notice.clear()
        news = running.drain()
        hosts.apply(news)
        for one in news:
            if one.link is not None:
                reasons[one.host].add(one.link.reason)
                of_box += [one.link.state] if one.host == "box" else []
    assert of_box[:3] == ["up", "lost", "up"]
    was = hosts["box"].session
    assert was.samples >= 2
    assert was.header is not None
    assert was.header.host.hostname == "\N{REPLACEMENT CHARACTER}[31mred"


def test_after_a_process_there_its_host_is_read_again(fleet: Callable[..., Fleet]) -> None:
    running = fleet(*(f"{misbehaving(kind)} {kind}" for kind in ("refuses", "forgets")))
    hosts = Hosts(running.names)
    notice = threading.Event()
    running.on_news(notice.set)

    def until(is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert notice.wait(PATIENCE_S), [host.link for host in hosts.values()]
            notice.clear()
            hosts.apply(running.drain())

    until(lambda: all(host.session.samples for host in hosts.values()))
    for name in hosts:
        running.attach(name, 17, 1)
    refusing = hosts["refuses"]
    until(lambda: refusing.link[:2] == ("up", "there is no process 17"))
    until(lambda: hosts["forgets"].session.run is not None and hosts["forgets"].session.samples > 0)
    run = hosts["forgets"].session.run
    assert run is not None
    assert run.end_reason == "its recorder there is gone: how it ended is unknown"
    assert not running.links["forgets"].run_goes_on


@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        (
            "ssh: Could not resolve hostname box: Name or service not known",
            FailureKind.UNKNOWN_HOST,
        ),
        ("ssh: connect to host box port 22: Connection refused", FailureKind.REFUSED),
        ("ssh: connect to host box port 22: No route to host", FailureKind.UNREACHABLE),
        ("ssh: connect to host box port 22: Connection timed out", FailureKind.TIME_OUT),
        ("kex_exchange_identification: Connection closed by remote host", FailureKind.BUSY),
        ("ada@box: Permission denied (publickey,password).", FailureKind.NOT_LET_IN),
        (
            "No ED25519 host key is known for box\nHost key verification failed.",
            FailureKind.KEY_UNKNOWN,
        ),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            FailureKind.KEY_CHANGED,
        ),
    ],
)
def test_what_ssh_prints_says_what_failed(printed: str, kind: FailureKind) -> None:
    failure = ended_failure(ssh_target("ada@box"), 255, printed.encode(), was_up=False)
    assert failure.kind is kind
    assert "\n" not in failure.line
    if kind is FailureKind.KEY_CHANGED:
        assert "ssh-keygen -R ada@box" in failure.line


def test_a_link_that_was_up_is_lost() -> None:
    for printed in (b"", b"Connection to box closed by remote host.\r\n"):
        failure = ended_failure(ssh_target("box"), 255, printed, was_up=True)
        assert failure == (FailureKind.LOST, "the link is lost")
        assert failure.kind.retries


def test_commands_are_words_and_no_name_is_an_option() -> None:
    target = ssh_target("ada@box")
    argv = target.argv(["~/venv/bin/gputui", "stream", "--token", "a b;c"])
    assert argv[argv.index("--") + 1] == "ada@box"
    (command,) = argv[argv.index("--") + 2 :]
    assert shlex.split(command)[:3] == ["exec", "sh", "-c"]
    assert shlex.split(command)[3] == "~/venv/bin/gputui stream --token 'a b;c'; exit $?"
    for typed in ("", "-oProxyCommand=x", "a b", "a\nb"):
        with pytest.raises(TargetError, match="--host"):
            ssh_target(typed)
    for typed in ("", "kubectl 'exec"):
        with pytest.raises(TargetError, match="--via"):
            command_target(typed)
    names = [one.name for one in distinct(map(command_target, ["kubectl exec -i pod --"] * 2))]
    assert names == ["pod", "pod (2)"]


def test_the_quickest_round_trip_gives_the_offset() -> None:
    clock = ClockEstimate()
    assert clock.best is None
    clock.add(100, 5_000, 50)  # answered before it was asked: the clock was set
    assert clock.best is None
    clock.add(0, 10_500, 1_000)
    clock.add(2_000, 12_060, 2_100)
    clock.add(3_000, 14_000, 5_000)
    assert clock.best == ClockOffset(10_010, 50)
    for _ in range(8):
        clock.add(0, 10_500, 1_000)  # the quick one is too old by now
    assert clock.best == ClockOffset(10_000, 500)


def test_each_host_is_watched_by_itself() -> None:
    fleet = Fleet([], PATIENT)
    fleet.watch(lambda: Alerts([parse("host.cpu_percent > 50 for 1s", "--alert")]).see)
    for second, host in ((1, "a"), (1, "b"), (2, "a"), (2, "b")):
        busy = HostSample(cpu_percent=90.0 if host == "a" else 20.0)
        sample = MachineSample(time_ns=second * 10**9, host=busy)
        fleet._emit(HostNews(host, events=(sample,)))
    assert [len(one.events) for one in fleet.drain()] == [1, 1, 2, 1]
