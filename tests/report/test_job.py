"""A job from a recording of each node: ranks side by side, missing and foreign ones named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gputui import read
from gputui.attribute.reader import job_in
from gputui.cli.declaration import UsageError
from gputui.cli.dispatch import run as main
from gputui.cli.live import expanded_name
from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    ClockCompared,
    CollectiveDelta,
    GpuSample,
    HostSample,
    JobFacts,
    KernelDefined,
    KernelDelta,
    MachineSample,
)
from gputui.playback.index import Index
from gputui.playback.opening import load, open_recording
from gputui.render import formats
from gputui.render.formats import Need
from gputui.store.journal.writer import JournalWriter
from gputui.store.trace import LEAST_LIMIT, TRACE, TraceKind, TraceWriter
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started, times
from tests.imports.kineto_for_tests import training
from tests.report.test_ranks import job_events, rank

RANKS = [rank() for _ in range(4)]
RANKS[3] = rank(wait=40_000_000)


def record(
    folder: Path,
    host: str,
    here: Sequence[int],
    job: str | None = "77",
    size: int | None = 4,
    ahead_ns: int | None = None,
) -> None:
    """A node with two GPUs, whose clock is ahead by so much, and the trace of one kernel a rank."""
    named = msgspec.structs.replace(
        header(*(msgspec.structs.replace(gpu(index), uuid=f"{host}-{index}") for index in (0, 1))),
        host=msgspec.structs.replace(header().host, hostname=host),
    )
    writer = JournalWriter(folder / f"{host}.gputui")
    facts = JobFacts(id=job, world_size=size)
    # Names are numbered by each recording.
    kernels = [KernelDefined(time_ns=0, kernel=1, name=f"only_{host}", mangled="")]
    kernels += [KernelDefined(time_ns=0, kernel=2, name="common", mangled="")]
    spans = [
        KernelDelta(process=1, range=1, kernel=number, device=0, time=times(10))
        for number in (1, 2)
    ]
    events: list[AnyEvent] = [named, *job_events(RANKS, here=here, facts=facts), *kernels]
    if ahead_ns is not None:
        clock = ClockCompared(time_ns=2, by="here", offset_ns=ahead_ns, error_ns=60_000)
        events.append(clock)
    if here:
        events += [
            defined(1, "step"),
            CaptureDelta(time_ns=2, process=1, kernels=tuple(spans)),
            MachineSample(
                time_ns=3,
                host=HostSample(memory_used_bytes=100),
                gpus=(GpuSample(index=1, memory_used_bytes=here[0] * 1000),),
            ),
        ]
    writer.write([*events, run_ended()])
    writer.close()
    trace = TraceWriter(folder / f"{host}.gputui-trace", LEAST_LIMIT)
    call = trace.name(f"cuda{host}")
    rows = np.zeros(2 * len(here), TRACE)
    for place, _ in enumerate(here):
        of = {"process": place + 1, "range": 1, "correlation": 7, "device": place}
        for offset, row in enumerate(
            (
                {"kind": TraceKind.CALL, "start": 5, "end": 6, "name": call, "thread": 9},
                {"kind": TraceKind.KERNEL, "start": 6, "end": 8, "name": 1, "stream": 7},
            )
        ):
            for column, value in {**of, **row}.items():
                rows[column][2 * place + offset] = value
    trace.append(rows)
    trace.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """A job of two nodes with two ranks each."""
    folder = tmp_path / "job"
    folder.mkdir()
    record(folder, "node-a", (0, 1), ahead_ns=1_000_000)
    record(folder, "node-b", (2, 3), ahead_ns=-500_000)
    return folder


def summed_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    assert main(["summary", str(folder), "--format", "json"]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_the_late_rank_of_another_node_is_named(
    nodes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, said = summed_up(nodes, capsys)
    assert said == ""
    assert document["run"]["job"] == {
        "id": "77",
        "world_size": 4,
        "ranks": [0, 1, 2, 3],
        "missing_ranks": [],
        "hosts": ["node-a", "node-b"],
        "clocks": [{"host": "node-b", "offset_ns": -1_500_000, "error_ns": 120_000}],
    }
    [late] = [one for one in document["findings"] if "LATE" in one["word"].upper()]
    assert late["word"].upper() == "RANK 3 IS LATE"
    assert late["evidence"][0].startswith("Rank 3 (node-b, GPU 3): its GPU waits for its CPU")
    assert [(row["rank"], row["host"], row["gpu"]) for row in document["ranks"]] == [
        (3, "node-b", 3),
        (0, "node-a", 0),
        (1, "node-a", 1),
        (2, "node-b", 2),
    ]
    # Names count as one where they are the same, ranges belong to their process.
    assert main(["summary", str(nodes), "--table", "cuda_gpu_kern_sum", "--format", "json"]) == 0
    kernels = {row["name"]: row["instances"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert kernels == {"common": 2, "only_node-a": 1, "only_node-b": 1}
    by_rank = "cuda_gpu_kern_sum:rank"
    assert main(["summary", str(nodes), "--table", by_rank, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["rank"], row["name"], row["instances"], row["time_percent"]) for row in rows] == [
        (0, "common", 1, 50.0),
        (2, "common", 1, 50.0),
        (0, "only_node-a", 1, 50.0),
        (2, "only_node-b", 1, 50.0),
    ]
    assert main(["summary", str(nodes), "--full"]) == 0
    printed = capsys.readouterr().out
    assert "job 77: 4 of 4 ranks on 2 hosts" in printed
    assert "clocks beside that of node-a: node-b \N{MINUS SIGN}1.50 ms ± 120 µs" in printed
    assert f"4 ranks added up: each is in --table {by_rank}" in printed


def test_missing_ranks_and_foreign_recordings_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, "node-a", (0, 1), size=5)
    record(tmp_path, "node-b", (3,), size=5)
    record(tmp_path, "node-c", (2,), job="78", size=5)
    record(tmp_path, "node-d", (1,), size=5)
    record(tmp_path, "node-e", ())
    document, said = summed_up(tmp_path, capsys)
    assert document["run"]["job"]["missing_ranks"] == [2, 4]
    assert said.splitlines() == [
        "gputui: node-c.gputui is left out: of another job: 78",
        "gputui: node-d.gputui is left out: has rank 1, as node-a.gputui has",
        "gputui: node-e.gputui is left out: no rank of a job in it",
    ]
    words = "job 77: 3 of 5 ranks on 2 hosts without ranks 2, 4"
    for more in ([], ["--full"]):
        assert main(["summary", str(tmp_path), *more]) == 0
        assert words in capsys.readouterr().out


def test_a_job_is_replayed_exported_compared_and_read_as_one_session(
    nodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Index(open_recording(str(nodes)))) as replayed:
        replayed.build()
        state, is_exact = replayed.state(len(replayed))
    assert is_exact
    assert state.run is not None
    here = [one.attached.rank for one in state.run.processes.values()]
    assert sorted(one for one in here if one is not None) == [0, 1, 2, 3]
    read_of = {index: one.sample for index, one in state.gpus.items()}
    assert {index: one and one.memory_used_bytes for index, one in read_of.items()} == {
        **{0: None, 1: 0},
        **{2: None, 3: 2000},
    }
    assert state.host == HostSample(memory_used_bytes=200)

    assert main(["export", str(nodes), "--format", "chrome", "-o", str(tmp_path / "t.json")]) == 0
    for number in range(4):
        trace = json.loads((tmp_path / f"t-rank{number}.json").read_text())
        known = trace["distributedInfo"]
        assert (known["rank"], known["world_size"]) == (number, 4)
        node = "node-a" if number < 2 else "node-b"
        names = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
        assert names >= {f"only_{node}", f"cuda{node}"}
    for known in formats.every():
        out = tmp_path / f"out-{known.key}"
        if known.needs is not Need.SNAPSHOT and known.key != "chrome":
            assert main(["export", str(nodes), "--format", known.key, "-o", str(out)]) == 0
            assert out.exists()
    capsys.readouterr()

    assert main(["compare", str(nodes), str(nodes), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"]
    [run] = read(nodes).runs
    assert run.ranks == (0, 1, 2, 3)
    record(nodes, "node-c", (0, 1), job="78")
    assert [one.ranks for one in read(nodes).runs] == [(0, 1), (2, 3), (0, 1)]


def test_reports_of_a_file_for_each_rank_have_the_rank_of_their_name(tmp_path: Path) -> None:
    for number in (2, 3):
        training().write(tmp_path / f"report.{number}.json")
    session = load(str(tmp_path)).session
    assert session.run is not None
    assert [one.attached.rank for one in session.run.processes.values()] == [2, 3]


def test_a_folder_without_ranks_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(tmp_path)]) == 1
    assert f"{tmp_path}: no recording in it is of a rank" in capsys.readouterr().err


def test_a_file_for_each_host_rank_and_job() -> None:
    environment = {"SLURM_JOB_ID": "12/../3", "RANK": "5"}
    assert expanded_name("runs/{job}/{rank}.gputui", environment) == "runs/12-..-3/5.gputui"
    assert expanded_name("{other}.gputui", {}) == "{other}.gputui"
    assert "{host}" not in expanded_name("{host}", {})
    with pytest.raises(UsageError, match=r"is not known: none of SLURM_JOB_ID"):
        expanded_name("{job}.gputui", {})


def test_the_job_is_read_from_the_environment() -> None:
    elastic = {"TORCHELASTIC_RUN_ID": "abc", "SLURM_JOB_ID": "7", "WORLD_SIZE": "16"}
    assert job_in({**elastic, "GROUP_RANK": "1"}) == JobFacts(id="abc", world_size=16, node_rank=1)
    static = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    assert job_in(static) == JobFacts(id="a:29500")
    assert job_in({"WORLD_SIZE": "x"}) is None


@pytest.mark.parametrize(("seen_until", "word"), [(16.0, "HANGS"), (6.0, "IS OUT OF SIGHT")])
def test_a_rank_whose_recording_goes_on_hangs_and_one_whose_recording_ended_may_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seen_until: float, word: str
) -> None:
    """Neither recording has an end: they are still written, or were cut off."""
    for number, (host, entered, until) in enumerate([("a", 21, 17.0), ("b", 20, seen_until)]):
        named = msgspec.structs.replace(header().host, hostname=host)
        sums = CollectiveDelta(
            communicator="world", kind="all_reduce", size_class=5, entered=entered, left=20,
            entered_ns=at(5), ranks=2,
        )  # fmt: skip
        writer = JournalWriter(tmp_path / f"{host}.gputui")
        facts = JobFacts(id="77", world_size=2)
        process = msgspec.structs.replace(attached(rank=number), job=facts)
        writer.write(
            [
                msgspec.structs.replace(header(), host=named),
                run_started(),
                process,
                CaptureDelta(time_ns=at(5), process=1, collectives=(sums,)),
                MachineSample(time_ns=at(until), host=HostSample(), gpus=()),
            ]
        )
        writer.close()
    document, _ = summed_up(tmp_path, capsys)
    assert [one["word"].upper() for one in document["findings"]] == [f"RANK 1 {word}"]
