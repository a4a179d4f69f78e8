"""Alerts: raised once a condition has held for as long as it says, over once it has not for as
long; in the journal, in a summary, and as conditions of `--fail-if`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.base.standard_streams import WAYS, notification
from gputui.cli.dispatch import run as gputui
from gputui.model.events import (
    Alert,
    AnyEvent,
    CaptureDelta,
    GpuSample,
    GpuStatus,
    HostSample,
    LeafTime,
    MachineSample,
    Scope,
)
from gputui.model.hub import Hub
from gputui.model.leaves import Leaf
from gputui.playback.opening import load
from gputui.render.formats import summary
from gputui.report.alerts import Alerts, ThresholdError, alert_text, parse
from gputui.report.summary_document import summary_document
from gputui.state import Session, lasting_alerts
from gputui.store.journal import Limits
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import at, gpu, header, run_ended, run_started
from tests.schemas_for_tests import check

HOT = "gpu.temperature_celsius > 85 for 3s"

ON_ONE = HOT.replace("gpu", "gpu1")


def sample(second: float, *celsius: float | None) -> MachineSample:
    return MachineSample(
        time_ns=at(second),
        host=HostSample(cpu_percent=5.0),
        gpus=tuple(
            GpuSample(index=index, temperature_celsius=value) for index, value in enumerate(celsius)
        ),
    )


def accounted(second: float, launch_ns: int, busy_ns: int) -> CaptureDelta:
    parts = ((Leaf.LAUNCH, launch_ns), (Leaf.MATMUL, busy_ns))
    return CaptureDelta(
        time_ns=at(second),
        process=1,
        leaf_times=tuple(LeafTime(1, 0, Scope.STEADY, 1, leaf, ns) for leaf, ns in parts),
    )


def seen(condition: str, events: Sequence[AnyEvent]) -> list[Alert]:
    return Alerts([parse(condition, "--alert")]).see(events)


def test_it_is_raised_and_over_after_the_same_time() -> None:
    hot = [80, 90, 90, 80, 90, 91, 95, 92, 80, 90, 84, 83, 82, 81, 80]
    raised, over = seen(HOT, [sample(n, value) for n, value in enumerate(hot)])
    assert (raised.subject, raised.gpu, raised.raised) == ("gpu0", 0, True)
    assert (raised.since_ns, raised.time_ns, raised.value) == (at(4), at(7), 92)
    assert (over.since_ns, over.time_ns, over.worst, over.raised) == (at(10), at(13), 95, False)
    assert alert_text(raised) == f"ALERT {HOT.replace('gpu', 'gpu0')}: 92 °C"
    assert alert_text(over) == f"alert over: {HOT.replace('gpu', 'gpu0')}: 95 °C at worst"


def test_each_gpu_and_each_kind_of_figure_is_watched_by_itself() -> None:
    hot = [sample(n, None if n % 2 else 90, 50) for n in range(5)]
    assert [alert.subject for alert in seen(HOT, hot)] == ["gpu0"]
    assert not seen(HOT.replace("gpu", "gpu1", 1), hot)
    assert [one.what for one in seen("host.cpu_percent<10%", hot)] == ["cpu_percent"]
    xid = GpuStatus(time_ns=at(1), gpu=1, xid_count=2)
    assert [one.subject for one in seen("gpu.xid_count > 0", [xid])] == ["gpu1"]
    memory = MachineSample(
        time_ns=at(1), host=HostSample(), gpus=(GpuSample(index=0, memory_used_bytes=71 << 30),)
    )
    assert seen("gpu0.memory_used_bytes > 70GiB", [memory])
    assert not seen("gpu0.memory_used_bytes > 71GiB", [memory])


def test_a_leaf_is_watched_by_its_share_from_reading_to_reading() -> None:
    events: list[AnyEvent] = []
    for second in range(8):
        slow = 3 <= second < 6
        events += [accounted(second, 900 if slow else 0, 10**9), sample(second)]
        if slow:
            events[-2] = accounted(second, 9 * 10**8, 10**8)
    raised, over = seen("idle.launch > 40% for 1s", events)
    assert (raised.subject, raised.gpu, raised.value) == ("run", None, 90.0)
    assert (raised.since_ns, over.since_ns) == (at(3), at(6))
    assert seen("idle>80%", events)[0].value == 90.0
    # What is still raised is over with the run.
    ended = seen("busy>50%", [*events, run_ended()])
    assert [alert.raised for alert in ended] == [True, False, True, False]


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 5))
def test_it_turns_only_after_so_many_readings_alike(hot: list[bool], seconds: int) -> None:
    state, since = False, 0
    turns = []
    for n, one in enumerate(hot):
        since = since if n and one == hot[n - 1] else n
        if one != state and n - since >= seconds:
            state = one
            turns.append((n, one))
    events = [sample(n, 90 if one else 80) for n, one in enumerate(hot)]
    found = seen(f"gpu.temperature_celsius>85 for {seconds}s", events)
    assert [(alert.time_ns, alert.raised) for alert in found] == [(at(n), one) for n, one in turns]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("", "is not a condition"),
        ("gpu.temperature_celsius > 85 for ever", "is not a condition"),
        ("gpu.temperature > 85", "did you mean gpu.temperature_celsius"),
        ("gpu01.temperature_celsius > 85", "there is no figure and no cause"),
        ("gpu.name > 85", "there is no figure and no cause"),
        ("gpu.throttle_reasons > 0", "there is no figure and no cause"),
        ("idle.lunch > 40%", "did you mean idle.launch"),
        ("idle.rank > 40%", "known only at the end of a run"),
        ("gpu.power_watts > 5%", "power_watts is not a percentage"),
        ("idle.launch > +4%", "a change needs two runs"),
    ],
)
def test_mistakes_are_one_line_with_what_was_meant(condition: str, words: str) -> None:
    with pytest.raises(ThresholdError, match=words) as caught:
        parse(condition, "config.toml: alert")
    assert str(caught.value).startswith("config.toml: alert ")
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60), st.sampled_from(WAYS))
def test_any_text_is_a_condition_or_an_error_and_any_notification_one_sequence(
    text: str, way: str
) -> None:
    with contextlib.suppress(ThresholdError):
        parse(text, "--alert")
    sent = notification(way, text)
    ends = 1 if way == "bell" else 2
    assert (sent.count("\x07"), sent.count("\x1b")) == (ends, ends - 1)
    assert not {"\x07", "\x1b", "\x9c", "\n"} & set(sent.strip("\x07")[1:])


def recorded(path: Path, limits: Limits) -> None:
    """An alert on GPU 1 from 5 s on, over after 40 s, and one that lasts."""
    conditions = [parse(HOT, "--alert"), parse("host.cpu_percent > 1", "--alert")]
    writer = JournalWriter(path, limits)
    hub = Hub(lambda: None, writer, Alerts(conditions).see)
    hub.emit([header(gpu(0), gpu(1))])
    hub.emit([run_started()])
    for second in range(2, 60):
        one = sample(second, 50, 90 if 5 <= second < 45 else 50)
        limited = replace(one.gpus[1], power_limit_watts=600.0)
        hub.emit([replace(one, gpus=(one.gpus[0], limited))])
    ended = msgspec.structs.replace(run_ended(), time_ns=at(60))
    hub.emit([ended])
    writer.close()


@pytest.mark.parametrize("limits", [Limits(), Limits(rotate_bytes=2000)], ids=["one", "rotated"])
def test_a_recording_has_them_and_tells_of_them(tmp_path: Path, limits: Limits) -> None:
    path = tmp_path / "x.gputui"
    recorded(path, limits)
    assert (len(list(tmp_path.iterdir())) > 2) == limits.rotates
    loaded = load(str(path))
    session, run = loaded.session, loaded.run
    assert [span.raised.subject for span in lasting_alerts(session)] == ["host"]
    document = summary_document(session, run)
    check("summary", document)
    assert document["alerts"] == [
        {"condition": "host.cpu_percent > 1", "subject": "host", "since_ns": 10**9,
         "held_ns": None, "worst": 5.0},
        {"condition": HOT, "subject": "gpu1", "since_ns": 4 * 10**9, "held_ns": 40 * 10**9,
         "worst": 90.0},
    ]  # fmt: skip
    text = summary(session, run, "table", 100)
    assert "Alerts" in text
    assert f"{HOT}" in text
    alone = Session.from_events([header(gpu(0)), *seen(HOT, [sample(n, 90) for n in range(9)])])
    document = summary_document(alone, None)
    check("summary", document)
    assert [row["subject"] for row in document["alerts"]] == ["gpu0"]


@pytest.mark.parametrize(
    ("condition", "status", "line"),
    [
        (HOT, 1, f"ALERT {ON_ONE}: 90 °C"),
        ("gpu.temperature_celsius > 85 for 1m", 0, ""),
        ("gpu.temperature_celsius>60", 1, "gpu1: it is 77.5862"),
        ("gpu0.temperature_celsius>60", 0, ""),
        ("gpu.power_limit_watts<700", 1, "ALERT gpu1.power_limit_watts<700: 600 W"),
        ("gpu1.power_limit_watts>700", 0, ""),
        ("gpu.temperature_celsus > 85 for 3s", 2, "did you mean gpu.temperature_celsius"),
        ("gpu.temperature_celsius>+3", 2, "a change needs two runs"),
    ],
)
def test_fail_if_takes_what_an_alert_takes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], condition: str, status: int, line: str
) -> None:
    path = tmp_path / "x.gputui"
    recorded(path, Limits())
    assert gputui(["summary", str(path), "--fail-if", condition]) == status
    out, err = capfd.readouterr()
    assert line in err
    assert len(err.splitlines()) == (status > 0)
    if status < 2:
        assert "ALERT" in out
        assert f"{ON_ONE}: 90 °C at worst, for 40.0 s from 4.00 s" in " ".join(out.split())
    if status == 1 and "for" in condition:
        assert gputui(["compare", str(path), str(path), "--fail-if", condition]) == 2
        assert "needs gputui summary" in capfd.readouterr().err
