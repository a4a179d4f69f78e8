"""CUDA graphs: what they replay counts in the phase that captured it, whatever was cloned."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.attribute import graph_nodes
from gputui.render.chrome import write_chrome
from gputui.report.phases import in_main_step, phase_rows
from gputui.report.tables.bounds import phase_causes
from gputui.report.tables.nsys import TABLES
from gputui.state.remarks import remarks
from gputui.store.trace import TraceReader, TraceWriter
from tests.attribute.capture_program import Program, Traced

GRAPH, EXEC = 3, 4


def node(graph: int, number: int) -> int:
    return graph << 32 | number


def layers(program: Program, clock: int, make) -> list[np.void]:
    """What a model does: two layers of two kernels; `make` gives what there is of each."""
    records = []
    for layer in range(2):
        records.append(program.push(clock, f"layer.{layer}"))
        for part in ("attn", "mlp"):
            clock += 10
            records.append(program.push(clock, part))
            clock += 10
            records += make(clock, part)
            clock += 10
            records.append(program.pop(clock))
        clock += 10
        records.append(program.pop(clock))
    return records


TIMES = {"attn": 300, "mlp": 700}


def eager_step(program: Program, clock: int) -> list[np.void]:
    numbers = iter(range(clock, clock + 100))

    def launch(at: int, part: str) -> list[np.void]:
        correlation = next(numbers)
        start = clock + 5000 * (correlation - clock)
        return [
            program.call(at, at + 5, correlation),
            program.kernel(start, start + TIMES[part], correlation),
        ]

    # Levels are numbered as records are made.
    return [
        program.push(clock, "step"),
        *layers(program, clock, launch),
        program.pop(clock + 1000),
    ]


def captured(program: Program, clock: int = 0) -> list[np.void]:
    """A graph of the same, instantiated, and a copy node in no layer."""
    numbers = iter(range(100))

    def add(at: int, _part: str) -> list[np.void]:
        return [program.node(at, node(GRAPH, next(numbers)))]

    return [
        program.push(clock, "capture"),
        program.graph(clock + 1, GRAPH),
        *layers(program, clock + 2, add),
        program.node(clock + 500, node(GRAPH, 4)),
        program.pop(clock + 501),
        *(program.clone(clock + 502, node(EXEC, n), node(GRAPH, n)) for n in range(5)),
    ]


def replayed_step(program: Program, clock: int) -> list[np.void]:
    records = [
        program.push(clock, "step"),
        program.call(clock + 1, clock + 9, clock, name="cudaGraphLaunch_v10000"),
        program.pop(clock + 20),
    ]
    for number in range(4):
        took = TIMES["mlp" if number % 2 else "attn"]
        start = clock + 5000 * number
        records.append(program.kernel(start, start + took, clock, node=node(EXEC, number)))
    end = clock + 30_000
    records.append(program.copy(end, end + 50, clock, node=node(EXEC, 4)))
    return records


def phases(traced: Traced) -> dict[str, tuple[int, int, int]]:
    return {
        row.path: (row.kernels, row.kernel_ns, row.gpu_busy_ns)
        for row in phase_rows(traced.run)
        if row.kernels
    }


def nsys_tables(traced: Traced) -> list[list[object]]:
    return [list(table.rows(traced.session, traced.run)) for table in TABLES]


def test_replays_have_the_phases_of_an_eager_run():
    eager = Traced(Program())
    for step in range(3):
        eager.feed(eager_step(eager.program, 100_000 * (step + 1)))
    eager.collect(ended=True)
    replayed = Traced(Program())
    replayed.feed(captured(replayed.program))
    for step in range(3):
        replayed.feed(replayed_step(replayed.program, 100_000 * (step + 1)))
        replayed.collect()
    replayed.collect(ended=True)
    expected = phases(eager)
    assert expected["step/layer.1/mlp"] == (3, 2100, 2100)
    found = phases(replayed)
    kernels, kernel_ns, busy_ns = found.pop("step")
    assert (kernels, kernel_ns, busy_ns - 3 * 50) == expected.pop("step")
    assert found == expected
    rows = {row.path: row for row in phase_rows(replayed.run)}
    assert rows["step/layer.1"].launched.replayed == 6
    assert rows["step/layer.1"].launches is None  # the graph was launched elsewhere
    # The CPU was only in the step.
    assert rows["step/layer.1"].share_percent is None
    assert [row.path for row in in_main_step(replayed.run, [*rows.values()])] == ["step"]
    causes = {one.row.path: one.busy_ns for one in phase_causes(replayed.session, replayed.run)}
    assert causes["step/layer.1/mlp"] == 2100
    assert rows["step"].memcpy_bytes == 3 * 64
    assert rows["capture"].kernels == 0
    assert not [remark for remark in remarks(replayed.run) if remark.about == "CUDA graphs"]


def test_tables_of_nsys_give_replays_to_the_launch_as_without_captures():
    tables = []
    for sees_capture in (False, True):
        traced = Traced(Program())
        # The same ranges, with and without the records of the graph between them.
        records = captured(traced.program)
        kinds = np.array([int(record["kind"]) for record in records])
        ranges = [record for record, kind in zip(records, kinds, strict=True) if kind < 16]
        traced.feed(records if sees_capture else ranges)
        traced.feed(replayed_step(traced.program, 100_000))
        traced.collect(ended=True)
        tables.append(nsys_tables(traced))
    assert str(tables[0]) == str(tables[1])


def test_the_chrome_export_says_where_each_replayed_operation_was_captured(tmp_path):
    trace = TraceWriter(tmp_path / "x.gputui-trace", 1 << 20)
    traced = Traced(Program(), trace=trace)
    traced.feed(captured(traced.program))
    traced.feed(replayed_step(traced.program, 100_000))
    traced.collect(ended=True)
    trace.close()
    out = tmp_path / "t.json"
    with out.open("w") as file:
        write_chrome(file, traced.session, traced.run, TraceReader(trace.path), 1)
    events = json.loads(out.read_text())["traceEvents"]
    on_gpu = [event for event in events if event.get("cat") in {"kernel", "gpu_memcpy"}]
    assert [event["args"].get("captured in") for event in on_gpu] == [
        *(f"step/layer.{layer}/{part}" for layer in range(2) for part in ("attn", "mlp")),
        None,
    ]


def test_nodes_whose_capture_was_not_seen_are_named_under_their_launch():
    traced = Traced(Program())
    traced.feed(replayed_step(traced.program, 100_000))
    traced.collect(ended=True)
    assert [row.path for row in phase_rows(traced.run)] == [
        "step", *(f"step/graph 4, node {number}" for number in range(5)),
    ]  # fmt: skip
    (remark,) = [r.line for r in remarks(traced.run) if r.about == "CUDA graphs"]
    assert remark.startswith("CUDA graphs: 4 kernels are of graphs built unseen")


def test_a_module_that_replays_its_own_graph_is_one_phase():
    traced = Traced(Program())
    program = traced.program
    records = [
        program.graph(1, GRAPH),
        program.push(2, "mlp"),
        program.push(3, "up"),
        program.node(4, node(GRAPH, 0)),
        program.pop(5),
        program.pop(6),
        program.clone(7, node(EXEC, 0), node(GRAPH, 0)),
        program.push(100, "model"),
        program.push(101, "mlp"),
        program.call(102, 103, 1, name="cudaGraphLaunch_v10000"),
        program.pop(104),
        program.pop(105),
        program.kernel(200, 300, 1, node=node(EXEC, 0)),
        # One captured in no range of its own, as of torch.compile, replays like any other.
        program.graph(400, 2 * GRAPH),
        program.node(401, node(2 * GRAPH, 0)),
        program.push(500, "compiled"),
        program.call(501, 502, 2, name="cudaGraphLaunch_v10000"),
        program.pop(503),
        program.kernel(600, 700, 2, node=node(2 * GRAPH, 0)),
    ]
    traced.finish(*records)
    assert [*phases(traced)] == ["model", "model/mlp", "model/mlp/up", "compiled"]
    assert {row.path: row.launched.replayed for row in phase_rows(traced.run)}["compiled"] == 1


def test_a_graph_launched_outside_every_range_has_its_phases_at_the_top():
    traced = Traced(Program())
    program = traced.program
    traced.feed(captured(program))
    traced.feed([program.call(5000, 5001, 9), program.kernel(6000, 6010, 9, node=node(EXEC, 3))])
    traced.collect(ended=True)
    assert phases(traced) == {"layer.1": (1, 10, 10), "layer.1/mlp": (1, 10, 10)}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(0, 4))
def test_clones_of_clones_stay_in_the_phase_of_the_first(seed: int, length: int, cuts: int) -> None:
    shuffle = random.Random(seed)
    traced = Traced(Program())
    program = traced.program
    records: list[np.void] = []
    names: dict[int, str | None] = {}
    clock = 0
    for graph in range(1, length + 1):
        clock += 10
        what = shuffle.choice(("capture", "clone", "clone", "stranger"))
        if what == "capture":
            records.append(program.graph(clock, graph))
            for number in range(shuffle.randrange(1, 4)):
                name = shuffle.choice("abc")
                records.append(program.push(clock + 1, name))
                records.append(program.node(clock + 2, node(graph, number)))
                records.append(program.pop(clock + 3))
                clock += 3
                names[node(graph, number)] = name
        elif what == "clone" and names:
            # As an instantiation may: the new node is made, in whatever is open, and cloned.
            original = shuffle.choice([*names])
            parts = [program.clone(clock, node(graph, 1), original)]
            if shuffle.randrange(2):
                parts.insert(shuffle.randrange(2), program.node(clock, node(graph, 1)))
            records += parts
            names[node(graph, 1)] = names[original]
        else:
            records.append(program.clone(clock, node(graph, 1), node(1000, 0)))
            names[node(graph, 1)] = None
        if not shuffle.randrange(4):
            records.append(program.gone(clock, graph))
    at = sorted(shuffle.randrange(len(records) + 1) for _ in range(cuts))
    for begin, end in zip([0, *at], [*at, len(records)], strict=True):
        traced.feed(records[begin:end])
    traced.feed([program.call(clock + 100, clock + 101, 7, name="cudaGraphLaunch_v10000")])
    start = clock + 200
    traced.feed([program.kernel(start, start + 1, 7, node=number) for number in names])
    traced.collect(ended=True)
    expected = Counter(
        name or f"graph {number >> 32}, node {number & 0xFFFF_FFFF}"
        for number, name in names.items()
    )
    nodes = [part for part in traced.run.ranges.values() if part.launched.kernels]
    assert {part.path: part.launched.kernels for part in nodes} == expected


def test_what_is_remembered_of_graphs_that_come_and_go_has_a_bound(monkeypatch):
    monkeypatch.setattr(graph_nodes, "MAX_NODES", 300)
    monkeypatch.setattr(graph_nodes, "_KEPT", 200)
    traced = Traced(Program())
    program = traced.program
    traced.feed(captured(program))
    for graph in range(10, 100):
        parts = [program.graph(graph * 1000, 2 * graph)]
        for number in range(20):
            parts.append(program.node(graph * 1000, node(2 * graph, number)))
            clone = node(2 * graph + 1, number)
            parts.append(program.clone(graph * 1000, clone, node(2 * graph, number)))
        parts.append(program.gone(graph * 1000, 2 * graph + 1))
        traced.feed(parts)
    assert len(traced.process.graph_nodes) <= 300
    # The one that lives is known still.
    traced.feed(replayed_step(program, 1_000_000))
    traced.collect(ended=True)
    assert phases(traced)["step/layer.1/mlp"] == (1, 700, 700)
