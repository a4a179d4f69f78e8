"""Values typed on the command line: a value within bounds or one line, whatever was typed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.base.sanitize import sanitize
from gputui.cli.declaration import UsageError, capture_range, seconds, share, size_bytes
from gputui.cli.live import capture_options
from gputui.collect.catalogue import CatalogueError, Parameter, parse_value
from gputui.inject import FIRST_EXCESS_NS, CaptureOptions, CaptureRange, TraceSampling
from gputui.render.prometheus_server import AddressError, parse_address
from gputui.report.alerts import ThresholdError
from gputui.report.compare import Condition

TYPED = st.one_of(
    st.text(max_size=30),
    st.text("0123456789.msh/%:kMGTiB<>+-ab ", max_size=14),
    st.integers(4290, 4400).map(lambda digits: "9" * digits),
)
NUMBERS = st.decimals(0, 10**7, places=3, allow_nan=False)


def refusal(call: Callable[[], object]) -> str | None:
    """The one line that says what is wrong, None where nothing is."""
    try:
        call()
    except (UsageError, CatalogueError, ThresholdError, AddressError) as error:
        return str(error)
    return None


@given(TYPED)
def test_any_text_is_a_time_or_one_line(text: str) -> None:
    wrong = refusal(lambda: seconds(text, "--duration"))
    if wrong is None:
        assert 0 < seconds(text, "--duration") < 1e9
    else:
        assert wrong.startswith("--duration ")


@given(NUMBERS, st.sampled_from([("ms", 1e-3), ("s", 1.0), ("", 1.0), ("m", 60.0), ("h", 3600.0)]))
def test_times_have_units(number, unit) -> None:
    name, factor = unit
    if 0 < number < 10**9 / 3600:
        assert seconds(f"{number}{name}", "--start") == pytest.approx(float(number) * factor)


def test_a_moment_may_be_the_beginning_and_a_length_may_not_be_none() -> None:
    assert seconds("0", "--start", may_be_none=True) == 0
    assert refusal(lambda: seconds("0", "--duration")) is not None


@given(TYPED)
def test_any_text_is_a_size_or_one_line(text: str) -> None:
    wrong = refusal(lambda: size_bytes(text, "--max-size"))
    if wrong is None:
        assert 1 <= size_bytes(text, "--max-size") < 2**60
    else:
        assert wrong.startswith("--max-size ")


@pytest.mark.parametrize("suffix", ["", "B", "b", "i", "iB", "ib"])
@pytest.mark.parametrize(
    ("unit", "power"),
    [("k", 1), ("K", 1), ("m", 2), ("M", 2), ("g", 3), ("G", 3), ("t", 4), ("T", 4)],
)
def test_sizes_have_units(unit: str, power: int, suffix: str) -> None:
    assert size_bytes(f"3{unit}{suffix}", "--rotate") == 3 * 1024**power
    assert size_bytes(f"1.5 {unit}{suffix}", "--rotate") == 1536 * 1024 ** (power - 1)
    assert size_bytes("700", "--rotate") == 700


@pytest.mark.parametrize("text", ["0", "0.5", "1048576T", "-1", "1e3", "k", "1 k k", "1\u212a"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="give a size"):
        size_bytes(text, "--rotate")


def captured(**given: object) -> CaptureOptions:
    typed = {
        "no_kernels": False, "graph_trace": "node", "annotate": None, "no_lines": False,
        "line_rate": 10,
        "no_step_marks": False, "trace_steps": None, "max_cost": None, "capture_range": None,
        "library_calls": False, "counters": False,
    }  # fmt: skip
    return capture_options(argparse.Namespace(**typed | given), None)


def trace_sampling(text: str) -> TraceSampling | None:
    return captured(trace_steps=text).trace_sampling


@pytest.mark.parametrize(
    ("text", "expected", "told"),
    [
        ("nvtx:measure_loop", CaptureRange("measure_loop"), "range measure_loop"),
        ("NVTX:a: b", CaptureRange("a: b"), "range a: b"),
        ("profiler", CaptureRange(), "profiler"),
        ("steps:10:train_step", CaptureRange("train_step", 10), "first 10 train_step"),
    ],
)
def test_a_part_of_the_program_that_is_captured(
    text: str, expected: CaptureRange, told: str
) -> None:
    part = captured(capture_range=capture_range(text, "--capture-range")).capture_range
    assert part == expected
    assert part.encode() == told


@pytest.mark.parametrize(
    "text", ["", "nvtx:", "steps:0", "steps:-1:step", "steps:x", "measure_loop"]
)
def test_a_part_that_cannot_be_captured(text: str) -> None:
    with pytest.raises(UsageError, match="give nvtx:RANGE, profiler"):
        capture_range(text, "--capture-range")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"no_kernels": True}, "leave out --no-kernels"),
        ({"trace_steps": "10%"}, "leave out --trace-steps"),
        ({"max_cost": 2.0}, "leave out --max-cost"),
    ],
)
def test_a_part_is_captured_whole(given: dict[str, object], fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        captured(capture_range=CaptureRange("step"), **given)
    with pytest.raises(UsageError, match="name the range of a step"):
        captured(capture_range=CaptureRange(None, 3))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1/10:step", TraceSampling(1, 10, "step")),
        ("3/4:a:b c", TraceSampling(3, 4, "a:b c")),
        ("10%", TraceSampling(500_000_000, 5_000_000_000)),
        ("0.5%", TraceSampling(25_000_000, 5_000_000_000)),
        ("1s/10s", TraceSampling(1_000_000_000, 10_000_000_000)),
        ("100ms/1m", TraceSampling(100_000_000, 60_000_000_000)),
    ],
)
def test_a_share_of_the_steps_or_of_the_time(text: str, expected: TraceSampling) -> None:
    assert trace_sampling(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1/10", "name the range of a step, as in 1/10:train_step"),
        ("1/10:", "name the range of a step, as in 1/10:train_step"),
        ("0/10", "that traces nothing: give"),
        ("0/10:s", "that traces nothing: give"),
        ("10/10", "that is everything"),
        ("10/10:s", "that is everything"),
        ("11/10", "that is more than everything"),
        ("11/10:s", "that is more than everything"),
        ("1/0", "nothing is a share of 0"),
        ("0/0:s", "nothing is a share of 0"),
        ("1/1000000000:s", "below a billion"),
        ("0%", "that traces nothing"),
        ("0.00000001%", "that traces nothing"),
        ("100%", "that is everything"),
        ("150%", "that is more than everything"),
        (f"{'9' * 400}%", "that is more than everything"),
        ("10s/1s", "that is more than everything"),
        ("0s/1s", "that traces nothing"),
        ("1s/0s", "nothing is a share of 0"),
        ("0.0000001ms/1s", "that traces nothing"),
        ("half", "give 1/10, 1/10:RANGE, 10% or 1s/10s"),
        ("x/y", "'x' is neither a number of steps nor a time: give 1/10"),
        ("1/y", "'y' is neither a number of steps nor a time: give 1/10"),
        ("-1/10", "'-1' is neither a number of steps nor a time"),
        ("1/2/3", "'2/3' is neither a number of steps nor a time"),
        ("/", "'' is neither a number of steps nor a time"),
        ("1s/soon", "'soon' is neither a number of steps nor a time"),
        ("1.5/10", "steps are whole, and times have a unit: give 1/10"),
        ("1s/10", "steps are whole, and times have a unit: give 1/10"),
        ("1s/10s:step", "a share of the time takes no range: give 1s/10s"),
    ],
)
def test_what_is_no_share(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=rf"--trace-steps .*{re.escape(why)}"):
        trace_sampling(text)


def test_a_share_of_no_kernels_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--trace-steps .*--no-kernels"):
        captured(no_kernels=True, trace_steps="1/10:step")


def cost_options(text: str | None, steps: str | None = None) -> CaptureOptions:
    return captured(trace_steps=steps, max_cost=None if text is None else share(text, "--max-cost"))


@pytest.mark.parametrize(("text", "percent"), [("2%", 2.0), ("0.5%", 0.5), ("99.5%", 99.5)])
def test_a_budget_sets_how_often_windows_may_come(text: str, percent: float) -> None:
    sampling = cost_options(text).trace_sampling
    assert sampling is not None
    assert sampling.max_cost_percent == percent
    assert sampling.encode() == f"budget {sampling.on} {sampling.period}"
    assert 2 * sampling.on <= sampling.period
    assert sampling.period * percent / 100 >= 0.999 * FIRST_EXCESS_NS or percent > 10


def test_a_budget_without_limit_traces_all_and_attaching_has_one_unless_told() -> None:
    assert cost_options("none").trace_sampling is None
    assert [cost_options(text).says_when for text in ("none", "2%", None)] == [True, True, False]


@pytest.mark.parametrize("text", ["2", "0%", "0.01%", "101%", "-1%", "%", "all", "2 %"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max-cost .*: give a share like 2%"):
        share(text, "--max-cost")


def test_a_budget_and_steps_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="--trace-steps 1/10:s: --max-cost 2% itself decides"):
        cost_options("2%", "1/10:s")
    assert cost_options("none", "1/10:s").trace_sampling == TraceSampling(1, 10, "s")


def test_whole_graphs_cannot_be_traced_in_windows() -> None:
    with pytest.raises(UsageError, match=r"--max-cost 2%: --graph-trace graph"):
        captured(graph_trace="graph", max_cost=2.0)


@given(TYPED)
def test_any_share_traces_some_and_not_all_or_is_one_line(text: str) -> None:
    wrong = refusal(lambda: trace_sampling(text))
    if wrong is None:
        found = trace_sampling(text)
        assert found is None or 0 < found.on < found.period
    else:
        assert wrong.startswith("--trace-steps ")


@given(TYPED)
def test_any_address_can_be_listened_on_or_is_one_line(text: str) -> None:
    try:
        host, port = parse_address(text)
    except AddressError:
        return
    assert host
    assert 0 < port < 65536


@given(
    st.text("abc.é x", min_size=1, max_size=20).filter(lambda text: text.strip() == text),
    st.sampled_from("<>"),
    st.sampled_from(["", "+", "-"]),
    NUMBERS,
    st.booleans(),
)
def test_conditions_are_read_as_written(what, operator, sign, number, percent) -> None:
    text = f" {what}{operator}{sign}{number}{'%' if percent else ''} "
    condition = Condition.parse(text)
    assert (condition.what, condition.above) == (what, operator == ">")
    assert (condition.relative, condition.percent) == (bool(sign), percent)
    assert condition.limit == float(f"{sign}{number}")


COUNT = Parameter(name="n", kind="int", minimum=1, maximum=64, allowed="from 1 to 64")
RATE = Parameter(name="r", kind="float", minimum=0.0, maximum=1.0)
FREE = Parameter(name="f", kind="float")
SWITCH = Parameter(name="b", kind="bool")
CHOICE = Parameter(name="c", kind="choice", choices=("small", 8))
TEXT = Parameter(name="t", kind="text", pattern="[a-z]*")


@given(st.sampled_from([COUNT, RATE, FREE, SWITCH, CHOICE, TEXT]), TYPED)
def test_any_text_is_a_value_of_its_parameter_or_one_line(parameter: Parameter, text: str) -> None:
    wrong = refusal(lambda: parse_value(parameter, text))
    if wrong is not None:
        assert wrong.startswith(f"{parameter.name}=")
        assert sanitize(wrong, 300) == wrong
        return
    value = parse_value(parameter, text)
    if parameter.minimum is not None and parameter.maximum is not None:
        assert isinstance(value, int | float)
        assert parameter.minimum <= value <= parameter.maximum
    kinds = {"int": int, "float": float, "bool": bool, "choice": str, "text": str}
    assert type(value) is kinds[parameter.kind]


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        (COUNT, "1", 1), (COUNT, "64", 64), (RATE, "0", 0.0), (RATE, "1", 1.0),
        (SWITCH, "YES", True), (SWITCH, "off", False), (CHOICE, "8", "8"), (TEXT, "", ""),
    ],
)  # fmt: skip
def test_values_at_their_bounds(parameter: Parameter, text: str, value: object) -> None:
    assert parse_value(parameter, text) == value


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        (COUNT, "0"), (COUNT, "65"), (COUNT, "1.0"), (COUNT, ""), (RATE, "nan"), (RATE, "1.01"),
        (SWITCH, "2"), (CHOICE, "Small"), (TEXT, "A"),
    ],
)  # fmt: skip
def test_values_out_of_bounds(parameter: Parameter, text: str) -> None:
    with pytest.raises(CatalogueError, match=rf"^{parameter.name}={text}: expected "):
        parse_value(parameter, text)
