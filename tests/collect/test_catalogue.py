"""The catalogue as gputui reads it, from the real `python -m workloads`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.collect.catalogue import (
    Catalogue,
    CatalogueError,
    Forecast,
    Forecaster,
    Parameter,
    load_catalogue,
    parse_parameters,
    parse_value,
    workload_text,
)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


def test_inference_is_there_with_its_parameters(catalogue: Catalogue) -> None:
    workload = catalogue.find("inference")
    assert workload.step_range == "step"
    names = [parameter.name for parameter in workload.parameters]
    assert {"size", "batch", "prompt", "tokens", "precision", "device", "seed"} <= set(names)
    text = workload_text(workload)
    assert "batch" in text
    assert max(map(len, text.splitlines())) <= 100, "a list of models is one line"


def test_typed_values_come_out_of_words(catalogue: Catalogue) -> None:
    workload = catalogue.find("inference")
    assert parse_parameters(workload, {"size": "tiny", "batch": "4"}) == {
        "size": "tiny",
        "batch": 4,
    }


def test_a_preset_stands_for_its_values_and_words_overrule_it(catalogue: Catalogue) -> None:
    workload = catalogue.find("inference")
    preset = workload.presets[0]
    assert preset.values
    words = {"seed": "7", "preset": preset.name}
    assert parse_parameters(workload, words) == {**preset.values, "seed": 7}
    with pytest.raises(CatalogueError, match="has no preset 'nope'"):
        parse_parameters(workload, {"preset": "nope"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"sise": "tiny"}, "did you mean size"),
        ({"size": "tinx"}, "expected one of gpt2-tiny"),
        ({"batch": "many"}, "batch=many: expected a whole number"),
        ({"batch": "0"}, "batch=0: expected a whole number from 1"),
        ({"batch": "1e3"}, "batch=1e3"),
        ({"device": "gpu\x1b[2J"}, "device=gpu"),
    ],
)
def test_a_wrong_parameter_is_one_line(
    catalogue: Catalogue, words: dict[str, str], message: str
) -> None:
    with pytest.raises(CatalogueError, match=message) as caught:
        parse_parameters(catalogue.find("inference"), words)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_an_unknown_workload_names_the_nearest(catalogue: Catalogue) -> None:
    with pytest.raises(CatalogueError, match="did you mean inference"):
        catalogue.find("inferense")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [("bool", "yes", True), ("bool", "0", False), ("float", "1e-3", 0.001), ("text", "a=b", "a=b")],
)
def test_kinds(kind: str, text: str, value: object) -> None:
    parameter = Parameter(name="x", kind=kind)  # type: ignore[arg-type]
    assert parse_value(parameter, text) == value


def test_not_a_number_is_outside_every_range() -> None:
    with pytest.raises(CatalogueError):
        parse_value(Parameter(name="x", kind="float", minimum=0), "nan")


def test_the_workloads_process_answers_what_runs_would_need(catalogue: Catalogue) -> None:
    forecaster = Forecaster()
    found = forecaster.ask("inference", {"tokens": 3000}, "NVIDIA H200")
    assert found.names == ("tokens", "prompt")
    assert found.wrong is not None
    assert found.wrong.endswith("is more than the context of 1024")
    for workload, values in (("inference", {"tokens": -1}), ("nope", {}), ("streams", {})):
        assert forecaster.ask(workload, values, None) == Forecast()
    found = forecaster.ask("inference", {"tokens": 300}, "NVIDIA H200")
    assert found.memory_bytes is not None
    assert found.seconds is not None
    assert forecaster.ask("inference", {"tokens": 300}, "NVIDIA Other").seconds is None
    known = [forecaster.ask(one.name, {}, "NVIDIA H200") for one in catalogue.workloads]
    assert sum(one.memory_bytes is not None for one in known) >= 6
    assert forecaster._process is not None
    loaded = Path(f"/proc/{forecaster._process.pid}/maps").read_text()
    assert "torch" not in loaded  # seconds to import: a form waits for the answer
    forecaster.close()
    with pytest.raises(CatalogueError, match="was closed"):
        forecaster.ask("inference", {}, None)
