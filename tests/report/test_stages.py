"""Stages of engines: their trees add up to the GPU's time, each with a verdict, and rules just
below and just above their thresholds."""

from __future__ import annotations

import json

import pytest

from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    Distribution,
    LatencyDelta,
    RangeDefined,
    RangeDelta,
    RangeLeaf,
    ServerSample,
)
from gputui.model.leaves import Leaf
from gputui.playback.opening import load
from gputui.report.explain import Analysis, Finding, findings
from gputui.report.explain.serving import StageTime, stages
from gputui.report.phase_tree import phase_tree
from gputui.report.tables.serving import STAGES
from gputui.state import Run, Session
from tests.report.test_verdict import a_run

MS = 1_000_000


def times(count: int, each_ns: int) -> Distribution:
    """So many instances of one length."""
    return Distribution(
        count=count,
        total=count * each_ns,
        squares=0.0,
        minimum=each_ns,
        maximum=each_ns,
        values=(each_ns, count),
    )


def an_engine(
    *rows: tuple[str, int, int, dict[Leaf, int]], inside: dict[str, str] | None = None
) -> tuple[Session, Run]:
    """Ranges by name: how many, how long each is on the host in ms, and the GPU's ms by leaf.
    `inside` says which lies in which."""
    numbers = {name: number for number, (name, *_) in enumerate(rows, 1)}
    around = inside or {}
    events: list[AnyEvent] = [
        RangeDefined(
            time_ns=1,
            range=number,
            process=1,
            thread=1,
            parent=numbers.get(around.get(name, ""), 0),
            domain="",
            name=name,
            style="PushPop",
        )
        for name, number in numbers.items()
    ]
    delta = CaptureDelta(
        time_ns=10**9,
        process=1,
        ranges=tuple(
            RangeDelta(range=numbers[name], cpu=times(count, each * MS))
            for name, count, each, _ in rows
        ),
        range_leaves=(
            *tuple(
                RangeLeaf(0, numbers[name], leaf, ns * MS)
                for name, _, _, leaves in rows
                for leaf, ns in leaves.items()
            ),
            RangeLeaf(0, 0, Leaf.WAIT, 7 * MS),
        ),
    )
    return a_run(*events, delta)


def found(*engine: object, **more: object) -> dict[str, Finding]:
    session, run = an_engine(*engine, **more)  # type: ignore[arg-type]
    return {each.cause: each for each in findings(Analysis(session, run))}


DECODE = ("execute_context_0(0)_generation_64(64)", 100, 10, {Leaf.MATMUL: 380, Leaf.LAUNCH: 620})
DECODE_FEW = ("execute_context_0(0)_generation_2(2)", 100, 10, {Leaf.MATMUL: 1000})
PREFILL = ("execute_context_2(4096)_generation_0(0)", 5, 100, {Leaf.MATMUL: 470, Leaf.LAUNCH: 30})
MIXED = ("execute_context_1(100)_generation_3(3)", 4, 20, {Leaf.MATMUL: 80})
SAMPLE = ("gpu_model_runner: sample", 105, 1, {Leaf.LAUNCH: 50})


def test_each_stage_has_a_tree_and_all_add_up():
    """Every nanosecond of the GPU in one of them, and a verdict for each."""
    session, run = an_engine(DECODE, PREFILL, MIXED, SAMPLE, inside={SAMPLE[0]: DECODE[0]})
    by_stage: dict[object, StageTime] = {
        time.stage: time for time in stages(Analysis(session, run))
    }

    assert [*by_stage] == ["prefill", "decode", "mixed", "sampling", None]
    assert sum(time.wall_ns for time in by_stage.values()) == sum(
        part.ns for part in run.timing.range_leaves.values()
    )
    assert by_stage["decode"].verdict == "launch-bound: 62 % idle"
    assert by_stage["prefill"].verdict == "healthy: 94 % busy"
    decode = by_stage["decode"]
    assert (decode.steps, decode.requests, decode.tokens) == (100, 6400, 6400)
    # The sampling inside a decode step is not its own time on the host.
    assert (decode.host_ns, by_stage["sampling"].host_ns) == (895 * MS, 105 * MS)
    assert by_stage[None].wall_ns == 7 * MS


def test_the_table_says_what_the_trees_say():
    """And names its engine."""
    session, run = an_engine(DECODE, PREFILL)
    table = STAGES.table(session, run)

    [prefill, decode, rest] = table.records()
    assert (prefill["stage"], prefill["requests_mean"], prefill["tokens_mean"]) == (
        "prefill", 2, 4096,
    )  # fmt: skip
    assert decode["idle_percent"] == pytest.approx(62)
    assert decode["engine"] == "vLLM"
    assert decode["leaves_ns"]["idle.launch"] == 620 * MS
    assert rest["stage"] == "in none"


def test_a_program_without_an_engines_names_has_no_stages():
    """And a table that says so."""
    session, run = an_engine(("forward", 3, 10, {Leaf.MATMUL: 30}))

    assert stages(Analysis(session, run)) == []
    assert "no ranges that name" in STAGES.table(session, run).note


def test_one_stage_that_idles_beside_one_that_does_not():
    """Both are named; where both idle, the verdict on the whole run says it."""
    one = found(DECODE, PREFILL)["stage.decode"]

    assert one.sentence == ("Decode is launch-bound: 62 % idle; prefill is healthy: 94 % busy.")
    assert not any(cause.startswith("stage.") for cause in found(DECODE_FEW, PREFILL))
    assert not any(cause.startswith("stage.") for cause in found(DECODE))


@pytest.mark.parametrize(("each", "speaks"), [(39, False), (41, True)])
def test_long_prompts(each, speaks):
    """From four decode steps on, where they take a tenth of the time."""
    prefill = ("step[EXTEND bs=1 toks=9000]", 20, each, {Leaf.MATMUL: 20 * each})
    decode = ("step[DECODE bs=8]", 100, 10, {Leaf.MATMUL: 1000})

    assert ("long_prompts" in found(prefill, decode)) == speaks
    rare = ("step[EXTEND bs=1 toks=9000]", 1, 100, {Leaf.MATMUL: 100})
    assert "long_prompts" not in found(rare, decode)


@pytest.mark.parametrize(("tokens", "speaks"), [(255, False), (256, True)])
def test_short_prompts_are_no_long_ones(tokens, speaks):
    """However long their steps take, as on a CPU: by the names' figures, and by what the engine
    says that it read."""
    decode = ("step[DECODE bs=8]", 100, 10, {Leaf.MATMUL: 1000})
    named = (f"step[EXTEND bs=1 toks={tokens}]", 20, 60, {Leaf.MATMUL: 1200})
    assert ("long_prompts" in found(named, decode)) == speaks

    session, run = an_engine(("step[EXTEND bs=1]", 20, 60, {Leaf.MATMUL: 1200}), decode)
    reading = ServerSample(time_ns=9, url="u", engine="vLLM", input_tokens=20 * tokens)
    session.apply([reading])
    causes = {each.cause for each in findings(Analysis(session, run))}
    assert ("long_prompts" in causes) == speaks
    on_cpu = found(("step[EXTEND bs=1]", 20, 60, {}), ("step[DECODE bs=8]", 100, 10, {}))
    assert "long_prompts" not in on_cpu


@pytest.mark.parametrize(("low_s", "leads"), [(0.019, None), (0.021, True)])
def test_long_prompts_lead_where_requests_feel_them(low_s, leads):
    """By the gaps between tokens that the engine tells: their mean is 10 ms here."""
    prefill = ("step[EXTEND bs=1 toks=9000]", 20, 60, {Leaf.MATMUL: 1200})
    decode = ("step[DECODE bs=8]", 100, 10, {Leaf.MATMUL: 1000})
    gaps = LatencyDelta(sum_s=2.0, count=200, buckets=((0.0, low_s, 190), (low_s, 2 * low_s, 10)))
    session, run = an_engine(prefill, decode)
    session.apply([ServerSample(time_ns=9, url="u", engine="vLLM", interval_s=1.0, itl=gaps)])
    result = {each.cause: each for each in findings(Analysis(session, run))}.get("long_prompts")

    assert (result.leads if result is not None else None) == leads
    assert not found(prefill, decode)["long_prompts"].leads


@pytest.mark.parametrize(("idle", "speaks"), [(9, False), (12, True)])
def test_a_slow_tokenizer(idle, speaks):
    """From a tenth of the stages' time in which the GPU waits for it; it explains the host's idle
    time."""
    decode = ("step[DECODE bs=8]", 100, 1, {Leaf.MATMUL: 100 - idle})
    text = ("detokenize", 100, 1, {Leaf.HOST: idle})

    result = found(decode, text).get("slow_tokenizer")
    assert (result is not None) == speaks
    if result is not None:
        assert result.leads
        assert "idle.host" in result.explains


def test_a_tokenizer_alone_is_no_engine():
    """Where no stage of the engine is known, nothing is said of its share."""
    assert "slow_tokenizer" not in found(("detokenize", 100, 1, {Leaf.HOST: 90}))


@pytest.mark.parametrize(
    ("names", "known"),
    [
        ({"prefill"}, True),
        ({"decode", "mixed"}, True),  # each prompt comes while others are decoded
        ({"decode", "detokenize"}, True),
        ({"decode"}, False),
        ({"decode", "resize"}, False),
    ],
)
def test_plain_words_are_an_engines_beside_others_of_it(names, known):
    session, run = an_engine(*((name, 10, 1, {Leaf.MATMUL: 10}) for name in sorted(names)))
    in_stages = {time.stage for time in stages(Analysis(session, run))}
    assert bool(in_stages & {"prefill", "decode", "mixed"}) == known


def test_stages_of_a_trace_of_torch_profiler(tmp_path):
    """As SGLang's profiler names its steps: many batches are two phases, and the decode of one is
    launch-bound beside a healthy prefill."""
    events, clock, correlation = [], 0.0, 0
    for number in range(60):
        is_prefill = number % 10 == 0
        name = f"step[EXTEND bs=2 toks={4096 + number}]" if is_prefill else (
            f"step[DECODE bs={30 + number % 3}]"
        )  # fmt: skip
        begin, kernel_end = clock, clock + 5
        for _ in range(20):
            correlation += 1
            args = {"correlation": correlation}
            events.append(("cuda_runtime", "cudaLaunchKernel", clock, 4, 1, 1, args))
            start = max(kernel_end, clock + 6)
            kernel_end = start + (200 if is_prefill else 3)
            of_gpu = {**args, "stream": 7, "device": 0, "context": 1}
            events.append(("kernel", "gemm_kernel", start, kernel_end - start, 0, 7, of_gpu))
            clock += 10
        clock = kernel_end if is_prefill else clock
        events.append(("user_annotation", name, begin, clock - begin + 1, 1, 1, {}))
        clock += 20
    keys = ("cat", "name", "ts", "dur", "pid", "tid", "args")
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({
        "schemaVersion": 1, "deviceProperties": [],
        "traceEvents": [{"ph": "X", **dict(zip(keys, each, strict=True))} for each in events],
    }))  # fmt: skip
    loaded = load(str(path))
    assert loaded.run is not None
    rows = {row["stage"]: row for row in STAGES.table(loaded.session, loaded.run).records()}

    assert (rows["prefill"]["steps"], rows["decode"]["steps"]) == (6, 54)
    assert rows["decode"]["requests_mean"] == pytest.approx(31, abs=0.1)
    assert rows["decode"]["tokens_mean"] is None
    assert rows["prefill"]["verdict"] == "healthy: 100 % busy"
    assert rows["decode"]["verdict"] == "launch-bound: 70 % idle"
    names = {phase.name for phase in phase_tree(loaded.run).phases}
    assert names == {"step[EXTEND]", "step[DECODE]"}
