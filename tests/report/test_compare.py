"""Runs side by side: matching, differences, the spread between steps, and the gate for CI."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.cli.dispatch import run as gputui
from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    DeviceDelta,
    GpuSample,
    HostSample,
    KernelDefined,
    KernelDelta,
    MachineSample,
    RangeDelta,
    RunMetrics,
    RunOutput,
)
from gputui.render import formats
from gputui.render.comparison import comparison_document
from gputui.report.alerts import ThresholdError
from gputui.report.change import changes
from gputui.report.comparable import Subject
from gputui.report.compare import Comparison, Condition, compare
from gputui.state import Session
from gputui.store.journal import Limits
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started, times

Make = Callable[..., list[AnyEvent]]


def events(
    decode: tuple[int, ...] = (100, 110, 120),
    busy: int = 300,
    kernel: str = "void gemm<128>(float)",
    phase: str = "decode",
    tokens_per_s: float = 50.0,
) -> list[AnyEvent]:
    return [
        header(),
        run_started(),
        attached(),
        defined(1, "step"),
        defined(2, phase, parent=1),
        KernelDefined(time_ns=at(2), kernel=1, name=kernel, mangled=kernel),
        KernelDefined(time_ns=at(2), kernel=2, name="relu", mangled="relu"),
        CaptureDelta(
            time_ns=at(3),
            process=1,
            ranges=(
                RangeDelta(range=1, cpu=times(500)),
                RangeDelta(range=2, cpu=times(*decode), gpu_busy_ns=busy),
            ),
            kernels=(
                KernelDelta(process=1, range=2, kernel=1, device=0, time=times(90, 100)),
                KernelDelta(process=1, range=2, kernel=2, device=0, time=times(10)),
            ),
            devices=(
                DeviceDelta(process=1, device=0, busy_ns=busy, operations=3,
                            first_start_ns=at(2), last_end_ns=at(3)),
            ),
        ),
        RunMetrics(time_ns=at(4), run=1, metrics={"tokens_per_s": tokens_per_s, "model": "x"}),
        run_ended(),
    ]  # fmt: skip


def subject(label: str, found: list[AnyEvent]) -> Subject:
    session = Session.from_events(found)
    assert session.run is not None
    return Subject(label, session, session.run)


def compared(*runs: list[AnyEvent]) -> Comparison:
    return compare([subject(f"run{i}", run) for i, run in enumerate(runs)])


def figure(comparison: Comparison, kind: str, name: str, which: str) -> tuple[float, ...]:
    item = next(item for item in comparison.of_kind(kind) if item.name == name)
    return tuple(value.amount for value in item.figures[which].values if value)


def test_phases_match_by_path_kernels_by_name_metrics_by_name() -> None:
    comparison = compared(events(), events(decode=(200, 220, 240), busy=600, tokens_per_s=25.0))
    assert figure(comparison, "phase", "step/decode", "cpu_avg_ns") == (110, 220)
    assert figure(comparison, "phase", "step/decode", "gpu_busy_ns") == (300, 600)
    assert figure(comparison, "phase", "step/decode", "gpu_busy_avg_ns") == (100, 200)
    assert figure(comparison, "kernel", "relu", "total_ns") == (10, 10)
    assert figure(comparison, "metric", "tokens_per_s", "value") == (50, 25)
    assert figure(comparison, "device", "gpu0", "gpu_busy_ns") == (300, 600)
    assert not comparison.missing
    assert not comparison.renamed


def test_a_difference_is_held_against_the_noise_of_the_means() -> None:
    def decode(comparison: Comparison) -> tuple[bool | None, float | None]:
        item = next(item for item in comparison.items if item.name == "step/decode")
        found = item.figures["cpu_avg_ns"].difference(1)
        assert found is not None
        return found.beyond_noise, found.noise

    # Three instances deviate by 10 (n − 1): Welch's error is 8.2, Student's t of 4 is 2.776.
    noise = pytest.approx(2.776 * (100 / 3 + 100 / 3) ** 0.5)
    assert decode(compared(events(), events(decode=(105, 115, 125)))) == (False, noise)
    assert decode(compared(events(), events(decode=(133, 143, 153)))) == (True, noise)
    assert decode(compared(events(), events(decode=(300,)))) == (None, None)
    # More instances make a mean surer.
    many = (100, 110, 120) * 100
    assert decode(compared(events(decode=many), events(decode=tuple(3 + x for x in many))))[0]


def test_what_was_renamed_is_matched_and_listed() -> None:
    comparison = compared(
        events(), events(kernel="void gemm<256>(float)", decode=(1, 2, 3), phase="generate")
    )
    assert [(item.was, item.name) for item in comparison.renamed] == [
        ("void gemm<128>(float)", "void gemm<256>(float)")
    ]
    assert {(item.name, item.present) for item in comparison.missing} == {
        ("step/decode", (True, False)),
        ("step/generate", (False, True)),
    }


def test_another_kernel_of_the_same_template_is_no_new_name() -> None:
    """PyTorch launches most of what it does by a few functions: what they are templates of
    differs."""
    names = [
        f"void at::native::vectorized_elementwise_kernel<{size}, at::native::{functor}>(int, {own})"
        for size, functor, own in (
            (4, "FillFunctor<float>", "std::array<char*, 1ul>"),
            (8, "bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}", "char*"),
            (8, "FillFunctor<double>", "std::array<char*, 1ul>"),
        )
    ]
    before, other, wider = (events(kernel=name) for name in names)
    assert not compared(before, other).renamed
    assert [item.name for item in compared(before, wider).renamed] == [names[2]]


def test_each_figure_of_a_device_is_shown_once_with_its_noise() -> None:
    """While the GPU was in use, after a wait that is longer; noise is of that time."""

    def run(watts: float) -> list[AnyEvent]:
        found = events()
        used = DeviceDelta(process=1, device=0, busy_ns=1, operations=1,
                           first_start_ns=at(20), last_end_ns=at(29))  # fmt: skip
        found[-2:] = [
            CaptureDelta(time_ns=at(29), process=1, devices=(used,)),
            *(
                MachineSample(time_ns=at(second), host=HostSample(), gpus=(GpuSample(
                    index=0, power_watts=70.0 if second <= 20 else watts + second % 2,
                    memory_bandwidth_percent=9.0, memory_bandwidth_bytes_per_s=9e10,
                ),))
                for second in range(5, 30)
            ),
            replace(run_ended(), time_ns=at(30)),
        ]  # fmt: skip
        found[0] = header(gpu())
        ends = next(number for number, one in enumerate(found) if isinstance(one, CaptureDelta))
        found[ends] = replace(found[ends], devices=())
        return found

    comparison = compared(run(133), run(228))
    text = formats.comparison(comparison, "table", 160)
    table = text[text.index("Devices") :].split("\n\n")[0].splitlines()[3:]
    rows = {line.split()[1]: line for line in table}
    assert {"in_use_power_watts", "in_use_memory_bandwidth_percent"} <= rows.keys()
    assert not any(name == "power_watts" or "bytes_per_s" in name for name in rows)
    assert rows["in_use_power_watts"].rstrip().endswith("yes")
    [gpu0] = (item for item in comparison.of_kind("device") if item.name == "gpu0")
    assert {"power_watts", "memory_bandwidth_bytes_per_s"} <= gpu0.figures.keys()


def nested(*paths: str) -> list[AnyEvent]:
    """A run with a range at each path, the outer ones first."""
    numbers = {path: number for number, path in enumerate(paths, 1)}
    ranges = [
        defined(number, path.rpartition("/")[2], parent=numbers.get(path.rpartition("/")[0], 0))
        for path, number in numbers.items()
    ]
    spent = tuple(RangeDelta(range=number, cpu=times(100)) for number in numbers.values())
    return [
        header(), run_started(), attached(), *ranges,
        CaptureDelta(time_ns=at(3), process=1, ranges=spent), run_ended(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "renamed"),
    [
        (
            ("run", "run/decode", "run/decode/step", "run/decode/step/mlp"),
            ("run", "run/generate", "run/generate/step", "run/generate/step/mlp"),
            {"run/decode": "run/generate"},
        ),
        (  # both outer ones
            ("a", "a/b", "a/b/mlp", "a/b/norm"),
            ("x", "x/y", "x/y/mlp", "x/y/norm"),
            {"a": "x", "a/b": "x/y"},
        ),
        (  # what was in one is in two
            ("a", "a/mlp", "a/norm"),
            ("x", "x/mlp", "y", "y/norm"),
            {},
        ),
        (  # what was in two is in one
            ("a", "a/mlp", "b", "b/norm"),
            ("x", "x/mlp", "x/norm"),
            {},
        ),
        (("a", "a/mlp"), ("a", "x", "x/mlp"), {}),
        (("a", "x", "x/mlp"), ("a", "a/mlp"), {}),
    ],
)
def test_a_phase_around_renamed_ones_was_renamed_too(
    before: tuple[str, ...], after: tuple[str, ...], renamed: dict[str, str]
) -> None:
    comparison = compared(nested(*before), nested(*after))
    found = {item.was: item.name for item in comparison.renamed}
    inner = {path for path in found if path and path.endswith(("step", "mlp", "norm"))}
    assert {was: new for was, new in found.items() if was not in inner} == renamed
    assert inner
    assert {item.name for item in comparison.missing} == {
        path for path in (*before, *after)
        if not (path in before and path in after)
        and path not in found and path not in found.values()
    }  # fmt: skip


def test_a_name_that_only_some_runs_changed_is_no_new_name() -> None:
    new = "void gemm<256>(float)"
    assert not compared(events(), events(kernel=new), events()).renamed
    assert not compared(events(), events(kernel=new), events(kernel="other")).renamed
    renamed = compared(events(), events(kernel=new), events(kernel=new)).renamed
    assert [item.name for item in renamed] == [new]


def test_three_runs_are_each_compared_with_the_first() -> None:
    comparison = compared(events(), events(busy=330), events(busy=150))
    item = next(item for item in comparison.items if item.name == "step/decode")
    changes = [item.figures["gpu_busy_ns"].difference(i) for i in (1, 2)]
    assert [round(change.percent or 0) for change in changes if change] == [10, -50]


def test_fewer_than_two_runs_is_an_error() -> None:
    with pytest.raises(ValueError, match="two runs"):
        compared(events())


def test_the_document_names_every_figure_and_is_valid_json() -> None:
    document = json.loads(
        msgspec.json.encode(comparison_document(compared(events(), events(busy=600))))
    )
    item = next(item for item in document["items"] if item["name"] == "step/decode")
    busy = item["figures"]["gpu_busy_ns"]
    assert busy["values"] == [300, 600]
    assert busy["differences"] == [
        {"absolute": 300, "percent": 100, "noise": None, "beyond_noise": None}
    ]
    assert "95 % interval" in document["noise_rule"]
    assert document["verdicts"] == []


# --- the gate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "trips"),
    [
        ("decode.gpu_busy_ns>+5%", True),
        ("step/decode.gpu_busy_ns > +5%", True),
        ("decode.gpu_busy_ns>+25%", False),
        ("decode.gpu_busy_ns>+59", True),
        ("decode.gpu_busy_ns>+60", False),
        ("decode.gpu_busy_ns<-5%", False),
        ("decode.gpu_busy_ns>350", True),
        ("tokens_per_s<-3%", True),
        ("tokens_per_s<-30%", False),
        ("tokens_per_s<45", True),
        ("relu.total_ns>+0%", False),
        ("gemm.avg_ns>1", True),
        ("gpu0.gpu_busy_ns>+10%", True),
        ("decode.gpu_busy_ns<360", False),
        ("decode.gpu_busy_ns<360.5", True),
        ("decode.gpu_busy_ns>360", False),
        ("tokens_per_s<-20%", False),
    ],
)
def test_conditions(condition: str, trips: bool) -> None:
    comparison = compared(events(), events(busy=360, tokens_per_s=40.0))
    assert bool(Condition.parse(condition).tripped(comparison)) is trips


def test_a_phase_that_is_gone_trips_its_condition() -> None:
    lines = Condition.parse("decode.gpu_busy_ns>+5%").tripped(
        compared(events(), events(phase="other"))
    )
    assert lines == ["run1: decode.gpu_busy_ns>+5%: step/decode has no gpu_busy_ns here"]


def test_a_phase_that_is_new_cannot_be_held_to_the_baseline_but_to_a_number() -> None:
    runs = compared(events(phase="other"), events())
    assert Condition.parse("decode.gpu_busy_ns>+5%").tripped(runs) == [
        "run1: decode.gpu_busy_ns>+5%: step/decode has no gpu_busy_ns in the baseline"
    ]
    assert Condition.parse("decode.gpu_busy_ns>+5").tripped(runs)
    assert Condition.parse("decode.gpu_busy_ns>299").tripped(runs)
    assert not Condition.parse("decode.gpu_busy_ns>300").tripped(runs)


def test_nothing_that_stays_nothing_has_not_grown() -> None:
    both = compared(events(busy=0), events(busy=0))
    assert not Condition.parse("decode.gpu_busy_ns>+0%").tripped(both)
    assert not Condition.parse("decode.gpu_busy_ns<-0%").tripped(both)


def test_a_name_of_several_things_is_said_with_them() -> None:
    """Kernels of one short name: the whole name tells them apart."""
    both = [
        *events(),
        KernelDefined(time_ns=at(2), kernel=3, name="void gemm<64>(float)", mangled="g"),
        CaptureDelta(
            time_ns=at(3),
            process=1,
            kernels=(KernelDelta(process=1, range=2, kernel=3, device=0, time=times(70)),),
        ),
    ]
    comparison = compared(both, both)
    names = r"'void gemm<128>\(float\)', 'void gemm<64>\(float\)'"
    with pytest.raises(ThresholdError, match=rf"'gemm' is several things; say which: {names}$"):
        Condition.parse("gemm.avg_ns>1").tripped(comparison)
    assert Condition.parse("void gemm<64>(float).avg_ns>69").tripped(comparison)


def test_growth_from_nothing_is_over_any_share() -> None:
    assert Condition.parse("decode.gpu_busy_ns>+5%").tripped(compared(events(busy=0), events()))


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("", "is not a condition"),
        ("decode.gpu_busy_ns", "is not a condition"),
        ("decode.gpu_busy_ns>", "is not a condition"),
        ("decode.gpu_busy_ns>5%", r"say \+5% or -5%"),
        ("decode.gpu_busy_ns>=+5%", "is not a condition"),
        (">+5%", "is not a condition"),
        ("x" * 5000 + ">1", "is not a condition"),
        ("speed>1", "no run reports a metric 'speed'"),
        ("prefill.gpu_busy_ns>1", "no run has a phase, kernel or device 'prefill'"),
        ("decode.colour>1", "has no 'colour'; it has cpu_avg_ns"),
    ],
)
def test_mistakes_are_one_line(condition: str, words: str) -> None:
    with pytest.raises(ThresholdError, match=words) as caught:
        Condition.parse(condition).tripped(compared(events(), events()))
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    with contextlib.suppress(ThresholdError):
        assert Condition.parse(text).what


# --- the command -------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, found in (("a", events()), ("b", events(busy=360))):
        writer = JournalWriter(tmp_path / f"{name}.gputui")
        writer.write(found)
        writer.close()
    return str(tmp_path / "a.gputui"), str(tmp_path / "b.gputui")


def rotated(folder: Path, name: str) -> list[Path]:
    writer = JournalWriter(folder / f"{name}.gputui", Limits(rotate_bytes=4_000))
    for event in [*events(), *(output(number) for number in range(100)), run_ended()]:
        writer.write([event])
    writer.close()
    files = folder.glob(f"{name}*")
    return sorted(files, key=lambda file: (len(file.name), file.name))


def output(number: int) -> RunOutput:
    return RunOutput(time_ns=at(4), run=1, stream="stdout", lines=(f"line {number} " * 10,))


@pytest.mark.parametrize("format_name", ["table", "md", "csv", "json"])
def test_the_command_prints_every_format(
    files: tuple[str, str], format_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gputui(["compare", *files, "--full", "--format", format_name]) == 0
    shown = capsys.readouterr().out
    assert "step/decode" in shown
    if format_name == "json":
        assert json.loads(shown)["runs"][1]["label"] == files[1]


def test_the_gate_writes_large_figures_out() -> None:
    found = compare(
        [
            subject("a", events(busy=33_644_100)),
            subject("b", events(busy=595_821_000)),
        ]
    )
    [grown] = Condition.parse("decode.gpu_busy_ns>+5%").tripped(found)
    assert grown.endswith("33,644,100 → 595,821,000 (+1,670.95 %)")
    [shrunk] = Condition.parse("decode.gpu_busy_ns>500000000").tripped(found)
    assert shrunk.endswith("it is 595,821,000")


def test_the_gate_sets_the_exit_status(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gputui(["compare", *files, "--fail-if", "decode.gpu_busy_ns>+50%"]) == 0
    status = gputui(["compare", *files, "--fail-if", "decode.gpu_busy_ns>+5%"])
    assert status == 1
    assert "300 → 360 (+20 %)" in capsys.readouterr().err
    assert gputui(["compare", *files, "--fail-if", "nonsense"]) == 2
    assert "gputui: --fail-if 'nonsense' is not a condition" in capsys.readouterr().err
    assert gputui(["compare", files[0], "/nowhere.gputui"]) == 1


def test_runs_of_one_file_are_compared_by_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path)
    writer.write([header(), run_started(1), attached(1, 1), defined(1, "step")])
    writer.write([RunMetrics(time_ns=at(2), run=1, metrics={"speed": 1}), run_ended(1)])
    writer.write([run_started(2), RunMetrics(time_ns=at(3), run=2, metrics={"speed": 3})])
    writer.close()
    words = ["compare", str(path), str(path), "--format", "json"]
    assert gputui([*words, "--run", "1", "--run", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["label"] for run in document["runs"]] == [f"{path} #1", f"{path} #2"]
    speed = next(item for item in document["items"] if item["name"] == "speed")
    assert speed["figures"]["value"]["values"] == [1, 3]
    assert gputui([*words, "--run", "1"]) == 0
    assert gputui([*words, *("--run", "1") * 3]) == 2
    assert gputui([*words, "--run", "1", "--run", "7"]) == 1
    assert "has no run 7; it has 1 (inference, " in capsys.readouterr().err


def test_files_of_a_rotated_recording_are_compared_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces, others = ([str(piece) for piece in rotated(tmp_path, name)] for name in ("old", "new"))
    assert len(pieces) > 2
    assert gputui(["compare", *pieces, *others, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["label"] for run in document["runs"]] == [pieces[0], others[0]]
    assert gputui(["compare", *pieces]) == 2
    assert "are files of one recording: name another" in capsys.readouterr().err
    assert gputui(["compare", *pieces, others[0], *("--run", "1") * 3]) == 2
    assert "one a recording: 2" in capsys.readouterr().err


def test_recordings_that_only_have_such_names_are_compared_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / name) for name in ("x.gputui", "x.2.gputui")]
    for second, path in enumerate(paths):
        writer = JournalWriter(Path(path))
        first = msgspec.structs.replace(header(), time_ns=at(second))
        writer.write([first, *events()[1:], run_ended()])
        writer.close()
    assert gputui(["compare", *paths, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["label"] for run in document["runs"]] == paths


def test_the_help_tells_conditions_that_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gputui(["compare", "--help"])
    told = re.findall(r"^  '(.+?)'", capsys.readouterr().out, re.MULTILINE)
    assert len(told) == 7
    assert [Condition.parse(text).text for text in told] == told


def test_bytes_of_a_metric_are_read_as_bytes() -> None:
    one, two = (
        [*events()[:-1], RunMetrics(time_ns=at(4), run=1, metrics={"peak_bytes": count})]
        for count in (1 << 20, 3 << 20)
    )
    text = formats.comparison(compared(one, two), "table")
    [line] = [line for line in text.splitlines() if line.startswith("peak_bytes")]
    assert line.split()[2:6] == ["1.00", "MiB", "3.00", "MiB"]


def test_runs_without_a_gpu_are_compared_by_the_ranges_of_their_steps() -> None:
    """The verdict is of the main step; nothing is known of causes."""

    def on_cpu(*steps: int) -> list[AnyEvent]:
        delta = CaptureDelta(
            time_ns=at(3), process=1, ranges=(RangeDelta(range=1, cpu=times(*steps)),)
        )
        return [header(), run_started(), attached(), defined(1, "step"), delta, run_ended()]

    [found] = changes(compared(on_cpu(400, 402, 398), on_cpu(100, 101, 99)))
    assert found.word == "4.0× FASTER"
    assert found.sentence.startswith(
        "A step takes 100 ns in run 2, 400 ns in the baseline: −300 ns"
    )
    assert found.because == ""
    # Of one that ran kernels whose causes were not measured, ranges are no step of the GPU.
    assert not changes(compared(events(), events()))


def test_time_outside_every_phase_is_compared_of_a_run_without_gpu_work() -> None:
    """What had changed, the loading, was in no phase: 80 % of the run stood in no row."""
    second = 1_000_000_000

    def on_cpu(phase_ns: int) -> list[AnyEvent]:
        return [
            header(), run_started(), attached(), defined(1, "forward"),
            defined(2, "layer", parent=1),
            CaptureDelta(time_ns=at(3), process=1, ranges=(
                RangeDelta(range=1, cpu=times(phase_ns)), RangeDelta(range=2, cpu=times(phase_ns)),
            )),
            run_ended(),
        ]  # fmt: skip

    comparison = compared(on_cpu(second), on_cpu(2 * second))
    before, after = figure(comparison, "phase", "(outside every phase)", "cpu_total_ns")
    assert (before, after) == (before, before - second)
    run = comparison.subjects[0].run
    assert run is not None
    assert before == run.duration_ns - second > 0
    on_gpu = compared(events(), events())
    assert not [item for item in on_gpu.of_kind("phase") if "outside" in item.name]
