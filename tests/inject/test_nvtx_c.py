"""NVTX calls of a compiled program, captured by the real library."""

from __future__ import annotations

import errno
import os
import subprocess

import numpy as np
import pytest

from gputui.model.events import PayloadType
from gputui.ring import (
    FLAG_COLORED,
    FLAG_COMMUNICATOR,
    FLAG_PAYLOAD,
    NAMED_BY_SYSTEM,
    REFUSED_DEFERRED,
    SAMPLE_EVERY,
    SAMPLE_NS_MAX,
    CudaState,
    RecordKind,
)
from gputui.ring.reader import RingFolder, StringDefinitions
from tests.inject.traced import environment, run


def test_core_and_default_domain_share_one_stack_and_domains_have_their_own(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "nesting"], tmp_path)
    assert outcome.words == ["-2", "0", "1", "0", "1", "0", "-2", "0", "-2", "0", "0"]
    assert outcome.trace.ranges() == [
        ("push", "outer", "", "0"),
        ("push", "inner", "", "1"),
        ("push", "inner", "library", "0"),
        ("pop", "", "1"),
        ("pop", "", "0"),
        ("pop", "library", "0"),
        ("push", "again", "", "0"),
        ("pop", "", "0"),
    ]
    times = outcome.trace.records["start"].astype(np.int64)
    assert (np.diff(times) >= 0).all()


def test_the_header_describes_the_process(nvtx_program, tmp_path):
    extra = {"RANK": "3", "LOCAL_RANK": "1", "SLURM_PROCID": "9"}
    outcome = run([nvtx_program, "nesting", "a b", ""], tmp_path, extra)
    facts = outcome.trace.facts
    assert facts.parent_pid == os.getpid()
    assert (facts.rank, facts.local_rank) == (3, 1)
    assert facts.command == f"{nvtx_program} nesting a b"
    assert facts.cuda_state == CudaState.OFF
    assert facts.cupti_version is None
    assert outcome.trace.exited
    assert outcome.trace.records[-1]["kind"] == RecordKind.EXIT


@pytest.mark.parametrize(
    ("extra", "ranks"),
    [
        ({}, (None, None)),
        ({"RANK": "x", "LOCAL_RANK": ""}, (None, None)),
        ({"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, (7, 2)),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "0"}, (5, 0)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "2", "WORLD_SIZE": "16"}, (None, None)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "WORLD_SIZE": "2"}, (1, None)),
    ],
)
def test_rank_is_that_of_the_launcher(nvtx_program, tmp_path, extra, ranks):
    facts = run([nvtx_program, "nesting"], tmp_path, extra).trace.facts
    assert (facts.rank, facts.local_rank) == ranks


def test_strings_of_every_kind(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "strings"], tmp_path)
    pushed = [row[1] for row in outcome.trace.ranges() if row[0] == "push"]
    wide = "wide é 日本 😀"
    assert pushed[:9] == [wide, wide, "registered ü", "", "", "", "", "", ""]
    # Cut at 4096 bytes without splitting the two bytes of "é".
    assert pushed[9] == "x" * 4095
    assert pushed[10] == "\ufffd[31mred\ufffd"
    assert outcome.words == ["1", "1"]


@pytest.mark.parametrize(
    ("annotate", "names"),
    [
        (
            "autograd",
            [
                *("aten::add", "aten::mul", "a, b", ", seq = 1", ""),
                *("aten::linear", "aten::addmm", "aten::tanh"),
                # 128 levels deep, what is not shown is no longer remembered.
                *["aten::view"] * 2,
                "aten::sum",
            ],
        ),
        (
            "modules",
            [
                *("aten::add, seq = 7, op_id = 12", "aten::mul, op_id = 13", "a, b", ", seq = 1"),
                *("", "aten::linear, seq = 2", "aten::t, op_id = 14", "aten::transpose"),
                *("aten::addmm", "profiler::_record_function_exit", "detach", "aten::tanh"),
                *["aten::view"] * 130,
                "aten::sum",
            ],
        ),
    ],
)
def test_operators_that_compute_are_named_without_their_numbers_where_we_annotate_them(
    nvtx_program, tmp_path, annotate, names
):
    trace = run([nvtx_program, "operators"], tmp_path, annotate=annotate).trace
    rows = trace.ranges()
    assert [row[1] for row in rows if row[0] == "push"] == names
    assert sum(row[0] == "pop" for row in rows) == len(names)
    levels = [int(row[-1]) for row in rows]  # a pop has the level of its push
    stack: list[int] = []
    for row, level in zip(rows, levels, strict=True):
        if row[0] == "push":
            assert level == len(stack)
            stack.append(level)
        else:
            assert level == stack.pop()


SIZES = ["[[4, 2], [8, 2], [8]]", "[[8], [4, 2], [2, 8], [], []]", "[[4, 8]]", ""]


@pytest.mark.parametrize("annotate", ["autograd", "shapes"])
def test_a_backward_pass_is_named_after_its_module_and_shapes_are_kept_on_request(
    nvtx_program, tmp_path, annotate
):
    trace = run([nvtx_program, "modules"], tmp_path, annotate=annotate).trace
    names = [row[1] for row in trace.ranges() if row[0] == "push"]
    sizes = iter([*SIZES, "[[4, 8], [8, 2]]", "[[4]]"])

    def operator(name: str) -> str:
        shape = next(sizes)
        return f"{name} {shape}".rstrip() if annotate == "shapes" else name

    assert names == [
        "layers.0",
        "layers.0.mlp",
        *map(operator, ("aten::linear", "aten::addmm", "aten::relu", "aten::mean")),
        "autograd::engine::evaluate_function: AddmmBackward0",
        "layers.0.mlp (backward)",
        *map(operator, ("aten::mm", "MeanBackward0")),  # the mean was outside of modules
        "layers.0 (backward)",
        "OldBackward0",  # a number nobody had, in the place of another
        "aten::relu",
        "OldBackward0",  # two threads had this one
    ]


def test_colours_payloads_and_categories(nvtx_program, tmp_path):
    trace = run([nvtx_program, "attributes"], tmp_path).trace
    records = trace.of(RecordKind.RANGE_PUSH, RecordKind.MARK)
    payloads = [
        (int(record["source_kind"]), int(record["end"]))
        for record in records
        if record["sub"] & FLAG_PAYLOAD
    ]
    as_double = np.array([0.5, 1.25]).view(np.uint64)
    assert payloads == [
        (PayloadType.UINT64, 1 << 63),
        (PayloadType.INT64, 2**64 - 5),
        (PayloadType.DOUBLE, as_double[0]),
        (PayloadType.UINT32, 7),
        (PayloadType.INT32, 2**64 - 7),
        (PayloadType.FLOAT, as_double[1]),
        (PayloadType.BYTES, 5),
    ]
    colored = (records["sub"] & FLAG_COLORED) != 0
    assert colored.tolist() == [True, True, True, True, True, False, False, False]
    assert set(records["c"][colored].tolist()) == {0x00FF7F}
    categories = [trace.name(record["b"]) for record in records]
    assert categories == ["loading", "wïde", "loading", "loading", "", "", "", ""]
    assert records["e"].tolist() == [5, 5, 5, 5, 6, 6, 6, 6]


def test_start_end_ranges_over_threads_and_thread_names(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "start-end"], tmp_path)
    trace = outcome.trace
    assert outcome.words == ["1"]
    assert trace.ranges() == [
        ("start", "one", ""),
        ("start", "in a domain", "library"),
        ("start", "three", ""),
        ("end",),
        ("end",),
        ("end",),
        ("mark", "done", ""),
    ]
    starts, ends = trace.of(RecordKind.RANGE_START), trace.of(RecordKind.RANGE_END)
    assert starts["value"].tolist() == ends["value"].tolist()
    assert len(set(starts["value"].tolist())) == 3
    assert starts["thread"][1] != ends["thread"][1]
    names = trace.of(RecordKind.THREAD_NAME)
    by_system = (names["sub"] == NAMED_BY_SYSTEM).tolist()
    assert [
        (int(row["thread"]), trace.name(row["name"]), system)
        for row, system in zip(names, by_system, strict=True)
    ] == [
        (trace.facts.pid, "nvtx_program", True),
        (int(ends["thread"][1]), "nvtx_program", True),
        (trace.facts.pid, "the main thread", False),
        (12345, "änother", False),
    ]


def test_more_domains_than_a_thread_can_hold_are_counted_and_do_no_harm(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "domains"], tmp_path)
    assert outcome.words == ["0"] * 32 + ["-2"] * 8 + ["-2"] * 8 + ["0"] * 32 + ["0", "0"]
    refused = outcome.trace.of(RecordKind.REFUSED)
    assert [outcome.trace.name(number) for number in refused["a"]] == [
        f"domain {number}" for number in range(32, 40)
    ]
    assert outcome.trace.health.dropped == 0


def test_ranges_of_the_payload_extension_are_called_what_their_data_says(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "schemas"], tmp_path)
    assert outcome.words == ["1", "1", "1", "0", "0", "1", "1", "0", "1", "1"]
    trace = outcome.trace
    assert trace.ranges() == [
        ("push", "pointed to", "library", "0"),
        ("push", "in here", "library", "1"),
        ("mark", "registered", "library"),
        ("pop", "library", "1"),
        ("pop", "library", "0"),
        ("start", "no message", "library"),
        ("end",),
        ("mark", "", "library"),
        ("mark", "by its pointer", "library"),
        ("mark", "", "library"),
        ("mark", "", ""),
    ]
    begun = trace.of(RecordKind.RANGE_PUSH, RecordKind.MARK, RecordKind.RANGE_START)
    has = (begun["sub"] & FLAG_PAYLOAD) != 0
    assert has.tolist() == [True] * 6 + [False, True]
    assert set(begun["source_kind"][has].tolist()) == {PayloadType.BYTES}
    assert begun["end"][has].tolist() == [24, 10, 16, 4, 3, 1, 24 + 10 + 16 + 4 + 3]


def test_what_nccl_says_of_collectives_is_found_by_the_names_of_its_fields(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "collectives"], tmp_path)
    assert outcome.words == ["1"]
    records = outcome.trace.of(RecordKind.RANGE_PUSH, RecordKind.RANGE_POP)
    communicator = 0xFEED5EED12345678
    both = FLAG_COMMUNICATOR | FLAG_PAYLOAD
    assert [
        (int(row["sub"]), int(row["value"]), int(row["end"]), int(row["correlation"]))
        for row in records
        if row["sub"]
    ] == [
        (both, communicator, 8, 4),
        (both, communicator, 1 << 20, 0),
        (both, communicator, 4096, 6),
        (FLAG_PAYLOAD, 0, 2048, 0),
        (FLAG_PAYLOAD, 0, 7, 0),
    ]
    assert records["kind"][0] == RecordKind.RANGE_PUSH
    assert not records["sub"][0]


def test_every_linkage_unit_gets_the_functions(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "two-units"], tmp_path)
    assert outcome.words == ["1"]
    assert outcome.trace.ranges() == [("push", "both", "", "0"), ("pop", "", "0")]


def test_threads_arrive_in_order(nvtx_program, tmp_path):
    count = 20_000
    extra = {"GPUTUI_RING_BYTES": str(64 << 20)}
    trace = run([nvtx_program, "threads", str(count)], tmp_path, extra).trace
    assert trace.health.dropped == 0
    ranges = trace.of(RecordKind.RANGE_PUSH, RecordKind.RANGE_POP)
    assert len(ranges) == 8 * 2 * count
    names = set()
    for thread in np.unique(ranges["thread"]):
        own = ranges[ranges["thread"] == thread]
        assert (own["kind"][0::2] == RecordKind.RANGE_PUSH).all()
        assert (own["kind"][1::2] == RecordKind.RANGE_POP).all()
        assert (own["end"][0::2] == np.arange(count)).all()
        assert (np.diff(own["start"].astype(np.int64)) >= 0).all()
        names |= {trace.name(name) for name in np.unique(own["name"][0::2])}
    assert names == {f"worker {at}" for at in range(8)}


def test_threads_that_end_leave_nothing_behind(nvtx_program, tmp_path):
    trace = run([nvtx_program, "short-threads", "500"], tmp_path).trace
    assert trace.ranges() == [("push", "short", "", "0"), ("pop", "", "0")] * 500


def test_a_million_ranges_with_a_reader_at_work(nvtx_program, tmp_path):
    count = 1_000_000
    outcome = run([nvtx_program, "many", str(count)], tmp_path)
    trace = outcome.trace
    ranges = trace.of(RecordKind.RANGE_PUSH, RecordKind.RANGE_POP)
    assert len(ranges) == 2 * count - trace.health.dropped
    pushes = trace.of(RecordKind.RANGE_PUSH)
    assert (np.diff(pushes["end"].astype(np.int64)) > 0).all()
    assert set(np.unique(pushes["name"]).tolist()) == {int(pushes["name"][0])}
    assert trace.health.callback_ns > 0


def test_waiting_for_a_core_is_not_taken_for_the_librarys_own_time(compile_program, tmp_path):
    halting = compile_program("nvtx_program.c", "nvtx_halting", "-DHALTING", "-rdynamic")
    pairs = 50 * SAMPLE_EVERY
    health = run([str(halting), "many", str(pairs)], tmp_path).trace.health
    assert health.callback_ns == 2 * pairs * SAMPLE_NS_MAX


def test_deferred_events_are_counted(nvtx_program, tmp_path):
    trace = run([nvtx_program, "deferred"], tmp_path).trace
    refused = trace.of(RecordKind.REFUSED)
    assert set(refused["sub"].tolist()) == {REFUSED_DEFERRED}
    assert {trace.name(record["a"]) for record in refused} == {"library"}
    assert refused["value"].tolist() == [3, 1, 1]


def test_a_ring_that_overflows_counts_what_it_drops(nvtx_program, tmp_path):
    extra = {"GPUTUI_RING_BYTES": str(64 * 1024)}
    trace = run([nvtx_program, "many", "5000"], tmp_path, extra, drain=False).trace
    ranges = trace.of(RecordKind.RANGE_PUSH, RecordKind.RANGE_POP)
    assert len(ranges) == 10_000 - trace.health.dropped
    assert trace.health.dropped > 0
    assert trace.health.written == 1024
    pushes = trace.of(RecordKind.RANGE_PUSH)
    assert (pushes["end"] == np.arange(len(pushes))).all()
    assert trace.exited


def test_names_that_found_the_ring_full_are_sent_at_their_next_use(nvtx_program, tmp_path):
    extra = {"GPUTUI_RING_BYTES": str(64 * 1024)}
    process = subprocess.Popen(
        [nvtx_program, "wait"],
        env=environment(tmp_path, extra),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    folder = RingFolder(tmp_path)
    (reader,), _ = folder.discover()
    assert reader.waiting > 0
    before, strings = StringDefinitions().split(reader.read(100))
    assert [strings[int(name)] for name in before["name"]] == ["nvtx_program", "waiting"]
    assert reader.waiting == 0
    assert not reader.gone
    process.communicate("\n")
    assert reader.gone
    reader.close()
    # With far more names than fit, every record that did arrive has its name in the end.
    outcome = run([nvtx_program, "names", "200000"], tmp_path, extra)
    pushes = outcome.trace.of(RecordKind.RANGE_PUSH)
    unknown = ~np.isin(pushes["name"], list(outcome.trace.strings))
    assert len(pushes) > 100
    assert outcome.trace.health.dropped > 0
    assert unknown.sum() <= outcome.trace.health.dropped


def test_a_forked_child_writes_nothing(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "forks"], tmp_path)
    assert outcome.words == ["-2", "0", "0"]
    assert outcome.trace.ranges() == [("push", "parent", "", "0"), ("pop", "", "0")]
    assert not any("never" in text or "nor" in text for text in outcome.trace.strings.values())
    assert outcome.trace.of(RecordKind.EXIT).size == 1
    assert outcome.trace.facts.unseen_forks == 1


def test_exec_in_the_same_process_makes_a_ring_of_its_own(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "exec"], tmp_path)
    first, second = outcome.traces
    assert first.facts.pid == second.facts.pid
    assert first.ranges() == [("push", "before exec", "", "0")]
    assert len(second.ranges()) == 8
    assert (first.exited, second.exited) == (False, True)


@pytest.mark.parametrize("part", ["_exit", "kill"])
def test_what_was_written_outlives_a_sudden_end(nvtx_program, tmp_path, part):
    outcome = run([nvtx_program, part], tmp_path)
    assert outcome.status == (3 if part == "_exit" else -9)
    assert outcome.trace.ranges() == [("push", "unfinished", "", "0")]
    assert not outcome.trace.exited


@pytest.mark.parametrize(
    ("folder", "reason"),
    [("/nowhere/at/all", "missing"), ("relative", "not absolute"), ("", "empty")],
)
def test_a_folder_that_cannot_be_used_means_no_tool(nvtx_program, tmp_path, folder, reason):
    outcome = run([nvtx_program, "nesting"], tmp_path, {"GPUTUI_CAPTURE_DIR": folder})
    assert outcome.output == "no tool\n", reason
    assert outcome.traces == []
    assert outcome.status == 0


def test_a_file_size_limit_costs_the_ring_not_the_program(nvtx_program, tmp_path):
    command = ["sh", "-c", f"ulimit -f 4096; exec {nvtx_program} nesting"]
    outcome = run(command, tmp_path)
    assert outcome.status == 0
    assert len(outcome.trace.ranges()) == 8  # 4 MiB and a header are too much, 1 MiB is not
    assert outcome.trace.health.dropped == 0
    tight = run(["sh", "-c", f"ulimit -f 8; exec {nvtx_program} nesting"], tmp_path)
    assert (tight.status, tight.output, tight.traces) == (0, "no tool\n", [])


def test_files_are_private(nvtx_program, tmp_path):
    process = subprocess.Popen(
        [nvtx_program, "wait"],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    (ring,) = tmp_path.iterdir()
    assert ring.stat().st_mode & 0o777 == 0o600
    assert ring.stat().st_size == 4096 + (16 << 20)
    with pytest.raises(OSError, match=os.strerror(errno.EEXIST)):
        os.open(ring, os.O_CREAT | os.O_EXCL)
    process.communicate("\n")
    assert process.returncode == 0
