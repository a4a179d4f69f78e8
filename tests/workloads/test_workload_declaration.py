"""A declaration checks itself, reads what people type and refuses in one line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.declaration import Figure, Parameter, Preset, Value, Workload
from workloads.errors import DeclarationError, WrongUsage

BATCH = Parameter(name="batch", kind="int", default=1, minimum=1, maximum=64, help="sequences")
RATE = Parameter(name="rate", kind="float", default=0.5, minimum=0, help="a rate")
SIZE = Parameter(
    name="size", kind="choice", choices=("small", "large"), default="large", cpu_default="small",
    help="a size",
)  # fmt: skip
FUSED = Parameter(name="fused", kind="bool", default=False, help="a switch")
DEVICE = Parameter(
    name="device", kind="text", default="auto", pattern="auto|cpu", pattern_help="auto or cpu",
    help="a device",
)  # fmt: skip


def workload(**changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "name": "example",
        "summary": "an example",
        "description": "An example.",
        "parameters": (BATCH, RATE, SIZE, FUSED, DEVICE),
        "phases": ("step",),
        "results": (Figure(name="done", help="how far"),),
        "presets": (Preset(name="big", help="more", values={"batch": 64, "fused": True}),),
        "run": "nowhere:run",
    }
    return Workload(**fields | changes)


@pytest.mark.parametrize(
    ("parameter", "typed", "value"),
    [
        (BATCH, "7", 7),
        (BATCH, "+64", 64),
        (BATCH, 3, 3),
        (RATE, "1e3", 1000.0),
        (RATE, 2, 2.0),
        (SIZE, "small", "small"),
        (FUSED, "Yes", True),
        (FUSED, False, False),
        (DEVICE, "cpu", "cpu"),
    ],
)
def test_reads_what_fits(parameter: Parameter, typed: Value, value: Value) -> None:
    read = parameter.read(typed)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("parameter", "typed", "complaint"),
    [
        (BATCH, "0", "batch: '0' is not a whole number from 1 to 64"),
        (BATCH, "1.5", "batch: '1.5' is not a whole number from 1 to 64"),
        (BATCH, "٣", "batch: '٣' is not a whole number from 1 to 64"),
        (BATCH, True, "batch: True is not a whole number from 1 to 64"),
        (RATE, "nan", "rate: 'nan' is not a number of at least 0"),
        (SIZE, "smal", "size: 'smal' is not one of small, large (did you mean 'small'?)"),
        (FUSED, "maybe", "fused: 'maybe' is not true or false"),
        (DEVICE, "cpu\n", "device: 'cpu\\n' is not auto or cpu"),
        (DEVICE, 4, "device: 4 is not auto or cpu"),
    ],
)
def test_refuses_with_name_value_and_what_is_allowed(
    parameter: Parameter, typed: object, complaint: str
) -> None:
    with pytest.raises(WrongUsage) as refusal:
        parameter.read(typed)
    assert str(refusal.value) == complaint


@given(st.sampled_from([BATCH, RATE, SIZE, FUSED, DEVICE]), st.text())
def test_any_text_is_read_or_refused_in_one_printable_line(parameter: Parameter, text: str) -> None:
    try:
        answer = str(parameter.read(text))
    except WrongUsage as refusal:
        answer = str(refusal)
    assert answer.isprintable()
    assert len(answer) < 300


def test_unknown_names_are_met_with_the_nearest_one() -> None:
    with pytest.raises(WrongUsage, match=r"'bach' \(did you mean 'batch'\?\); there are batch, ra"):
        workload().read({"bach": "1"})
    with pytest.raises(WrongUsage, match=r"there is no preset 'bug' \(did you mean 'big'\?\)"):
        workload().read({}, preset="bug")


def test_given_values_stand_over_the_preset_and_defaults_fill_the_rest() -> None:
    values = workload().read({"batch": "2"}, preset="big")
    assert values == {"batch": 2, "fused": True}
    rest = {"rate": 0.5, "device": "auto"}
    assert workload().fill(values, on_cpu=False) == {**values, **rest, "size": "large"}
    assert workload().fill(values, on_cpu=True) == {**values, **rest, "size": "small"}


@pytest.mark.parametrize(
    "mistake",
    [
        {"name": "two words"},
        {"run": "os.system"},
        {"parameters": (BATCH, BATCH)},
        {"presets": (Preset(name="x", help="", values={"batch": 65}),)},
        {"presets": (Preset(name="x", help="", values={"nothing": 1}),)},
    ],
)
def test_a_workload_that_contradicts_itself_cannot_be_declared(mistake: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        workload(**mistake)


@pytest.mark.parametrize(
    "mistake",
    [
        {"name": "preset", "kind": "int", "default": 1},
        {"name": "x", "kind": "int", "default": "1"},
        {"name": "x", "kind": "bool", "default": 1},
        {"name": "x", "kind": "int", "default": 5, "maximum": 4},
        {"name": "x", "kind": "int", "default": 5, "cpu_default": -1, "minimum": 0},
        {"name": "x", "kind": "choice", "default": "a"},
        {"name": "x", "kind": "int", "default": 1, "choices": ("1",)},
    ],
)
def test_a_parameter_that_contradicts_itself_cannot_be_declared(mistake: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        Parameter(help="", **mistake)
